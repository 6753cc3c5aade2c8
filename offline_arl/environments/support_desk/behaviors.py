"""Scripted desk agents of several skills, with the mistakes that real agents make.

They read the customer's wishes from the task, which a script may, but learn about orders only from tool results.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import msgspec
import numpy as np

from offline_arl.environments.support_desk.tasks import DeskPayload, Order, Request, is_allowed
from offline_arl.trajectories.schema import Message, Producer, TextPart, ToolCall, tool_call

Turn = Generator[Message, list[Message], None]


@dataclass(frozen=True)
class Skill:
    """Probabilities of one scripted agent, each for one request unless said otherwise."""

    name: str
    share: float  # of the logs
    lookup: float  # looks an order up before acting on it
    obeys: float  # follows the policy once it knows the order
    continues: float  # goes on to the next part of a compound request
    wrong_id: float  # mistypes the order number, for each call
    bad_json: float  # cuts the arguments short, for each call
    unknown_tool: float  # calls a tool that does not exist, for each call
    recovers: float  # repeats a call properly after an error
    promises: float  # says that it is done without doing it
    needless: float  # looks the order up once more
    gives_up: float  # ends the conversation


SKILLS: tuple[Skill, ...] = (
    Skill(
        "careful", share=0.17, lookup=0.97, obeys=0.95, continues=0.45, wrong_id=0.03,
        bad_json=0.02, unknown_tool=0.01, recovers=0.9, promises=0.02, needless=0.08, gives_up=0.01,
    ),
    Skill(
        "hasty", share=0.37, lookup=0.06, obeys=0.85, continues=0.35, wrong_id=0.05,
        bad_json=0.04, unknown_tool=0.02, recovers=0.7, promises=0.04, needless=0.02, gives_up=0.02,
    ),
    Skill(
        "sloppy", share=0.18, lookup=0.60, obeys=0.70, continues=0.35, wrong_id=0.18,
        bad_json=0.18, unknown_tool=0.12, recovers=0.5, promises=0.08, needless=0.15, gives_up=0.06,
    ),
    Skill(
        "talker", share=0.28, lookup=0.30, obeys=0.70, continues=0.35, wrong_id=0.05,
        bad_json=0.05, unknown_tool=0.05, recovers=0.5, promises=0.65, needless=0.05, gives_up=0.28,
    ),
)  # fmt: skip

_ACTIONS = {"address": "update_address", "refund": "refund_order", "complaint": "open_ticket"}
_WRONG_TOOLS = {
    "get_order": "find_order",
    "update_address": "set_address",
    "refund_order": "refund",
    "open_ticket": "complain",
}
_DONE = {
    "address": ("The address is changed.", "Your order goes to the new address."),
    "refund": ("The refund is on its way.", "Your money comes back to you."),
    "complaint": ("I opened a ticket for you.", "Your complaint is recorded."),
}
_DECLINED = {
    "address": ("Sorry, the address cannot be changed any more.",),
    "refund": ("Sorry, a refund is not possible.",),
    "complaint": ("Sorry, I cannot take this complaint.",),
    "status": ("Sorry, I cannot say.",),
}
_NOT_FOUND = "Sorry, I cannot find that order."
_GIVE_UP = "Please call us tomorrow."
_ASK = "What is your order number?"


class ScriptedAgent:
    """One agent in one episode. `play` is a coroutine: it yields the agent's messages and takes the replies."""

    def __init__(self, skill: Skill, payload: DeskPayload, generator: np.random.Generator) -> None:
        self._skill = skill
        self._payload = payload
        self._generator = generator
        self._calls = 0

    def play(self) -> Turn:
        """Yield assistant messages until the answer; send the environment's replies to each."""
        sentences: list[str] = []
        if self._payload.withheld:
            yield _say(_ASK, self._skill.name)
        for index, request in enumerate(self._payload.requests):
            if index > 0 and not self._chance(self._skill.continues):
                break
            if self._chance(self._skill.gives_up):
                sentences = [_GIVE_UP]
                break
            sentences.append((yield from self._serve(request)))
        yield _say(" ".join(sentences), self._skill.name)

    def _serve(self, request: Request) -> Generator[Message, list[Message], str]:
        """Serve one request; returns the sentence about it in the final answer."""
        if request.kind != "status" and self._chance(self._skill.promises):
            return self._pick(_DONE[request.kind])
        view: dict[str, object] | None = None
        # A status cannot be guessed as a change can be risked, so even the hasty often look.
        lookup = (1 + self._skill.lookup) / 2 if request.kind == "status" else self._skill.lookup
        if self._chance(lookup):
            view = yield from self._look_up(request)
            if view is None:
                return _NOT_FOUND
        if request.kind == "status":
            guess = ("processing", "shipped", "delivered")[int(self._generator.integers(3))]
            return f"Your order is {view['status'] if view else guess}."
        if view is not None and not self._believes_allowed(request, view):
            return self._pick(_DECLINED[request.kind])
        arguments = {"order_id": request.order_id}
        if request.address is not None:
            arguments["address"] = request.address
        if request.topic is not None:
            arguments["topic"] = request.topic
        result = yield from self._call(_ACTIONS[request.kind], arguments)
        if result.get("error") == "no such order":
            return _NOT_FOUND
        return self._pick(_DONE[request.kind])

    def _look_up(self, request: Request) -> Generator[Message, list[Message], dict[str, object] | None]:
        result = yield from self._call("get_order", {"order_id": request.order_id})
        if self._chance(self._skill.needless):
            result = yield from self._call("get_order", {"order_id": request.order_id})
        return result if "status" in result else None

    def _believes_allowed(self, request: Request, view: dict[str, object]) -> bool:
        order = msgspec.convert({"order_id": request.order_id, "address": "", **view}, Order)
        allowed = is_allowed(request, order)
        return allowed if self._chance(self._skill.obeys) else not allowed

    def _call(self, name: str, arguments: dict[str, str]) -> Generator[Message, list[Message], dict[str, object]]:
        """Make one call, mistakes included; repeat it properly after an error if the skill allows."""
        result = yield from self._send(self._with_mistakes(name, arguments))
        if "error" in result and self._chance(self._skill.recovers):
            self._calls += 1
            result = yield from self._send(tool_call(name, _spaced(arguments), id=f"call_{self._calls}"))
        return result

    def _with_mistakes(self, name: str, arguments: dict[str, str]) -> ToolCall:
        self._calls += 1
        identifier = f"call_{self._calls}"
        if self._chance(self._skill.unknown_tool):
            name = _WRONG_TOOLS[name]
        if self._chance(self._skill.wrong_id):
            arguments = {**arguments, "order_id": self._mistype(arguments["order_id"])}
        raw = _spaced(arguments)
        if self._chance(self._skill.bad_json):
            raw = raw[: -int(self._generator.integers(1, 3))]
        return tool_call(name, raw, id=identifier)

    def _send(self, call: ToolCall) -> Generator[Message, list[Message], dict[str, object]]:
        message = Message(role="assistant", tool_calls=[call], producer=Producer("model", self._skill.name))
        replies = yield message
        result: dict[str, object] = msgspec.json.decode(replies[0].text)
        return result

    def _mistype(self, order_id: str) -> str:
        """The order number with one of its digits changed."""
        position = len(order_id) - 1 - int(self._generator.integers(2))
        digit = (int(order_id[position]) + int(self._generator.integers(1, 10))) % 10
        return f"{order_id[:position]}{digit}{order_id[position + 1 :]}"

    def _chance(self, probability: float) -> bool:
        return bool(self._generator.random() < probability)

    def _pick(self, options: tuple[str, ...]) -> str:
        return options[int(self._generator.integers(len(options)))]


def _say(text: str, agent: str) -> Message:
    return Message(role="assistant", content=[TextPart(text)], producer=Producer("model", agent))


def _spaced(arguments: dict[str, str]) -> str:
    """JSON with the spacing of `json.dumps`, which is what chat templates write."""
    return "{" + ", ".join(f'"{key}": {msgspec.json.encode(value).decode()}' for key, value in arguments.items()) + "}"
