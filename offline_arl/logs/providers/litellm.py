"""Logs of LiteLLM: standard logging payloads (callbacks, buckets) and rows of the proxy's table of spend logs.

Both hold one call a record. A spend log has the prompt in `proxy_server_request` (older ones in `messages`) and only
where the proxy was told to store it; it leaves the middle out of longer texts.
"""

from __future__ import annotations

import re
from typing import Any

from offline_arl.logs.adapter import (
    Assembly,
    Fragment,
    Group,
    RawRecord,
    RecordRefusedError,
    RecordSetApartError,
)
from offline_arl.logs.primitives.scores import finite_number
from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_list, as_object, as_text, decode_object
from offline_arl.logs.providers.exchange import Exchange, assemble, fragment, parsed_body
from offline_arl.logs.providers.interfaces import Interface
from offline_arl.trajectories.schema import MessageError

_INTERFACES: dict[str, Interface] = {"completion": "chat", "responses": "responses", "anthropic_messages": "anthropic"}
_REDACTED = "redacted-by-litellm"
_CUT_MARKER = "(litellm_truncated skipped"
_CUT_MARKER_BYTES = _CUT_MARKER.encode()
# Made up by LiteLLM where the caller names no trace: shared by retries and fallbacks, not by the calls of a session.
_MADE_UP = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Read into fields of their own, or a table of prices that is the same in every record.
_READ = frozenset(
    (
        *("id", "request_id", "call_type", "messages", "response", "model", "startTime", "endTime", "end_user"),
        *("session_id", "trace_id", "error_str", "error_information", "model_parameters", "proxy_server_request"),
        *("model_map_information", "hidden_params", "metadata", "user", "cache_hit", "response_cost", "spend"),
    )
)
_DROPPED_METADATA = frozenset({"model_map_information", "usage_object", "error_information"})


class LiteLLMAdapter:
    """Reads standard logging payloads and spend logs."""

    name = "litellm"
    title = "LiteLLM standard logging payloads and spend logs"
    keeps = "tools, sessions, end users, costs, failures, cache hits (marked as copies), tags and metadata"
    lacks = "rewards; spend logs leave out the middle of long texts (such messages are marked and not trained)"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has the keys of a payload or of a spend log."""
        if not isinstance(record, dict) or not {"call_type", "messages", "response", "startTime"} <= record.keys():
            return False
        return {"id", "status"} <= record.keys() or {"request_id", "spend"} <= record.keys()

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """The one call of a record, in the group of its session or conversation."""
        fields = decode_object(record.raw)
        call_type = as_text(fields.get("call_type")) or "?"
        interface = _INTERFACES.get(call_type.removeprefix("a") if call_type != "anthropic_messages" else call_type)
        if interface is None:
            raise RecordSetApartError(f"is no call of a chat model: {call_type}")
        metadata = as_object(parsed_body(fields.get("metadata")))
        is_cut = _CUT_MARKER_BYTES in record.raw
        return [
            fragment(
                Exchange(
                    interface=interface,
                    request=_request(fields, interface),
                    response=_response(fields),
                    error=_error(fields, metadata),
                    is_copy=fields.get("cache_hit") in (True, "True", "true"),
                    cut_marker=_CUT_MARKER if is_cut else None,
                    call_id=as_text(fields.get("id")) or as_text(fields.get("request_id")),
                    started_at=iso_time(fields.get("startTime")),
                    ended_at=iso_time(fields.get("endTime")),
                    session_id=_session(fields),
                    trace_id=as_text(fields.get("trace_id")) or None,
                    user_id=as_text(fields.get("end_user")) or as_text(metadata.get("user_api_key_end_user_id")),
                    metadata=_metadata(fields, metadata),
                ),
                by_trace=False,
            )
        ]

    def assemble(self, group: Group) -> Assembly:
        """The conversations of a group."""
        return assemble(group)


def _request(fields: dict[str, Any], interface: Interface) -> dict[str, Any]:
    """The body of the request, put together from where the log keeps its parts."""
    body = as_object(parsed_body(fields.get("proxy_server_request")))
    prompt = parsed_body(fields.get("messages"))
    if prompt in (None, "", {}, []):
        prompt = body.get("messages", body.get("input"))
    if prompt in (None, "", {}, []) and "previous_response_id" not in body:
        raise RecordSetApartError("its messages were not stored (LiteLLM's store_prompts_in_spend_logs is off)")
    if _is_redacted(prompt):
        raise RecordSetApartError("its messages were redacted by LiteLLM")
    request = {"model": fields.get("model"), **as_object(fields.get("model_parameters")), **body}
    if interface == "responses":
        request.pop("messages", None)
        return {**request, "input": prompt}
    if isinstance(prompt, dict) and isinstance(prompt.get("messages"), list):
        return {**request, **prompt}
    return {**request, "messages": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt}


def _is_redacted(prompt: Any) -> bool:
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = as_object(prompt[0]).get("content")
    return bool(prompt == _REDACTED)


def _response(fields: dict[str, Any]) -> Any:
    response = parsed_body(fields.get("response"))
    if response in (None, "", {}):
        return None
    cost = finite_number(fields.get("response_cost", fields.get("spend")))
    if isinstance(response, dict) and isinstance(response.get("usage"), dict) and cost is not None:
        response["usage"].setdefault("cost", cost)
    if isinstance(response, str) and response == _REDACTED:
        raise RecordSetApartError("its answer was redacted by LiteLLM")
    if not isinstance(response, (dict, str, list)):
        raise RecordRefusedError("response: is neither an object nor text")
    return response


def _error(fields: dict[str, Any], metadata: dict[str, Any]) -> MessageError | None:
    information = as_object(fields.get("error_information")) or as_object(metadata.get("error_information"))
    text = as_text(information.get("error_message")) or as_text(fields.get("error_str")) or ""
    kind = as_text(information.get("error_class")) or as_text(information.get("error_code"))
    if fields.get("status") != "failure" and not text and not kind:
        return None
    return MessageError(kind or "error", text)


def _session(fields: dict[str, Any]) -> str | None:
    """The session, or the trace that the caller named; spend logs have made-up traces in `session_id` too."""
    for key in ("session_id", "trace_id"):
        value = as_text(fields.get(key))
        if value and not (_MADE_UP.fullmatch(value)):
            return value
    return None


def _metadata(fields: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in fields.items() if key not in _READ and not _is_empty(value)}
    logged = {key: value for key, value in metadata.items() if key not in _DROPPED_METADATA and not _is_empty(value)}
    return {**kept, **({"metadata": logged} if logged else {})}


def _is_empty(value: Any) -> bool:
    """Whether a value says nothing: null, an empty text, list or object, or an object of such values."""
    if isinstance(value, dict):
        return all(map(_is_empty, value.values()))
    return value is None or value == "" or (isinstance(value, list) and not as_list(value))
