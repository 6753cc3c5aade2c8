"""Watches a training while it runs: keeps its history, writes it as it grows, and warns once of each failure."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from offline_arl.errors import DataError
from offline_arl.online.diagnosis.facts import episode_facts
from offline_arl.online.diagnosis.findings import Finding, Kind
from offline_arl.online.diagnosis.history import DEAD_STEPS
from offline_arl.online.diagnosis.metrics import (
    alarm_line,
    append_line,
    read_history,
    read_lines,
    setup_line,
    step_line,
    validation_line,
    write_lines,
)
from offline_arl.online.diagnosis.rules import check, diagnose
from offline_arl.online.diagnosis.setup import Setup
from offline_arl.online.records import StepRecord, Validation
from offline_arl.rollouts.episode import Episode

logger = logging.getLogger(__name__)


class Monitor:
    """Keeps the history of a training in a JSONL file that grows with it, and looks for what goes wrong.

    Args:
        path: The JSONL file to make, or to go on with.
        setup: What the training was given, which remedies go by; None: not known.
        steady_tasks: Whether the steps draw their tasks alike throughout. Under a curriculum they do not, harder
            tasks come up as easy ones are solved, and success of the steps says nothing about a drop.
        resume_at: The step whose saved state training goes on from: what the file says up to it is kept, with the
            findings of that time, and later lines are dropped. None: begin a new file.
        dead_steps: `StopConfig.dead_steps`: steps in a row without any signal that are fatal; None: nothing stops the
            training.

    Raises:
        DataError: The file to go on with holds something else.
    """

    def __init__(
        self,
        path: Path,
        *,
        setup: Setup | None = None,
        steady_tasks: bool = True,
        resume_at: int | None = None,
        dead_steps: int | None = DEAD_STEPS,
    ) -> None:
        self._path = path
        self._dead_steps = dead_steps
        self._dead: Finding | None = None
        kept = read_lines(path, until=resume_at) if resume_at is not None and path.exists() else []
        if setup is not None:
            kept = [setup_line(setup), *(line for line in kept if line["kind"] != "setup")]
        write_lines(path, kept)
        self._history = read_history(path)
        self._history.steady_tasks = steady_tasks
        self._findings = {finding.key: finding for finding in diagnose(self._history, dead_steps=dead_steps)}

    @property
    def history(self) -> list[StepRecord]:
        """The records of all steps."""
        return self._history.records

    @property
    def validations(self) -> list[Validation]:
        """All validations."""
        return self._history.validations

    @property
    def findings(self) -> list[Finding]:
        """What went wrong, each once, in the order of the steps that showed it."""
        return list(self._findings.values())

    @property
    def alarms(self) -> dict[Kind, int]:
        """The kinds of failure that were seen, and the first step of each."""
        first: dict[Kind, int] = {}
        for finding in self._findings.values():
            first.setdefault(finding.kind, finding.step)
        return first

    @property
    def dead(self) -> Finding | None:
        """Why the training should stop, as the last step showed it; None: it should go on."""
        return self._dead

    def add_step(self, record: StepRecord, episodes: Sequence[Episode] | None = None) -> None:
        """Take the record of a finished step.

        Args:
            record: Of the step.
            episodes: Its episodes; what goes wrong with data and environments shows in them alone.
        """
        facts = episode_facts(episodes) if episodes else {}
        self._history.records.append(record)
        self._history.facts.append(facts)
        append_line(self._path, step_line(record, facts, steady_tasks=self._history.steady_tasks))
        found = self._look()
        if self._dead_steps is not None:
            self._dead = next((finding for finding in found if finding.severity == "fatal"), None)

    def add_validation(self, validation: Validation) -> None:
        """Take a validation."""
        self._history.validations.append(validation)
        append_line(self._path, validation_line(validation))
        self._look()

    def check_reference(self, record: StepRecord, *, tolerance: float) -> None:
        """Assert that the reference is the policy that training started from.

        Raises:
            DataError: At the first step the KL to the reference is not 0.
        """
        if record.step == 1 and record.kl is not None and not record.kl <= tolerance:
            raise DataError(
                f"at step 0 the KL to the reference is {record.kl:.2e} a token and has to be 0 (tolerance "
                f"{tolerance:.0e}): the reference is not the warm start; load the policy by its path"
            )

    def _look(self) -> list[Finding]:
        """What is wrong now; what is new is logged and written."""
        found = check(self._history.view(dead_steps=self._dead_steps))
        for finding in found:
            if finding.key not in self._findings:
                self._findings[finding.key] = finding
                append_line(self._path, alarm_line(finding))
                logger.warning(
                    "step %d: %s (%s): %s. Threshold: %s. Remedy: %s",
                    finding.step, finding.kind, finding.severity, finding.evidence, finding.threshold, finding.remedy,
                )  # fmt: skip
        return found
