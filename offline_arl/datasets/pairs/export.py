"""Rows of preference datasets for other trainers, which tokenize by themselves.

* TRL's conversational types: `prompt`, `chosen`, `rejected`, `tools` for DPO, and `prompt`, `completion`, `label`,
  `tools` for KTO. Tools are JSON text, arguments of calls are objects.
* OpenAI's preference files: one answer on either side.

What these trainers do with them is theirs: TRL 1.16 trains on every token behind the prompt, tool output included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from offline_arl.datasets.pairs.folder import PreferenceRow
from offline_arl.datasets.pairs.rows import PairRow, UnpairedRow
from offline_arl.logs.exports.chat import template_messages
from offline_arl.logs.exports.columns import pyarrow
from offline_arl.logs.exports.exporter import NoRecordError
from offline_arl.trajectories.schema import Message, is_policy_message

_messages = msgspec.json.Decoder(list[Message])
_ASKING = ("user", "tool")


class PreferenceFormat:
    """A format of another trainer: what it makes of a row, and the Arrow types of its columns.

    Attributes:
        name: As in `--format`.
        record: Makes the record of a row; raises NoRecordError where there is none.
    """

    def __init__(self, name: str, record: Callable[[PreferenceRow], dict[str, Any]], **columns: str) -> None:
        self.name = name
        self.record = record
        self._columns = columns

    def arrow_columns(self) -> Mapping[str, Any]:
        """The columns in order; messages are Arrow's JSON, so that no call gets the arguments of another."""
        pa = pyarrow()
        types = {"messages": pa.list_(pa.json_()), "text": pa.string(), "bool": pa.bool_(), "json": pa.json_()}
        return {name: types[kind] for name, kind in self._columns.items()}


def trl_record(row: PreferenceRow) -> dict[str, Any]:
    """The row of TRL's preference type, or of its unpaired type.

    Raises:
        NoRecordError: The sides share no prompt that ends with a user or a tool, which TRL needs.
    """
    if isinstance(row, UnpairedRow):
        prompt, (completion,) = _split(row.prompt, row.completion)
        return {"prompt": prompt, "completion": completion, "label": row.label, "tools": row.tools}
    prompt, (chosen, rejected) = _split(row.prompt, row.chosen, row.rejected)
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, "tools": row.tools}


def openai_record(row: PreferenceRow) -> dict[str, Any]:
    """The record of OpenAI's preference files.

    Raises:
        NoRecordError: The row is no pair, or a side is more than one answer.
    """
    if not isinstance(row, PairRow):
        raise NoRecordError("labels without a counterpart")
    prompt, sides = _split(row.prompt, row.chosen, row.rejected, as_objects=False)
    if any(len(side) != 1 for side in sides):
        raise NoRecordError("a side is more than one answer")
    tools = {"tools": msgspec.json.decode(row.tools)} if row.tools else {}
    chosen, rejected = sides
    return {"input": {"messages": prompt, **tools}, "preferred_output": chosen, "non_preferred_output": rejected}


TRL_PAIRS = PreferenceFormat("trl", trl_record, prompt="messages", chosen="messages", rejected="messages", tools="text")
TRL_UNPAIRED = PreferenceFormat("trl", trl_record, prompt="messages", completion="messages", label="bool", tools="text")
OPENAI_PAIRS = PreferenceFormat(
    "openai_preferences", openai_record, input="json", preferred_output="messages", non_preferred_output="messages"
)


def _split(
    prompt: str, *sides: str, as_objects: bool = True
) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """The prompt and the answers, parted where the agent acts on all sides and a user or a tool spoke before.

    A side that begins with the result of a call gets the call too: TRL's prompts end before a turn of the agent.

    Raises:
        NoRecordError: There is no such place.
    """
    shared = _messages.decode(prompt)
    wholes = [[*shared, *_messages.decode(side)] for side in sides]
    start = len(shared)
    while start and not all(_answers(whole, start) for whole in wholes):
        start -= 1
    if not start:
        raise NoRecordError("the sides share no prompt that ends with a user or a tool")
    chats = [template_messages(whole, as_objects=as_objects) for whole in wholes]
    return chats[0][:start], [chat[start:] for chat in chats]


def _answers(messages: Sequence[Message], index: int) -> bool:
    asked = index < len(messages) and messages[index - 1].role in _ASKING
    return asked and is_policy_message(messages[index])
