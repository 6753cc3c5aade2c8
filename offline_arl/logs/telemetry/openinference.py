"""OpenInference: messages flattened to attributes such as `llm.input_messages.10.message.tool_calls.0.tool_call.id`.

Indexes are numbers, not text (10 comes after 9). A message may have `content`, `contents` (parts), or both, which
then say the same. SDKs drop attributes beyond a limit (128 by default), Python's the oldest and others the newest;
where that tore a hole into the messages, the request and response in `input.value` and `output.value` are read.
"""

from __future__ import annotations

from typing import Any

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.platforms.answer_shapes import read_answer
from offline_arl.logs.platforms.message_shapes import decode_text, read_messages, read_prompt
from offline_arl.logs.platforms.tool_shapes import tools_text
from offline_arl.logs.primitives.values import as_list, as_object, as_text
from offline_arl.logs.telemetry.genai_semconv import CallContent
from offline_arl.logs.telemetry.span_attributes import keys_below, subtree
from offline_arl.logs.telemetry.spans import Span
from offline_arl.trajectories.schema import Message

_PROMPT, _ANSWER, _TOOLS = "llm.input_messages", "llm.output_messages", "llm.tools"
_INPUT, _OUTPUT = "input.value", "output.value"
_ROLES = {"human": "user", "ai": "assistant", "model": "assistant"}
# Parts of a raw request and response that the messages and tools repeat.
_REPEATED = {
    _INPUT: frozenset({"messages", "tools", "functions", "input", "contents", "prompt", "system", "instructions"}),
    _OUTPUT: frozenset({"choices", "message", "messages", "content", "text", "output", "generations", "candidates"}),
}


def read(span: Span) -> CallContent | None:
    """The messages of a span; None where it has none of this convention.

    Raises:
        RecordRefusedError: Attributes were dropped, and the raw request is not there to replace them.
    """
    attributes = span.attributes
    problem = f"{span.dropped} attributes were dropped by the SDK's limit" if span.dropped else ""
    prompt, choices, tools = [], [], None
    try:
        prompt = _messages(subtree(attributes, _PROMPT), _PROMPT)
        choices = _messages(subtree(attributes, _ANSWER), _ANSWER)
        tools = _tools(attributes)
    except RecordRefusedError as error:
        problem = str(error)
    if problem or not prompt or not choices:
        raw = _from_raw(attributes)
        if problem and raw is None:
            raise RecordRefusedError(f"{problem}, and input.value does not hold the whole request")
        if raw is not None and problem:
            raw.metadata["attributes_problem"] = problem
            return raw
        if raw is not None:
            prompt, choices, tools = prompt or raw.messages, choices or raw.choices, tools or raw.tools
    if not prompt and not choices:
        return None
    used = keys_below(attributes, _PROMPT, _ANSWER, "llm.prompts", "llm.choices")
    if tools is not None:
        used |= keys_below(attributes, _TOOLS)
    return CallContent(prompt, choices, tools, used, _raw_rest(attributes, [*prompt, *choices], used))


def _messages(values: Any, where: str) -> list[Message]:
    inner = [as_object(as_object(value).get("message", value)) for value in as_list(decode_text(values))]
    default_role = "assistant" if where == _ANSWER else None
    return read_messages([_message(fields, default_role) for fields in inner], where)


def _message(fields: dict[str, Any], default_role: str | None) -> dict[str, Any]:
    """A message in OpenAI's form. Answers may go without a role; in a prompt, a missing one was dropped."""
    role = fields.get("role", default_role)
    content: Any = fields.get("content")
    if contents := as_list(fields.get("contents")):
        content = [_part(as_object(as_object(part).get("message_content", part))) for part in contents]
    converted: dict[str, Any] = {"role": _ROLES.get(role, role) if isinstance(role, str) else role}
    converted["content"] = content
    calls = [as_object(as_object(call).get("tool_call", call)) for call in as_list(fields.get("tool_calls"))]
    if calls:
        converted["tool_calls"] = calls
    elif name := as_text(fields.get("function_call_name")):
        converted["function_call"] = {"name": name, "arguments": fields.get("function_call_arguments_json")}
    known = ("role", "content", "contents", "tool_calls", "function_call_name", "function_call_arguments_json")
    return {**converted, **{key: value for key, value in fields.items() if key not in known and value is not None}}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    image = part.get("image")
    url = as_object(as_object(image).get("image", image)).get("url", image)
    if isinstance(url, str):
        return {"type": "image_url", "image_url": {"url": url}}
    return part


def _tools(attributes: dict[str, Any]) -> str | None:
    values = as_list(decode_text(subtree(attributes, _TOOLS)))
    return tools_text([as_object(as_object(value).get("tool", value)).get("json_schema", value) for value in values])


def _from_raw(attributes: dict[str, Any]) -> CallContent | None:
    """The call from its raw input and output, where they are whole; None where the input holds no messages."""
    request = decode_text(attributes.get(_INPUT))
    if attributes.get("input.mime_type") == "application/json" and isinstance(request, str):
        return None  # the JSON text is cut off
    prompt = read_prompt(request, _INPUT)
    response = decode_text(attributes.get(_OUTPUT))
    if attributes.get("output.mime_type") == "application/json" and isinstance(response, str):
        return None
    answer = read_answer(response, _OUTPUT)
    if prompt is None:
        return None
    used = keys_below(attributes, _PROMPT, _ANSWER, _TOOLS, "input", "output")
    choices = [] if answer is None else answer.choices
    metadata = {"read_from": _INPUT, **prompt.settings, **({} if answer is None else answer.rest)}
    return CallContent(prompt.messages, choices, prompt.tools, used, metadata)


def _raw_rest(attributes: dict[str, Any], messages: list[Message], used: set[str]) -> dict[str, Any]:
    """What the raw request and response have beyond messages and tools.

    The rest of them is dropped: it repeats the history in every call, which would square the size of a log.
    """
    kept = {}
    texts = {message.text for message in messages}
    for key, repeated in _REPEATED.items():
        value = decode_text(attributes.get(key))
        if isinstance(value, dict):
            rest = {name: item for name, item in value.items() if name not in repeated}
            if rest:
                kept[key] = rest
            _note_reasons(value, messages)
        elif not isinstance(value, list) and value not in texts:
            continue
        used.update({key, key.replace(".value", ".mime_type")})
    return kept


def _note_reasons(response: dict[str, Any], messages: list[Message]) -> None:
    """Note why the answers ended, which only the raw response says in older logs."""
    answers = as_list(response.get("choices")) or [response]
    for answer, message in zip(reversed(answers), reversed(messages), strict=False):
        reason = as_text(as_object(answer).get("finish_reason"))
        if reason is not None:
            message.metadata.setdefault("finish_reason", reason)
