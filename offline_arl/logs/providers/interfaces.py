"""The interfaces of model providers: telling them apart, and reading what a request and its response say."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.primitives.values import as_object, as_text, json_type
from offline_arl.logs.providers import anthropic_messages, anthropic_stream, gemini_messages
from offline_arl.logs.providers.openai_calls import CallParts, chat_answer, chat_call, rest_of
from offline_arl.logs.providers.openai_responses_calls import ResponseLink, response_call
from offline_arl.logs.providers.openai_stream import events_of, join_chunks, join_response_events
from offline_arl.trajectories.schema import Message

Interface = Literal["chat", "responses", "anthropic", "gemini"]
# By the end of the path; Gemini has the verb after the name of the model.
_PATHS: tuple[tuple[str, Interface], ...] = (
    ("/chat/completions", "chat"),
    ("/responses", "responses"),
    ("/messages", "anthropic"),
    (":generateContent", "gemini"),
    (":streamGenerateContent", "gemini"),
)
_PROBE_CHARACTERS = 4096


def interface_of(url: str, request: object, response: object) -> Interface | None:
    """The interface of an exchange, by its path and else by its bodies; None where it is no call of a chat model."""
    if not isinstance(request, dict):
        return None
    has_messages = isinstance(request.get("messages"), list)
    is_asked = isinstance(request.get("input"), (str, list)) or _is_continued(request)
    has_prompt: dict[Interface, bool] = {
        "chat": has_messages,
        "anthropic": has_messages,
        "responses": is_asked,
        "gemini": "contents" in request,
    }
    path = _path(url)
    named = next((interface for ending, interface in _PATHS if path.endswith(ending)), None)
    named = named or interface_of_response(response)
    if named is not None:
        return named if has_prompt[named] else None
    if has_messages:
        return "anthropic" if _is_anthropic(request) else "chat"
    return "responses" if isinstance(request.get("input"), list) and "instructions" in request else None


def _path(url: str) -> str:
    try:
        return urlsplit(url).path.rstrip("/")
    except ValueError:
        return ""


def _is_continued(request: dict[str, Any]) -> bool:
    return isinstance(request.get("previous_response_id"), str) or request.get("conversation") is not None


def interface_of_response(response: object) -> Interface | None:
    """The interface that a response (an object, the text or the chunks of a stream) is certainly of."""
    if isinstance(response, list):
        response = response[0] if response else None
    if isinstance(response, str):
        head = response[:_PROBE_CHARACTERS]
        if "chat.completion.chunk" in head:
            return "chat"
        if '"response.created"' in head or '"response.in_progress"' in head:
            return "responses"
        return "anthropic" if '"message_start"' in head else None
    fields = as_object(response)
    kind = fields.get("type")
    if isinstance(fields.get("choices"), list):
        return "chat"
    if fields.get("object") == "response" or (isinstance(kind, str) and kind.startswith("response.")):
        return "responses"
    if kind == "message_start" or (kind == "message" and isinstance(fields.get("content"), list)):
        return "anthropic"
    return None


def _is_anthropic(request: dict[str, Any]) -> bool:
    tools = request.get("tools")
    if isinstance(tools, list) and any("input_schema" in as_object(tool) for tool in tools):
        return True
    return "system" in request or str(request.get("model")).startswith(("claude", "anthropic"))


def whole_response(interface: Interface, response: object, status: int | None) -> dict[str, Any]:
    """A response as one object (`{}` where there is none): a stream is put together, a text is told what it is.

    Of Gemini's interface the chunks stay as they are, in `{"chunks": [...]}`.

    Args:
        interface: The interface that was called.
        response: The parsed body.
        status: The HTTP status, where the log has it.

    Raises:
        RecordRefusedError: It is neither an object nor a stream.
    """
    if response in (None, "", [], {}):
        return {}
    if isinstance(response, str) and not _is_stream(response):
        return _of_text(interface, response, status)
    if isinstance(response, (str, list)):
        events = events_of(response)
        match interface:
            case "chat":
                return join_chunks(events)
            case "responses":
                return join_response_events(events)
            case "anthropic":
                return anthropic_stream.response_of_events(events)
            case "gemini":
                return {"chunks": events}
    if not isinstance(response, dict):
        raise RecordRefusedError(f"response: expected an object or a stream, got {json_type(response)}")
    if interface == "chat" and response.get("role") == "assistant":
        return {"choices": [{"message": response}]}
    return {"chunks": [response]} if interface == "gemini" else response


def _of_text(interface: Interface, text: str, status: int | None) -> dict[str, Any]:
    """The response that is only a text: an answer, where the logger kept nothing else, or a proxy's error page."""
    if interface == "chat" and (status is None or status < 400) and not text.lstrip().startswith("<!"):
        return {"choices": [{"message": {"role": "assistant", "content": text}}]}
    error = {"type": "error" if status is None else f"http_{status}", "message": text}
    return {"chunks": [{"error": {**error, "status": error["type"]}}]} if interface == "gemini" else {"error": error}


