"""Answers of model calls in whatever shape an observability platform recorded them (see `message_shapes`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from offline_arl.logs.platforms.framework_messages import ai_sdk_answer, is_koog_calls
from offline_arl.logs.platforms.message_shapes import decode_text, is_message, read_messages, system_messages
from offline_arl.logs.platforms.tool_shapes import tools_text
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text, json_text
from offline_arl.logs.providers import anthropic_messages, gemini_messages
from offline_arl.logs.providers.openai_calls import read_choice
from offline_arl.logs.providers.openai_messages import convert_message
from offline_arl.logs.providers.openai_responses import responses_items_to_messages
from offline_arl.trajectories.schema import Message, Usage, text_message

_CUT_REASONS = frozenset({"length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_context_window_exceeded"})
_MAX_DEPTH = 6


@dataclass(frozen=True)
class Answer:
    """What a model answered.

    Attributes:
        choices: The alternatives; one unless several were asked for.
        before: What came before the last message of an answer of several (tools that the provider ran in between).
        stop_reasons: Those of the choices, in the provider's words.
        tools: Tools that the response repeats (JSON text in OpenAI form), and `system` its system prompt.
        rest: What else the output held.
    """

    choices: list[Message]
    before: list[Message] = field(default_factory=list)
    stop_reasons: list[str | None] = field(default_factory=list)
    tools: str | None = None
    system: list[Message] = field(default_factory=list)
    model: str | None = None
    usage: Usage | None = None
    rest: dict[str, Any] = field(default_factory=dict)

    @property
    def stop_reason(self) -> str | None:
        """Why the first choice ended."""
        return next(iter(self.stop_reasons), None)

    @property
    def truncated(self) -> bool:
        """Whether the first choice was cut by a limit of tokens."""
        return self.stop_reason in _CUT_REASONS


def read_answer(value: object, where: str = "output") -> Answer | None:
    """The answer in an output, None where there is none.

    An object of no known shape is what the model or its wrapper made of a structured answer: its JSON is the text.

    Args:
        value: Parsed JSON or JSON text; taken apart.
        where: Its path in the record, for error messages.

    Raises:
        RecordRefusedError: It holds messages, and one of them cannot be read.
    """
    answer = _answer(decode_text(value), where, 0)
    return None if answer is None or not answer.choices else answer


def _answer(value: object, where: str, depth: int) -> Answer | None:
    if isinstance(value, str):
        return Answer([text_message("assistant", value)])
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, list):
        return _answer_of_list(value, where, depth)
    if not isinstance(value, dict) or not any(item is not None for item in value.values()):
        return None
    for reads, reader in _READERS:
        if reads(value):
            return reader(value, where)
    for key in ("message", "messages", "output"):
        inner = decode_text(value.get(key))
        if isinstance(inner, (dict, list)) or (key == "output" and isinstance(inner, str)):
            found = _answer(inner, f"{where}.{key}", depth + 1)
            return None if found is None else _with_envelope(found, {k: v for k, v in value.items() if k != key})
    if is_message(value):
        return _sequence(read_messages([value], where))
    if isinstance(value.get("content"), (str, list)):
        return _sequence(read_messages([{"role": "assistant", **value}], where))
    message = text_message("assistant", json_text(value))
    return Answer([msgspec.structs.replace(message, metadata={"content_was_json": True})])


def _answer_of_list(values: list[Any], where: str, depth: int) -> Answer | None:
    while len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    if not values:
        return None
    first = as_object(values[0])
    if "toolCallId" in first and "toolName" in first:
        return Answer([convert_message(ai_sdk_answer(values), where)])
    if all(isinstance(as_object(value).get("message"), dict) and "event.name" not in value for value in values):
        return _chat_completion({"choices": values}, where)
    if all(map(is_koog_calls, values)):
        # One turn of the model; the provider's choices are never split into single calls.
        return Answer([merged_turn(read_messages(values, where))], stop_reasons=[as_text(first.get("finish_reason"))])
    if all(map(is_message, values)):
        messages = read_messages(values, where)
        if len(messages) > 1 and all(message.role == "assistant" for message in messages):
            return Answer(messages, stop_reasons=[_finish_reason(message) for message in messages])
        return _sequence(messages)
    if all("type" in as_object(value) for value in values):
        return _sequence(anthropic_messages.convert_message({"role": "assistant", "content": values}, where))
    if all(isinstance(value, str) for value in values):
        return Answer([text_message("assistant", value) for value in values], stop_reasons=[None] * len(values))
    message = text_message("assistant", json_text(values))
    return Answer([msgspec.structs.replace(message, metadata={"content_was_json": True})])


def merged_turn(messages: Sequence[Message]) -> Message:
    """One turn that was recorded in pieces, as one message."""
    parts = [part for message in messages for part in message.content or ()]
    return msgspec.structs.replace(
        messages[-1],
        content=parts or None,
        tool_calls=[call for message in messages for call in message.tool_calls],
    )


def _sequence(messages: list[Message]) -> Answer | None:
    """The last message of an assistant as the answer, what stands before it as what came before."""
    while messages and messages[-1].role != "assistant":
        messages = messages[:-1]
    if not messages:
        return None
    return Answer(messages[-1:], messages[:-1], [_finish_reason(messages[-1])])


def _finish_reason(message: Message) -> str | None:
    return as_text(message.metadata.get("finish_reason"))


def _chat_completion(value: dict[str, Any], where: str) -> Answer:
    choices, reasons = [], []
    for index, item in enumerate(value["choices"]):
        choice = dict(as_object(item))
        if not isinstance(choice.get("message"), dict):
            # Completions of text, and chunks of a stream that a tracer joined in its own way.
            delta, text = choice.pop("delta", None), choice.pop("text", None)
            choice["message"] = delta if isinstance(delta, dict) else {"content": text}
        message, reason = read_choice(choice, f"{where}.choices[{index}]", None, None, value.get("prompt_token_ids"))
        choices.append(message)
        reasons.append(reason)
    rest = {key: item for key, item in value.items() if key not in ("choices", "prompt_token_ids")}
    return _with_envelope(Answer(choices, stop_reasons=reasons), rest)


def _responses(value: dict[str, Any], where: str) -> Answer | None:
    rest = dict(value)
    messages = responses_items_to_messages(rest.pop("output"), f"{where}.output")
    system = system_messages(rest.pop("instructions", None) or [], f"{where}.instructions")
    tools = tools_text(rest.get("tools"))
    if tools is not None:
        del rest["tools"]
    answer = _sequence(messages)
    if answer is None:
        return None
    reason = as_text(as_object(rest.get("incomplete_details")).get("reason")) or as_text(rest.get("status"))
    answer = replace(answer, system=system, tools=tools, stop_reasons=[reason])
    return _with_envelope(answer, rest)


def _anthropic(value: dict[str, Any], where: str) -> Answer:
    usage, model = _usage(value.get("usage")), as_text(value.get("model"))
    found = anthropic_messages.convert_answer(value, where)
    return Answer(found.messages[-1:], found.messages[:-1], [found.stop_reason], model=model, usage=usage)


def _langchain(value: dict[str, Any], where: str) -> Answer | None:
    """A result of LangChain's: for each prompt of a batch the generations; the first prompt's are read."""
    batch = as_list(value["generations"])
    generations = batch[0] if batch and isinstance(batch[0], list) else batch
    choices, reasons = [], []
    for index, item in enumerate(generations):
        generation = as_object(item)
        message = generation.get("message")
        info = as_object(generation.get("generation_info"))
        if isinstance(message, dict):
            choices.append(read_messages([message], f"{where}.generations[{index}].message")[-1])
        else:
            choices.append(text_message("assistant", as_text(generation.get("text"))))
        reasons.append(_finish_reason(choices[-1]) or as_text(info.get("finish_reason", info.get("stop_reason"))))
    output = as_object(value.get("llm_output"))
    rest = {key: item for key, item in value.items() if key not in ("generations", "llm_output", "type", "run")}
    answer = Answer(choices, stop_reasons=reasons)
    return _with_envelope(answer, {**rest, **output, "model": output.get("model_name")})


def _gemini(value: dict[str, Any], where: str) -> Answer:
    found = gemini_messages.convert_response(value, where)
    rest = {key: item for key, item in value.items() if key not in ("candidates", "sdk_http_response")}
    model = rest.pop("modelVersion", rest.pop("model_version", None))
    before = found[0].messages[:-1] if len(found) == 1 else []
    answer = Answer([item.messages[-1] for item in found], before, [item.stop_reason for item in found])
    return _with_envelope(answer, {**rest, "model": model})


def _ai_sdk(value: dict[str, Any], where: str) -> Answer:
    calls = as_list(decode_text(value.get("toolCalls")))
    reason = as_text(value.get("finishReason"))
    message = ai_sdk_answer(calls, value.get("text"), value.get("reasoning"))
    rest = {k: v for k, v in value.items() if k not in ("text", "toolCalls", "reasoning", "finishReason")}
    return _with_envelope(Answer([convert_message(message, where)], stop_reasons=[reason]), rest)


def _with_envelope(answer: Answer, rest: dict[str, Any]) -> Answer:
    """What a response says of itself beside its messages."""
    usage = answer.usage
    for key in ("usage", "usage_metadata", "usageMetadata", "token_usage"):
        if usage is None and (usage := _usage(rest.get(key))) is not None:
            rest = {k: v for k, v in rest.items() if k != key} if len(rest[key]) <= 3 else rest
    reasons = [as_text(rest.get("finish_reason"))] if answer.stop_reasons in ([], [None]) else answer.stop_reasons
    return replace(
        answer,
        model=as_text(rest.get("model")) or answer.model,
        usage=usage,
        stop_reasons=reasons,
        rest={**answer.rest, **{key: item for key, item in rest.items() if item is not None and key != "model"}},
    )


def _usage(value: object) -> Usage | None:
    fields = as_object(value)
    counts = [
        next((count for key in keys if (count := as_count(fields.get(key))) is not None), None) for keys in _USAGE_KEYS
    ]
    return None if counts == [None, None] else Usage(*counts)


_USAGE_KEYS = (
    ("input_tokens", "prompt_tokens", "promptTokens", "inputTokens", "promptTokenCount"),
    ("output_tokens", "completion_tokens", "completionTokens", "outputTokens", "candidatesTokenCount"),
)


def _has_items(value: dict[str, Any]) -> bool:
    output = value.get("output")
    return isinstance(output, list) and (
        value.get("object") == "response" or (bool(output) and all("type" in as_object(item) for item in output))
    )


def _is_anthropic(value: dict[str, Any]) -> bool:
    return (
        isinstance(value.get("content"), list)
        and value.get("role", "assistant") == "assistant"
        and (value.get("type") == "message" or "stop_reason" in value)
    )


_READERS: tuple[tuple[Callable[[dict[str, Any]], bool], Callable[[dict[str, Any], str], Answer | None]], ...] = (
    (lambda value: isinstance(value.get("choices"), list) and bool(value["choices"]), _chat_completion),
    (lambda value: isinstance(value.get("candidates"), list) and bool(value["candidates"]), _gemini),
    (lambda value: isinstance(value.get("generations"), list), _langchain),
    (_has_items, _responses),
    (_is_anthropic, _anthropic),
    (lambda value: "toolCalls" in value or ("text" in value and "role" not in value), _ai_sdk),
)
