"""Generations that open-instruct records for its tests: a prompt, the text that followed and its token ids."""

from __future__ import annotations

from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError
from offline_arl.logs.primitives.values import as_text, decode_object, json_type
from offline_arl.trajectories.schema import Message, Producer, TextPart, TokenRecord, Trajectory, text_message


class OpenInstructAdapter:
    """Reads recorded generations of open-instruct."""

    name = "open_instruct"
    title = "open-instruct generations"
    keeps = "token ids, model, sampling parameters"
    lacks = "which of the tokens a tool wrote"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has a prompt, and a text with its token ids."""
        return isinstance(record, dict) and record.keys() >= {"prompt", "expected_text", "expected_token_ids"}

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The one trajectory of a generation."""
        rest = decode_object(record.raw)
        prompt, text, ids = (rest.pop(key, None) for key in ("prompt", "expected_text", "expected_token_ids"))
        if not isinstance(prompt, str) or not isinstance(text, str):
            raise RecordRefusedError(f"prompt and expected_text: expected strings, got {json_type(text)}")
        try:
            tokens = msgspec.convert({"token_ids": ids, "fingerprint": "unknown"}, TokenRecord)
        except msgspec.ValidationError as error:
            raise RecordRefusedError(f"expected_token_ids: {error}") from error
        model = as_text(rest.get("model"))
        answer = Message("assistant", [TextPart(text)], producer=Producer("model", model), tokens=tokens)
        return [
            Trajectory(
                trajectory_id=record.trajectory_id(),
                messages=[text_message("user", prompt, kind="script"), answer],
                source=record.source(self.name),
                model=model,
                metadata=rest,
            )
        ]
