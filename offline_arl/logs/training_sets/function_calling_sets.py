"""Corpora of function calling with shapes of their own: xLAM (one question, its calls) and Toucan.

Both keep lists as JSON text. xLAM's parameters are no JSON Schema (`{"city": {"type": "str, optional"}}`) and are
made one; the text as it was stays in the metadata.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError
from offline_arl.logs.platforms.message_shapes import decode_text
from offline_arl.logs.primitives.scores import make_score
from offline_arl.logs.primitives.values import as_object, as_text, decode_object, json_type
from offline_arl.logs.providers.openai_messages import convert_messages
from offline_arl.logs.training_sets.sharegpt_turns import OWN_ROLES, read_calls, read_turns
from offline_arl.logs.training_sets.training_rows import contexts_of, conversation
from offline_arl.trajectories.schema import Message, Score, Trajectory, text_message

_TYPES = {
    "str": "string",
    "string": "string",
    "int": "integer",
    "integer": "integer",
    "float": "number",
    "number": "number",
    "bool": "boolean",
    "boolean": "boolean",
    "list": "array",
    "array": "array",
    "tuple": "array",
    "set": "array",
    "dict": "object",
    "object": "object",
}
_TYPE_NAME = re.compile(r"\w+")
_DECLARED_TOOLS = re.compile(r"<\|im_system\|>tool_declare<\|im_middle\|>(.*?)<\|im_end\|>", re.DOTALL)
_TOUCAN_KEYS = ("subset_name", "target_tools", "response_quality_assessment", "question_quality_assessment")


class XLAMAdapter:
    """Reads xLAM's question, answers and tools."""

    name = "xlam"
    title = "xLAM function calling"
    keeps = "tools with their parameters as JSON Schema, parallel calls in one turn"
    lacks = "results of the calls: there are none"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has a query, answers and tools."""
        if not isinstance(record, dict) or not isinstance(record.get("query"), str):
            return False
        return all(isinstance(record.get(key), (str, list)) for key in ("answers", "tools"))

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The one trajectory of a question."""
        rest = decode_object(record.raw)
        tools = decode_text(rest.get("tools"))
        contexts = contexts_of([_with_schema(tool) for tool in tools] if isinstance(tools, list) else tools)
        answers = decode_text(rest.pop("answers", None))
        if not isinstance(answers, list):
            raise RecordRefusedError(f"answers: expected a list of calls, got {json_type(answers)}")
        query = rest.pop("query", None)
        if not isinstance(query, str):
            raise RecordRefusedError(f"query: expected a string, got {json_type(query)}")
        calls = read_calls(answers, "answers")
        messages = [text_message("user", query), Message("assistant", tool_calls=calls)]
        return [conversation(record, self.name, messages, rest, contexts)]


class ToucanAdapter:
    """Reads Toucan's trajectories, raw or as its supervised files have them."""

    name = "toucan"
    title = "Toucan trajectories"
    keeps = "tools (also those declared in the system text), the judge's scores of the answer"
    lacks = ""

    def recognizes(self, record: Any) -> bool:
        """Whether the record has messages as JSON text, and a column of Toucan's."""
        if not isinstance(record, dict) or not isinstance(record.get("messages"), str):
            return False
        return any(key in record for key in _TOUCAN_KEYS)

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The one trajectory of a row."""
        rest = decode_object(record.raw)
        logged = decode_text(rest.pop("messages", None))
        if not isinstance(logged, list):
            raise RecordRefusedError(f"messages: expected the JSON text of a list, got {json_type(logged)}")
        has_own_roles = any(as_text(as_object(value).get("role")) in OWN_ROLES for value in logged)
        messages = read_turns(logged, "messages") if has_own_roles else convert_messages(logged)
        tools = rest.pop("available_tools", None) or rest.pop("tools", None) or _declared_tools(messages)
        trajectory = conversation(record, self.name, messages, rest, contexts_of(tools))
        identity = as_text(rest.get("uuid"))
        return [
            msgspec.structs.replace(
                trajectory,
                task_id=identity,
                group_id=identity,
                task_type=as_text(rest.get("subset_name")),
                scores=_judgements(rest.get("response_quality_assessment")),
            )
        ]


def _with_schema(tool: Any) -> Any:
    """A tool with its parameters as JSON Schema; one that has it already stays as it is."""
    parameters = as_object(tool).get("parameters")
    if not isinstance(parameters, dict) or "properties" in parameters or not _are_described(parameters):
        return tool
    properties, required = {}, []
    for name, described in parameters.items():
        words = str(described.get("type", ""))
        found = _TYPE_NAME.search(words.lower())
        known = _TYPES.get(found[0]) if found is not None else None
        properties[name] = (
            {**described, "type": known} if known else {k: v for k, v in described.items() if k != "type"}
        )
        if "optional" not in words and "default" not in described:
            required.append(name)
    return {**tool, "parameters": {"type": "object", "properties": properties, "required": required}}


def _are_described(parameters: dict[str, Any]) -> bool:
    return all(isinstance(described, dict) for described in parameters.values())


def _declared_tools(messages: list[Message]) -> str | None:
    """The tools that a system text declares."""
    for message in messages:
        if message.role == "system" and (found := _DECLARED_TOOLS.search(message.text)) is not None:
            return found[1]
    return None


def _judgements(logged: Any) -> list[Score]:
    """The scores of a judge: `{"completeness": {"score": 4, "reasoning": ...}, "overall_score": 4.5}`, or its text."""
    return [
        make_score(name, value, scorer="judge", kind="model", comment=as_object(value).get("reasoning"))
        for name, value in as_object(decode_text(logged)).items()
        if isinstance(value, (dict, int, float))
    ]
