"""ShareGPT as LLaMA-Factory takes it: turns of the human side and of the model, strictly in turn.

Human turns are `human` and `observation`, model turns `gpt` and `function_call`; a row that breaks the order is
dropped there. What comes together on one side is joined, a model that speaks first answers an empty turn, and what
comes after the last answer is in the slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import msgspec

from offline_arl.errors import UsageError
from offline_arl.logs.exports.exporter import Container, NativeRecord
from offline_arl.logs.slots.contexts import all_tools
from offline_arl.logs.slots.slot import KEY, Slot
from offline_arl.logs.slots.writing import Layout, slot_text
from offline_arl.trajectories.schema import Message, Trajectory

# How LLaMA-Factory joins the results of parallel calls, and how it marks reasoning.
_BETWEEN_RESULTS = "\n</tool_response>\n<tool_response>\n"
_BETWEEN_TEXTS = "\n\n"
_REASONING = ("<think>\n", "\n</think>\n\n")


class ShareGPTExporter:
    """Writes conversations for LLaMA-Factory."""

    name = "sharegpt"
    title = "ShareGPT, LLaMA-Factory"
    adapter = "sharegpt"
    containers: Sequence[Container] = ("json_lines",)
    per_record = 1
    leaves_out = (
        "text that a model says beside its calls, ids of calls, which answers are trained, images and files, "
        "what comes after the last answer, tools that change"
    )

    def native(self, trajectories: Sequence[Trajectory]) -> NativeRecord:
        """The row of a conversation."""
        (trajectory,) = trajectories
        turns, layout = _turns(trajectory.messages)
        tools = all_tools(trajectory.contexts)
        record: dict[str, Any] = {
            "conversations": turns,
            "tools": msgspec.json.encode(tools).decode() if tools else "",
        }
        outcome = trajectory.outcome
        if outcome.status == "scored" and outcome.success is not None:
            record["kto_tag"] = outcome.success
        return NativeRecord(record, (layout,))

    def place(self, record: dict[str, Any], slots: Sequence[Slot]) -> None:
        """One more column, of text."""
        record[KEY] = slot_text(slots)

    def arrow_columns(self) -> Mapping[str, Any]:
        """Not written as a table."""
        raise UsageError("sharegpt is written as JSON lines, not as a table")


def _turns(messages: Sequence[Message]) -> tuple[list[dict[str, str]], Layout]:
    """The turns, and for each message the turn that it went into."""
    turns: list[dict[str, str]] = []
    layout: list[int | None] = []
    rest = list(messages)
    if rest and rest[0].role in ("system", "developer"):
        turns.append({"from": "system", "value": rest.pop(0).text})
        layout.append(0)
    has_answer = any(message.role == "assistant" for message in rest)
    if rest and rest[0].role == "assistant":
        turns.append({"from": "human", "value": ""})
    sides = [(is_model, list(run)) for is_model, run in groupby(rest, lambda message: message.role == "assistant")]
    for number, (is_model, run) in enumerate(sides):
        is_left_over = has_answer and not is_model and number == len(sides) - 1
        layout.extend([None if is_left_over else len(turns)] * len(run))
        if not is_left_over:
            turns.append(_model_turn(run) if is_model else _human_turn(run))
    return turns, layout


def _human_turn(run: Sequence[Message]) -> dict[str, str]:
    value = run[0].text
    for before, message in pairwise(run):
        between = _BETWEEN_RESULTS if before.role == message.role == "tool" else _BETWEEN_TEXTS
        value = f"{value}{between}{message.text}"
    return {"from": "observation" if run[0].role == "tool" else "human", "value": value}


def _model_turn(run: Sequence[Message]) -> dict[str, str]:
    reasoning = _BETWEEN_TEXTS.join(message.reasoning for message in run if message.reasoning)
    # What holds the marks itself would end where it does not.
    is_marked = any(mark.strip() in reasoning for mark in _REASONING)
    thought = f"{_REASONING[0]}{reasoning}{_REASONING[1]}" if reasoning and not is_marked else ""
    calls = [call for message in run for call in message.tool_calls]
    if calls:
        values = [
            {"name": call.name, "arguments": call.arguments_raw if call.arguments is None else call.arguments}
            for call in calls
        ]
        text = msgspec.json.encode(values[0] if len(values) == 1 else values).decode()
        return {"from": "function_call", "value": thought + text}
    return {"from": "gpt", "value": thought + _BETWEEN_TEXTS.join(message.text for message in run if message.text)}
