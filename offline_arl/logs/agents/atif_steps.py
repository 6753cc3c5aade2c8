"""Steps of ATIF as messages: a step of the agent is its answer and the results of what it called."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.pairing import pair_by_order
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text, json_text, json_type
from offline_arl.trajectories.schema import (
    UNKNOWN_PRODUCER,
    ContentPart,
    FilePart,
    ImagePart,
    Message,
    Producer,
    ReasoningPart,
    Role,
    TextPart,
    TokenRecord,
    ToolCall,
    Usage,
    tool_call,
)

_SOURCES: dict[str, Role] = {"system": "system", "user": "user", "agent": "assistant"}
_STEP_KEYS = frozenset(
    {"source", "message", "timestamp", "model_name", "reasoning_content", "tool_calls", "observation", "metrics"}
    | {"is_copied_context"}
)
_METRIC_KEYS = frozenset(
    {"prompt_tokens", "completion_tokens", "cost_usd", "cost", "prompt_token_ids", "completion_token_ids", "logprobs"}
)


def convert_steps(steps: Sequence[Any], where: str, model: str | None) -> list[Message]:
    """Convert the steps of a document.

    Raises:
        RecordRefusedError: One is no step; the reason starts with a path.
    """
    messages: list[Message] = []
    for index, step in enumerate(steps):
        path = f"{where}[{index}]"
        if not isinstance(step, dict):
            raise RecordRefusedError(f"{path}: expected an object, got {json_type(step)}")
        # The ids of calls are unique within a step only, so that results are paired there.
        messages.extend(pair_by_order(_step(step, path, model)))
    if not messages:
        raise RecordRefusedError(f"{where}: no step has a message")
    return messages


def _step(step: dict[str, Any], where: str, model: str | None) -> list[Message]:
    source = step.get("source")
    role = _SOURCES.get(source) if isinstance(source, str) else None
    if role is None:
        raise RecordRefusedError(f"{where}.source: expected one of {', '.join(_SOURCES)}, got {source!r}")
    metadata = {key: value for key, value in step.items() if key not in _STEP_KEYS and value is not None}
    others: list[Any] = []
    content = _content(step.get("message"), f"{where}.message", others)
    if others:
        metadata["other_parts"] = others
    reasoning = as_text(step.get("reasoning_content"))
    if reasoning:
        content = [ReasoningPart(reasoning), *(content or ())]
    calls = _calls(step.get("tool_calls"), where, metadata)
    timestamp = as_text(step.get("timestamp"))
    is_copy = step.get("is_copied_context") is True
    message = Message(
        role=role,
        content=content,
        tool_calls=calls,
        producer=_producer(role, step, as_text(step.get("model_name")) or model, is_copy=is_copy),
        tokens=token_record(as_object(step.get("metrics")), metadata),
        timestamp=timestamp,
        usage=_usage(as_object(step.get("metrics")), metadata),
        metadata=metadata,
    )
    results = _results(step.get("observation"), where, has_calls=bool(calls), timestamp=timestamp)
    # Operations that the system starts by itself may have results and no words.
    return results if role == "system" and not message.text and results else [message, *results]


def _producer(role: Role, step: dict[str, Any], model: str | None, *, is_copy: bool) -> Producer:
    if is_copy:
        return Producer("copy", model if role == "assistant" else None)
    if role == "system":
        return Producer("script")
    if role == "user":
        return UNKNOWN_PRODUCER
    # A step without a call of a model is a dispatch that the program made by itself.
    return Producer("script") if step.get("llm_call_count") == 0 else Producer("model", model)


def _content(value: object, where: str, others: list[Any]) -> list[ContentPart] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return [TextPart(value)]
    if not isinstance(value, list):
        raise RecordRefusedError(f"{where}: expected a string or a list, got {json_type(value)}")
    parts: list[ContentPart] = []
    for index, item in enumerate(value):
        part = _part(item)
        if part is None:
            others.append({"index": index, "part": item})
        else:
            parts.append(part)
    return parts


def _part(value: object) -> ContentPart | None:
    fields = as_object(value)
    if fields.get("type") == "text" and isinstance(fields.get("text"), str):
        return TextPart(fields["text"])
    source = as_object(fields.get("source"))
    path = source.get("path")
    if isinstance(path, str):
        if fields.get("type") == "image":
            return ImagePart(path)
        return FilePart(path, as_text(source.get("media_type")))
    return None


def _calls(values: object, where: str, metadata: dict[str, Any]) -> list[ToolCall]:
    calls, extras = [], {}
    for index, value in enumerate(as_list(values)):
        fields = as_object(value)
        name, arguments = fields.get("function_name"), fields.get("arguments")
        if not isinstance(name, str):
            path = f"{where}.tool_calls[{index}].function_name"
            raise RecordRefusedError(f"{path}: expected a string, got {json_type(name)}")
        if not isinstance(arguments, (dict, str)):
            arguments = {} if arguments is None else json_text(arguments)
        calls.append(tool_call(name, arguments, id=as_text(fields.get("tool_call_id"))))
        if fields.get("extra"):
            extras[str(index)] = fields["extra"]
    if extras:
        metadata["tool_call_extras"] = extras
    return calls


def _results(value: object, where: str, *, has_calls: bool, timestamp: str | None) -> list[Message]:
    found = []
    for index, item in enumerate(as_list(as_object(value).get("results"))):
        path = f"{where}.observation.results[{index}]"
        if not isinstance(item, dict):
            raise RecordRefusedError(f"{path}: expected an object, got {json_type(item)}")
        call_id = as_text(item.get("source_call_id"))
        others: list[Any] = []
        content = _content(item.get("content"), f"{path}.content", others)
        metadata = {
            key: value for key, value in item.items() if key not in ("source_call_id", "content") and value is not None
        }
        if others:
            metadata["other_parts"] = others
        # What answers no call is what the model is told next, in the role of the user.
        role: Role = "tool" if has_calls or call_id is not None else "user"
        found.append(
            Message(
                role=role,
                content=content,
                tool_call_id=call_id,
                producer=Producer("environment"),
                timestamp=timestamp,
                metadata=metadata,
            )
        )
    return found


def _usage(metrics: dict[str, Any], metadata: dict[str, Any]) -> Usage | None:
    if not metrics:
        return None
    rest = {key: value for key, value in metrics.items() if key not in _METRIC_KEYS and value is not None}
    if rest:
        metadata["metrics"] = rest
    cost = metrics.get("cost_usd", metrics.get("cost"))
    dollars = float(cost) if isinstance(cost, (int, float)) and not isinstance(cost, bool) else None
    tokens = [as_count(metrics.get(key)) for key in ("prompt_tokens", "completion_tokens")]
    return Usage(tokens[0], tokens[1], dollars) if [*tokens, dollars] != [None, None, None] else None


def token_record(metrics: dict[str, Any], metadata: dict[str, Any]) -> TokenRecord | None:
    """The token ids of an answer; what cannot be lined up with them goes to `metadata`."""
    sampled, logprobs = _ids(metrics.get("completion_token_ids")), metrics.get("logprobs")
    prompt = _ids(metrics.get("prompt_token_ids"))
    values = [float(value) for value in as_list(logprobs) if _is_number(value)]
    if sampled is None:
        # Log-probabilities alone cannot be lined up with tokens.
        left = {key: metrics[key] for key in ("logprobs", "prompt_token_ids") if metrics.get(key) is not None}
        metadata.update(left)
        return None
    if values and len(values) != len(sampled):
        metadata["logprobs"] = logprobs
        values = []
    return TokenRecord(sampled, "unknown", values or None, prompt)


def _ids(value: object) -> list[int] | None:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        return None
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
