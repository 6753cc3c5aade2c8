"""What an audit of a preference dataset found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Fault = Literal[
    "empty_side",  # no trained token
    "equal_sides",  # both sides do the same
    "cosmetic_difference",  # they differ in case, punctuation, white space or the order of arguments
    "near_equal_sides",  # they differ in little of much
    "tie",  # the evidence prefers neither
    "flipped",  # the evidence prefers the rejected side
    "contradiction",  # another row says the opposite
    "duplicate",  # another row says the same
    "leak",  # another split has the same prompt, task or trajectory
    "dominant_task",  # one task makes up much of the dataset
    "length_bias",  # the length of a side tells which one is chosen
    "imbalance",  # one label is much more frequent than the other
]
Severity = Literal["error", "warning"]

DROPPED: tuple[Fault, ...] = (
    "empty_side", "equal_sides", "cosmetic_difference", "near_equal_sides", "tie", "flipped", "contradiction",
    "duplicate", "leak",
)  # fmt: skip
SEVERITIES: Mapping[Fault, Severity] = {
    **dict.fromkeys(DROPPED, "error"),
    "near_equal_sides": "warning",
    "duplicate": "warning",
    "dominant_task": "warning",
    "length_bias": "warning",
    "imbalance": "warning",
}


class AuditConfig(BaseModel):
    """Where the audit draws its lines.

    `near_equal`: sides that share this part of their tokens are near-equal, from `near_equal_tokens` tokens on; a
    short call that differs in one word differs in all that matters. `task_share`: a task is dominant that makes up more
    than this part of the weight, and more than `task_factor` times the mean task. `length_share`: the chosen side may
    be the longer one in at most this part of the pairs (and in at least 1 minus it); `length_correlation`: and the
    correlation of length and preference at most this.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    near_equal: float = Field(0.9, gt=0, le=1)
    near_equal_tokens: int = Field(20, ge=1)
    task_share: float = Field(0.05, gt=0, le=1)
    task_factor: float = Field(5.0, gt=1)
    length_share: float = Field(0.6, gt=0.5, le=1)
    length_correlation: float = Field(0.2, ge=0, le=1)


@dataclass(frozen=True)
class Example:
    """A row that has a fault, for people: texts are cut."""

    row_id: str
    prompt: str
    chosen: str
    rejected: str
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """One fault and the rows that have it.

    Attributes:
        fault: What is wrong.
        text: One line for people.
        rows: Positions of the rows, ascending.
        row_ids: Their ids.
        examples: A few of them.
        details: Numbers, names of tasks.
    """

    fault: Fault
    text: str
    rows: Sequence[int]
    row_ids: Sequence[str]
    examples: Sequence[Example] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def severity(self) -> Severity:
        """An error makes training wrong, a warning makes it worse."""
        return SEVERITIES[self.fault]


@dataclass(frozen=True)
class AuditReport:
    """The findings, the worst first, and what was measured besides.

    `measures`: `chosen_longer` (share of pairs whose chosen side is the longer one, those of equal length left out),
    `length_correlation` (of a side's length with being chosen, or desirable), `length_margin_correlation` (Spearman, of
    the difference in length with the margin), `tasks`, `largest_task_share`; of labels `desirable`, `undesirable`.
    """

    kind: str
    rows: int
    findings: Sequence[Finding]
    measures: Mapping[str, float]

    def finding(self, fault: Fault) -> Finding | None:
        """The finding of a fault."""
        return next((finding for finding in self.findings if finding.fault == fault), None)

    @property
    def faulty_rows(self) -> set[int]:
        """Positions of the rows that `fix` would drop."""
        return {row for finding in self.findings if finding.fault in DROPPED for row in finding.rows}

    def as_dict(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {
            "kind": self.kind,
            "rows": self.rows,
            "faulty_rows": len(self.faulty_rows),
            "measures": dict(self.measures),
            "findings": [
                {
                    "fault": finding.fault,
                    "severity": finding.severity,
                    "text": finding.text,
                    "count": len(finding.rows),
                    "row_ids": list(finding.row_ids),
                    "details": dict(finding.details),
                    "examples": [vars(example) for example in finding.examples],
                }
                for finding in self.findings
            ],
        }
