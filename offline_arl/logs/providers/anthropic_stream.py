"""Streamed Anthropic responses put together again: server-sent events to one response object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.values import as_object, as_text

# The text that each kind of delta adds to, by the key under which it carries it.
_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def is_stream(text: object) -> bool:
    """Whether a value is the text of a streamed Anthropic response."""
    return isinstance(text, str) and '"message_start"' in text[:4096] and "data:" in text[:4096]


def response_of_stream(text: str, where: str = "response") -> dict[str, Any]:
    """The response object of a streamed response (see `response_of_events`).

    Raises:
        RecordRefusedError: It holds no response.
    """
    return response_of_events(stream_events(text, where), where)


def stream_events(text: str, where: str = "response") -> Iterator[dict[str, Any]]:
    """The JSON objects under `data:` of a stream of server-sent events.

    A last event that is cut off is left out: the client stopped reading there.

    Raises:
        RecordRefusedError: An event before the last one is not JSON.
    """
    broken: str | None = None
    # Not splitlines: JSON strings may hold U+2028, which it takes for the end of a line.
    for number, line in enumerate(text.split("\n")):
        if not line.startswith("data:"):
            continue
        if broken is not None:
            raise RecordRefusedError(f"{where}: {broken}")
        data = line.removeprefix("data:").strip()
        try:
            event = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            broken = f"line {number + 1} of the stream is not JSON: {error}"
            continue
        if isinstance(event, dict):
            yield event


def response_of_events(events: Iterable[dict[str, Any]], where: str = "response") -> dict[str, Any]:
    """Put a response together from its stream events.

    Tool inputs stay the strings that were streamed. A stream that ends early gives `"incomplete": True`; an error in
    it is kept under `error`.

    Raises:
        RecordRefusedError: There is no `message_start`.
    """
    response: dict[str, Any] | None = None
    blocks: dict[int, dict[str, Any]] = {}
    error: Any = None
    is_whole = False
    for event in events:
        match event.get("type"):
            case "message_start":
                response = dict(as_object(event.get("message")))
            case "content_block_start":
                blocks[_index(event)] = dict(as_object(event.get("content_block")))
            case "content_block_delta":
                _apply(as_object(event.get("delta")), blocks.setdefault(_index(event), {}))
            case "message_delta" if response is not None:
                response.update(as_object(event.get("delta")))
                usage = {key: value for key, value in as_object(event.get("usage")).items() if value is not None}
                response["usage"] = {**as_object(response.get("usage")), **usage}
            case "message_stop":
                is_whole = True
            case "error":
                error = event.get("error")
    if response is None:
        if error is not None:
            return {"type": "error", "error": error}
        raise RecordRefusedError(f"{where}: the stream has no message_start")
    streamed = [_closed(blocks[index]) for index in sorted(blocks)]
    response["content"] = streamed or response.get("content") or []
    if error is not None:
        response["error"] = error
    if not is_whole:
        response["incomplete"] = True
    return response


def _index(event: dict[str, Any]) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else 0


def _apply(delta: dict[str, Any], block: dict[str, Any]) -> None:
    kind = as_text(delta.get("type"))
    if kind == "input_json_delta":
        block["streamed_input"] = block.get("streamed_input", "") + (as_text(delta.get("partial_json")) or "")
    elif kind == "citations_delta":
        block["citations"] = [*(block.get("citations") or []), delta.get("citation")]
    elif kind in _DELTAS:
        key = _DELTAS[kind]
        block.setdefault("type", "thinking" if kind != "text_delta" else "text")
        block[key] = (as_text(block.get(key)) or "") + (as_text(delta.get(key)) or "")


def _closed(block: dict[str, Any]) -> dict[str, Any]:
    streamed = block.pop("streamed_input", "")
    if streamed:
        block["input"] = streamed
    return block
