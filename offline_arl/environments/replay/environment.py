"""`Replay`: one episode answered from recordings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile

import msgspec

from offline_arl.environments.protocol import EpisodeStart, StepResult, StopReason, Task
from offline_arl.environments.replay.recording import MISS, CallKey, Recording, Turn, answered, call_key, turn_of
from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.schema import Message, MessageError, Outcome, Producer, TextPart, ToolCall

_NOT_RECORDED = "not recorded"


class Replay:
    """Recordings as an environment; satisfies `environments.protocol.Environment` and `Reversible`.

    Args:
        recordings: Of each task id of the recordings.
        writes: Tools that change something: two attempts came to the same end if these calls were the same. None: all
            tools count.
        max_steps: Of an episode.
    """

    def __init__(
        self, recordings: Mapping[str, Sequence[Recording]], *, writes: frozenset[str] | None, max_steps: int
    ) -> None:
        self.max_steps = max_steps
        self._recordings = recordings
        self._writes = writes
        self._state: _State | None = None

    def reset(self, task: Task) -> EpisodeStart:
        """Start an episode.

        Raises:
            DataError: There is no recording of the task.
        """
        recorded = self._recordings.get(str(task.payload.get("task")), ())
        named = task.payload.get("recordings", [])
        same = [recording for recording in recorded if recording.trajectory_id in named]
        if not same:
            raise DataError(f"task {task.task_id}: is not among the recordings")
        self._same, self._others = same, [recording for recording in recorded if recording not in same]
        self._state = _State()
        first = same[0]
        return EpisodeStart(list(first.opening), msgspec.json.decode(first.tools))

    def step(self, message: Message) -> StepResult:
        """Answer the agent's message as it was answered once, or as far as the recordings know.

        `info` has `misses`, the number of calls that nobody made in the recordings, and `exact`, whether the episode
        still is one of them.

        Raises:
            UsageError: The episode has ended or was never started.
        """
        state = self._state
        if state is None or state.stop_reason is not None:
            raise UsageError("the episode has ended: call reset before step")
        position = len(state.turns)
        state.turns.append(turn_of(message))
        following = self._following(state.turns)
        misses = 0
        if following:
            recording = following[0]
            replies = _renamed(message.tool_calls, recording.steps[position], recording.replies[position])
            if position + 1 == len(recording.steps):
                self._end(recording)
        elif message.tool_calls:
            answers = [self._look_up(call, state) for call in message.tool_calls]
            misses = sum(answer is None for answer in answers)
            replies = [
                _miss(call) if answer is None else _for_call(call, answer)
                for call, answer in zip(message.tool_calls, answers, strict=True)
            ]
        else:
            replies = self._user_reply(state)
            if not replies:
                state.terminated, state.stop_reason = True, StopReason.ANSWERED
        for call in message.tool_calls:
            state.seen[call_key(call)] += 1
        state.misses += misses
        if state.stop_reason is None and position + 1 >= self.max_steps:
            state.truncated, state.stop_reason = True, StopReason.MAX_STEPS
        reward = 0.0
        if state.stop_reason is not None:
            outcome = self.outcome()
            reward = float(outcome.success) if outcome.success is not None else outcome.score or 0.0
        return StepResult(
            replies,
            reward,
            state.terminated,
            state.truncated,
            state.stop_reason,
            {"invalid_actions": 0, "misses": misses, "exact": bool(following)},
        )

    def outcome(self) -> Outcome:
        """The recorded outcome where the episode is a recording to its end; else a verdict by its calls.

        Off the recordings an episode succeeds if the calls that count (`writes`) are those of a recorded success,
        whatever their order; it is not judged where no success is recorded. `components` has `exact` and `misses`.
        """
        state = self._state
        if state is None:
            return Outcome()
        measures = {"exact": 0.0, "misses": float(state.misses)}
        if state.finished is not None:
            found = state.finished.outcome
            return msgspec.structs.replace(found, components={**found.components, **measures, "exact": 1.0})
        good = [recording for recording in [*self._same, *self._others] if recording.outcome.success]
        if not good:
            return Outcome(components=measures)
        done = self._counted(key for turn in state.turns for key in turn.calls)
        success = any(done == self._counted(recording.call_keys) for recording in good)
        return Outcome("scored", success=success, score=float(success), components=measures, scorer="replay")

    def snapshot(self) -> bytes:
        """See `environments.protocol.Reversible`."""
        state = self._state
        assert state is not None
        finished = None if state.finished is None else state.finished.trajectory_id
        seen = [(*key, count) for key, count in state.seen.items()]
        ends = (state.terminated, state.truncated, state.stop_reason)
        return msgspec.json.encode((state.turns, seen, state.misses, state.users, finished, *ends))

    def restore(self, state: bytes) -> None:
        """See `environments.protocol.Reversible`."""
        turns, seen, misses, users, finished, *ends = msgspec.json.decode(state)
        restored = _State()
        restored.turns = [Turn(text, tuple(CallKey(*key) for key in calls)) for text, calls in turns]
        restored.seen = Counter({CallKey(name, arguments): count for name, arguments, count in seen})
        restored.misses, restored.users = misses, users
        restored.terminated, restored.truncated, restored.stop_reason = ends
        restored.finished = next((r for r in self._same if r.trajectory_id == finished), None)
        self._state = restored

    def _following(self, turns: list[Turn]) -> list[Recording]:
        """The recordings that begin with these turns."""
        return [recording for recording in self._same if recording.turns[: len(turns)] == turns]

    def _end(self, recording: Recording) -> None:
        assert self._state is not None
        self._state.finished = recording
        self._state.truncated = recording.truncated and not recording.terminated
        self._state.terminated = not self._state.truncated  # an ending that the log does not tell is the task's own
        self._state.stop_reason = recording.stop_reason or StopReason.ANSWERED

    def _look_up(self, call: ToolCall, state: _State) -> Message | None:
        """What answered a call in the recording most like this episode; the n-th time, what answered it then."""
        key = call_key(call)
        count = state.seen[key]
        done = [made for turn in state.turns[:-1] for made in turn.calls]
        candidates = [recording for recording in [*self._same, *self._others] if key in recording.results]
        if not candidates:
            return None
        best = max(candidates, key=lambda recording: _shared(done, recording.call_keys))  # of equals the first
        results = best.results[key]
        return results[min(count, len(results) - 1)]

    def _user_reply(self, state: _State) -> list[Message]:
        """What the user said next in the recording most like this episode; nothing where they had said all."""
        recorded = [recording.user_replies for recording in self._same]
        longer = [replies for replies in recorded if len(replies) > state.users]
        state.users += 1
        return list(longer[0][state.users - 1]) if longer else []

    def _counted(self, keys: object) -> Counter[CallKey]:
        counted: Counter[CallKey] = Counter(keys)  # type: ignore[call-overload]
        if self._writes is None:
            return counted
        return Counter({key: count for key, count in counted.items() if key.name in self._writes})


def _shared(calls: Sequence[CallKey], others: Sequence[CallKey]) -> int:
    """How many calls two lists have in common from the start."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(calls, others, strict=False)))


class _State:
    """An episode as it stands."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.seen: Counter[CallKey] = Counter()
        self.misses = 0
        self.users = 0  # replies of the user so far, off the recordings
        self.finished: Recording | None = None
        self.terminated = False
        self.truncated = False
        self.stop_reason: str | None = None


def _renamed(calls: Sequence[ToolCall], recorded: Message, replies: Sequence[Message]) -> list[Message]:
    """Recorded replies that answer this episode's calls, whose ids are others."""
    names = {
        id(result): call.id
        for call, (_, result) in zip(calls, answered(recorded.tool_calls, replies), strict=True)
        if result is not None
    }
    return [
        msgspec.structs.replace(reply, tool_call_id=names[id(reply)]) if id(reply) in names else reply
        for reply in replies
    ]


def _for_call(call: ToolCall, result: Message) -> Message:
    return msgspec.structs.replace(result, tool_call_id=call.id)


def _miss(call: ToolCall) -> Message:
    text = msgspec.json.encode({"error": _NOT_RECORDED}).decode()
    error = MessageError(MISS, _NOT_RECORDED)
    producer = Producer("environment", "replay")
    return Message(
        "tool", [TextPart(text)], tool_call_id=call.id, name=call.name or None, error=error, producer=producer
    )
