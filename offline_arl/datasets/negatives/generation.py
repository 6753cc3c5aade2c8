"""Pairs of a good step and a step that is wrong in a known way."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from offline_arl.datasets.negatives.corruptions import PROPOSALS
from offline_arl.datasets.negatives.judges import Candidate, Judge, Verdict, is_failure, log_judge, schema_judge
from offline_arl.datasets.pairs.pair import Pair, Side, is_trained_step, message_key
from offline_arl.datasets.segments import success_of
from offline_arl.rewards.preferences import NegativeKind, NegativesConfig
from offline_arl.trajectories.acceptance import checker_for
from offline_arl.trajectories.schema import Message, Trajectory

MALFORMED: tuple[NegativeKind, ...] = ("wrong_type", "missing_argument", "unknown_tool")  # what a schema alone tells
_MOST_PROPOSALS = 12  # of one kind for one step


class NegativeMaker:
    """Makes negatives of the good steps of attempts, one family after the other.

    A step is good where its attempt succeeded, the tools in force accept its calls, and no call of it was answered with
    an error. Of the kinds that some judge convicts, the rarest so far comes first, so that no kind drowns the others.

    A policy that is punished for calls learns not to call. So a pair whose rejected side calls and whose chosen side
    does not (`needless_call`) is made only as long as pairs of the opposite kind (`missing_call`) weigh at least as
    much; in all other kinds both sides call, or neither does.

    Args:
        config: Which kinds, how many, how bad.
        judges: Asked in turn about what the schema accepts; the log itself where none are given.
    """

    def __init__(self, config: NegativesConfig, judges: Sequence[Judge] | None = None) -> None:
        self._config = config
        self._judges: Sequence[Judge] = (log_judge,) if judges is None else judges
        self.made: Counter[NegativeKind] = Counter()
        self.call_pressure = 0.0  # total weight of pairs that teach to call, less that of pairs that teach not to

    def __call__(self, family: Sequence[Trajectory], counts: Counter[str]) -> list[Pair]:
        """The negatives of a family. `counts` gets why there are none of some steps."""
        return [pair for trajectory in family for pair in self.of_trajectory(trajectory, counts)]

    def of_trajectory(self, trajectory: Trajectory, counts: Counter[str]) -> list[Pair]:
        """The negatives of one attempt."""
        if trajectory.outcome.status == "infrastructure_error":
            return []
        if self._config.source == "successes" and success_of(trajectory.outcome) is not True:
            return []
        name = hashlib.sha256(trajectory.trajectory_id.encode("utf-8", "surrogatepass")).digest()
        generator = np.random.default_rng([self._config.seed, int.from_bytes(name[:8], "big")])
        found = []
        for position, message in enumerate(trajectory.messages):
            if is_trained_step(message) and is_good_step(trajectory, position):
                found += self._of_step(trajectory, position, generator, counts)
        return found

    def _of_step(
        self, trajectory: Trajectory, position: int, generator: np.random.Generator, counts: Counter[str]
    ) -> list[Pair]:
        pairs: list[Pair] = []
        order = sorted(self._config.kinds, key=lambda kind: (self.made[kind], generator.random()))
        for kind in order:
            if len(pairs) == self._config.per_step:
                break
            convicted = self._convicted(kind, trajectory, position, generator, counts)
            if convicted is None:
                continue
            pair = self._pair(kind, *convicted)
            pressure = pair.weight * call_pressure(pair)
            if self.call_pressure + pressure < 0:
                counts["negative_that_discourages_calls"] += 1
                continue
            self.call_pressure += pressure
            self.made[kind] += 1
            pairs.append(pair)
        return pairs

    def _convicted(
        self,
        kind: NegativeKind,
        trajectory: Trajectory,
        position: int,
        generator: np.random.Generator,
        counts: Counter[str],
    ) -> tuple[Candidate, Verdict] | None:
        """The first proposal that a judge convicts."""
        logged = message_key(trajectory.messages[position])
        for number, candidate in enumerate(PROPOSALS[kind](trajectory, position, generator)):
            if number == _MOST_PROPOSALS:
                break
            if message_key(candidate.message) == logged:
                continue
            verdict = self._verdict(kind, candidate)
            if verdict is not None:
                return candidate, verdict
            counts["negative_without_proof"] += 1
        return None

    def _verdict(self, kind: NegativeKind, candidate: Candidate) -> Verdict | None:
        """Why a candidate is wrong in the way of its kind: by the schema, or by a judge of what the schema accepts."""
        malformed = schema_judge(candidate)
        if kind in MALFORMED:
            return malformed
        if malformed is not None:
            return None
        return next((verdict for judge in self._judges if (verdict := judge(candidate)) is not None), None)

    def _pair(self, kind: NegativeKind, candidate: Candidate, verdict: Verdict) -> Pair:
        trajectory, position = candidate.trajectory, candidate.position
        grade = self._config.grades.get(kind, 1.0)
        prompt = trajectory.messages[:position]
        return Pair(
            kind="negative",
            chosen=Side(trajectory, trajectory.messages[: position + 1], position, position),
            rejected=Side(trajectory, [*prompt, candidate.message], position, position),
            scorer=verdict.judge,
            chosen_score=0.0,
            rejected_score=-grade,
            weight=grade,
            evidence={"negative": kind, "why": verdict.reason, "rejected_is_written_by": "negatives"},
        )


def is_good_step(trajectory: Trajectory, position: int) -> bool:
    """Whether the tools in force accept all calls of a step, and none of them was answered with an error."""
    message = trajectory.messages[position]
    if not message.tool_calls:
        return bool(message.text.strip())
    checker = checker_for(trajectory.context_at(position).tools)
    if any(checker.problem(call) is not None for call in message.tool_calls):
        return False
    answers = trajectory.messages[position + 1 : position + 1 + len(message.tool_calls)]
    return not any(answer.role == "tool" and is_failure(answer) for answer in answers)


def call_pressure(pair: Pair) -> int:
    """What a pair of steps teaches about calling: 1 to call, -1 not to, 0 neither."""
    return _calls(pair.chosen.messages[-1]) - _calls(pair.rejected.messages[-1])


def _calls(message: Message) -> int:
    return int(bool(message.tool_calls))
