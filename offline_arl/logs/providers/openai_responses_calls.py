"""Requests and answers of OpenAI's Responses as model calls.

A request may leave its history on the provider's server and name it: the response that it follows
(`previous_response_id`), a `conversation`, or single items (`item_reference`). `ResponseHistory` puts back what other
calls of the same log hold of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.scores import finite_number
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text, json_type
from offline_arl.logs.providers.openai_calls import CallParts, error_of, rest_of
from offline_arl.logs.providers.openai_responses import responses_items_to_messages, responses_tools
from offline_arl.logs.stitching.stitch import ModelCall
from offline_arl.trajectories.schema import Message, Producer, TextPart, Usage

_COUNTS = frozenset({"input_tokens", "output_tokens", "prompt_tokens", "completion_tokens", "cost"})
_TOKEN_LIMIT = "max_output_tokens"


@dataclass(frozen=True)
class ResponseLink:
    """How a request names the history that it does not hold, and what of its prompt is its own.

    `instructions` is how many messages at the start of the prompt are not handed on to the calls that follow.
    """

    response_id: str | None
    previous_id: str | None
    conversation_id: str | None
    instructions: int


def response_call(request: dict[str, Any], response: dict[str, Any]) -> tuple[CallParts, ResponseLink]:
    """The call that a request and a response make (`{}` where there is none); both are taken apart.

    Raises:
        RecordRefusedError: One of them is not of the form; the reason names the place.
    """
    model = as_text(response.pop("model", None)) or as_text(request.get("model"))
    logged = response.pop("instructions", None)
    prompt = _instructions(request.pop("instructions", logged))
    instructions = len(prompt)
    items = request.pop("input", None)
    if items is not None:
        prompt += responses_items_to_messages(items, "request.input")
    tools, logged_tools = request.pop("tools", None), response.pop("tools", None)
    answer = response.pop("output", None)
    if answer is not None and not isinstance(answer, list):
        raise RecordRefusedError(f"response.output: expected a list, got {json_type(answer)}")
    output = responses_items_to_messages(answer or [], "response.output", assistant=Producer("model", model))
    if output and output[-1].role != "assistant":
        output.append(Message("assistant", producer=Producer("model", model)))
    status = as_text(response.get("status"))
    reason = as_text(as_object(response.get("incomplete_details")).get("reason"))
    response_id = as_text(response.pop("id", None))
    if output:
        output[-1] = _finished(output[-1], response)
        output[:-1] = [_named(message, response_id) for message in output[:-1]]
    error = error_of(response)
    previous_id = as_text(request.pop("previous_response_id", None) or response.get("previous_response_id"))
    link = ResponseLink(response_id, previous_id, _conversation(request, response), instructions)
    response.pop("previous_response_id", None)
    parts = CallParts(
        messages=[*prompt, *output[:-1]],
        choices=output[-1:],
        tools=responses_tools(logged_tools if tools is None else tools),
        model=model,
        response_id=response_id,
        created=response.pop("created_at", None),
        truncated=reason == _TOKEN_LIMIT,
        stop_reason=reason or status,
        error=error,
        rest=rest_of(request, _without_echo(request, response)),
    )
    return parts, link


def _instructions(value: object) -> list[Message]:
    if value is None:
        return []
    if isinstance(value, str):
        return [Message("system", [TextPart(value)])]
    return responses_items_to_messages(value, "request.instructions")


def _conversation(request: dict[str, Any], response: dict[str, Any]) -> str | None:
    for fields in (request, response):
        value = fields.pop("conversation", None)
        found = as_text(value) or as_text(as_object(value).get("id"))
        if found is not None:
            return found
    return None


def _finished(message: Message, response: dict[str, Any]) -> Message:
    usage = as_object(response.pop("usage", None))
    # LiteLLM writes the counts under the names that chat completions have.
    input_tokens = as_count(usage.get("input_tokens", usage.get("prompt_tokens")))
    output_tokens = as_count(usage.get("output_tokens", usage.get("completion_tokens")))
    cost = finite_number(usage.get("cost"))
    details = {key: value for key, value in usage.items() if key not in _COUNTS}
    metadata = {**message.metadata, "usage": details} if details else message.metadata
    if response.pop("incomplete", False):
        metadata = {**metadata, "incomplete": True}
    return msgspec.structs.replace(
        message, usage=Usage(input_tokens, output_tokens, cost) if usage else None, metadata=metadata
    )


def _named(message: Message, response_id: str | None) -> Message:
    return message if message.role == "tool" else msgspec.structs.replace(message, id=response_id)


def _without_echo(request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """What a response says of itself; it repeats all parameters of the request, which is left out."""
    return {key: value for key, value in response.items() if request.get(key) != value}


@dataclass
class ResponseHistory:
    """What the Responses calls of a group hold of one another's history."""

    items: dict[str, dict[str, Any]] = field(default_factory=dict)

    def learn(self, response: dict[str, Any]) -> None:
        """Remember the output items of a response by their ids."""
        for item in as_list(response.get("output")):
            if isinstance(item, dict) and isinstance(item.get("id"), str):
                self.items[item["id"]] = msgspec.json.decode(msgspec.json.encode(item))

    def resolve(self, request: dict[str, Any]) -> None:
        """Put the items that a request refers to in the places of the references."""
        items = request.get("input")
        if not isinstance(items, list):
            return
        for index, item in enumerate(items):
            if isinstance(item, dict) and item.get("type", "item_reference") == "item_reference" and "role" not in item:
                found = self.items.get(item.get("id") or "")
                if found is not None:
                    items[index] = dict(found)


