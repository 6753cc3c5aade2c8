"""Keeping an agent that can act in bounds: `Guarded` stands between it and any environment.

What it holds to, whatever the agent says and whatever the environment does:

* Only tools of the allow-list are shown, and no other is ever run (least privilege; the task names them).
* Calls, their cost and the time of an episode have hard limits.
* A forbidden action is not run, ends the episode and costs a large negative reward.
* A write that failed leaves nothing behind, nor does, if wanted, an episode that failed: the state is restored where
  the environment can keep it, else the calls are taken back, newest first. What could not be taken back is told.
* Actions that need a person's approval wait for it.
* Everything is on an audit trail before it happens.

An assistant message is taken or refused as a whole: where one of its calls is out of bounds, none of them runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from offline_arl.environments.approvals import ApprovalRequest, Approver
from offline_arl.environments.audit import AuditTrail
from offline_arl.environments.protocol import (
    Environment,
    EpisodeStart,
    HasCosts,
    StepResult,
    StopReason,
    Task,
    close,
    tool_names,
)
from offline_arl.environments.undoing import undoing_of
from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import Message, MessageError, Outcome, Producer, TextPart, ToolCall

logger = logging.getLogger(__name__)


class Forbidden(NamedTuple):
    """Something that must not be done: a name for people, and how a call is recognized."""

    name: str
    matches: Callable[[ToolCall], bool]


@dataclass(frozen=True)
class SafetyPolicy:
    """The bounds of an episode.

    Attributes:
        allowed_tools: On top of a task's own allow-list; None: no further bound.
        writes: Tools that change something. None: every tool may.
        max_calls: Of tools, in an episode.
        max_cost: Sum of `costs` of the calls, in an episode.
        costs: Of one call, by tool; where it is not named, what the environment says (`protocol.HasCosts`), else 0.
        max_seconds: From reset to the end, measured between steps.
        forbidden: What must not be done.
        forbidden_reward: Of a forbidden action, instead of what the step earned.
        refused_reward: Added for a message that was refused for a tool outside the allow-list.
        needs_approval: Tools whose every call is asked about first.
        rollback: Besides writes that failed: take back all writes of an episode that did not succeed.
    """

    allowed_tools: frozenset[str] | None = None
    writes: frozenset[str] | None = None
    max_calls: int | None = None
    max_cost: float | None = None
    costs: Mapping[str, float] = field(default_factory=dict)
    max_seconds: float | None = None
    forbidden: Sequence[Forbidden] = ()
    forbidden_reward: float = -10.0
    refused_reward: float = -0.05
    needs_approval: frozenset[str] = frozenset()
    rollback: Literal["write", "episode"] = "episode"


class _Refusal(NamedTuple):
    kind: Literal["not_allowed", "denied", "forbidden", "limit"]
    text: str
    stop_reason: StopReason | None = None


class Guarded:
    """An environment within bounds; satisfies `protocol.Environment` itself.

    Args:
        environment: Must be `protocol.Reversible` or `protocol.Compensating` where the policy lets it write.
        policy: The bounds.
        audit: Where everything is written; None: nowhere.
        approver: Asked about calls that need approval; needed where there are any.

    Raises:
        UsageError: The environment's writes could not be undone, or nobody is there to approve.
    """

    def __init__(
        self,
        environment: Environment,
        policy: SafetyPolicy,
        *,
        audit: AuditTrail | None = None,
        approver: Approver | None = None,
    ) -> None:
        self._undoing = undoing_of(environment)
        if self._undoing is None and policy.writes != frozenset():
            raise UsageError(
                f"{type(environment).__name__} cannot undo writes: give it snapshot and restore, or its tools an undo, "
                "or name the tools that write as none (writes=frozenset())"
            )
        if policy.needs_approval and approver is None:
            raise UsageError("needs_approval names tools, and there is no approver; give one")
        self.max_steps = environment.max_steps
        self._environment = environment
        self._policy = policy
        self._audit = audit
        self._approver = approver
        self._ended = True
        self._outcome = Outcome()
        self.not_undone: list[str] = []  # tools of this episode whose calls could not be taken back

    def reset(self, task: Task) -> EpisodeStart:
        """Start an episode; tools outside the allow-list are not shown. One that is not over is abandoned.

        Raises:
            UsageError: A tool that is allowed writes what could not be taken back.
        """
        self.abandon("abandoned")
        start = self._environment.reset(task)
        self._task = task
        bounds = [set(names) for names in (task.allowed_tools, self._policy.allowed_tools) if names is not None]
        named = zip(tool_names(start), start.tools, strict=True)
        shown = [tool for name, tool in named if all(name in names for names in bounds)]
        start = dataclasses.replace(start, tools=shown)
        self._allowed = set(tool_names(start))
        if self._undoing is not None:
            writes = self._policy.writes
            self._undoing.check(self._allowed if writes is None else self._allowed & writes)
        self.not_undone = []
        self._before = self._mark()
        self._started = time.monotonic()
        self._calls, self._cost, self._refused = 0, 0.0, 0
        known = self._environment.tool_costs() if isinstance(self._environment, HasCosts) else {}
        self._costs = {**known, **self._policy.costs}
        self._ended = False
        self._write("start", task=task.task_id, task_type=task.task_type, allowed=sorted(self._allowed))
        return start

    def step(self, message: Message) -> StepResult:
        """Take the agent's message, if it is within bounds.

        Raises:
            UsageError: The episode has ended or was never started.
        """
        if self._ended:
            raise UsageError("the episode has ended: call reset before step")
        refusal, cost_of_asking = self._refusal(message.tool_calls)
        if refusal is not None:
            return self._refuse(message, refusal, cost_of_asking)
        for call in message.tool_calls:
            self._calls += 1
            self._cost += self._costs.get(call.name, 0.0)
            self._write("call", tool=call.name, arguments=call.arguments_raw, id=call.id)
        writes = any(self._is_write(call) for call in message.tool_calls)
        before = self._mark() if writes else None
        try:
            result = self._environment.step(message)
        except BaseException as error:  # the harness failed in the middle of whatever it was doing
            self._undo(before, "crash", error=f"{type(error).__name__}: {error}")
            self._ended = True
            raise
        result = self._without_failed_writes(message, result, before)
        result = dataclasses.replace(result, reward=result.reward - cost_of_asking)
        for reply in result.messages:
            digest = hashlib.sha256(reply.text.encode(errors="surrogatepass")).hexdigest()
            self._write("reply", role=reply.role, id=reply.tool_call_id, sha256=digest, error=_error(reply))
        if result.terminated or result.truncated:
            self._end(str(result.stop_reason))
        return result

    def outcome(self) -> Outcome:
        """The judge's verdict; that of a finished episode was made before anything was taken back.

        Its components then have `forbidden_action` (0 or 1), `refused` (messages) and `not_undone` (calls).
        """
        return self._outcome if self._ended else self._environment.outcome()

    def _refusal(self, calls: Sequence[ToolCall]) -> tuple[_Refusal | None, float]:
        """Why a message's calls are out of bounds, and what asking about them cost."""
        policy = self._policy
        for call in calls:
            for forbidden in policy.forbidden:
                if _matches(forbidden, call):
                    return _Refusal("forbidden", f"forbidden: {forbidden.name}", StopReason.FORBIDDEN_ACTION), 0.0
        for call in calls:
            if call.name not in self._allowed:
                return _Refusal("not_allowed", f"the tool {call.name!r} is not among those of this task"), 0.0
        if policy.max_seconds is not None and time.monotonic() - self._started > policy.max_seconds:
            return _Refusal("limit", f"more than {policy.max_seconds:g} s", StopReason.TIME_LIMIT), 0.0
        if policy.max_calls is not None and self._calls + len(calls) > policy.max_calls:
            return _Refusal("limit", f"more than {policy.max_calls} calls", StopReason.CALL_LIMIT), 0.0
        cost = self._cost + sum(self._costs.get(call.name, 0.0) for call in calls)
        if policy.max_cost is not None and cost > policy.max_cost:
            return _Refusal("limit", f"a cost of more than {policy.max_cost:g}", StopReason.COST_LIMIT), 0.0
        return self._approved(calls)

    def _approved(self, calls: Sequence[ToolCall]) -> tuple[_Refusal | None, float]:
        cost = 0.0
        for call in calls:
            if call.name in self._policy.needs_approval and self._approver is not None:
                answer = self._approver.ask(ApprovalRequest(self._task.task_id, call, "needs approval"))
                cost += answer.cost
                self._write("approval", tool=call.name, arguments=call.arguments_raw, **dataclasses.asdict(answer))
                if not answer.granted:
                    return _Refusal("denied", f"the call of {call.name!r} was not approved"), cost
        return None, cost

    def _refuse(self, message: Message, refusal: _Refusal, cost_of_asking: float) -> StepResult:
        self._refused += 1
        self._write("refused", reason=refusal.text, calls=[[c.name, c.arguments_raw] for c in message.tool_calls])
        error = MessageError(refusal.kind, refusal.text)
        text = msgspec.json.encode({"error": refusal.text}).decode()
        replies = [
            Message(
                "tool",
                [TextPart(text)],
                tool_call_id=call.id,
                name=call.name or None,
                error=error,
                producer=Producer("environment", "safety"),
            )
            for call in message.tool_calls
        ]
        forbidden = refusal.kind == "forbidden"
        reward = self._policy.forbidden_reward if forbidden else -cost_of_asking
        if refusal.kind == "not_allowed":
            reward += self._policy.refused_reward
        result = StepResult(
            replies,
            reward,
            terminated=forbidden,
            truncated=refusal.kind == "limit",
            stop_reason=refusal.stop_reason,
            info={"invalid_actions": int(refusal.kind in ("not_allowed", "forbidden")), "refused": refusal.kind},
        )
        if result.terminated or result.truncated:
            self._end(str(refusal.stop_reason), failed=forbidden)
        return result

    def _without_failed_writes(self, message: Message, result: StepResult, before: Any) -> StepResult:
        """Take a message's writes back where one of them failed; the others' results say so."""
        if before is None:
            return result
        answers = [place for place, reply in enumerate(result.messages) if reply.role == "tool"]
        if len(answers) == len(message.tool_calls):
            answers = [place for place, call in zip(answers, message.tool_calls, strict=True) if self._is_write(call)]
        if all(result.messages[place].error is None for place in answers):
            return result
        written = [call.name for call in message.tool_calls if self._is_write(call)]
        lost = self._undo(before, "failed", calls=written)
        error = MessageError("undone", "undone: another change of the same message failed")
        if lost:
            told = ", ".join(dict.fromkeys(lost))
            error = MessageError("not_undone", f"another change of the same message failed; not undone: {told}")
        text = msgspec.json.encode({"error": error.text}).decode()
        replies = list(result.messages)
        for place in answers:
            if replies[place].error is None:
                replies[place] = msgspec.structs.replace(replies[place], content=[TextPart(text)], error=error)
        info = {**result.info, "not_undone": len(lost)} if lost else result.info
        return dataclasses.replace(result, messages=replies, info=info)

    def abandon(self, reason: str) -> None:
        """End an episode that its user does not go on with (the context is full, the run is stopped) as it stands."""
        if not self._ended:
            self._end(reason)

    def _end(self, stop_reason: str, *, failed: bool = False) -> None:
        outcome = self._environment.outcome()
        if failed:
            outcome = msgspec.structs.replace(outcome, status="scored", success=False, score=0.0)
        self._outcome = outcome
        self._ended = True
        self._write("end", stop_reason=stop_reason, success=outcome.success, score=outcome.score)
        if self._policy.rollback == "episode" and not outcome.success:
            self._undo(self._before, "episode_failed")
        counts = {"forbidden_action": failed, "refused": self._refused, "not_undone": len(self.not_undone)}
        components = {**outcome.components, **{name: float(value) for name, value in counts.items()}}
        self._outcome = msgspec.structs.replace(outcome, components=components)

    def close(self) -> None:
        """End an episode that is not over, and let the environment let go of what it holds."""
        self.abandon("abandoned")
        close(self._environment)

    def _is_write(self, call: ToolCall) -> bool:
        if self._policy.writes is None:
            return self._undoing is not None and self._undoing.writes(call)
        return call.name in self._policy.writes

    def _mark(self) -> Any:
        return None if self._undoing is None else self._undoing.mark()

    def _undo(self, mark: Any, reason: str, **details: Any) -> list[str]:
        """Take back what was done since the mark; returns the tools whose calls could not be."""
        if mark is None or self._undoing is None:
            return []
        lost = self._undoing.undo(mark, self._is_write, self._write)
        self.not_undone += lost
        for tool in lost:
            logger.warning("%s: a call of the tool %s could not be taken back", self._task.task_id, tool)
        self._write("write_undone", reason=reason, **details, **({"not_undone": lost} if lost else {}))
        return lost

    def _write(self, kind: str, **details: Any) -> None:
        if self._audit is not None:
            self._audit.append(self._task.task_id, kind, **details)


def _matches(forbidden: Forbidden, call: ToolCall) -> bool:
    """A rule that cannot judge a call (it raises) forbids it."""
    try:
        return forbidden.matches(call)
    except Exception:
        return True


def _error(message: Message) -> str | None:
    return None if message.error is None else message.error.type
