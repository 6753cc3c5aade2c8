"""Streamed answers of OpenAI's interfaces, put together again: chunks of chat completions, events of Responses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.values import as_list, as_object, as_text, json_type
from offline_arl.logs.providers.anthropic_stream import stream_events

# These texts of a delta come whole, and some servers repeat them; others (a name too) are pieces to be joined.
_WHOLE_KEYS = frozenset({"role", "id", "type"})
_FINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")


def events_of(stream: object, where: str = "response") -> list[dict[str, Any]]:
    """The objects of a stream: the text of server-sent events, or a list of objects or of their texts.

    Raises:
        RecordRefusedError: It is none of these.
    """
    if isinstance(stream, str):
        return list(stream_events(stream, where))
    if not isinstance(stream, list):
        raise RecordRefusedError(f"{where}: expected the text of a stream or a list, got {json_type(stream)}")
    events: list[dict[str, Any]] = []
    for index, item in enumerate(stream):
        if isinstance(item, str):
            events.extend(stream_events(item if item.lstrip().startswith(("data:", "event:")) else f"data: {item}"))
        elif isinstance(item, dict):
            events.append(item)
        else:
            raise RecordRefusedError(f"{where}[{index}]: expected an object, got {json_type(item)}")
    return events


def join_chunks(chunks: Iterable[dict[str, Any]], where: str = "response") -> dict[str, Any]:
    """One chat completion from its chunks.

    Calls are joined by their index, because only the first piece of a call has an id. A choice without finish reason
    was cut off; it has `incomplete: true`. An error in the stream is kept under `error`.

    Raises:
        RecordRefusedError: There are no chunks.
    """
    response: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for key, value in chunk.items():
            if key == "choices":
                for choice in as_list(value):
                    _add_choice(choices, as_object(choice))
            elif key == "object":
                response[key] = "chat.completion"
            elif value is not None and key != "obfuscation":
                response[key] = value
    if not response and not choices:
        raise RecordRefusedError(f"{where}: the stream holds no chunks")
    for choice in choices.values():
        calls = choice["message"].get("tool_calls")
        if isinstance(calls, dict):
            choice["message"]["tool_calls"] = [calls[index] for index in sorted(calls)]
        if choice.get("finish_reason") is None:
            choice["incomplete"] = True
    response["choices"] = [choices[index] for index in sorted(choices)]
    return response


def _add_choice(choices: dict[int, dict[str, Any]], piece: dict[str, Any]) -> None:
    index = piece.get("index")
    index = index if isinstance(index, int) else 0
    choice = choices.setdefault(index, {"index": index, "message": {"role": "assistant", "content": None}})
    for key, value in piece.items():
        if key == "delta" or key == "message":
            _add_delta(choice["message"], as_object(value))
        elif key == "logprobs":
            for name, entries in as_object(value).items():
                if isinstance(entries, list):
                    choice.setdefault("logprobs", {}).setdefault(name, []).extend(entries)
        elif isinstance(value, list):
            choice[key] = [*as_list(choice.get(key)), *value]
        elif value is not None and key != "index":
            choice[key] = value


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        if key == "tool_calls":
            calls = message.setdefault("tool_calls", {})
            for piece in as_list(value):
                _add_call(calls, as_object(piece))
        elif key == "function_call" and isinstance(value, dict):
            message[key] = _joined(message.get(key), value)
        else:
            _join(message, {key: value})


def _add_call(calls: dict[int, dict[str, Any]], piece: dict[str, Any]) -> None:
    index = piece.get("index")
    if not isinstance(index, int):
        # Some servers leave the index out: a piece with an id of its own starts a call, others go on with the last.
        last = max(calls, default=-1)
        starts = last < 0 or (piece.get("id") is not None and piece.get("id") != calls[last].get("id"))
        index = last + 1 if starts else last
    call = calls.setdefault(index, {})
    for key, value in piece.items():
        if key in ("function", "custom") and isinstance(value, dict):
            call[key] = _joined(call.get(key), value)
        elif key != "index":
            _join(call, {key: value})


def _joined(known: object, pieces: dict[str, Any]) -> dict[str, Any]:
    whole = known if isinstance(known, dict) else {}
    _join(whole, pieces)
    return whole


def _join(whole: dict[str, Any], pieces: dict[str, Any]) -> None:
    for key, piece in pieces.items():
        known = whole.get(key)
        if piece is None or (known and (key in _WHOLE_KEYS or (key == "name" and piece == known))):
            continue
        is_text = isinstance(known, str) and isinstance(piece, str)
        is_list = isinstance(known, list) and isinstance(piece, list)
        whole[key] = known + piece if is_text or is_list else piece


def join_response_events(events: Iterable[dict[str, Any]], where: str = "response") -> dict[str, Any]:
    """The response object that a stream of Responses events ends with.

    A stream that was cut off gives what it had of it, with the items that were finished and `incomplete: true`.

    Raises:
        RecordRefusedError: There is no response in it.
    """
    response: dict[str, Any] | None = None
    items: dict[int, Any] = {}
    error: dict[str, Any] | None = None
    for event in events:
        kind = as_text(event.get("type")) or ""
        if isinstance(event.get("response"), dict):
            response = event["response"]
        if kind in _FINAL_EVENTS and response is not None:
            return _with_items(response, items)
        if kind == "response.output_item.done" and isinstance(event.get("item"), dict):
            index = event.get("output_index")
            items[index if isinstance(index, int) else len(items)] = event["item"]
        elif kind == "error":
            error = {key: value for key, value in event.items() if key not in ("type", "sequence_number")}
    if response is None and error is None:
        raise RecordRefusedError(f"{where}: the stream holds no response")
    response = _with_items({**(response or {}), "incomplete": True}, items)
    return response if error is None else {**response, "error": error}


def _with_items(response: dict[str, Any], items: dict[int, Any]) -> dict[str, Any]:
    # Some servers leave the output of the last event empty: its items were sent one by one before.
    if response.get("output"):
        return response
    return {**response, "output": [items[index] for index in sorted(items)]}
