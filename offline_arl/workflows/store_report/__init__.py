"""A report about a whole store: what is in it, what is wrong with it, and what that means for training."""

from offline_arl.workflows.store_report.check import check_store
from offline_arl.workflows.store_report.files import check_page_path, write_page

__all__ = ["check_page_path", "check_store", "write_page"]
