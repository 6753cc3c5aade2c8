"""Items of OpenAI's Responses interface, which several log formats carry, as messages.

One turn of the model is several items (reasoning, text, calls); they become one assistant message. A tool that
the provider runs itself (web search, code interpreter, MCP) shows its call and what came of it in one item: it
becomes a call and a tool message, as if it had been run outside. Every function keeps what it does not
understand: `metadata["items"]` of a message holds the rest of the items that it was made from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.values import as_text, json_text, json_type
from offline_arl.logs.providers.openai_messages import content_part
from offline_arl.logs.providers.openai_tools import normalize_tools
from offline_arl.trajectories.schema import (
    UNKNOWN_PRODUCER,
    ContentPart,
    Message,
    MessageError,
    Producer,
    ReasoningPart,
    Role,
    TextPart,
    TokenRecord,
    ToolCall,
    tool_call,
)

_ROLES: dict[str, Role] = {"system": "system", "developer": "developer", "user": "user", "assistant": "assistant"}
_ENVIRONMENT = Producer("environment")
# Calls that whoever called the model carries out; their result is an item of its own.
_CLIENT_CALLS = {"local_shell_call": "action", "shell_call": "action", "apply_patch_call": "operation"}
# Calls that the provider carries out, with what of the item is the argument.
_PROVIDER_CALLS = {
    "web_search_call": ("action",),
    "file_search_call": ("queries",),
    "code_interpreter_call": ("code",),
    "image_generation_call": (),
    "mcp_call": (),
    "tool_search_call": ("arguments",),
}
_PROVIDER_RESULTS = ("output", "outputs", "results", "result")
_ARGUMENT_KEYS = ("action", "actions", "arguments", "input")
_TOKEN_KEYS = ("generation_token_ids", "generation_log_probs", "prompt_token_ids")


def responses_items_to_messages(
    items: object, where: str = "input", *, assistant: Producer | None = None
) -> list[Message]:
    """Convert the items of a request's `input` or a response's `output`, or both after one another.

    Args:
        items: A list of items or one string (which a user said); taken apart.
        where: Path of the items in the record, for error messages.
        assistant: Who made the assistant messages.

    An item may carry a `timestamp`; that of a turn is its first one. Token ids that a server recorded on an item
    (`generation_token_ids`) are kept; two items with ids are two turns.

    Raises:
        RecordRefusedError: The value is no list of items; the reason names the item.
    """
    if isinstance(items, str):
        return [Message("user", [TextPart(items)])]
    if not isinstance(items, list):
        raise RecordRefusedError(f"{where}: expected a list of items or a string, got {json_type(items)}")
    turns = _Turns(assistant or UNKNOWN_PRODUCER)
    for index, item in enumerate(items):
        try:
            turns.add(item)
        except RecordRefusedError as error:
            raise RecordRefusedError(f"{where}[{index}]{error}") from error
    return turns.finish()


def responses_tools(tools: object, where: str = "tools") -> str | None:
    """The JSON text, in OpenAI chat form, of a request's flat tools; None where there is no list of them.

    Tools that are no functions (web search, MCP servers) keep their own keys and get a function of their name.

    Raises:
        RecordRefusedError: It is something else than a list of objects.
    """
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise RecordRefusedError(f"{where}: expected a list, got {json_type(tools)}")
    normal = []
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise RecordRefusedError(f"{where}[{index}]: expected an object, got {json_type(tool)}")
        kind, name = tool.get("type", "function"), tool.get("name")
        if kind != "function" and "function" not in tool:
            label = name if isinstance(name, str) else tool.get("server_label")
            tool = {**tool, "function": {"name": label if isinstance(label, str) else str(kind)}}
        normal.append(tool)
    return normalize_tools(json_text(normal).encode())


@dataclass
class _Turn:
    """An assistant message in the making."""

    parts: list[ContentPart] = field(default_factory=list)
    has_content: bool = False
    calls: list[ToolCall] = field(default_factory=list)
    rests: list[dict[str, Any]] = field(default_factory=list)
    tokens: TokenRecord | None = None
    timestamp: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class _Turns:
    """Groups items into messages, in order."""

    def __init__(self, assistant: Producer) -> None:
        self._assistant = assistant
        self._messages: list[Message] = []
        self._turn: _Turn | None = None
        self._strays: list[dict[str, Any]] = []  # items that say nothing of their own, for the next message

    def add(self, item: object) -> None:
        if not isinstance(item, dict):
            raise RecordRefusedError(f": expected an object, got {json_type(item)}")
        kind = item.get("type", "message" if "role" in item else None)
        if not isinstance(kind, str):
            raise RecordRefusedError(f".type: expected a string, got {json_type(kind)}")
        item = {key: value for key, value in item.items() if key != "type" and value is not None}
        handler = _HANDLERS.get(kind)
        if handler is not None:
            handler(self, kind, item)
        elif kind in _CLIENT_CALLS:
            self._client_call(kind, item)
        elif kind in _PROVIDER_CALLS or (kind.endswith("_call") and "call_id" not in item):
            self._provider_call(kind, item)
        elif kind.endswith("_call"):
            self._unknown_call(kind, item)
        elif kind.endswith("_output") and "call_id" in item:
            self._result(kind, item)
        else:
            self._stray(kind, item)

    def finish(self) -> list[Message]:
        self._close()
        if self._strays:
            self._messages.append(self._with_strays(Message("assistant", producer=self._assistant)))
        return self._messages

    def _open(self, kind: str, item: dict[str, Any]) -> _Turn:
        tokens = _take_tokens(item)
        if tokens is not None and self._turn is not None and self._turn.tokens is not None:
            self._close()
        if self._turn is None:
            self._turn = _Turn(rests=self._strays)
            self._strays = []
        turn = self._turn
        turn.tokens = tokens or turn.tokens
        timestamp = item.pop("timestamp", None)
        if turn.timestamp is None and isinstance(timestamp, str):
            turn.timestamp = timestamp
        if item.get("status") == "completed":
            del item["status"]
        return turn

    def _close(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        metadata = {**turn.metadata, "items": turn.rests} if turn.rests else turn.metadata
        self._messages.append(
            Message(
                "assistant",
                turn.parts if turn.parts or turn.has_content else None,
                turn.calls,
                producer=self._assistant,
                tokens=turn.tokens,
                timestamp=turn.timestamp,
                metadata=metadata,
            )
        )

    def _append(self, message: Message) -> None:
        self._close()
        self._messages.append(self._with_strays(message))

    def _with_strays(self, message: Message) -> Message:
        if not self._strays:
            return message
        items = [*self._strays, *message.metadata.get("items", ())]
        self._strays = []
        return msgspec.structs.replace(message, metadata={**message.metadata, "items": items})

    def _message(self, kind: str, item: dict[str, Any]) -> None:
        logged_role = item.pop("role", None)
        role = _ROLES.get(logged_role) if isinstance(logged_role, str) else None
        if role is None:
            raise RecordRefusedError(f".role: expected one of {', '.join(_ROLES)}, got {logged_role!r}")
        if role == "assistant":
            turn = self._open(kind, item)
            parts, rest = _parts(item.pop("content", None), turn.metadata, len(turn.parts))
            turn.parts.extend(parts or ())
            turn.has_content |= parts is not None
            _keep(turn.rests, kind, {**item, **rest})
            return
        metadata: dict[str, Any] = {}
        parts, rest = _parts(item.pop("content", None), metadata, 0)
        timestamp = item.pop("timestamp", None)
        if item.get("status") == "completed":
            del item["status"]
        rests: list[dict[str, Any]] = []
        _keep(rests, kind, {**item, **rest})
        if rests:
            metadata["items"] = rests
        self._append(Message(role, parts, timestamp=_text(timestamp), metadata=metadata))

    def _reasoning(self, kind: str, item: dict[str, Any]) -> None:
        turn = self._open(kind, item)
        raw = _texts(item, "content", "reasoning_text")
        summary = _texts(item, "summary", "summary_text")
        sealed = item.pop("encrypted_content", None)
        # The raw reasoning is what the model thought; the summary is a paraphrase that stands in for it.
        turn.parts.extend(ReasoningPart(text) for text in raw or summary)
        if raw and summary:
            item["summary"] = summary
        elif summary:
            turn.metadata["reasoning_is_summary"] = True
        if isinstance(sealed, str) or not (raw or summary):
            turn.parts.append(ReasoningPart("", as_text(sealed), encrypted=True))
        _keep(turn.rests, kind, item)

    def _function_call(self, kind: str, item: dict[str, Any]) -> None:
        turn = self._open(kind, item)
        arguments = item.pop("arguments", "")
        if not isinstance(arguments, (str, dict)):
            arguments = json_text(arguments)
        turn.calls.append(tool_call(_name(item), arguments, id=_text(item.pop("call_id", None))))
        _keep(turn.rests, kind, item)

    def _custom_call(self, kind: str, item: dict[str, Any]) -> None:
        turn = self._open(kind, item)
        problem = "a custom tool takes free text, not JSON"
        name, raw = _name(item), _text(item.pop("input", None)) or ""
        turn.calls.append(ToolCall(name, raw, None, _text(item.pop("call_id", None)), problem))
        _keep(turn.rests, kind, item)

    def _client_call(self, kind: str, item: dict[str, Any]) -> None:
        turn = self._open(kind, item)
        action = item.pop(_CLIENT_CALLS[kind], None)
        arguments = action if isinstance(action, dict) else {} if action is None else {"value": action}
        call_id = item.pop("call_id", None)
        call_id = item.get("id") if call_id is None else call_id
        turn.calls.append(tool_call(kind.removesuffix("_call"), arguments, id=_text(call_id)))
        _keep(turn.rests, kind, item)

    def _unknown_call(self, kind: str, item: dict[str, Any]) -> None:
        """A call that is answered by an item of its own, of a tool that is not known here (computer use)."""
        turn = self._open(kind, item)
        call_id = _text(item.pop("call_id"))
        arguments: dict[str, Any] = {key: item.pop(key) for key in _ARGUMENT_KEYS if key in item}
        turn.calls.append(tool_call(kind.removesuffix("_call"), arguments, id=call_id))
        _keep(turn.rests, kind, item)

    def _provider_call(self, kind: str, item: dict[str, Any]) -> None:
        turn = self._open(kind, item)
        call_id = _text(item.get("id")) or f"{kind}_{len(self._messages)}_{len(turn.calls)}"
        arguments: str | dict[str, Any]
        if kind == "mcp_call":
            name = _name(item)
            arguments = _text(item.pop("arguments", None)) or ""
        else:
            name = kind.removesuffix("_call")
            arguments = {key: item.pop(key) for key in _PROVIDER_CALLS.get(kind, ()) if key in item}
        turn.calls.append(tool_call(name, arguments, id=call_id))
        logged = {key: item.pop(key) for key in _PROVIDER_RESULTS if key in item}
        error = _error(item.pop("error", None))
        _keep(turn.rests, kind, item)
        self._append(_provider_result(name, call_id, logged, error))

    def _result(self, kind: str, item: dict[str, Any]) -> None:
        call_id = item.pop("call_id", None)
        call_id = item.get("id") if call_id is None else call_id
        metadata: dict[str, Any] = {}
        output = item.pop("output", None)
        if isinstance(output, (str, list, type(None))):
            parts, rest = _parts(output, metadata, 0)
        elif isinstance(output, dict) and (part := content_part(output, 0)) is not None:
            parts, rest = [part], {}
        else:
            metadata["content_was_json"] = True
            parts, rest = [TextPart(json_text(output))], {}
        timestamp = _text(item.pop("timestamp", None))
        if item.get("status") == "completed":
            del item["status"]
        rests: list[dict[str, Any]] = []
        _keep(rests, kind, {**item, **rest})
        if rests:
            metadata["items"] = rests
        self._append(
            Message("tool", parts, [], _text(call_id), producer=_ENVIRONMENT, timestamp=timestamp, metadata=metadata)
        )

    def _approval_request(self, kind: str, item: dict[str, Any]) -> None:
        turn = self._open(kind, item)
        turn.calls.append(tool_call(kind, {**item}, id=_text(item.pop("id", None))))

    def _approval(self, kind: str, item: dict[str, Any]) -> None:
        call_id = _text(item.pop("approval_request_id", None))
        text = json_text(item)
        self._append(Message("tool", [TextPart(text)], [], call_id, producer=_ENVIRONMENT))

    def _compaction(self, kind: str, item: dict[str, Any]) -> None:
        """The history before this item was replaced by it."""
        sealed = item.pop("encrypted_content", None)
        part = ReasoningPart("", as_text(sealed), encrypted=True)
        rests: list[dict[str, Any]] = []
        _keep(rests, kind, item)
        metadata = {"items": rests} if rests else {}
        self._append(Message("assistant", [part], producer=Producer("summary"), metadata=metadata))

    def _stray(self, kind: str, item: dict[str, Any]) -> None:
        kept = {"type": kind, **item}
        (self._strays if self._turn is None else self._turn.rests).append(kept)


_HANDLERS: dict[str, Callable[[_Turns, str, dict[str, Any]], None]] = {
    "message": _Turns._message,
    "reasoning": _Turns._reasoning,
    "function_call": _Turns._function_call,
    "custom_tool_call": _Turns._custom_call,
    "function_call_output": _Turns._result,
    "custom_tool_call_output": _Turns._result,
    "local_shell_call_output": _Turns._result,
    "mcp_approval_request": _Turns._approval_request,
    "mcp_approval_response": _Turns._approval,
    "compaction": _Turns._compaction,
}


def _parts(content: object, metadata: dict[str, Any], offset: int) -> tuple[list[ContentPart] | None, dict[str, Any]]:
    """The parts of a message, and what of them has no place (annotations), by index after `offset` parts."""
    if content is None:
        return None, {}
    if isinstance(content, str):
        return [TextPart(content)], {}
    if not isinstance(content, list):
        raise RecordRefusedError(f".content: expected a string, a list or null, got {json_type(content)}")
    parts: list[ContentPart] = []
    rests: list[dict[str, Any]] = []
    for index, value in enumerate(content):
        part = content_part(value, index)
        if part is None:
            metadata.setdefault("other_parts", []).append({"index": offset + index, "part": value})
            continue
        if value.__class__ is dict and value.get("type") == "refusal":
            metadata["refusal"] = value["refusal"]
        if isinstance(part, TextPart) and isinstance(value, dict):
            logprobs = value.get("logprobs")
            if isinstance(logprobs, list) and logprobs:
                metadata.setdefault("logprobs", []).extend(logprobs)
            rest = {key: item for key, item in value.items() if key not in _TEXT_KEYS and item not in (None, [])}
            if rest:
                rests.append({"index": offset + len(parts), **rest})
        parts.append(part)
    return parts, {"content": rests} if rests else {}


_TEXT_KEYS = frozenset({"type", "text", "refusal", "logprobs"})


def _provider_result(name: str, call_id: str, logged: dict[str, Any], error: MessageError | None) -> Message:
    metadata: dict[str, Any] = {}
    parts: list[ContentPart] | None = None
    if not logged:
        metadata["result_not_logged"] = error is None
    elif len(logged) == 1 and isinstance(value := next(iter(logged.values())), str):
        parts = [TextPart(value)]
    else:
        metadata["content_was_json"] = True
        value = next(iter(logged.values())) if len(logged) == 1 else logged
        parts = [TextPart(json_text(value))]
    return Message("tool", parts, [], call_id, name, error, _ENVIRONMENT, metadata=metadata)


def _error(value: object) -> MessageError | None:
    if value is None:
        return None
    if isinstance(value, dict) and isinstance(kind := value.get("type"), str):
        message = value.get("message")
        return MessageError(kind, message if isinstance(message, str) else json_text(value))
    return MessageError("error", value if isinstance(value, str) else json_text(value))


def _texts(item: dict[str, Any], key: str, kind: str) -> list[str]:
    """Take the texts of a list of parts, if all of them are texts of that kind."""
    parts = item.get(key)
    if not isinstance(parts, list):
        return []
    texts = [
        part["text"]
        for part in parts
        if isinstance(part, dict) and part.get("type", kind) == kind and isinstance(part.get("text"), str)
    ]
    if len(texts) < len(parts):
        return []
    del item[key]
    return texts


def _take_tokens(item: dict[str, Any]) -> TokenRecord | None:
    """Token ids of the turn that some servers record on one of its items; kept as they are where they are odd."""
    values = {key: item[key] for key in _TOKEN_KEYS if item.get(key)}
    if "generation_token_ids" not in values:
        return None
    record = {
        "token_ids": values["generation_token_ids"],
        "fingerprint": "unknown",
        "logprobs": values.get("generation_log_probs"),
        "prompt_token_ids": values.get("prompt_token_ids"),
    }
    try:
        tokens = msgspec.convert(record, TokenRecord)
    except msgspec.ValidationError:
        return None
    for key in _TOKEN_KEYS:
        item.pop(key, None)
    return tokens


def _keep(rests: list[dict[str, Any]], kind: str, rest: dict[str, Any]) -> None:
    if rest:
        rests.append({"type": kind, **rest})


def _name(item: dict[str, Any]) -> str:
    name = item.pop("name", None)
    if not isinstance(name, str):
        raise RecordRefusedError(f".name: expected a string, got {json_type(name)}")
    return name


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None if value is None else str(value)
