"""Model calls and rewards in the records of agent-lightning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.platforms.answer_shapes import read_answer
from offline_arl.logs.platforms.message_shapes import decode_text, read_prompt
from offline_arl.logs.primitives.scores import finite_number, make_score
from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text
from offline_arl.logs.providers.openai_calls import chat_call
from offline_arl.logs.stitching.stitch import ModelCall
from offline_arl.logs.telemetry import openllmetry
from offline_arl.logs.telemetry.span_attributes import subtree
from offline_arl.logs.telemetry.spans import Span, read_flat_span
from offline_arl.trajectories.schema import Message, MessageError, Producer, Score, TokenRecord

_REWARD_ATTRIBUTE = "agentlightning.reward"
_LEGACY_REWARD_SPANS = ("agentlightning.annotation", "agentlightning.reward")
_OUTPUT_KEYS = ("agentops.task.output", "agentops.entity.output")
_OPERATION_INPUT, _OPERATION_OUTPUT = "agentlightning.operation.input", "agentlightning.operation.output"
_TOKEN_KEYS = (
    "response_token_ids",
    "agentlightning.operation.output.response_token_ids.0",
    "agentlightning.operation.output.choices.0.token_ids",
    "agentlightning.operation.output.choices.0.provider_specific_fields.token_ids",
)
_PROMPT_TOKEN_KEYS = ("prompt_token_ids", "agentlightning.operation.output.prompt_token_ids")


def event_call(event: dict[str, Any], piece: int) -> ModelCall | None:
    """The call of a `model_request` event, None for other events."""
    if event.get("event_type") != "model_request":
        return None
    data = as_object(event.get("data"))
    request, response = dict(as_object(data.get("request"))), dict(as_object(data.get("response")))
    if "messages" not in request:
        raise RecordRefusedError("data.request: has no messages (only chat completions are read)")
    parts = chat_call(request, response)
    status = as_count(data.get("http_status"))
    error = parts.error
    if error is None and data.get("status") == "error":
        error = MessageError("error" if status is None else f"http_{status}")
    kept = ("model_version", "adjusted_params", "latency_ms", "retry_count", "server")
    return ModelCall(
        messages=parts.messages,
        choices=parts.choices,
        pieces=(piece,),
        call_id=parts.response_id or f"{event.get('attempt_id')}/{piece}",
        tools=parts.tools,
        started_at=iso_time(event.get("timestamp")) or iso_time(parts.created),
        model=parts.model or as_text(data.get("model")),
        truncated=parts.truncated,
        stop_reason=parts.stop_reason,
        error=error,
        metadata={**{key: data[key] for key in kept if data.get(key) is not None}, **parts.rest},
    )


def event_rewards(event: dict[str, Any]) -> list[Score]:
    """The reward of a `reward` event; none where the system filled it in or it has no number."""
    data = as_object(event.get("data"))
    if event.get("event_type") != "reward" or data.get("source") == "fallback":
        return []
    value = finite_number(data.get("value"))
    if value is None:
        return []
    rest = {key: item for key, item in data.items() if key not in ("value", "message") and item is not None}
    return [_reward("reward", value, comment=data.get("message"), at=event.get("timestamp"), metadata=rest)]


def span_call(record: dict[str, Any], piece: int) -> ModelCall | None:
    """The call of a span that has messages of a model, None for other spans."""
    span = read_flat_span(dict(record))
    content = openllmetry.read(span)
    if content is not None:
        messages, choices, tools = content.messages, content.choices, content.tools
        model = span.text("gen_ai.response.model", "gen_ai.request.model")
    else:
        request, response = subtree(span.attributes, _OPERATION_INPUT), subtree(span.attributes, _OPERATION_OUTPUT)
        if not isinstance(request, dict) or not isinstance(response, dict) or "messages" not in request:
            return None
        parts = chat_call(request, response)
        messages, choices, tools, model = parts.messages, parts.choices, parts.tools, parts.model
    tokens = _span_tokens(span)
    reasons = [as_text(choice.metadata.get("finish_reason")) for choice in choices]
    return ModelCall(
        messages=messages,
        choices=[_made(choice, model, tokens if index == 0 else None) for index, choice in enumerate(choices)],
        pieces=(piece,),
        call_id=span.text("gen_ai.response.id", f"{_OPERATION_OUTPUT}.id") or span.span_id,
        tools=tools,
        started_at=span.started_at,
        ended_at=span.ended_at,
        model=model,
        parent_id=span.parent_id,
        name=span.name,
        truncated="length" in reasons,
        stop_reason=next(iter(reasons), None),
        error=MessageError("error", span.status_text) if span.status == "error" else None,
    )


def span_rewards(record: dict[str, Any]) -> list[Score]:
    """The rewards of a span: named dimensions, of which the first counts, or one value in an older form."""
    span = read_flat_span(dict(record))
    found = []
    for index, item in enumerate(as_list(subtree(span.attributes, _REWARD_ATTRIBUTE))):
        value = finite_number(as_object(item).get("value"))
        if value is not None:
            name = as_text(as_object(item).get("name")) or "reward"
            rest = {"dimension": index} if index else {}
            found.append(_reward(name, value, at=span.started_at, metadata=rest))
    if found:
        return found
    value = finite_number(span.attributes.get("reward")) if span.name in _LEGACY_REWARD_SPANS else None
    for key in _OUTPUT_KEYS:
        output = as_object(decode_text(span.attributes.get(key)))
        if value is None and output.get("type") == "reward":
            value = finite_number(output.get("value"))
    return [] if value is None else [_reward("reward", value, at=span.started_at)]


def triplet_calls(triplets: list[Any], piece: int) -> Iterator[tuple[ModelCall, Score | None]]:
    """The calls of a legacy report, each with its reward.

    Raises:
        RecordRefusedError: A triplet has token ids only, or no messages that can be read.
    """
    for index, triplet in enumerate(triplets):
        where = f"triplets[{index}]"
        fields = as_object(triplet)
        prompt = read_prompt(_content(fields.get("prompt")), f"{where}.prompt")
        answer = read_answer(_content(fields.get("response")), f"{where}.response")
        if prompt is None or answer is None or not prompt.messages:
            raise RecordRefusedError(f"{where}: has no messages (token ids alone are not read)")
        metadata = as_object(fields.get("metadata"))
        tokens = _token_record(
            as_object(fields.get("response")).get("token_ids"), as_object(fields.get("prompt")).get("token_ids"), None
        )
        choices = [
            _made(choice, answer.model, tokens if number == 0 else None) for number, choice in enumerate(answer.choices)
        ]
        call = ModelCall(
            messages=prompt.messages,
            choices=choices,
            pieces=(piece,),
            call_id=as_text(metadata.get("response_id")) or f"{piece}/{index}",
            tools=prompt.tools,
            model=answer.model,
            name=as_text(metadata.get("agent_name")),
            truncated=answer.truncated,
            stop_reason=answer.stop_reason,
            metadata=metadata,
        )
        value = finite_number(fields.get("reward"))
        yield call, None if value is None else _reward("reward", value)


def _content(payload: object) -> object:
    """The messages of a triplet's prompt or response, which has token ids beside them."""
    raw = as_object(payload).get("raw_content")
    return payload if raw is None else raw


