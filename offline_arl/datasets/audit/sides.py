"""What the sides of a row say, in forms that can be compared."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from offline_arl.datasets.pairs.folder import PreferenceRow
from offline_arl.datasets.pairs.pair import call_key, is_trained_step
from offline_arl.datasets.pairs.rows import PairRow
from offline_arl.trajectories.schema import Message

_messages = msgspec.json.Decoder(list[Message])
_NOISE = re.compile(r"[\W_]+")
_SHOWN = 300  # characters of an example


@dataclass(frozen=True)
class SideView:
    """One side of a row.

    Attributes:
        token_ids: [T] Of the side.
        action_ids: [A] The trained ones.
        prompt: Digest of the tokens before the first trained one.
        actions: Digest of the trained tokens.
        text: The side's messages as JSON text.
    """

    token_ids: NDArray[np.int32]
    action_ids: NDArray[np.int32]
    prompt: bytes
    actions: bytes
    text: str

    def plain(self) -> str:
        """What the agent does, without case, white space, punctuation (but of calls) and the order of arguments."""
        parts = []
        for message in _messages.decode(self.text):
            if is_trained_step(message):
                parts += [_NOISE.sub("", text) for text in (message.text, message.reasoning)]
                parts += ["".join(repr(call_key(call)).split()) for call in message.tool_calls]
        return "\0".join(parts).casefold()


def views(row: PreferenceRow) -> list[SideView]:
    """The sides of a row: chosen and rejected, or the one answer."""
    if isinstance(row, PairRow):
        return [
            _view(row.chosen_token_ids, row.chosen_action_mask, row.chosen),
            _view(row.rejected_token_ids, row.rejected_action_mask, row.rejected),
        ]
    return [_view(row.token_ids, row.action_mask, row.completion)]


def similarity(left: NDArray[np.int32], right: NDArray[np.int32], *, at_least: float) -> float:
    """The part of the longer of two token sequences that the other one has too, in the same order; from 0 to 1.

    Below `at_least` the number may be too large: sequences whose tokens differ that much are not aligned.
    """
    longest = max(len(left), len(right))
    if longest == 0:
        return 1.0
    listed = left.tolist(), right.tolist()
    common = (Counter(listed[0]) & Counter(listed[1])).total()  # whatever their order
    if common / longest < at_least:
        return common / longest
    blocks = SequenceMatcher(None, *listed, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) / longest


def shown(messages: str, *, end: bool = False) -> str:
    """Messages for people, cut to a few hundred characters at the beginning or the end."""
    lines = []
    for message in _messages.decode(messages):
        calls = [f"{call.name}({call.arguments_raw})" for call in message.tool_calls]
        lines.append(f"{message.role}: {' '.join([message.text, *calls]).strip()}")
    text = "\n".join(lines)
    if len(text) <= _SHOWN:
        return text
    return f"...{text[-_SHOWN:]}" if end else f"{text[:_SHOWN]}..."


def digest(*parts: bytes) -> bytes:
    """16 bytes for byte strings, told apart by their borders."""
    found = blake2b(digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()


def _view(token_ids: NDArray[np.int32], action_mask: NDArray[np.bool_], text: str) -> SideView:
    first = int(np.argmax(action_mask)) if action_mask.any() else len(token_ids)
    actions = token_ids[action_mask]
    return SideView(token_ids, actions, digest(token_ids[:first].tobytes()), digest(actions.tobytes()), text)
