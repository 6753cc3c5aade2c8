"""Support-desk tasks: what a customer wants, the orders involved, and the state the desk should end in.

A task is made from a seed alone. Splits cannot overlap, whatever the seeds: a hash of the task's content decides
which split it may serve in, and the generator draws until it gets one of the split asked for.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np

from offline_arl.environments.protocol import Task
from offline_arl.environments.splits import SPLITS, require_split, split_of_content
from offline_arl.environments.support_desk import phrases

RequestKind = Literal["status", "address", "refund", "complaint"]
OrderStatus = Literal["processing", "shipped", "delivered"]
REFUND_WEEKS = 4

# One cycle of task types: every split of at least 20 tasks covers every type in these shares.
_CYCLE: tuple[tuple[RequestKind, ...], ...] = (
    ("address",),
    ("refund",),
    ("address", "refund"),
    ("status",),
    ("refund", "address"),
    ("complaint",),
    ("refund",),
    ("complaint", "refund"),
    ("address",),
    ("status",),
    ("refund", "complaint"),
    ("address",),
    ("refund",),
    ("address", "complaint"),
    ("complaint",),
    ("address",),
    ("refund",),
    ("complaint", "address"),
    ("status",),
    ("complaint",),
)


class Order(msgspec.Struct, frozen=True):
    """One row of the shop's database.

    `weeks` counts since delivery; None while not delivered. `note` is what somebody wrote into it, shown as it is.
    """

    order_id: str
    status: OrderStatus
    address: str
    weeks: int | None = None
    refunded: bool = False
    note: str | None = None


class Request(msgspec.Struct, frozen=True):
    """One thing the customer wants. `order_id` may be one that the shop does not have."""

    kind: RequestKind
    order_id: str
    address: str | None = None  # new address, for "address"
    topic: str | None = None  # for "complaint"


class DeskPayload(msgspec.Struct, frozen=True):
    """A task's own description. `withheld`: the customer names the order number only when asked."""

    requests: list[Request]
    orders: list[Order]
    opening: str
    withheld: bool = False


@dataclass(frozen=True)
class Expectation:
    """What a correct desk leaves behind."""

    orders: dict[str, Order]
    tickets: frozenset[tuple[str, str]]  # (order_id, topic)
    declined: frozenset[str]  # order numbers of the parts that must be declined
    granted: bool  # some part must be done
    status_word: str | None  # the answer must name it


def is_allowed(request: Request, order: Order | None) -> bool:
    """Whether the policy allows a request.

    Addresses change only while the order is processing; refunds need a delivery at most four weeks ago, once; a
    status question or a complaint needs only an order that exists.
    """
    if order is None:
        return False
    if request.kind == "address":
        return order.status == "processing"
    if request.kind == "refund":
        return order.status == "delivered" and not order.refunded and (order.weeks or 0) <= REFUND_WEEKS
    return True


def expectation(payload: DeskPayload) -> Expectation:
    """The state and answer that the policy asks for."""
    orders = {order.order_id: order for order in payload.orders}
    tickets: set[tuple[str, str]] = set()
    declined: set[str] = set()
    granted = False
    status_word: str | None = None
    for request in payload.requests:
        order = orders.get(request.order_id)
        if order is None or not is_allowed(request, order):
            declined.add(request.order_id)
            continue
        granted = True
        if request.kind == "address" and request.address is not None:
            orders[order.order_id] = msgspec.structs.replace(order, address=request.address)
        elif request.kind == "refund":
            orders[order.order_id] = msgspec.structs.replace(order, refunded=True)
        elif request.kind == "complaint" and request.topic is not None:
            tickets.add((order.order_id, request.topic))
        elif request.kind == "status":
            status_word = order.status
    return Expectation(orders, frozenset(tickets), frozenset(declined), granted, status_word)


def split_of(payload: DeskPayload) -> str:
    """The split that a task's content belongs to: 60 % train, 20 % validation, 20 % test of all contents."""
    return split_of_content(encode_payload(payload))


