"""Data sets of TRL in its conversational types, as JSON lines or Parquet.

Tools are a column of JSON text and arguments of calls are objects, as TRL wants them. In Parquet, messages have
Arrow's JSON type, which `datasets` decodes one by one: neither messages nor arguments get each other's keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from offline_arl.logs.exports.chat import template_messages
from offline_arl.logs.exports.columns import pyarrow
from offline_arl.logs.exports.exporter import Container, NativeRecord, NoRecordError
from offline_arl.logs.slots.contexts import all_tools
from offline_arl.logs.slots.slot import KEY, Slot
from offline_arl.logs.slots.writing import slot_text
from offline_arl.trajectories.schema import Trajectory, is_policy_message

NO_ANSWER = "no answer of the agent to a user or a tool"
_ASKING = ("user", "tool")
_LEFT_OUT = "which answers are trained, images and files, text of developers as such, tools that change"


class TRLExporter:
    """Writes conversations for supervised training: `messages`, `tools`."""

    name = "trl"
    title = "TRL: conversations"
    adapter = "openai_chat"
    containers: Sequence[Container] = ("json_lines", "parquet")
    per_record = 1
    leaves_out = _LEFT_OUT
    columns: Sequence[str] = ("messages",)
    labels: Mapping[str, str] = MappingProxyType({})

    def native(self, trajectories: Sequence[Trajectory]) -> NativeRecord:
        """The row of a conversation."""
        (trajectory,) = trajectories
        messages = template_messages(trajectory.messages, as_objects=True)
        return NativeRecord({"messages": messages, "tools": tools_text(trajectory)})

    def place(self, record: dict[str, Any], slots: Sequence[Slot]) -> None:
        """One more column, of text."""
        record[KEY] = slot_text(slots)

    def arrow_columns(self) -> Mapping[str, Any]:
        """The columns, in order."""
        pa = pyarrow()
        return {
            **dict.fromkeys(self.columns, pa.list_(pa.json_())),
            **{name: getattr(pa, type_name)() for name, type_name in self.labels.items()},
            "tools": pa.string(),
            KEY: pa.string(),
        }


class TRLPromptCompletionExporter(TRLExporter):
    """Writes a prompt and what followed it, for training on what followed only."""

    name = "trl_prompt_completion"
    title = "TRL: prompts and completions"
    adapter = "trl"
    columns = ("prompt", "completion")

    def native(self, trajectories: Sequence[Trajectory]) -> NativeRecord:
        """The row of a conversation with an answer."""
        (trajectory,) = trajectories
        start = answer_index(trajectory)
        messages = template_messages(trajectory.messages, as_objects=True)
        values = {"prompt": messages[:start], "completion": messages[start:], "tools": tools_text(trajectory)}
        return NativeRecord(values)


class TRLUnpairedExporter(TRLPromptCompletionExporter):
    """Writes answers with a verdict: whether the outcome was a success."""

    name = "trl_unpaired"
    title = "TRL: completions with a verdict"
    labels: Mapping[str, str] = MappingProxyType({"label": "bool_"})

    def native(self, trajectories: Sequence[Trajectory]) -> NativeRecord:
        """The row of a conversation whose outcome is a verdict."""
        outcome = trajectories[0].outcome
        if outcome.status != "scored" or outcome.success is None:
            raise NoRecordError("no verdict on its outcome")
        values = super().native(trajectories).values
        values["label"] = outcome.success
        return NativeRecord(values)


class TRLPreferenceExporter(TRLExporter):
    """Writes pairs that were compared: the prompt that they share, the chosen answer, the rejected one."""

    name = "trl_preference"
    title = "TRL: preferences"
    adapter = "trl"
    per_record = 2
    columns = ("prompt", "chosen", "rejected")

    def native(self, trajectories: Sequence[Trajectory]) -> NativeRecord:
        """The row of a chosen trajectory and a rejected one."""
        chosen, rejected = trajectories
        sides = [template_messages(trajectory.messages, as_objects=True) for trajectory in trajectories]
        shared = 0
        while shared < min(map(len, sides)) - 1 and sides[0][shared] == sides[1][shared]:
            shared += 1
        # The answers part where the model decides, never between its call and the result.
        while shared and not (_answers(chosen, shared) and _answers(rejected, shared)):
            shared -= 1
        if not shared:
            raise NoRecordError("the two that were compared share no prompt")
        if sides[0] == sides[1]:
            raise NoRecordError("the two that were compared are the same")
        values: dict[str, Any] = {
            "prompt": sides[0][:shared],
            "chosen": sides[0][shared:],
            "rejected": sides[1][shared:],
            "tools": tools_text(chosen) or tools_text(rejected),
        }
        return NativeRecord(values, (None, None))


def tools_text(trajectory: Trajectory) -> str | None:
    """The tools of a conversation as JSON text; None where there are none."""
    tools = all_tools(trajectory.contexts)
    return msgspec.json.encode(tools).decode() if tools else None


def answer_index(trajectory: Trajectory) -> int:
    """Where the answer begins: at the first step that answers something, in a branch the first after it parts.

    Raises:
        NoRecordError: There is none.
    """
    answers = [index for index in trajectory.step_indices() if _answers(trajectory, index)]
    if not answers:
        raise NoRecordError(NO_ANSWER)
    parted = 0 if trajectory.branch is None else trajectory.branch.message_index
    return next((index for index in answers if index >= parted), answers[0])


def _answers(trajectory: Trajectory, index: int) -> bool:
    """Whether a message is a step and answers a user or a tool; TRL takes no prompt that ends otherwise."""
    messages = trajectory.messages
    return 0 < index < len(messages) and is_policy_message(messages[index]) and messages[index - 1].role in _ASKING
