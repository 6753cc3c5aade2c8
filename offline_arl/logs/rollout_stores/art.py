"""Trajectories of ART (OpenPipe): groups a line, trajectories, what it logs of them, and rows of its Parquet files.

In `messages_and_choices` a choice is what the model sampled, a plain message is context, whatever its role; the other
forms say so with `trainable`. In Parquet rows, tools, calls, metrics and metadata are JSON text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError, RecordSetApartError
from offline_arl.logs.platforms.message_shapes import decode_text
from offline_arl.logs.platforms.tool_shapes import tools_text
from offline_arl.logs.primitives.pairing import needs_pairing, pair_by_order
from offline_arl.logs.primitives.scores import finite_number, make_score
from offline_arl.logs.primitives.values import as_object, decode_object, json_type
from offline_arl.logs.providers.openai_calls import chat_answer
from offline_arl.logs.providers.openai_messages import convert_message
from offline_arl.trajectories.schema import Context, Message, Outcome, Producer, ProducerKind, Trajectory

_JSON_KEYS = ("tools", "metrics", "metadata", "group_metadata", "group_metrics")
_CONTEXT_KINDS: dict[str, ProducerKind] = {"assistant": "copy", "tool": "environment"}
_TASK_KEYS = ("task_id", "scenario_id", "id")


class ARTAdapter:
    """Reads trajectories of ART."""

    name = "art"
    title = "ART trajectories and groups"
    keeps = "reward, metrics as scores, sampled or context, log-probabilities, groups, additional histories"
    lacks = "exceptions of a group stay in its trajectories' metadata: they have no messages"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is a trajectory, a group of them, or a row of ART's Parquet files or console log."""
        if not isinstance(record, dict):
            return False
        if isinstance(trajectories := record.get("trajectories"), list):
            return any("messages_and_choices" in as_object(trajectory) for trajectory in trajectories)
        if isinstance(record.get("messages_and_choices"), list):
            return True
        return isinstance(record.get("messages"), list) and record.keys() >= {"reward", "metrics", "tools", "logs"}

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The trajectories of a group, or the one of a trajectory and those of its additional histories."""
        values = decode_object(record.raw)
        if "trajectories" not in values:
            return _trajectory(record, values, 0, None, {}, "")
        trajectories = values.pop("trajectories")
        if not isinstance(trajectories, list):
            raise RecordRefusedError(f"trajectories: expected a list, got {json_type(trajectories)}")
        if not trajectories:
            raise RecordSetApartError("a group without trajectories: all attempts raised exceptions, or none was made")
        rest = {key: value for key, value in values.items() if value}
        found: list[Trajectory] = []
        for index, trajectory in enumerate(trajectories):
            if not isinstance(trajectory, dict):
                raise RecordRefusedError(f"trajectories[{index}]: expected an object, got {json_type(trajectory)}")
            group_id = f"{record.label}#{record.position}"
            found.extend(_trajectory(record, trajectory, len(found), group_id, rest, f"trajectories[{index}]."))
        return found


def _trajectory(
    record: RawRecord, values: dict[str, Any], number: int, group_id: str | None, group: dict[str, Any], where: str
) -> list[Trajectory]:
    for key in _JSON_KEYS:
        if key in values:
            values[key] = decode_text(values[key])
    if values.get("group_index") is not None:
        group_id = f"{record.label}#{values['group_index']}"
    key = "messages_and_choices" if "messages_and_choices" in values else "messages"
    messages = _messages(values.pop(key, None), f"{where}{key}")
    tools = tools_text(values.pop("tools", None))
    metrics, logged = as_object(values.pop("metrics", None)), as_object(values.pop("metadata", None))
    histories = values.pop("additional_histories", None) or []
    reward = values.pop("reward", None)
    if reward is not None and finite_number(reward) is None:
        raise RecordRefusedError(f"{where}reward: expected a number, got {json_type(reward)}")
    task = next((str(logged[key]) for key in _TASK_KEYS if isinstance(logged.get(key), (str, int))), None)
    main = Trajectory(
        trajectory_id=record.trajectory_id(number),
        messages=messages,
        source=record.source(ARTAdapter.name),
        task_id=task,
        group_id=group_id or task,
        episode_id=record.trajectory_id(number) if histories else None,
        contexts=[Context(0, tools)] if tools is not None else [],
        outcome=Outcome() if reward is None else Outcome("scored", score=finite_number(reward), scorer="art"),
        metadata={**logged, **{key: value for key, value in values.items() if value}, **group},
        scores=[make_score(name, value, scorer="art", kind="code") for name, value in metrics.items()],
    )
    found = [main]
    for index, history in enumerate(histories):
        fields = as_object(history)
        inner = f"{where}additional_histories[{index}].messages_and_choices"
        tools = tools_text(fields.get("tools"))
        found.append(
            msgspec.structs.replace(
                main,
                trajectory_id=record.trajectory_id(number + 1 + index),
                parent_trajectory_id=main.trajectory_id,
                messages=_messages(fields.get("messages_and_choices"), inner),
                contexts=[Context(0, tools)] if tools is not None else [],
            )
        )
    return found


def _messages(items: object, where: str) -> list[Message]:
    if not isinstance(items, list):
        raise RecordRefusedError(f"{where}: expected a list, got {json_type(items)}")
    if not items:
        raise RecordRefusedError(f"{where}: there are none")
    messages = [_message(item, f"{where}[{index}]") for index, item in enumerate(items)]
    return pair_by_order(messages) if any(map(needs_pairing, messages)) else messages


def _message(item: object, where: str) -> Message:
    if not isinstance(item, dict):
        raise RecordRefusedError(f"{where}: expected an object, got {json_type(item)}")
    if "role" not in item and isinstance(item.get("message"), dict):
        try:
            return chat_answer({}, {"choices": [item]}, [], None).choices[0]
        except RecordRefusedError as error:
            raise RecordRefusedError(f"{where}: {error}") from error
    sampled = item.pop("trainable", None) is True
    item["tool_calls"] = decode_text(item.get("tool_calls"))
    message = convert_message({key: value for key, value in item.items() if value is not None}, where)
    kind: ProducerKind = "model" if sampled else _CONTEXT_KINDS.get(message.role, "script")
    return msgspec.structs.replace(message, producer=Producer(kind))
