"""`SupportDesk`: one customer, one episode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from offline_arl.environments.protocol import EpisodeStart, Examples, StepResult, StopReason, Task
from offline_arl.environments.support_desk import phrases
from offline_arl.environments.support_desk.desk import TOOLS, Desk
from offline_arl.environments.support_desk.judge import judge
from offline_arl.environments.support_desk.tasks import DeskPayload, Order, decode_payload, generate_tasks
from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import Message, MessageError, Outcome, Producer, TextPart, ToolCall, text_message

INVALID_ACTION_PENALTY = 0.05
MAX_STEPS = 8


class _State(msgspec.Struct, frozen=True):
    """An episode as it stands, but for its task."""

    orders: list[Order]
    tickets: list[tuple[str, str]]
    named: list[str]
    steps: int
    withheld: bool
    answer: str | None
    ended: bool


class SupportDesk:
    """The support desk as an environment; satisfies `environments.protocol.Environment`.

    An assistant message with tool calls gets one tool message a call. A message of text alone is the desk's
    answer and ends the episode, unless the customer has not named the order number yet and the text asks for it.
    A malformed action (unknown tool, bad JSON, wrong arguments, an empty message) costs `INVALID_ACTION_PENALTY`,
    changes nothing, is answered with what is wrong, and the episode goes on.

    Args:
        max_steps: The episode is truncated after this many assistant messages.
    """

    def __init__(self, *, max_steps: int = MAX_STEPS) -> None:
        if max_steps < 1:
            raise UsageError(f"max_steps must be at least 1, not {max_steps}")
        self.max_steps = max_steps
        self._payload: DeskPayload | None = None

    def reset(self, task: Task) -> EpisodeStart:
        """Start an episode."""
        self._payload = decode_payload(task.payload)
        self._desk = Desk(self._payload)
        self._steps = 0
        self._withheld = self._payload.withheld
        self._answer: str | None = None
        self._ended = False
        messages = [
            text_message("system", phrases.SYSTEM_PROMPT, kind="script"),
            text_message("user", self._payload.opening, kind="script", name="customer"),
        ]
        return EpisodeStart(messages, TOOLS)

    def step(self, message: Message) -> StepResult:
        """Take the desk's message. Never raises on what it says.

        Raises:
            UsageError: The episode has ended or was never started.
        """
        if self._payload is None or self._ended:
            raise UsageError("the episode has ended: call reset before step")
        self._steps += 1
        if message.tool_calls:
            replies, invalid = self._call_tools(message.tool_calls)
        elif not message.text.strip():
            replies, invalid = [_customer("Hello? I did not get an answer.")], 1
        elif self._withheld and phrases.asks_for_number(message.text):
            self._withheld = False
            replies, invalid = [_customer(phrases.number_reply(self._payload.requests[0].order_id))], 0
        else:
            self._answer = message.text
            replies, invalid = [], 0
        terminated = self._answer is not None
        truncated = not terminated and self._steps >= self.max_steps
        self._ended = terminated or truncated
        reward = -INVALID_ACTION_PENALTY if invalid else 0.0
        stop_reason = None
        if self._ended:
            stop_reason = StopReason.ANSWERED if terminated else StopReason.MAX_STEPS
            reward += 1.0 if self.outcome().success else 0.0
        return StepResult(replies, reward, terminated, truncated, stop_reason, {"invalid_actions": invalid})

    def outcome(self) -> Outcome:
        """The rule judge's verdict: database state and answer both right."""
        if self._payload is None:
            return Outcome()
        verdict = judge(self._payload, self._desk, self._answer)
        success = all(verdict.values())
        components = {name: float(passed) for name, passed in verdict.items()}
        return Outcome("scored", success=success, score=float(success), components=components, scorer="support_desk")

    def snapshot(self) -> bytes:
        """See `environments.protocol.Reversible`."""
        desk = self._desk
        orders, tickets, named = list(desk.orders.values()), sorted(desk.tickets), sorted(desk.named)
        state = _State(orders, tickets, named, self._steps, self._withheld, self._answer, self._ended)
        return msgspec.json.encode(state)

    def restore(self, state: bytes) -> None:
        """See `environments.protocol.Reversible`."""
        kept = msgspec.json.decode(state, type=_State)
        self._desk.orders = {order.order_id: order for order in kept.orders}
        self._desk.tickets = set(kept.tickets)
        self._desk.named = set(kept.named)
        self._steps, self._withheld = kept.steps, kept.withheld
        self._answer, self._ended = kept.answer, kept.ended

    def _call_tools(self, calls: list[ToolCall]) -> tuple[list[Message], int]:
        replies: list[Message] = []
        invalid = 0
        for call in calls:
            result = self._desk.call(call)
            invalid += result.invalid
            replies.append(_tool_message(call, result.text, result.error))
        return replies, invalid


def _customer(text: str) -> Message:
    return text_message("user", text, kind="script", name="customer")


def _tool_message(call: ToolCall, text: str, error: MessageError | None) -> Message:
    return Message(
        role="tool",
        content=[TextPart(text)],
        tool_call_id=call.id,
        name=call.name or None,
        error=error,
        producer=Producer("environment", "support_desk"),
    )


class SupportDeskFamily:
    """Support-desk tasks and environments, found by the name "support_desk"."""

    name = "support_desk"

    def make(self) -> SupportDesk:
        """A fresh environment."""
        return SupportDesk()

    def tasks(self, split: str, count: int, *, seed: int) -> list[Task]:
        """`count` tasks of "train", "validation" or "test"; see `generate_tasks`."""
        return generate_tasks(split, count, seed=seed)

    def examples(self, task: Task) -> Examples:
        """What a perfect desk says, and one that gives up."""
        from offline_arl.environments.support_desk.examples import examples

        return examples(self.make(), task)

    def write_logs(
        self, path: Path, count: int, *, seed: int, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Logs of scripted agents on training tasks; see `logs.write_logs`."""
        from offline_arl.environments.support_desk.logs import write_logs

        write_logs(path, count, seed=seed, progress=progress)