def _is_stream(text: str) -> bool:
    return text.lstrip()[:1] in ("d", "e", ":", "i", "r") and "data:" in text


def call_parts(
    interface: Interface, request: dict[str, Any], response: dict[str, Any]
) -> tuple[CallParts, ResponseLink | None]:
    """What a request and a response (of `whole_response`) say of a call; both are taken apart.

    Raises:
        RecordRefusedError: One of them is not of the form of the interface.
    """
    match interface:
        case "chat":
            return chat_call(request, response), None
        case "responses":
            return response_call(request, response)
        case "anthropic":
            return _anthropic_call(request, response), None
        case "gemini":
            return _gemini_call(request, response), None


def _anthropic_call(request: dict[str, Any], response: dict[str, Any]) -> CallParts:
    system = anthropic_messages.system_messages(request.pop("system", None), "request.system")
    messages = system + anthropic_messages.convert_messages(request.pop("messages", None), "request.messages")
    tools = anthropic_messages.normalize_tools(request.pop("tools", None), "request.tools")
    if isinstance(response.get("choices"), list):
        return chat_answer(request, response, messages, tools)  # a proxy turns answers into this form
    error = anthropic_messages.error_of({"type": "error", **response} if "error" in response else response)
    model, response_id = as_text(request.get("model")), as_text(response.get("id"))
    answers: list[Message] = []
    stop_reason, truncated = None, False
    if isinstance(response.get("content"), list):
        answer = anthropic_messages.convert_answer(response)
        answers, stop_reason, truncated = answer.messages, answer.stop_reason, answer.truncated
        model = answer.model or model
    elif response and error is None:
        raise RecordRefusedError(f"response.content: expected a list, got {json_type(response.get('content'))}")
    return CallParts(
        messages=[*messages, *answers[:-1]],
        choices=answers[-1:],
        tools=tools,
        model=model,
        response_id=response_id,
        created=None,
        truncated=truncated,
        stop_reason=stop_reason,
        error=error,
        rest=rest_of(request, {}),
    )


def _gemini_call(request: dict[str, Any], response: dict[str, Any]) -> CallParts:
    system = request.pop("systemInstruction", request.pop("system_instruction", None))
    messages = gemini_messages.system_messages(system, "request.systemInstruction")
    messages += gemini_messages.convert_contents(request.pop("contents", None), "request.contents")
    tools = gemini_messages.normalize_tools(request.pop("tools", None), "request.tools")
    chunks, model = response.get("chunks") or [], as_text(request.get("model"))
    error = gemini_messages.error_of(chunks)
    answers = gemini_messages.convert_response(chunks, model=model)
    choices = [answer.messages[-1] for answer in answers]
    if len(answers) == 1:
        *messages, last = gemini_messages.paired([*messages, *answers[0].messages])
        choices = [last]
    first = answers[0] if answers else None
    return CallParts(
        messages=messages,
        choices=choices,
        tools=tools,
        model=choices[0].producer.name if choices else model,
        response_id=choices[0].id if choices else None,
        created=None,
        truncated=first is not None and first.truncated,
        stop_reason=None if first is None else first.stop_reason,
        error=error or (None if first is None else first.error),
        rest=rest_of(request, {}),
    )
