"""Read assistant turns back: reasoning, visible text and tool calls, for the formats that model families write.

Nothing here raises on any text. A call that cannot be read becomes a `ToolCall` with `parse_error` whose
`arguments_raw` keeps the raw text: the arguments where the name could be read, else the whole body with name "".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from offline_arl.trajectories.schema import ToolCall, parse_arguments

_READ_ERRORS = (msgspec.MsgspecError, RecursionError, ValueError)
_DECODER = json.JSONDecoder()


class ParsedText(NamedTuple):
    """Visible text and the calls found in it, in order."""

    text: str
    calls: list[ToolCall]


class _RawFunction(msgspec.Struct):
    name: str = ""
    arguments: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()
    id: str | None = None


class _RawCall(_RawFunction):
    function: _RawFunction | None = None


_SALVAGED = (
    re.compile(
        r'\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?P<arguments>.*?)\}?\s*\Z',
        re.DOTALL,
    ),
    re.compile(
        r'\s*\{\s*"(?:arguments|parameters)"\s*:\s*(?P<arguments>.*),\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*\}\s*\Z',
        re.DOTALL,
    ),
)


def read_call(body: str) -> ToolCall:
    """Read `{"name": ..., "arguments": {...}}` (or "parameters"); keeps the argument text as it was written."""
    try:
        read: _RawFunction = msgspec.json.decode(body, type=_RawCall)
        if isinstance(read, _RawCall) and read.function is not None:
            read = read.function
        if not read.name:
            return _malformed(body, "the call has no name")
        raw = (bytes(read.arguments) or bytes(read.parameters)).decode()
        if raw.startswith('"'):  # arguments as a JSON string, the form of the OpenAI wire format
            raw = msgspec.json.decode(raw, type=str)
        arguments, problem = parse_arguments(raw)
    except _READ_ERRORS as error:
        return _malformed(body, f"invalid JSON: {error}")
    return ToolCall(name=read.name, arguments_raw=raw, arguments=arguments, id=read.id, parse_error=problem)


def _malformed(body: str, problem: str) -> ToolCall:
    for pattern in _SALVAGED:
        # One closing brace belongs to the envelope: rendering the call again gives back the text that was read.
        if (match := pattern.match(body)) is not None:
            return ToolCall(name=match["name"], arguments_raw=match["arguments"], parse_error=problem)
    return ToolCall(name="", arguments_raw=body, parse_error=problem)


def _json_end(text: str, start: int) -> int | None:
    """End of the JSON object that begins at `start`, or None."""
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


def _outside(text: str, spans: list[tuple[int, int]], *, separators: str = "", after_text: str = "\n") -> str:
    """The text around the calls. What the template puts before the first call is not part of it, nor blanks after."""
    if not spans:
        return text
    parts = [text[: spans[0][0]].removesuffix(after_text)]
    ends = [start for start, _ in spans[1:]] + [len(text)]
    parts += [
        text[end:following].strip(separators + " \n\t\r") for (_, end), following in zip(spans, ends, strict=True)
    ]
    return "\n".join(part for part in parts if part)


_HERMES_OPEN, _HERMES_CLOSE = "<tool_call>", "</tool_call>"
_BLANK = re.compile(r"\s*")


def parse_hermes(text: str) -> ParsedText:
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`, the form of Hermes, Qwen 2.5, Qwen 3 and SmolLM3."""
    calls: list[ToolCall] = []
    spans: list[tuple[int, int]] = []
    position = text.find(_HERMES_OPEN)
    while position != -1:
        begin = _skip_blank(text, position + len(_HERMES_OPEN))
        end = _json_end(text, begin)  # an argument may itself contain the closing tag
        after = None if end is None else _skip_blank(text, end)
        if after is not None and text.startswith(_HERMES_CLOSE, after):
            calls.append(read_call(text[begin:end]))
            stop = after + len(_HERMES_CLOSE)
        else:
            close = text.find(_HERMES_CLOSE, begin)
            body = text[begin:] if close == -1 else text[begin:close]
            stop = len(text) if close == -1 else close + len(_HERMES_CLOSE)
            call = read_call(body.rstrip())
            if close == -1 and call.parse_error is None:
                call = msgspec.structs.replace(call, parse_error="the call is not closed", arguments=None)
            calls.append(call)
        spans.append((position, stop))
        position = text.find(_HERMES_OPEN, stop)
    return ParsedText(_outside(text, spans), calls)


