"""What goes wrong in online training, recognized from its records: each failure with evidence, threshold and remedy."""

from offline_arl.online.diagnosis.findings import KINDS, Finding, Kind, Severity
from offline_arl.online.diagnosis.history import History, View
from offline_arl.online.diagnosis.rules import check, diagnose

__all__ = ["KINDS", "Finding", "History", "Kind", "Severity", "View", "check", "diagnose"]