def _made(message: Message, model: str | None, tokens: TokenRecord | None) -> Message:
    return msgspec.structs.replace(message, producer=Producer("model", model), tokens=tokens or message.tokens)


def _span_tokens(span: Span) -> TokenRecord | None:
    attributes = span.attributes
    ids = next((found for key in _TOKEN_KEYS if (found := _ids(attributes, key))), None)
    prompt = next((found for key in _PROMPT_TOKEN_KEYS if (found := _ids(attributes, key))), None)
    content = decode_text(attributes.get("logprobs.content"))
    logprobs = [as_object(item).get("logprob") for item in as_list(content)]
    return _token_record(ids, prompt, logprobs or None)


def _ids(attributes: dict[str, Any], key: str) -> Any:
    value = decode_text(attributes.get(key)) if key in attributes else subtree(attributes, key)
    return value if isinstance(value, list) else None


def _token_record(ids: Any, prompt: Any, logprobs: Any) -> TokenRecord | None:
    if not ids:
        return None
    if not isinstance(logprobs, list) or len(logprobs) != len(ids):
        logprobs = None
    record = {"token_ids": ids, "fingerprint": "unknown", "logprobs": logprobs, "prompt_token_ids": prompt or None}
    try:
        return msgspec.convert(record, TokenRecord)
    except msgspec.ValidationError:
        return None


def _reward(
    name: str, value: float, *, comment: object = None, at: object = None, metadata: dict[str, Any] | None = None
) -> Score:
    return make_score(
        name,
        value,
        scorer="agent_lightning",
        kind="environment",
        direction="higher_is_better",
        comment=comment,
        timestamp=iso_time(at),
        metadata=metadata,
    )
