"""Request rows of Helicone (its API and its exports), one call a row."""

from __future__ import annotations

from typing import Any

from offline_arl.logs.adapter import Assembly, Fragment, Group, RawRecord, RecordRefusedError, RecordSetApartError
from offline_arl.logs.primitives.scores import make_score
from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_count, as_object, as_text, decode_object
from offline_arl.logs.providers.exchange import Exchange, assemble, fragment, parsed_body
from offline_arl.logs.providers.interfaces import interface_of
from offline_arl.trajectories.schema import MessageError, Score

# How Helicone names a score that was sent as true or false, and the one that repeats the rating of the feedback.
_BOOLEAN_SUFFIX = "-hcone-bool"
_FEEDBACK_SCORE = "helicone-score-feedback"
_NOT_CACHED = "00000000-0000-0000-0000-000000000000"
_READ = frozenset(
    (
        *(
            "request_body",
            "response_body",
            "response_status",
            "request_created_at",
            "response_created_at",
            "request_id",
        ),
        *("request_user_id", "helicone_user", "request_properties", "properties", "scores", "feedback_rating"),
        *("feedback_created_at", "feedback_id", "request_path", "target_url", "cost", "costUSD"),
    )
)


class HeliconeAdapter:
    """Reads request rows of Helicone."""

    name = "helicone"
    title = "Helicone request rows"
    keeps = "sessions and their paths, users, properties, costs, feedback and scores of each call"
    lacks = "rows whose bodies are only behind a URL are set apart"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is a row: the ids, bodies and status under Helicone's names."""
        return isinstance(record, dict) and {"request_id", "request_body", "response_status"} <= record.keys()

    def fragments(self, record: RawRecord) -> list[Fragment]:
        """The one call of a row, in the group of its session or conversation."""
        fields = decode_object(record.raw)
        request, response = parsed_body(fields.get("request_body")), parsed_body(fields.get("response_body"))
        if not isinstance(request, dict):
            if as_text(fields.get("signed_body_url")):
                raise RecordSetApartError("its bodies are behind signed_body_url, not in the row")
            raise RecordRefusedError("request_body: expected an object")
        url = as_text(fields.get("target_url")) or as_text(fields.get("request_path")) or ""
        interface = interface_of(url, request, response)
        if interface is None:
            if fields.get("signed_body_url") and not {"messages", "input", "contents"} & request.keys():
                raise RecordSetApartError("its bodies are behind signed_body_url, not in the row")
            raise RecordSetApartError(f"is no call of a chat model: {url or fields.get('provider')}")
        cost = fields.get("costUSD", fields.get("cost"))
        if isinstance(response, dict) and isinstance(response.get("usage"), dict) and cost is not None:
            response["usage"].setdefault("cost", cost)
        properties = {**as_object(fields.get("request_properties")), **as_object(fields.get("properties"))}
        cached = as_text(fields.get("cache_reference_id"))
        status, error = _status(fields)
        return [
            fragment(
                Exchange(
                    interface=interface,
                    request=request,
                    response=response,
                    status=status,
                    error=error,
                    is_copy=cached not in (None, "", _NOT_CACHED),
                    call_id=as_text(fields.get("request_id")),
                    started_at=iso_time(fields.get("request_created_at")),
                    ended_at=iso_time(fields.get("response_created_at")),
                    session_id=_property(properties, "Helicone-Session-Id"),
                    user_id=as_text(fields.get("request_user_id")) or as_text(fields.get("helicone_user")),
                    name=_property(properties, "Helicone-Session-Path"),
                    scores=_scores(fields),
                    metadata=_metadata(fields, properties),
                )
            )
        ]

    def assemble(self, group: Group) -> Assembly:
        """The conversations of a session."""
        return assemble(group)


def _status(fields: dict[str, Any]) -> tuple[int | None, MessageError | None]:
    """The HTTP status, or the error that Helicone has a negative status for (cancelled, timed out)."""
    status = fields.get("response_status")
    if isinstance(status, int) and not isinstance(status, bool) and status < 0:
        return None, MessageError(f"http_{status}")
    return as_count(status) or None, None


def _property(properties: dict[str, Any], name: str) -> str | None:
    return next((as_text(value) for key, value in properties.items() if key.lower() == name.lower()), None) or None


def _scores(fields: dict[str, Any]) -> list[Score]:
    scores = []
    logged = as_object(fields.get("scores"))
    rating = fields.get("feedback_rating")
    if rating is None and _FEEDBACK_SCORE in logged:
        rating = bool(logged[_FEEDBACK_SCORE])
    if isinstance(rating, (bool, int)):
        timestamp = iso_time(fields.get("feedback_created_at"))
        scores.append(make_score("feedback", bool(rating), kind="human", timestamp=timestamp))
    for key, value in logged.items():
        if key != _FEEDBACK_SCORE and value is not None:
            scores.append(make_score(key.removesuffix(_BOOLEAN_SUFFIX), value))
    return scores


def _metadata(fields: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
    path = as_text(fields.get("target_url")) or as_text(fields.get("request_path"))
    kept = {key: value for key, value in fields.items() if key not in _READ and value not in (None, "", [], {})}
    return {**kept, **({"url": path} if path else {}), **({"properties": properties} if properties else {})}
