"""Contents, tools and responses in the Gemini form, as several log formats carry them.

Calls often have no ids: results are paired with them by name and order. A function's response is an object; the
text of one that only holds a text (`output`, `result`, `error`) is that text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.pairing import needs_pairing, pair_by_order
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text, json_text, json_type
from offline_arl.trajectories.schema import (
    ContentPart,
    FilePart,
    ImagePart,
    Message,
    MessageError,
    Producer,
    ReasoningPart,
    Role,
    TextPart,
    TokenRecord,
    ToolCall,
    Usage,
    tool_call,
)

ENVIRONMENT = Producer("environment")
# Why a response ended that is no end of the model's own.
_CUT_REASONS = frozenset({"MAX_TOKENS"})
_FAILURES = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"})
_ROLES: dict[str, Role] = {"user": "user", "model": "assistant", "function": "user", "tool": "user", "system": "system"}
_TEXT_KEYS = ("output", "result", "content", "error")
_CAMEL: dict[Any, str] = {
    "function_call": "functionCall",
    "function_response": "functionResponse",
    "inline_data": "inlineData",
    "file_data": "fileData",
    "thought_signature": "thoughtSignature",
    "executable_code": "executableCode",
    "code_execution_result": "codeExecutionResult",
    "mime_type": "mimeType",
    "file_uri": "fileUri",
}


class Answer(NamedTuple):
    """A candidate of a response as messages: one, or several where the provider ran code in between."""

    messages: list[Message]
    stop_reason: str | None
    truncated: bool  # cut by a limit of tokens
    error: MessageError | None


def convert_contents(values: object, where: str = "contents") -> list[Message]:
    """Convert a list of contents (one content or a text where there is only one) and pair results with their calls.

    Raises:
        RecordRefusedError: The value is not of this form; the reason names the content.
    """
    if isinstance(values, (str, dict)):
        values = [values]
    if not isinstance(values, list):
        raise RecordRefusedError(f"{where}: expected a list, got {json_type(values)}")
    if not values:
        raise RecordRefusedError(f"{where}: there are none")
    messages: list[Message] = []
    for index, value in enumerate(values):
        messages.extend(convert_content(value, f"{where}[{index}]"))
    return paired(messages)


def convert_content(content: object, where: str = "content", role: str | None = None) -> list[Message]:
    """Convert one content, without pairing; several messages where it holds results.

    Raises:
        RecordRefusedError: It is no content; the reason starts with `where`.
    """
    fields: dict[str, Any] = {"parts": content} if isinstance(content, (str, list)) else as_object(content)
    if not isinstance(content, (str, list, dict)):
        raise RecordRefusedError(f"{where}: expected an object, got {json_type(content)}")
    logged_role = role or fields.get("role") or "user"
    known = _ROLES.get(logged_role) if isinstance(logged_role, str) else None
    if known is None:
        raise RecordRefusedError(f"{where}.role: expected one of {', '.join(_ROLES)}, got {logged_role!r}")
    parts = fields.get("parts")
    turn = _Turn(known)
    for index, part in enumerate(parts if isinstance(parts, list) else [] if parts is None else [parts]):
        turn.add(part, f"{where}.parts[{index}]")
    return turn.finish()


def system_messages(instruction: object, where: str = "systemInstruction") -> list[Message]:
    """The system instruction, a text or a content, as a list of one message; none where there is none."""
    if not instruction:
        return []
    return convert_content(instruction, where, role="system")


def convert_response(response: object, where: str = "response", *, model: str | None = None) -> list[Answer]:
    """Convert a response, or the list of chunks of a streamed one; one answer for each candidate.

    Args:
        response: The parsed JSON value.
        where: Its path in the record, for error messages.
        model: Name of the model, where the request tells it.

    Raises:
        RecordRefusedError: It is neither; the reason names the place.
    """
    chunks = response if isinstance(response, list) else [response]
    candidates: dict[int, list[dict[str, Any]]] = {}
    usage: Any = None
    rest: dict[str, Any] = {}
    for number, chunk in enumerate(chunks):
        if not isinstance(chunk, dict):
            raise RecordRefusedError(f"{where}[{number}]: expected an object, got {json_type(chunk)}")
        usage = chunk.get("usageMetadata", chunk.get("usage_metadata", usage))
        rest.update({key: value for key, value in chunk.items() if key not in _RESPONSE_KEYS and value is not None})
        for position, candidate in enumerate(as_list(chunk.get("candidates"))):
            fields = as_object(candidate)
            index = fields.get("index")
            candidates.setdefault(index if isinstance(index, int) else position, []).append(fields)
    model = as_text(rest.pop("modelVersion", rest.pop("model_version", None))) or model
    response_id = as_text(rest.pop("responseId", rest.pop("response_id", None)))
    answers = []
    for index in sorted(candidates):
        answer = _answer(candidates[index], f"{where}.candidates[{index}]", Producer("model", model))
        messages = [msgspec.structs.replace(message, id=response_id) for message in answer.messages]
        if index == min(candidates):
            messages[-1] = _with_usage(messages[-1], usage, rest)
        answers.append(answer._replace(messages=messages))
    return answers


_RESPONSE_KEYS = frozenset({"candidates", "usageMetadata", "usage_metadata", "sdkHttpResponse", "sdk_http_response"})


def normalize_tools(tools: object, where: str = "tools") -> str | None:
    """The JSON text of a request's tools in OpenAI form; None where there is no list of them.

    Every declaration becomes a function. A tool of the provider's own (`{"googleSearch": {}}`) is named by its key.

    Raises:
        RecordRefusedError: It is not a list of tools.
    """
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise RecordRefusedError(f"{where}: expected a list, got {json_type(tools)}")
    normal: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise RecordRefusedError(f"{where}[{index}]: expected an object, got {json_type(tool)}")
        for key, value in tool.items():
            if key not in ("functionDeclarations", "function_declarations"):
                if value is not None:
                    normal.append(
                        {"type": "function", "function": {"name": key}, "provider_type": key, "settings": value}
                    )
                continue
            for declaration in as_list(value):
                fields = dict(as_object(declaration))
                name = fields.pop("name", None)
                if not isinstance(name, str):
                    raise RecordRefusedError(f"{where}[{index}].{key}: a declaration has no name")
                function: dict[str, Any] = {"name": name}
                if (text := fields.pop("description", None)) is not None:
                    function["description"] = text
                for spelling in ("parametersJsonSchema", "parameters_json_schema", "parameters"):
                    if (schema := fields.pop(spelling, None)) is not None:
                        function["parameters"] = _json_schema(schema)
                normal.append({"type": "function", "function": function, **fields})
    return json_text(normal)


def _json_schema(schema: Any) -> Any:
    """A schema with the names of types in lower case, as JSON Schema has them."""
    if isinstance(schema, list):
        return [_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else _json_schema(value)
        for key, value in schema.items()
    }


def error_of(response: object) -> MessageError | None:
    """The error of a response, or why its prompt was blocked; None where it is neither."""
    fields = as_object(response[-1] if isinstance(response, list) and response else response)
    error = fields.get("error")
    if isinstance(error, dict):
        return MessageError(
            str(error.get("status") or error.get("code") or "error"), as_text(error.get("message")) or ""
        )
    feedback = as_object(fields.get("promptFeedback") or fields.get("prompt_feedback"))
    reason = as_text(feedback.get("blockReason")) or as_text(feedback.get("block_reason"))
    return None if reason is None else MessageError("blocked", reason)


def paired(messages: list[Message]) -> list[Message]:
    """Give calls without ids their ids, and results the calls that they answer."""
    return pair_by_order(messages) if any(map(needs_pairing, messages)) else messages


def response_text(response: object) -> tuple[str | None, dict[str, Any]]:
    """The text of a function's response, and what the message's metadata has to say about it."""
    if response is None or isinstance(response, str):
        return response, {}
    if isinstance(response, dict) and len(response) == 1:
        key, value = next(iter(response.items()))
        if key in _TEXT_KEYS and isinstance(value, str):
            return value, {"response_key": key}
    return json_text(response), {"content_was_json": True}


@dataclass
class _Turn:
    """The parts of one content, cut into messages wherever a result stands."""

    role: Role
    messages: list[Message] = field(default_factory=list)
    parts: list[ContentPart] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def add(self, part: object, where: str) -> None:
        if isinstance(part, str):
            self._text(part, {})
            return
        if not isinstance(part, dict):
            raise RecordRefusedError(f"{where}: expected an object, got {json_type(part)}")
        fields: dict[str, Any] = {_CAMEL.get(key) or key: value for key, value in part.items() if value is not None}
        if isinstance(call := fields.pop("functionCall", None), dict):
            self._call(call, fields, where)
        elif isinstance(result := fields.pop("functionResponse", None), dict):
            self._result(result)
        elif isinstance(code := fields.pop("executableCode", None), dict):
            arguments = {key: value for key, value in code.items() if value is not None}
            self._call({"name": "code_execution", "args": arguments}, fields, where)
        elif isinstance(result := fields.pop("codeExecutionResult", None), dict):
            output = {"output": result.get("output") or ""}
            outcome = as_text(result.get("outcome"))
            self._result({"name": "code_execution", "response": output}, None if outcome == "OUTCOME_OK" else outcome)
        elif isinstance(text := fields.pop("text", None), str):
            self._text(text, fields)
        elif (media := _media(fields)) is not None:
            self.parts.append(media)
        elif fields:
            self.metadata.setdefault("other_parts", []).append({"index": len(self.parts), "part": fields})

    def finish(self) -> list[Message]:
        if self.parts or self.calls or self.metadata or not self.messages:
            self._flush()
        return self.messages

    def _text(self, text: str, fields: dict[str, Any]) -> None:
        signature = as_text(fields.pop("thoughtSignature", None))
        if fields.pop("thought", None) is True:
            self.parts.append(ReasoningPart(text, signature))
        elif self.parts and isinstance(last := self.parts[-1], TextPart) and not fields and not self.calls:
            self.parts[-1] = TextPart(last.text + text)  # a piece of a stream
        else:
            self.parts.append(TextPart(text))
        extras = {**fields, **({"thoughtSignature": signature} if signature else {})}
        if extras and not isinstance(self.parts[-1], ReasoningPart):
            self.metadata.setdefault("part_extras", {})[str(len(self.parts) - 1)] = extras

    def _call(self, call: dict[str, Any], extras: dict[str, Any], where: str) -> None:
        name, arguments = call.get("name"), call.get("args")
        if not isinstance(name, str):
            raise RecordRefusedError(f"{where}.functionCall.name: expected a string, got {json_type(name)}")
        if not isinstance(arguments, (str, dict)):
            arguments = {} if arguments is None else json_text(arguments)
        if isinstance(arguments, dict):
            json_text(arguments)
        self.calls.append(tool_call(name, arguments, id=as_text(call.get("id"))))
        if extras:
            self.metadata.setdefault("tool_call_extras", {})[str(len(self.calls) - 1)] = extras

    def _result(self, result: dict[str, Any], failure: str | None = None) -> None:
        if self.parts or self.calls or self.metadata:
            self._flush()
        response = result.get("response")
        text, metadata = response_text(response)
        metadata.update({k: v for k, v in result.items() if k not in ("id", "name", "response") and v is not None})
        error = None if failure is None else MessageError(failure)
        if isinstance(response, dict) and response.keys() == {"error"}:
            error = MessageError("tool_error", text or "")
        content: list[ContentPart] | None = None if text is None else [TextPart(text)]
        name, call_id = as_text(result.get("name")), as_text(result.get("id"))
        self.messages.append(
            Message(
                "tool", content, tool_call_id=call_id, name=name, error=error, producer=ENVIRONMENT, metadata=metadata
            )
        )

    def _flush(self) -> None:
        content = self.parts if self.parts or not self.calls else None
        self.messages.append(Message(self.role, content, self.calls, metadata=self.metadata))
        self.parts, self.calls, self.metadata = [], [], {}


def _media(fields: dict[str, Any]) -> ContentPart | None:
    inline, file = as_object(fields.get("inlineData")), as_object(fields.get("fileData"))
    media_type = as_text(inline.get("mimeType", inline.get("mime_type", file.get("mimeType", file.get("mime_type")))))
    data, uri = as_text(inline.get("data")), as_text(file.get("fileUri", file.get("file_uri")))
    if data is not None:
        uri = f"data:{media_type or ''};base64,{data}"
    if uri is None:
        return None
    return ImagePart(uri) if (media_type or "").startswith("image/") else FilePart(uri, media_type)


def _answer(pieces: Sequence[dict[str, Any]], where: str, producer: Producer) -> Answer:
    parts: list[Any] = []
    rest: dict[str, Any] = {}
    for piece in pieces:
        parts.extend(as_list(as_object(piece.get("content")).get("parts")))
        rest.update({k: v for k, v in piece.items() if k not in ("content", "index") and v not in (None, [])})
    messages = convert_content({"role": "model", "parts": parts}, f"{where}.content")
    if messages[-1].role == "tool":
        messages.append(Message("assistant", []))
    reason = as_text(rest.pop("finishReason", rest.pop("finish_reason", None)))
    text = as_text(rest.get("finishMessage")) or as_text(rest.get("finish_message")) or ""
    error = MessageError(reason, text) if reason in _FAILURES else None
    tokens = _tokens(rest)
    messages = [
        msgspec.structs.replace(message, producer=producer) if message.role == "assistant" else message
        for message in messages
    ]
    metadata = {**rest, **messages[-1].metadata, **({"finish_reason": reason} if reason else {})}
    messages[-1] = msgspec.structs.replace(messages[-1], metadata=metadata, error=error, tokens=tokens)
    return Answer(messages, reason, reason in _CUT_REASONS, error)


def _tokens(candidate: dict[str, Any]) -> TokenRecord | None:
    """The sampled tokens, where log-probabilities were asked for and came with token ids."""
    result = as_object(candidate.get("logprobsResult", candidate.get("logprobs_result")))
    chosen = [as_object(item) for item in as_list(result.get("chosenCandidates", result.get("chosen_candidates")))]
    record = {
        "token_ids": [item.get("tokenId", item.get("token_id")) for item in chosen],
        "fingerprint": "unknown",
        "logprobs": [item.get("logProbability", item.get("log_probability")) for item in chosen],
    }
    try:
        return msgspec.convert(record, TokenRecord) if chosen else None
    except msgspec.ValidationError:
        return None


def _with_usage(message: Message, usage: object, rest: dict[str, Any]) -> Message:
    fields = dict(as_object(usage))
    counts = [
        as_count(fields.pop(camel, fields.pop(snake, None)))
        for camel, snake in (
            ("promptTokenCount", "prompt_token_count"),
            ("candidatesTokenCount", "candidates_token_count"),
        )
    ]
    kept = {key: value for key, value in fields.items() if value is not None}
    return msgspec.structs.replace(
        message,
        usage=None if counts == [None, None] else Usage(*counts),
        metadata={**rest, **message.metadata, **({"usage": kept} if kept else {})},
    )