def _skip_blank(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return position if match is None else match.end()


_LLAMA_TAG = "<|python_tag|>"
_LLAMA_CALL = re.compile(r'\{\s*"(?:name|type|function|parameters|arguments)"\s*:')
_LLAMA_ARGUMENTS = re.compile(r'"(?:parameters|arguments)"\s*:')
_LLAMA_NAMED = re.compile(r'\{\s*"name"\s*:\s*"[^"]*"\s*(?:,\s*"(?:parameters|arguments)"|\Z)')


def parse_llama3_json(text: str) -> ParsedText:
    """`{"name": ..., "parameters": {...}}` without tags, several parted by ";", maybe after `<|python_tag|>`."""
    tagged = _LLAMA_TAG in text
    calls: list[ToolCall] = []
    spans: list[tuple[int, int]] = []
    position = 0
    while (match := _LLAMA_CALL.search(text, position)) is not None:
        start, end = match.start(), _json_end(text, match.start())
        if end is None:
            if not tagged and not _LLAMA_NAMED.match(text, start):
                position = match.end()
                continue
            end = len(text.rstrip())
            calls.append(read_call(text[start:end]))
            spans.append((start, len(text)))
            break
        # A JSON object that is no call is part of the answer.
        if tagged or _LLAMA_ARGUMENTS.search(text, start, end):
            call = read_call(text[start:end])
            if call.name or tagged:
                calls.append(call)
                spans.append((start, end))
        position = end
    if tagged and not calls:
        start = text.index(_LLAMA_TAG) + len(_LLAMA_TAG)
        calls.append(ToolCall(name="", arguments_raw=text[start:].strip(), parse_error="the call is not JSON"))
        spans.append((start, len(text)))
    outside = _outside(text, spans, separators=";")
    return ParsedText(outside.replace(_LLAMA_TAG, "").removesuffix("\n") if tagged else outside, calls)


_MISTRAL_TAG = "[TOOL_CALLS]"
_MISTRAL_NAME = re.compile(r"\s*([\w.\-]+)\s*(?:\[CALL_ID\]([\w\-]+)\s*)?(?:\[ARGS\])?\s*(?=\{)")


def parse_mistral(text: str) -> ParsedText:
    """`[TOOL_CALLS][{"name": ..., "arguments": ...}]` (older) and `[TOOL_CALLS]name[ARGS]{...}` (newer)."""
    head, *blocks = text.split(_MISTRAL_TAG)
    calls: list[ToolCall] = []
    for block in blocks:
        body = block.strip()
        named = _MISTRAL_NAME.match(body)
        if named is not None:
            raw = body[named.end() :]
            arguments, problem = _arguments(raw)
            calls.append(ToolCall(named[1], raw, arguments, id=named[2], parse_error=problem))
            continue
        try:
            items = msgspec.json.decode(body, type=list[msgspec.Raw])
        except _READ_ERRORS as error:
            calls.append(_malformed(body, f"invalid JSON: {error}"))
            continue
        calls.extend(read_call(bytes(item).decode()) for item in items)
    return ParsedText(head.removesuffix("\n") if calls else text, calls)


def _arguments(raw: str) -> tuple[dict[str, Any] | None, str | None]:
    try:
        return parse_arguments(raw)
    except RecursionError:
        return None, "invalid JSON: nested too deeply"


_XML_CALL = re.compile(r"<tool_call>\s*<function=([^>\n]*)>(.*?)(</function>\s*</tool_call>|\Z)", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=([^>\n]*)>\n?(.*?)\n?</parameter>", re.DOTALL)


def parse_qwen_xml(text: str) -> ParsedText:
    """`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`, from Qwen 3.5 on.

    Values are text; `typed_arguments` gives them their types.
    """
    calls: list[ToolCall] = []
    spans: list[tuple[int, int]] = []
    for match in _XML_CALL.finditer(text):
        name, body, close = match.groups()
        spans.append(match.span())
        if not close or not name or _XML_PARAMETER.sub("", body).strip():
            calls.append(ToolCall(name=name, arguments_raw=body.strip(), parse_error="the call is malformed"))
            continue
        arguments = dict(_XML_PARAMETER.findall(body))
        calls.append(ToolCall(name, json.dumps(arguments, ensure_ascii=False), arguments))
    return ParsedText(_outside(text, spans, after_text="\n\n"), calls)


def typed_arguments(call: ToolCall, tools: list[dict[str, Any]] | None) -> ToolCall:
    """`call` with its text arguments read as the types that its tool declares.

    Objects and lists are read as JSON in any case: templates write them so. What does not fit stays text.
    """
    if call.arguments is None:
        return call
    functions = [tool.get("function", tool) for tool in tools or []]
    schemas = [function.get("parameters") for function in functions if function.get("name") == call.name]
    properties = schemas[0].get("properties", {}) if schemas and isinstance(schemas[0], dict) else {}
    arguments = {key: _typed(value, properties.get(key)) for key, value in call.arguments.items()}
    return msgspec.structs.replace(call, arguments=arguments, arguments_raw=json.dumps(arguments, ensure_ascii=False))


def _typed(value: Any, schema: Any) -> Any:
    declared = schema.get("type") if isinstance(schema, dict) else None
    kinds = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    if not isinstance(value, str) or "string" in kinds or (not kinds and value[:1] not in ("{", "[")):
        return value
    try:
        return msgspec.json.decode(value)
    except _READ_ERRORS:
        return value


def parse_no_calls(text: str) -> ParsedText:
    """Everything is text."""
    return ParsedText(text, [])


# In the order in which a rendered call is tried on them: the untagged form last.
FORMATS: dict[str, Callable[[str], ParsedText]] = {
    "hermes": parse_hermes,
    "mistral": parse_mistral,
    "qwen_xml": parse_qwen_xml,
    "llama3_json": parse_llama3_json,
}


def detect_format(rendered_call: str, name: str, arguments: dict[str, Any]) -> str | None:
    """The format whose parser reads `rendered_call` back as exactly that one call, or None."""
    for format_name, parse in FORMATS.items():
        text, calls = parse(rendered_call)
        if not text.strip() and [(call.name, call.arguments) for call in calls] == [(name, arguments)]:
            return format_name
    return None


_THINK = re.compile(r"\s*<think>(.*?)(?:</think>\s*|\Z)", re.DOTALL)


def split_reasoning(text: str, *, opened: bool = False) -> tuple[str, str]:
    """Part `<think>...</think>` from what follows; returns (reasoning, rest).

    Args:
        text: An assistant turn.
        opened: The generation prompt ended inside an open `<think>`.
    """
    match = _THINK.match("<think>" + text if opened and not text.lstrip().startswith("<think>") else text)
    if match is None:
        return "", text
    rest = match.string[match.end() :]
    return match.group(1).strip("\n"), rest
