"""OpenAI chat messages, one conversation a record: JSON Lines, a JSON array or one JSON object.

`docs/formats.md` lists the accepted fields.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError
from offline_arl.logs.primitives.values import json_type
from offline_arl.logs.providers.openai_messages import convert_messages
from offline_arl.logs.providers.openai_tools import normalize_tools
from offline_arl.logs.providers.own_keys import take_contexts, take_links
from offline_arl.logs.providers.plain_messages import decode_plain
from offline_arl.logs.providers.plain_records import PlainRecords
from offline_arl.logs.records import explain
from offline_arl.logs.slots.reading import apply_slot
from offline_arl.logs.slots.slot import KEY, take_slot
from offline_arl.trajectories.schema import Context, Message, Outcome, OutcomeStatus, Trajectory, text_message

_LINK_KEYS = frozenset({"trajectory_id", "parent_trajectory_id", "identifiers", "branch", "scores"})
_record_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STATUSES: dict[str, OutcomeStatus] = {
    "scored": "scored",
    "unscored": "unscored",
    "infrastructure_error": "infrastructure_error",
}
_VERDICTS = {
    "success": True,
    "succeeded": True,
    "passed": True,
    "failure": False,
    "failed": False,
    "fail": False,
    "pass": True,
}


class OpenAIChatAdapter:
    """Reads records with `messages` in the OpenAI chat form."""

    name = "openai_chat"
    title = "OpenAI chat messages, one conversation a record"
    keeps = "tools, outcome and scores, ids and links, timestamps, usage, recorded token ids; exports of this library"
    lacks = ""

    def __init__(self) -> None:
        self._plain = PlainRecords()

    def recognizes(self, record: Any) -> bool:
        """Whether the record is an object with a list of messages that have roles (or its JSON text)."""
        if not isinstance(record, dict):
            return False
        messages = record.get("messages")
        if isinstance(messages, str):
            return messages.lstrip()[:1] == "["
        return isinstance(messages, list) and (
            not messages or (isinstance(messages[0], dict) and "role" in messages[0])
        )

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The one trajectory of a record."""
        if (plain := self._plain.read(record, self.name)) is not None:
            return [plain]
        trajectory, keys = convert_thoroughly(record, self.name)
        self._plain.learn(keys)
        return [trajectory]


def convert_thoroughly(record: RawRecord, format: str) -> tuple[Trajectory, list[str]]:
    """The trajectory of a record of any shape, and the record's keys.

    Raises:
        RecordRefusedError: It cannot be read.
    """
    fields = _fields(record.raw)
    keys = list(fields)
    messages = _messages(fields)
    values = {key: msgspec.json.decode(raw) for key, raw in fields.items() if key not in ("tools", "functions")}
    slot = take_slot(values) if KEY in values else None
    contexts = take_contexts(values, _contexts(fields))
    system = values.pop("system", None)
    if isinstance(system, str) and messages[0].role not in ("system", "developer"):
        messages.insert(0, text_message("system", system))
    elif system is not None:
        values["system"] = system
    trajectory = trajectory_of(record, format, messages, contexts, values)
    return (trajectory if slot is None else apply_slot(trajectory, slot, record.trajectory_id())), keys


def trajectory_of(
    record: RawRecord, format: str, messages: list[Message], contexts: list[Context], values: dict[str, Any]
) -> Trajectory:
    """The trajectory of a record that holds one conversation, from what stands beside the messages.

    Args:
        record: The record.
        format: Name of its format.
        messages: Its messages.
        contexts: Its tools.
        values: All other keys of the record, parsed; taken apart. What is not known goes to the metadata.
    """
    metadata = values.pop("metadata", None)
    metadata = dict(metadata) if isinstance(metadata, dict) else {} if metadata is None else {"metadata": metadata}
    texts = _texts(values)
    links = take_links(values, len(messages)) if not values.keys().isdisjoint(_LINK_KEYS) else {}
    task_id = texts.get("task_id")
    trajectory = Trajectory(
        trajectory_id=links.pop("trajectory_id", None) or record.trajectory_id(),
        messages=messages,
        source=record.source(format),
        task_id=task_id,
        group_id=texts.get("group_id") or task_id,
        episode_id=texts.get("episode_id"),
        task_type=texts.get("task_type"),
        agent=texts.get("agent"),
        model=texts.get("model"),
        started_at=_started_at(texts, values),
        ended_at=texts.get("ended_at"),
        contexts=contexts,
        terminated=_flag(values, "terminated"),
        truncated=_flag(values, "truncated"),
        stop_reason=texts.get("stop_reason"),
        outcome=_outcome(values),
        metadata=metadata,
        session_id=texts.get("session_id"),
        user_id=texts.get("user_id"),
        **links,
    )
    # Whatever is left is kept: logged ids, finish reasons, sampling parameters and keys nobody foresaw.
    for key, value in values.items():
        metadata.setdefault(key, value)
    return trajectory


