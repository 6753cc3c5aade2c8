"""The shop's database and the tools that act on it.

Like the interfaces of real shops, the tools do what they are told: whether a change is allowed is for the agent to
check first. They do refuse what makes no sense (an order that does not exist), and they never raise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from offline_arl.environments.support_desk.phrases import TOPICS
from offline_arl.environments.support_desk.tasks import DeskPayload, Order
from offline_arl.trajectories.calls import call_problem
from offline_arl.trajectories.schema import MessageError, ToolCall

_ORDER_ID = {"type": "string", "description": "The order number, a letter and two digits."}


def _function(name: str, description: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS: list[dict[str, Any]] = [
    _function("get_order", "Look up an order.", {"order_id": _ORDER_ID}),
    _function(
        "update_address",
        "Change the delivery address of an order.",
        {"order_id": _ORDER_ID, "address": {"type": "string", "minLength": 1}},
    ),
    _function("refund_order", "Refund an order in full.", {"order_id": _ORDER_ID}),
    _function(
        "open_ticket",
        "Record a complaint about an order.",
        {"order_id": _ORDER_ID, "topic": {"type": "string", "enum": list(TOPICS)}},
    ),
]


class ToolResult(NamedTuple):
    """What a call gives back. `invalid`: the call itself was malformed, which costs the agent a small penalty."""

    text: str
    error: MessageError | None = None
    invalid: bool = False


class Desk:
    """The database of one episode. `named`: the numbers that well-formed calls named, of orders that exist or not."""

    def __init__(self, payload: DeskPayload) -> None:
        self.orders: dict[str, Order] = {order.order_id: order for order in payload.orders}
        self.tickets: set[tuple[str, str]] = set()
        self.named: set[str] = set()

    def call(self, call: ToolCall) -> ToolResult:
        """Execute one call. Malformed calls change nothing and say what is wrong."""
        problem = call_problem(call, TOOLS)
        if problem is not None:
            return ToolResult(_json({"error": problem.kind}), MessageError(problem.kind, problem.text), invalid=True)
        arguments = call.arguments or {}
        order_id = str(arguments["order_id"])
        self.named.add(order_id)
        order = self.orders.get(order_id)
        if order is None:
            return ToolResult(_json({"error": "no such order"}), MessageError("not_found", "no such order"))
        if call.name == "get_order":
            return ToolResult(_json(_view(order)))
        if call.name == "update_address":
            self.orders[order.order_id] = msgspec.structs.replace(order, address=str(arguments["address"]))
        elif call.name == "refund_order":
            self.orders[order.order_id] = msgspec.structs.replace(order, refunded=True)
        else:
            self.tickets.add((order.order_id, str(arguments["topic"])))
        return ToolResult(_json({"ok": True}))


def _view(order: Order) -> dict[str, Any]:
    view: dict[str, Any] = {"status": order.status}
    if order.weeks is not None:
        view["weeks"] = order.weeks
    if order.refunded:
        view["refunded"] = True
    if order.note is not None:
        view["note"] = order.note
    return view


def _json(value: dict[str, Any]) -> str:
    # The spacing of json.dumps, which is what most tool servers send.
    return msgspec.json.encode(value).decode().replace('":', '": ').replace(',"', ', "')
