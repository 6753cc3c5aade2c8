"""Data sets of TRL in its conversational types, as JSON lines or Parquet.

Tools are a column of JSON text and arguments of calls are objects, as TRL wants them. In Parquet, arguments have
Arrow's JSON type, which `datasets` decodes to objects call by call, so that calls never get each other's keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from offline_arl.logs.exports.chat import template_messages
from offline_arl.logs.exports.columns import messages_type, pyarrow
from offline_arl.logs.exports.exporter import Container, NativeRecord, NoRecordError
from offline_arl.logs.slots.contexts import all_tools
from offline_arl.logs.slots.slot import KEY, Slot
from offline_arl.logs.slots.writing import slot_text
from offline_arl.trajectories.schema import Message, Trajectory, is_policy_message

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

    def native(self, trajectories: Sequence[Trajectory], container: Container) -> NativeRecord:
        """The row of a conversation."""
        (trajectory,) = trajectories
        return NativeRecord({"messages": _messages(trajectory.messages, container), "tools": tools_text(trajectory)})

    def place(self, record: dict[str, Any], slots: Sequence[Slot]) -> None:
        """One more column, of text."""
        record[KEY] = slot_text(slots)

    def arrow_columns(self) -> Mapping[str, Any]:
        """The columns, in order."""
        pa = pyarrow()
        kind = messages_type(arguments=pa.json_())
        return {
            **dict.fromkeys(self.columns, kind),
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

    def native(self, trajectories: Sequence[Trajectory], container: Container) -> NativeRecord:
        """The row of a conversation with an answer."""
        (trajectory,) = trajectories
        start = answer_index(trajectory)
        values: dict[str, Any] = {
            "prompt": _messages(trajectory.messages[:start], container),
            "completion": _messages(trajectory.messages[start:], container),
            "tools": tools_text(trajectory),
        }
        return NativeRecord(values)


class TRLUnpairedExporter(TRLPromptCompletionExporter):
    """Writes answers with a verdict: whether the outcome was a success."""

    name = "trl_unpaired"
    title = "TRL: completions with a verdict"
    labels: Mapping[str, str] = MappingProxyType({"label": "bool_"})

    def native(self, trajectories: Sequence[Trajectory], container: Container) -> NativeRecord:
        """The row of a conversation whose outcome is a verdict."""
        outcome = trajectories[0].outcome
        if outcome.status != "scored" or outcome.success is None:
            raise NoRecordError("no verdict on its outcome")
        values = super().native(trajectories, container).values
        values["label"] = outcome.success
        return NativeRecord(values)


class TRLPreferenceExporter(TRLExporter):
    """Writes pairs that were compared: the prompt that they share, the chosen answer, the rejected one."""

    name = "trl_preference"
    title = "TRL: preferences"
    adapter = "trl"
    per_record = 2
    columns = ("prompt", "chosen", "rejected")

    def native(self, trajectories: Sequence[Trajectory], container: Container) -> NativeRecord:
        """The row of a chosen trajectory and a rejected one."""
        chosen, rejected = trajectories
        sides = [_messages(trajectory.messages, container) for trajectory in trajectories]
        # The answers part where the model decides, never between its call and the result.
        limit = min(_next_answer(chosen, len(sides[0])), _next_answer(rejected, len(sides[1])))
        shared = 0
        while shared < limit and sides[0][shared] == sides[1][shared]:
            shared += 1
        while shared and not _both_answer(chosen, rejected, shared):
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
    """Where the answer begins: at the first step of the agent, in a branch the first after it parts.

    Raises:
        NoRecordError: There is no answer, or nothing that it answers.
    """
    steps = trajectory.step_indices()
    parted = 0 if trajectory.branch is None else trajectory.branch.message_index
    start = next((index for index in steps if index >= parted), steps[0] if steps else None)
    if start is None:
        raise NoRecordError("no answer of the agent in it")
    if start == 0:
        raise NoRecordError("no prompt before the answer")
    return start


def _messages(messages: Sequence[Message], container: Container) -> list[dict[str, Any]]:
    values = template_messages(messages, as_objects=True)
    if container == "parquet":
        for value, message in zip(values, messages, strict=True):
            for entry, call in zip(value["tool_calls"] or (), message.tool_calls, strict=True):
                # The text of an object as it is; other text as a JSON string, which is what the column must hold.
                is_object = call.arguments is not None and call.arguments_raw.strip() not in ("", "null")
                text = call.arguments_raw if is_object else msgspec.json.encode(entry["function"]["arguments"]).decode()
                entry["function"]["arguments"] = text
    return values


def _next_answer(trajectory: Trajectory, count: int) -> int:
    steps = trajectory.step_indices()
    return min(count - 1, steps[-1] if steps else 0)


def _both_answer(chosen: Trajectory, rejected: Trajectory, index: int) -> bool:
    return all(
        index < len(trajectory.messages) and is_policy_message(trajectory.messages[index])
        for trajectory in (chosen, rejected)
    )
