"""Pairs at branches: what a person or a program threw away, and what it went on with instead.

Here the evidence is which of two continuations was gone on with, not an outcome, so these pairs have no margin:

* choice: a model call gave several answers (n > 1), and one of them was gone on with.
* regeneration: an answer was asked for again, and only one of the two was gone on with.
* fork: a session went back and on from an earlier point. Where the agent's steps differ there, the branch that was gone
  on with last is chosen. Where a person took back a request and wrote another one, the answer to the new request is
  chosen over the answer that the old one had: a step that serves what the person no longer asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product

from offline_arl.datasets.pairs.divergences import Attempt, Divergence
from offline_arl.datasets.pairs.outcomes import step_pair
from offline_arl.datasets.pairs.pair import Pair, Side, is_trained_step, message_key, shared_length
from offline_arl.rewards.preferences import PairKind
from offline_arl.trajectories.schema import Message, Trajectory

_KINDS: dict[object, PairKind] = {"choice": "choice", "regenerated": "regeneration"}


def branch_kind(origin: Trajectory, branch: Trajectory) -> PairKind | None:
    """What a branch is to the trajectory that it names as its origin; None where it does not name it."""
    link = branch.branch
    if link is None or link.trajectory_id != origin.trajectory_id:
        return None
    return _KINDS.get(branch.metadata.get("relation"), "fork")


def kind_of(divergence: Divergence) -> PairKind:
    """The kind of the pairs that outcomes tell at a divergence: "step", or that of the branches which part there."""
    links = [kind for *_, kind in _links(divergence)]
    return links[0] if links and len(divergence.steps) == len(links) + 1 else "step"


def kept_pairs(divergence: Divergence, counts: Counter[str]) -> list[Pair]:
    """The pairs of branches at one divergence by which of the two was gone on with."""
    found = []
    seen: set[tuple[int, int]] = set()
    for left, right, kind in _links(divergence):
        steps = _number(divergence, left), _number(divergence, right)
        if steps in seen:
            continue
        seen.add(steps)
        kept = _kept(left.trajectory, right.trajectory, divergence.position, kind)
        if kept is None:
            counts[f"{kind}_without_a_favorite"] += 1
            continue
        other = right if kept is left.trajectory else left
        found.append(step_pair(kind, kept, other.trajectory, divergence.position, scorer="kept", scores=None))
    return found


def rewritten_request_pairs(attempts: Sequence[Attempt], counts: Counter[str]) -> list[Pair]:
    """At forks where a person wrote another request: the new answer, and the one that the old request had.

    Both sides answer the new request, since the person took the old one back; a side is the first step of the answer.
    """
    by_id: Mapping[str, Attempt] = {attempt.trajectory.trajectory_id: attempt for attempt in attempts}
    found = []
    for branch in attempts:
        link = branch.trajectory.branch
        origin = None if link is None else by_id.get(link.trajectory_id)
        if origin is None or branch_kind(origin.trajectory, branch.trajectory) != "fork":
            continue
        start = shared_length(origin.keys, branch.keys)
        new, old = (_answer(attempt.trajectory, start) for attempt in (branch, origin))
        if new is None or old is None:
            continue
        kept = _last_active(branch.trajectory, origin.trajectory)
        if kept is None:
            counts["fork_without_a_favorite"] += 1
            continue
        (chosen, at), (other, other_at) = (branch, new), (origin, old)
        if kept is origin.trajectory:
            (chosen, at), (other, other_at) = (origin, old), (branch, new)
        step, thrown_away = chosen.trajectory.messages[at], other.trajectory.messages[other_at]
        if message_key(step) == message_key(thrown_away):
            counts["equal_sides"] += 1
            continue
        prompt = chosen.trajectory.messages[:at]
        found.append(
            Pair(
                kind="fork",
                chosen=Side(chosen.trajectory, [*prompt, step], at, at),
                rejected=Side(other.trajectory, [*prompt, thrown_away], at, other_at),
                scorer="kept",
                evidence={"rewritten_request": True, "request_taken_back": other.trajectory.messages[start].text[:500]},
            )
        )
    return found


def _links(divergence: Divergence) -> Iterator[tuple[Attempt, Attempt, PairKind]]:
    """Origin, branch and kind of each pair of attempts that part here and are linked."""
    for one, other in product(range(len(divergence.steps)), repeat=2):
        if one != other:
            for origin, branch in product(divergence.steps[one], divergence.steps[other]):
                kind = branch_kind(origin.trajectory, branch.trajectory)
                if kind is not None:
                    yield origin, branch, kind


def _number(divergence: Divergence, attempt: Attempt) -> int:
    return next(number for number, step in enumerate(divergence.steps) if any(item is attempt for item in step))


def _kept(left: Trajectory, right: Trajectory, position: int, kind: PairKind) -> Trajectory | None:
    """Which of two was gone on with: the only one that anybody answered, or for forks the last one."""
    answered = [trajectory for trajectory in (left, right) if _is_answered(trajectory, position)]
    if len(answered) == 1:
        return answered[0]
    return _last_active(left, right) if kind == "fork" and answered else None


def _is_answered(trajectory: Trajectory, position: int) -> bool:
    """Whether a user or another model call followed the turn that begins at `position`."""
    if trajectory.metadata.get("continued") is True:
        return True
    return any(message.role == "user" for message in trajectory.messages[position + 1 :])


def _last_active(left: Trajectory, right: Trajectory) -> Trajectory | None:
    """The one whose last message is the later one; None where the log has no times."""
    times = [_last_time(trajectory) for trajectory in (left, right)]
    if times[0] is None or times[1] is None or times[0] == times[1]:
        return None
    return left if times[0] > times[1] else right


def _last_time(trajectory: Trajectory) -> float | None:
    stamps = [message.timestamp for message in trajectory.messages if message.timestamp is not None]
    found = [_seconds(stamp) for stamp in (*stamps, trajectory.ended_at) if stamp is not None]
    return max((time for time in found if time is not None), default=None)


def _seconds(stamp: str) -> float | None:
    """Seconds since 1970 of a time in ISO 8601, taken as UTC where it has no offset; None where it is none."""
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _answer(trajectory: Trajectory, start: int) -> int | None:
    """Where the agent's step is that answers the person's message at `start`; None where there is none."""
    if start + 1 >= len(trajectory.messages) or not _is_request(trajectory.messages[start]):
        return None
    return start + 1 if is_trained_step(trajectory.messages[start + 1]) else None


def _is_request(message: Message) -> bool:
    return message.role == "user" and message.producer.kind in ("human", "unknown")
