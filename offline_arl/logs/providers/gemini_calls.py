"""Logs of calls of Gemini's interface: requests with their responses, conversations, and scripted responses.

Programs that log what they send, and files of batch predictions, have a request and its response in a record.
Files for tuning have whole conversations under `contents`. The `.responses` files of Gemini CLI's tests have
responses only.
"""

from __future__ import annotations

from typing import Any

from offline_arl.logs.adapter import (
    Assembly,
    Fragment,
    Group,
    RawRecord,
    RecordRefusedError,
    RecordSetApartError,
)
from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_object, as_text, decode_object
from offline_arl.logs.providers.gemini_messages import (
    Answer,
    convert_contents,
    convert_response,
    error_of,
    normalize_tools,
    paired,
    system_messages,
)
from offline_arl.logs.stitching.stitch import ModelCall, assembly_of, conversation_key
from offline_arl.trajectories.schema import Context, Message, Trajectory

_REQUEST_KEYS = ("request", "req", "input")
_RESPONSE_KEYS = ("response", "resp", "output")
_SYSTEM_KEYS = ("systemInstruction", "system_instruction")
_SESSION_KEYS = ("session_id", "sessionId", "conversation_id", "trace_id")
_TIME_KEYS = ("timestamp", "created_at", "start_time", "processed_time")
_CALL_METHODS = frozenset({"generateContent", "generateContentStream"})


class GeminiCallsAdapter:
    """Assembles logged requests and responses into conversations."""

    name = "gemini_calls"
    title = "Gemini requests with their responses"
    keeps = (
        "tools, system instruction, thoughts and their signatures, parallel calls paired by order, log-probabilities"
    )
    lacks = "a reward; the pairing of calls without ids is a guess where their results come in another order"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has a request with contents and the place of a response."""
        if not isinstance(record, dict):
            return False
        request, key = _request(record)
        return isinstance(request.get("contents"), (list, dict, str)) and key is not None and "messages" not in request

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """One fragment, for the session that the record names, else for all calls that begin alike."""
        call = _call(decode_object(record.raw), 0)
        key = f"session\0{call.session_id}" if call.session_id is not None else conversation_key(call.messages)
        return [Fragment(key, record.raw)]

    def assemble(self, group: Group) -> Assembly:
        """The trajectories of a group of calls."""
        calls = [_call(decode_object(piece.payload), index) for index, piece in enumerate(group.pieces)]
        return assembly_of(calls, group)


class GeminiContentsAdapter:
    """Reads whole conversations, one a record."""

    name = "gemini_contents"
    title = "Gemini contents, one conversation a record"
    keeps = "tools, system instruction, thoughts, parallel calls paired by order"
    lacks = "a reward"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has contents made of parts, and no response beside them."""
        if not isinstance(record, dict) or any(key in record for key in (*_REQUEST_KEYS, *_RESPONSE_KEYS)):
            return False
        contents = record.get("contents")
        return isinstance(contents, list) and bool(contents) and "parts" in as_object(contents[0])

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The one trajectory of a record."""
        fields = decode_object(record.raw)
        messages, tools = _prompt(fields)
        return [
            Trajectory(
                trajectory_id=record.trajectory_id(),
                messages=messages,
                source=record.source(self.name),
                contexts=[] if tools is None else [Context(0, tools)],
                model=as_text(fields.pop("model", None)),
                metadata={key: value for key, value in fields.items() if value is not None},
            )
        ]


class GeminiResponsesAdapter:
    """Assembles the responses of a file, in order; their prompts are not in it."""

    name = "gemini_cli_responses"
    title = "Responses of Gemini CLI's test runs (`.responses`)"
    keeps = "thoughts and their signatures, parallel calls, usage"
    lacks = "prompts, tool results, tools and the model's name are not in these files"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is a method of the interface and what it gave."""
        if not isinstance(record, dict) or not isinstance(record.get("method"), str) or "response" not in record:
            return False
        response = record["response"]
        first = as_object(response[0] if isinstance(response, list) and response else response)
        return "candidates" in first or (not response and record["method"] in _CALL_METHODS)

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """One fragment, for the file; counts of tokens, embeddings and answers to the program itself are set apart."""
        fields = decode_object(record.raw)
        method = as_text(fields.get("method"))
        if method is None or "response" not in fields:
            raise RecordRefusedError("expected a method and a response")
        if method not in _CALL_METHODS:
            raise RecordSetApartError(f"a call of {method}, which is no answer")
        answers = convert_response(fields["response"])
        if not answers:
            raise RecordSetApartError("a response without a candidate")
        if method == "generateContent" and _is_for_the_program(answers[0]):
            raise RecordSetApartError("a utility call (an answer to the program itself)")
        return [Fragment(None, record.raw)]

    def assemble(self, group: Group) -> Assembly:
        """The one trajectory of a file."""
        messages: list[Message] = []
        answer: Answer | None = None
        for piece in group.pieces:
            answer = convert_response(decode_object(piece.payload)["response"])[0]
            messages.extend(answer.messages)
        return Assembly(
            [
                Trajectory(
                    trajectory_id=group.trajectory_id(),
                    messages=paired(messages),
                    source=group.source(),
                    truncated=answer is not None and answer.truncated,
                    stop_reason=None if answer is None else answer.stop_reason,
                    metadata={"prompts_logged": False},
                )
            ]
        )


