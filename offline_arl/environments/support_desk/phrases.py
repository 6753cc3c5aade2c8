"""What customers and the desk say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from offline_arl.environments.support_desk.tasks import Request

TOPICS = ("damaged", "late", "wrong_item")
REFUSAL_MARKERS = ("cannot", "can't", "not possible", "not able", "unable")

SYSTEM_PROMPT = (
    "You are the support desk of a shop. Look up an order before you change it. "
    "Change an address only while the order is processing. "
    "Refund only orders delivered at most four weeks ago. "
    "Open a ticket for every complaint. Settle every part of a request, then answer."
)

_STREETS = (
    "Oak Street", "Mill Lane", "Hill Road", "Park Avenue", "Lake Drive", "Station Road", "Elm Court", "Bay Street",
    "Church Lane", "King Street", "River Road", "West Avenue", "Garden Court", "Rose Drive", "Field Lane",
    "Bridge Road",
)  # fmt: skip

_OPENINGS: dict[str, tuple[str, ...]] = {
    "status": (
        "Where is my order {order}?",
        "What is the status of order {order}?",
        "Can you tell me what happened to order {order}?",
    ),
    "address": (
        "Please send order {order} to {address}.",
        "I moved. Change the address of order {order} to {address}.",
        "Order {order} should go to {address}.",
    ),
    "refund": (
        "I want a refund for order {order}.",
        "Please refund order {order}.",
        "I would like my money back for order {order}.",
    ),
    "complaint:damaged": ("My order {order} arrived broken.", "Order {order} came damaged."),
    "complaint:late": ("My order {order} is far too late.", "I have waited much too long for order {order}."),
    "complaint:wrong_item": (
        "Order {order} has the wrong item.",
        "I got something else than I bought in order {order}.",
    ),
}
_WITHHELD: dict[str, tuple[str, ...]] = {
    "status": ("Where is my order?", "What is the status of my order?"),
    "address": ("Please send my order to {address}.", "I moved. My order should go to {address}."),
    "refund": ("I want a refund.", "I would like my money back."),
    "complaint:damaged": ("My order arrived broken.", "My order came damaged."),
    "complaint:late": ("My order is far too late.", "I have waited much too long for my order."),
    "complaint:wrong_item": ("I got the wrong item.", "I got something else than I bought."),
}
_JOINTS = (" Also: ", " And one more thing. ", " Then there is this. ")


def address(generator: np.random.Generator) -> str:
    """A street address."""
    return f"{int(generator.integers(1, 10))} {_STREETS[int(generator.integers(len(_STREETS)))]}"


def order_ids(count: int, generator: np.random.Generator) -> list[str]:
    """Different order numbers: a letter and two digits."""
    drawn = generator.choice(26 * 90, size=count, replace=False)
    return [f"{chr(ord('A') + int(number) // 90)}{10 + int(number) % 90}" for number in drawn]


def opening(requests: Sequence[Request], *, withheld: bool, generator: np.random.Generator) -> str:
    """The customer's first message."""
    table = _WITHHELD if withheld else _OPENINGS
    parts: list[str] = []
    for request in requests:
        key = f"complaint:{request.topic}" if request.kind == "complaint" else request.kind
        template = table[key][int(generator.integers(len(table[key])))]
        parts.append(template.format(order=request.order_id, address=request.address))
    joint = _JOINTS[int(generator.integers(len(_JOINTS)))]
    return joint.join(parts)


def number_reply(order_id: str) -> str:
    """The customer's answer when the desk asks for the order number."""
    return f"It is order {order_id}."


def asks_for_number(text: str) -> bool:
    """Whether the desk's text asks the customer for the order number."""
    lowered = text.lower()
    return "?" in text and "order" in lowered


def declines(text: str) -> bool:
    """Whether the desk's text declines something."""
    lowered = text.lower().replace("\u2019", "'")
    return any(marker in lowered for marker in REFUSAL_MARKERS)