def with_history(calls: Sequence[ModelCall], links: Sequence[ResponseLink | None]) -> list[ModelCall]:
    """Put the history that each call left on the server before its messages, from the other calls.

    A call whose history is in none of them keeps its own messages and says so in `metadata["history_not_logged"]`.
    """
    by_id = {link.response_id: index for index, link in enumerate(links) if link is not None and link.response_id}
    in_order = sorted(range(len(calls)), key=lambda index: (calls[index].started_at or "", index))
    last_of: dict[str, int] = {}
    previous: dict[int, int] = {}
    missing: dict[int, str] = {}
    for index in in_order:
        link = links[index]
        if link is None:
            continue
        if link.previous_id is not None:
            if link.previous_id in by_id and by_id[link.previous_id] != index:
                previous[index] = by_id[link.previous_id]
            else:
                missing[index] = link.previous_id
        elif link.conversation_id is not None:
            if link.conversation_id in last_of:
                previous[index] = last_of[link.conversation_id]
            last_of[link.conversation_id] = index
    whole: dict[int, ModelCall] = {}
    for index in range(len(calls)):
        _complete(index, calls, links, previous, whole)
    return [
        replace(whole[index], metadata={**whole[index].metadata, "history_not_logged": missing[index]})
        if index in missing
        else whole[index]
        for index in range(len(calls))
    ]


def _complete(
    index: int,
    calls: Sequence[ModelCall],
    links: Sequence[ResponseLink | None],
    previous: dict[int, int],
    whole: dict[int, ModelCall],
) -> None:
    """Complete a call and all those before it in its chain; a chain that bites its tail is cut there."""
    chain = [index]
    seen = {index}
    while chain[-1] not in whole and (before := previous.get(chain[-1])) is not None and before not in seen:
        chain.append(before)
        seen.add(before)
    for place in reversed(chain):
        if place in whole:
            continue
        call, link, earlier = calls[place], links[place], previous.get(place)
        known = None if earlier is None else whole.get(earlier)
        if known is None or earlier is None or link is None:
            whole[place] = call
            continue
        earlier_link = links[earlier]
        skipped = 0 if earlier_link is None else earlier_link.instructions
        own = link.instructions
        history = [*known.messages[skipped:], *known.choices[:1]]
        whole[place] = replace(call, messages=[*call.messages[:own], *history, *call.messages[own:]])
