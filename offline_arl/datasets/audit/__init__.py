"""The audit of preference datasets: are the pairs worth training on?"""

from offline_arl.datasets.audit.audit import audit, fix
from offline_arl.datasets.audit.report import AuditConfig, AuditReport, Example, Fault, Finding

__all__ = ["AuditConfig", "AuditReport", "Example", "Fault", "Finding", "audit", "fix"]
