"""Prompts of verl for reinforcement learning: `data_source`, `prompt`, `reward_model`, `extra_info`.

Without an answer they are tasks, not interactions, and are set apart; an export of this library has the answer in its
slot, in `extra_info`.
"""

from __future__ import annotations

from typing import Any

from offline_arl.logs.adapter import RawRecord, RecordRefusedError, RecordSetApartError
from offline_arl.logs.primitives.values import as_object, decode_object, json_type
from offline_arl.logs.providers.openai_messages import convert_messages
from offline_arl.logs.slots.reading import apply_slot
from offline_arl.logs.slots.slot import KEY, take_slot
from offline_arl.logs.training_sets.training_rows import conversation
from offline_arl.trajectories.schema import Trajectory


class VerlPromptsAdapter:
    """Reads exported prompts, and sets others apart."""

    name = "verl"
    title = "verl prompts for reinforcement learning"
    keeps = "exports of this library"
    lacks = "prompts without an answer are set apart"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has the columns of verl."""
        return (
            isinstance(record, dict)
            and "data_source" in record
            and isinstance(record.get("prompt"), list)
            and isinstance(record.get("reward_model"), dict)
        )

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The trajectory of a row that was exported."""
        rest = decode_object(record.raw)
        extra = as_object(rest.get("extra_info"))
        is_export = KEY in extra
        slot = take_slot(extra)
        prompt = rest.pop("prompt", None)
        if not isinstance(prompt, list):
            raise RecordRefusedError(f"prompt: expected a list of messages, got {json_type(prompt)}")
        if not is_export:
            raise RecordSetApartError("a prompt without an answer")
        trajectory = conversation(record, self.name, convert_messages(prompt, "prompt"), rest, [])
        return [apply_slot(trajectory, slot, trajectory.trajectory_id)]