def _fields(raw: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _record_decoder.decode(raw)
    except msgspec.ValidationError as error:
        value = msgspec.json.decode(raw)
        raise RecordRefusedError(f"expected an object with messages, got {json_type(value)}") from error
    except msgspec.DecodeError as error:
        raise RecordRefusedError(explain(raw, error)) from error


def _messages(fields: dict[str, msgspec.Raw]) -> list[Message]:
    raw = fields.pop("messages", None)
    if raw is None:
        raise RecordRefusedError(f"no key messages; the record has: {', '.join(sorted(fields)[:8]) or 'nothing'}")
    plain = decode_plain(raw)
    if plain is not None:
        return plain
    value = msgspec.json.decode(raw)
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise RecordRefusedError(f"messages: the string is not JSON: {error}") from error
    return convert_messages(value)


def _contexts(fields: dict[str, msgspec.Raw]) -> list[Context]:
    for key in ("tools", "functions"):
        if key in fields:
            tools = normalize_tools(bytes(fields[key]))
            if tools is not None:
                return [Context(start=0, tools=tools)]
    return []


_TEXT_KEYS = frozenset(
    (
        "task_id", "group_id", "episode_id", "session_id", "user_id", "task_type", "agent", "model", "started_at",
        "timestamp", "created_at", "ended_at", "stop_reason",
    )
)  # fmt: skip


def _texts(values: dict[str, Any]) -> dict[str, str]:
    """Take strings, and numbers as strings; anything else stays where it is."""
    found: dict[str, str] = {}
    for key in _TEXT_KEYS & values.keys():
        value = values[key]
        if isinstance(value, str):
            found[key] = value
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[key] = str(value)
        elif value is not None:
            continue
        del values[key]
    return found


def _started_at(texts: dict[str, str], values: dict[str, Any]) -> str | None:
    """The first of three spellings; the others go back to `values`."""
    started_at = None
    for key in ("started_at", "timestamp", "created_at"):
        text = texts.get(key)
        if text and started_at is None:
            started_at = text
        elif text:
            values[key] = text
    return started_at


def _flag(values: dict[str, Any], key: str) -> bool:
    if key not in values:
        return False
    value = values[key]
    if value is None or isinstance(value, bool) or value in (0, 1):
        del values[key]
        return bool(value)
    raise RecordRefusedError(f"{key}: expected true or false, got {json_type(value)}")


def _outcome(values: dict[str, Any]) -> Outcome:
    """The outcome from `success`, `score`, `reward` and `outcome`, whichever are there.

    A number under `reward` is a score: whether it means success is for its scorer to say. Where both `score` and
    `reward` are given, the score is the score and the reward a component.
    """
    if values.keys().isdisjoint(_RESULT_KEYS):
        return Outcome()
    logged = values.get("outcome")
    base: dict[str, Any] = {}
    if isinstance(logged, dict):
        base = logged
    elif isinstance(logged, str) and logged.lower() in _VERDICTS:
        base = {"success": _VERDICTS[logged.lower()]}
    elif isinstance(logged, str) and logged in _STATUSES:
        base = {"status": logged}
    elif logged is not None and _number(logged) is not None:
        base = {"success": logged} if isinstance(logged, bool) else {"score": logged}
    unknown = {key: value for key, value in base.items() if key not in _OUTCOME_KEYS}
    if (base and not unknown) or logged is None:
        values.pop("outcome", None)

    success = _verdict(values.pop("success", None), "success")
    success = _verdict(base.get("success"), "outcome.success") if success is None else success
    components = _components(base.get("components"), "outcome.components")
    score = _take_score(values, "score", components)
    score = _score(base.get("score"), "outcome.score") if score is None else score
    if success is None and isinstance(values.get("reward"), bool):
        success = values.pop("reward")
    reward = _take_score(values, "reward", components)
    if reward is not None:
        if score is None:
            score = reward
        else:
            components.setdefault("reward", reward)
    is_scored = success is not None or score is not None or bool(components)
    status = _STATUSES.get(str(base.get("status")), "scored" if is_scored else "unscored")
    scorer = base.get("scorer")
    return Outcome(status, success, score, components, scorer if isinstance(scorer, str) else None)


_RESULT_KEYS = frozenset({"outcome", "success", "score", "reward"})
_OUTCOME_KEYS = frozenset({"status", "success", "score", "components", "scorer"})


def _take_score(values: dict[str, Any], key: str, components: dict[str, float]) -> float | None:
    value = values.pop(key, None)
    if isinstance(value, dict):
        for name, number in _components(value, key).items():
            components.setdefault(name, number)
        return None
    return _score(value, key)


def _number(value: object) -> float | None:
    if isinstance(value, (bool, int, float)) and math.isfinite(value):
        return float(value)
    return None


def _score(value: object, where: str) -> float | None:
    if value is None:
        return None
    number = _number(value)
    if number is None:
        raise RecordRefusedError(f"{where}: expected a number, got {json_type(value)}")
    return number


def _verdict(value: object, where: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.lower() in _VERDICTS:
        return _VERDICTS[value.lower()]
    raise RecordRefusedError(f"{where}: expected true or false, got {value!r}")


def _components(value: object, where: str) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RecordRefusedError(f"{where}: expected an object of numbers, got {json_type(value)}")
    found = {}
    for name, item in value.items():
        if item is not None:
            number = _score(item, f"{where}.{name}")
            if number is not None:
                found[name] = number
    return found
