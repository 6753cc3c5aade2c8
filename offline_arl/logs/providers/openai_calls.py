"""Requests and answers of OpenAI's chat completions as model calls."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.pairing import needs_pairing, pair_by_order
from offline_arl.logs.primitives.values import as_list, as_object, as_text, json_text, json_type
from offline_arl.logs.providers.openai_messages import convert_message, convert_messages
from offline_arl.logs.providers.openai_tools import normalize_tools
from offline_arl.trajectories.schema import Message, MessageError, Producer, TokenRecord

TRUNCATED = frozenset({"length", "max_tokens"})
_TOKEN_PREFIX = "token_id:"


class CallParts(NamedTuple):
    """What a provider's interface says of a call, whoever logged it.

    `messages` is the prompt, `choices` the answers; `rest` holds the parameters of the request and what else the
    response said, under `request` and `response`.
    """

    messages: list[Message]
    choices: list[Message]
    tools: str | None
    model: str | None
    response_id: str | None
    created: Any
    truncated: bool
    stop_reason: str | None
    error: MessageError | None
    rest: dict[str, Any]


def chat_call(request: dict[str, Any], response: dict[str, Any]) -> CallParts:
    """The call that a request and a response make (`{}` where there is none); both are taken apart.

    Raises:
        RecordRefusedError: One of them is not of the form; the reason names the place.
    """
    messages = convert_messages(request.pop("messages", None), "request.messages")
    return chat_answer(request, response, messages, chat_tools(request))


def chat_answer(
    request: dict[str, Any], response: dict[str, Any], messages: list[Message], tools: str | None
) -> CallParts:
    """The call that a response makes with a prompt that is converted already."""
    model = as_text(response.pop("model", None)) or as_text(request.get("model"))
    error = error_of(response)
    usage, shared_ids = response.pop("usage", None), response.pop("prompt_token_ids", None)
    found = response.pop("choices", None)
    if found is not None and not isinstance(found, list):
        raise RecordRefusedError(f"response.choices: expected a list, got {json_type(found)}")
    choices: list[Message] = []
    reasons: list[str | None] = []
    for index, choice in enumerate(sorted(map(as_object, found or ()), key=_order)):
        where = f"response.choices[{index}]"
        message, reason = read_choice(choice, where, model, usage if index == 0 else None, shared_ids)
        if needs_pairing(message):
            message = pair_by_order([*messages, message])[-1]
        choices.append(message)
        reasons.append(reason)
    return CallParts(
        messages=messages,
        choices=choices,
        tools=tools,
        model=model,
        response_id=as_text(response.pop("id", None)),
        created=response.pop("created", None),
        truncated=any(reason in TRUNCATED for reason in reasons),
        stop_reason=next((reason for reason in reasons if reason is not None), None),
        error=error,
        rest=rest_of(request, response),
    )


def chat_tools(request: dict[str, Any]) -> str | None:
    """Take the tools out of a request, current (`tools`) or legacy (`functions`)."""
    for key in ("tools", "functions"):
        tools = request.pop(key, None)
        if tools is not None:
            return normalize_tools(json_text(tools).encode())
    return None


def error_of(response: dict[str, Any]) -> MessageError | None:
    """Take the error out of a response: `{"error": {"message", "type", "code"}}`, or its text."""
    error = response.pop("error", None)
    if isinstance(error, str) and error:
        return MessageError("error", error)
    if not isinstance(error, dict):
        return None
    kind = error.get("type") or error.get("code") or "error"
    text = error.get("message")
    return MessageError(str(kind), text if isinstance(text, str) else json_text(error))


def rest_of(request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """What is left of a request and a response, for the metadata; nulls and the name of the model are left out."""
    rest = {
        "request": {key: value for key, value in request.items() if value is not None and key != "model"},
        "response": {key: value for key, value in response.items() if value is not None and key != "object"},
    }
    return {key: value for key, value in rest.items() if value}


def _order(choice: dict[str, Any]) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0


def read_choice(
    choice: dict[str, Any], where: str, model: str | None, usage: Any, shared_ids: Any
) -> tuple[Message, str | None]:
    """One answer and why it ended; what the choice says besides goes to the metadata of its message.

    Args:
        choice: One of a response's `choices`; taken apart.
        where: Its path in the record, for error messages.
        model: The model that made it.
        usage: The response's usage, or None where another choice has it.
        shared_ids: Token ids of the prompt, where the response has them.

    Raises:
        RecordRefusedError: It holds no message; the reason starts with `where`.
    """
    fields = choice.pop("message", None)
    if not isinstance(fields, dict):
        raise RecordRefusedError(f"{where}.message: expected an object, got {json_type(fields)}")
    choice.pop("index", None)
    reason = as_text(choice.get("finish_reason"))
    logprobs = as_object(choice.get("logprobs"))
    tokens = _tokens(choice, as_list(logprobs.get("content")), shared_ids)
    if tokens is None and shared_ids is not None:
        choice.setdefault("prompt_token_ids", shared_ids)
    extras = {key: value for key, value in choice.items() if value is not None and value != []}
    message = convert_message({"role": "assistant", **fields, "usage": fields.get("usage", usage)}, f"{where}.message")
    metadata = {key: value for key, value in message.metadata.items() if value is not None and value != []}
    for key, value in extras.items():
        metadata.setdefault(key, value)
    return (
        msgspec.structs.replace(
            message, producer=Producer("model", model), tokens=tokens or message.tokens, metadata=metadata
        ),
        reason,
    )


def _tokens(choice: dict[str, Any], logprobs: list[Any], shared_ids: Any) -> TokenRecord | None:
    """Token ids that vLLM gives on request: as lists of their own, or as the texts of the logged tokens."""
    token_ids, prompt_ids = choice.get("token_ids"), choice.get("prompt_token_ids") or shared_ids
    entries = [as_object(entry) for entry in logprobs]
    if not token_ids:
        texts = [as_text(entry.get("token")) or "" for entry in entries]
        if not texts or not all(text.startswith(_TOKEN_PREFIX) for text in texts):
            return None
        token_ids = [text.removeprefix(_TOKEN_PREFIX) for text in texts]
    if not isinstance(token_ids, list):
        return None
    values = [entry.get("logprob") for entry in entries]
    record = {
        "token_ids": token_ids,
        "fingerprint": "unknown",
        "logprobs": values if len(values) == len(token_ids) else None,
        "prompt_token_ids": prompt_ids,
    }
    try:
        tokens = msgspec.convert(record, TokenRecord, strict=False)
    except msgspec.ValidationError:
        return None
    choice.pop("token_ids", None)
    choice.pop("prompt_token_ids", None)
    return tokens
