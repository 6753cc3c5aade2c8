"""What a report about a trajectory store says: plain data, to be drawn as a page, as tables or as JSON.

Lists are bounded: a store of a million trajectories gives a report of the same size as one of a thousand.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from offline_arl.trajectories.validate import Severity

ProblemSeverity = Literal["error", "warning", "note"]
SharedKind = Literal["leak", "allowed"]


@dataclass(frozen=True)
class NamedCount:
    """A value and how often it occurs."""

    name: str
    count: int


@dataclass(frozen=True)
class TopList:
    """The most frequent values; `distinct` values there are in all, and `others` counts the rows of those not listed.

    `missing` counts the rows without a value.
    """

    rows: tuple[NamedCount, ...]
    distinct: int
    others: int
    missing: int


@dataclass(frozen=True)
class Rate:
    """A share with its 95 % Wilson interval; `estimate` is None where there are no observations."""

    estimate: float | None
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Holdings:
    """What is in the store. Times are in UTC; `untimed` trajectories have none."""

    trajectories: int
    messages: int
    steps: int
    tool_calls: int
    tasks: int
    groups: int
    sessions: int
    users: int
    first: str | None
    last: str | None
    untimed: int
    formats: TopList
    agents: TopList
    models: TopList
    task_types: TopList


@dataclass(frozen=True)
class TypeOutcomes:
    """Outcomes of a task type; `success` is a share of those with a verdict."""

    task_type: str | None
    trajectories: int
    scored: int
    infrastructure_errors: int
    success: Rate
    mean_score: float | None
    mean_steps: float


@dataclass(frozen=True)
class ScoreSummary:
    """The judgements of one name, kind of scorer and direction; numbers where they have numbers."""

    name: str
    scorer_kind: str
    direction: str
    count: int
    trajectories: int
    on_messages: int
    numbers: int
    labels: int
    mean: float | None
    minimum: float | None
    maximum: float | None


@dataclass(frozen=True)
class Outcomes:
    """How attempts came out. `relabeled` is true where a side table takes the place of what was logged."""

    scored: int
    unscored: int
    infrastructure_errors: int
    successes: int
    failures: int
    scores_without_verdict: int
    success: Rate
    relabeled: bool
    by_task_type: tuple[TypeOutcomes, ...]
    more_task_types: int
    scores: tuple[ScoreSummary, ...]
    more_scores: int


@dataclass(frozen=True)
class Endings:
    """How attempts ended; `open` says neither terminated nor truncated."""

    terminated: int
    truncated: int
    open: int
    stop_reasons: TopList


@dataclass(frozen=True)
class Example:
    """One place that shows a finding. `line` is known for refused records, else `record`, the 0-based position."""

    trajectory_id: str | None
    file: str | None
    record: int | None
    line: int | None
    where: str | None
    text: str

    @property
    def place(self) -> str:
        """The file and the place in it, as far as known."""
        if self.file is None:
            return ""
        if self.line is not None:
            return f"{self.file}:{self.line}"
        return self.file if self.record is None else f"{self.file}[{self.record}]"


@dataclass(frozen=True)
class Finding:
    """What validation looked for under one code, and what it found; errors are counted in refused records."""

    code: str
    severity: Severity
    what: str
    meaning: str
    count: int
    trajectories: int
    share: float
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Reason:
    """Reasons that differ in names and numbers only, as one."""

    reason: str
    code: str | None
    count: int
    formats: tuple[str, ...]
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Reasons:
    """The most frequent reasons; `others` counts the records of the `more` reasons that are not listed."""

    count: int
    rows: tuple[Reason, ...]
    more: int
    others: int


@dataclass(frozen=True)
class Duplicates:
    """Copies. Near duplicates are None as long as nobody looked for them."""

    copies: int
    originals: int
    largest: tuple[NamedCount, ...]
    near: int | None
    near_clusters: int | None
    largest_near: tuple[NamedCount, ...]


@dataclass(frozen=True)
class Lengths:
    """Quantiles of one measure."""

    measure: str
    n: int
    mean: float
    minimum: float
    median: float
    p90: float
    p99: float
    maximum: float


@dataclass(frozen=True)
class Bin:
    """A bin of a histogram: values from `low` to `high`, both included; `high` is None for the last one."""

    low: int
    high: int | None
    count: int


@dataclass(frozen=True)
class Tool:
    """Calls of one tool by the agent. `error_results` counts results that the log marks as errors."""

    name: str
    calls: int
    trajectories: int
    invalid: int
    error_results: int


@dataclass(frozen=True)
class Tools:
    """The tools that are called most; `failed_turns` counts messages of the agent that the log marks as errors."""

    rows: tuple[Tool, ...]
    distinct: int
    calls: int
    invalid: int
    error_results: int
    failed_turns: int


@dataclass(frozen=True)
class Split:
    """What a split holds."""

    name: str
    trajectories: int
    tasks: int
    success: Rate


@dataclass(frozen=True)
class Shared:
    """What occurs in several splits. A leak breaks what the splits promise; else it is only good to know."""

    what: str
    kind: SharedKind
    values: int
    trajectories: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Splits:
    """The splits; `by` is None where they were made by hand.

    `task_types` counts the trajectories of the most frequent task types in each of the `rows`; `lacking` lists those
    that some split lacks, of all task types.
    """

    by: str | None
    rows: tuple[Split, ...]
    more: int
    task_types: tuple[tuple[str, tuple[int, ...]], ...]
    unassigned: int
    shared: tuple[Shared, ...]
    lacking: tuple[tuple[str, tuple[str, ...]], ...]
    more_lacking: int


@dataclass(frozen=True)
class Unplaced:
    """Feedback of one kind that found nothing in the store that it could be about."""

    target: str
    name: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class FeedbackSummary:
    """Feedback that came apart from what it judges."""

    joined: int
    unplaced: int
    rows: tuple[Unplaced, ...]
    more: int


@dataclass(frozen=True)
class Problem:
    """A line of the summary, in the order in which to look at them; a note is no fault of the store."""

    severity: ProblemSeverity
    text: str


@dataclass(frozen=True)
class StoreReport:
    """A report about a store, see `workflows.store_report.check_store`."""

    store: str
    schema_version: str
    parts: int
    megabytes: float
    problems: tuple[Problem, ...]
    holdings: Holdings
    outcomes: Outcomes
    endings: Endings
    findings: tuple[Finding, ...]
    refused: Reasons
    set_apart: Reasons
    repeated: Reasons
    duplicates: Duplicates
    lengths: tuple[Lengths, ...]
    steps_histogram: tuple[Bin, ...]
    tools: Tools
    splits: Splits | None
    feedback: FeedbackSummary

    def count(self, severity: ProblemSeverity) -> int:
        """How many problems there are of this severity."""
        return sum(problem.severity == severity for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values; numbers that are not finite are None."""
        plain: dict[str, Any] = _finite(asdict(self))
        return plain


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
