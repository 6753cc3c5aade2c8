"""Writing a report as a page."""

from __future__ import annotations

from pathlib import Path

from offline_arl.analysis.store_report import StoreReport
from offline_arl.analysis.store_report_page import render
from offline_arl.errors import UsageError
from offline_arl.workflows.files import write_text


def check_page_path(path: Path) -> None:
    """Tell before the work begins that a page cannot be written.

    Raises:
        UsageError: The path is a folder, or its folder is missing.
    """
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; name a file for the report, such as {path / 'report.html'}")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} is missing; make it first")


def write_page(report: StoreReport, path: Path) -> None:
    """Write the report as one HTML page that needs no other file; an earlier one is replaced.

    Raises:
        DataError: It cannot be written.
    """
    write_text(path, render(report))