def generate_tasks(split: str, count: int, *, seed: int) -> list[Task]:
    """Make `count` tasks of a split; task i depends on (split, seed, i) alone, so a longer list extends a shorter.

    Raises:
        UsageError: `split` is not "train", "validation" or "test".
    """
    require_split(split)
    return [_task(split, index, seed) for index in range(count)]


def _task(split: str, index: int, seed: int) -> Task:
    generator = np.random.default_rng([seed, SPLITS.index(split), index])
    kinds = _CYCLE[index % len(_CYCLE)]
    while True:
        payload = _draw(kinds, generator)
        if split_of(payload) == split and not _is_done_already(payload):
            break
    encoded = encode_payload(payload)
    task_type = kinds[0] if len(kinds) == 1 else "compound"
    task_id = f"desk-{hashlib.sha256(encoded).hexdigest()[:16]}"
    return Task(task_id, task_type, msgspec.json.decode(encoded))


def _is_done_already(payload: DeskPayload) -> bool:
    """Whether an order is to go where it goes anyway: then doing nothing would be as good as doing it."""
    addresses = {order.order_id: order.address for order in payload.orders}
    return any(
        request.kind == "address" and addresses.get(request.order_id) == request.address for request in payload.requests
    )


def encode_payload(payload: DeskPayload) -> bytes:
    """`Task.payload` as JSON text, which ids and splits are made of; notes are in it only where there are some."""
    raw = msgspec.to_builtins(payload)
    for order in raw["orders"]:
        if order["note"] is None:
            del order["note"]
    return msgspec.json.encode(raw)


def decode_payload(payload: dict[str, Any]) -> DeskPayload:
    """The typed form of `Task.payload`.

    Raises:
        msgspec.ValidationError: The payload is not one of this environment's.
    """
    return msgspec.convert(payload, DeskPayload)


def _draw(kinds: tuple[RequestKind, ...], generator: np.random.Generator) -> DeskPayload:
    orders: list[Order] = []
    requests: list[Request] = []
    *numbers, unrelated = phrases.order_ids(len(kinds) + 1, generator)
    for kind, number in zip(kinds, numbers, strict=True):
        order = _draw_order(kind, number, generator)
        missing = generator.random() < 0.06
        if not missing:
            orders.append(order)
        requests.append(_draw_request(kind, order, generator))
    orders.append(_draw_order("status", unrelated, generator))
    withheld = len(kinds) == 1 and bool(generator.random() < 0.2)
    opening = phrases.opening(requests, withheld=withheld, generator=generator)
    return DeskPayload(requests=requests, orders=orders, opening=opening, withheld=withheld)


def _draw_order(kind: RequestKind, order_id: str, generator: np.random.Generator) -> Order:
    """An order whose state makes the request allowed about half of the time, so that looking it up pays."""
    address = phrases.address(generator)
    if kind == "address":
        weights = (0.5, 0.3, 0.2)
    elif kind == "refund":
        weights = (0.1, 0.1, 0.8)
    else:
        weights = (0.34, 0.33, 0.33)
    statuses: tuple[OrderStatus, ...] = ("processing", "shipped", "delivered")
    status = statuses[int(generator.choice(3, p=weights))]
    weeks = None
    if status == "delivered":
        recent = generator.random() < 0.6
        weeks = int(generator.integers(1, REFUND_WEEKS + 1) if recent else generator.integers(REFUND_WEEKS + 1, 10))
    return Order(order_id=order_id, status=status, address=address, weeks=weeks)


def _draw_request(kind: RequestKind, order: Order, generator: np.random.Generator) -> Request:
    if kind == "address":
        return Request(kind, order.order_id, address=phrases.address(generator))
    if kind == "complaint":
        topic = phrases.TOPICS[int(generator.integers(len(phrases.TOPICS)))]
        return Request(kind, order.order_id, topic=topic)
    return Request(kind, order.order_id)
