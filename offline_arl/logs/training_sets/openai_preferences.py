"""OpenAI's fine-tuning files of preferences: `{"input", "preferred_output", "non_preferred_output"}`.

Its supervised files are OpenAI chat messages, some with a `weight`, and are read as such.
"""

from __future__ import annotations

from typing import Any

from offline_arl.logs.adapter import RawRecord, RecordRefusedError
from offline_arl.logs.primitives.values import as_object, decode_object, json_type
from offline_arl.logs.providers.openai_messages import convert_messages
from offline_arl.logs.training_sets.training_rows import contexts_of, preference_pair
from offline_arl.trajectories.schema import Trajectory


class OpenAIPreferenceAdapter:
    """Reads preference files of OpenAI's fine-tuning, which Together and Fireworks take too."""

    name = "openai_preferences"
    title = "OpenAI fine-tuning preferences"
    keeps = "tools, both answers as a pair"
    lacks = ""

    def recognizes(self, record: Any) -> bool:
        """Whether the record has an input and two outputs, one of them preferred."""
        return isinstance(record, dict) and record.keys() >= {"input", "preferred_output", "non_preferred_output"}

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The two trajectories of a pair, the preferred one first."""
        rest = decode_object(record.raw)
        given = rest.pop("input", None)
        if not isinstance(given, dict):
            raise RecordRefusedError(f"input: expected an object, got {json_type(given)}")
        contexts = contexts_of(given.pop("tools", None) or given.pop("functions", None))
        prompt = convert_messages(given.pop("messages", None), "input.messages")
        chosen = convert_messages(rest.pop("preferred_output", None), "preferred_output")
        rejected = convert_messages(rest.pop("non_preferred_output", None), "non_preferred_output")
        if left := {key: value for key, value in as_object(given).items() if value is not None}:
            rest["input"] = left
        return preference_pair(record, self.name, prompt, (chosen, rejected), rest, contexts)
