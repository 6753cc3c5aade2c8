"""The history of a training, and the part of it that rules look at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from offline_arl.online.diagnosis.facts import Facts
from offline_arl.online.diagnosis.findings import Finding, Kind, Severity
from offline_arl.online.diagnosis.setup import Setup
from offline_arl.online.records import StepRecord, Validation

RECENT = 5  # steps that are averaged, so that one odd batch of episodes raises nothing
FEW = 3  # steps for what is clear at once
MEMORY = 20  # steps that rules look back at most
SOLVED = 0.9  # sampled success from which on it is right that most groups agree and the policy is sure of itself
# Measured on the tokens that train. In a step whose groups all teach nothing there are none, and the numbers are those
# of the fillers that stand for its episodes.
OF_TRAINED_TOKENS = frozenset({"kl", "entropy", "loss", "gradient_norm", "ratio_drift", "clipped"})
DEAD_STEPS = 10  # `StopConfig.dead_steps` where it is not known


@dataclass
class History:
    """All that a training has recorded. `facts` are those of the episodes of each record, {} where they are unknown."""

    records: list[StepRecord] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    steady_tasks: bool = True  # the steps draw their tasks alike throughout; not so under a curriculum
    setup: Setup | None = None  # what the training was given; None: written by an earlier version

    def view(self, *, steps: int | None = None, dead_steps: int | None = DEAD_STEPS) -> View:
        """What rules see after `steps` steps; None: after the last one."""
        count = len(self.records) if steps is None else steps
        first = max(0, count - max(MEMORY, dead_steps or 0))
        step = self.records[count - 1].step if count else 0
        return View(
            step=step,
            start=self.records[: min(RECENT, count)],
            recent=self.records[first:count],
            start_facts=self.facts[: min(RECENT, count)],
            facts=self.facts[first:count],
            validations=[found for found in self.validations if steps is None or found.step <= step],
            count=count,
            steady_tasks=self.steady_tasks,
            setup=self.setup,
            dead_steps=dead_steps,
        )


@dataclass(frozen=True)
class View:
    """The last steps of a training beside its first ones."""

    step: int  # the last one; 0 before the first
    start: Sequence[StepRecord]  # at most RECENT
    recent: Sequence[StepRecord]  # at most MEMORY, or as many as are fatal without a signal
    start_facts: Sequence[Facts]  # of the first steps
    facts: Sequence[Facts]  # of the recent steps
    validations: Sequence[Validation]
    count: int  # steps in all
    steady_tasks: bool
    setup: Setup | None
    dead_steps: int | None

    def finding(
        self,
        kind: Kind,
        symptom: str,
        *,
        evidence: str,
        threshold: str,
        remedy: str,
        severity: Severity = "warning",
        step: int | None = None,
    ) -> Finding:
        """A finding at the last step, or at `step`."""
        return Finding(kind, symptom, severity, self.step if step is None else step, evidence, threshold, remedy)

    @property
    def comparable(self) -> bool:
        """Whether the last steps are others than the first."""
        return self.count > RECENT

    def first(self, name: str, steps: int = 1) -> float:
        """The mean of a field of the records over the first steps that have it; NaN where none has.

        The first step is sampled before any update, so it is the warm start's own. One step later a learning rate that
        is far too high has left nothing of it.
        """
        return _mean(numbers(self.start, name)[:steps])

    def last(self, name: str, steps: int = RECENT) -> float:
        """The mean of a field of the records over the last steps; NaN where none has it."""
        return _mean(numbers(self.recent[-steps:], name))

    def middle(self, name: str, steps: int = RECENT) -> float:
        """The median over the last steps; NaN where none has it."""
        found = numbers(self.recent[-steps:], name)
        return median(found) if found else math.nan

    def fact(self, name: str, steps: int = RECENT) -> float:
        """The mean of a share of the facts over the last steps; NaN where facts are missing or no step has it."""
        known = [facts[name] for facts in self.facts[-steps:] if name in facts]
        return _mean([value for value in known if value is not None]) if len(known) == steps else math.nan

    @property
    def first_entropy(self) -> float:
        """The entropy of the warm start, nats a token."""
        known = next((facts["entropy"] for facts in self.start_facts if facts.get("entropy") is not None), None)
        return self.first("entropy") if known is None else float(known)

    def last_entropy(self, steps: int = RECENT) -> float:
        """The entropy of the policy over the last steps, nats a token."""
        sampled = self.fact("entropy", steps)
        return self.last("entropy", steps) if math.isnan(sampled) else sampled

    @property
    def unsolved(self) -> bool:
        """Whether the last attempts leave something to learn; also where nobody judged them."""
        return not self.last("success") >= SOLVED


def numbers(records: Iterable[StepRecord], name: str) -> list[float]:
    """The finite values of a field, where it was measured."""
    if name in OF_TRAINED_TOKENS:
        records = (record for record in records if record.idle_groups < 1)
    found = (getattr(record, name) for record in records)
    return [float(value) for value in found if value is not None and math.isfinite(value)]


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
