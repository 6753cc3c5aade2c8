"""A report about a whole store: what is in it, what is wrong with it, and what that means for training."""

from offline_arl.workflows.store_report.check import check_store

__all__ = ["check_store"]