def _is_for_the_program(answer: Answer) -> bool:
    """Whether an answer outside of the stream is JSON: routing, next speaker, corrections of edits."""
    text = answer.messages[-1].text.strip()
    return text.startswith("{") and text.endswith("}") and not answer.messages[-1].tool_calls


def _request(record: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The request of a record and the key of its response; the record itself may be the request."""
    response_key = next((key for key in _RESPONSE_KEYS if key in record), None)
    for key in _REQUEST_KEYS:
        if isinstance(found := record.get(key), dict):
            return found, response_key
    return record, response_key


def _call(record: dict[str, Any], piece: int) -> ModelCall:
    logged, response_key = _request(record)
    request = dict(logged)
    config = as_object(request.pop("config", None))
    request = {**config, **request}
    response = record.get(response_key) if response_key is not None else None
    model = as_text(request.pop("model", None)) or as_text(record.get("model"))
    messages, tools = _prompt(request)
    error = error_of(response) or error_of(record)
    answers = [] if not response or as_object(response).get("error") else convert_response(response, model=model)
    choices = [answer.messages[-1] for answer in answers]
    if answers and len(answers) == 1:
        *before, last = paired([*messages, *answers[0].messages])
        messages, choices = before, [last]
    first = answers[0] if answers else None
    own = (*_REQUEST_KEYS, *_RESPONSE_KEYS, *_SESSION_KEYS, *_TIME_KEYS, "contents", "model", "config")
    rest = {} if logged is record else {k: v for k, v in record.items() if k not in own and v is not None}
    settings = {key: value for key, value in request.items() if key not in own and value is not None}
    return ModelCall(
        messages=messages,
        choices=choices,
        pieces=(piece,),
        call_id=choices[0].id if choices else None,
        tools=tools,
        started_at=next((time for key in _TIME_KEYS if (time := iso_time(record.get(key))) is not None), None),
        model=choices[0].producer.name if choices else model,
        session_id=next((text for key in _SESSION_KEYS if (text := as_text(record.get(key))) is not None), None),
        truncated=first is not None and first.truncated,
        stop_reason=None if first is None else first.stop_reason,
        error=error or (None if first is None else first.error),
        metadata={**rest, **({"request": settings} if settings else {})},
    )


def _prompt(request: dict[str, Any]) -> tuple[list[Message], str | None]:
    """Take the messages and tools out of a request."""
    system = next((request.pop(key) for key in _SYSTEM_KEYS if key in request), None)
    messages = [*system_messages(system), *convert_contents(request.pop("contents", None))]
    return messages, normalize_tools(request.pop("tools", None))
