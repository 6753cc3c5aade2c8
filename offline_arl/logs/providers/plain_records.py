"""The fast way through OpenAI chat records that hold nothing out of the ordinary.

A record is decoded in one typed pass, messages included, several times faster than key by key. What is not of the
expected type or needs a second thought, `PlainRecords.read` declines, and `openai_chat` takes the record apart; both
give the same trajectory. Keys that nobody foresaw are learned from the records that the thorough way has read: most
records of a log have the same ones, and they go to the metadata as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError
from offline_arl.logs.providers.openai_tools import normalize_tools
from offline_arl.logs.providers.plain_messages import PlainMessage, plain_messages
from offline_arl.trajectories.schema import Context, Outcome, Trajectory

_KEYS_LEARNED = 64
_FIELD_NAME = re.compile(r'[^\x00-\x1f"\\]+')  # msgspec takes no other
_NOT_LOGGED = Outcome()


class _PlainRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    messages: list[PlainMessage]
    tools: msgspec.Raw = msgspec.Raw(b"null")
    metadata: dict[str, Any] | None = None
    task_id: str | int | None = None
    group_id: str | int | None = None
    episode_id: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    task_type: str | None = None
    agent: str | None = None
    model: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    stop_reason: str | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    success: bool | None = None
    score: float | None = None
    reward: float | None = None


# Keys that mean something beyond a value to keep, so that the thorough way has to look at them.
THOROUGH_KEYS = frozenset(
    (
        "functions", "system", "timestamp", "created_at", "outcome", "contexts", "offline_arl", "trajectory_id",
        "parent_trajectory_id", "identifiers", "branch", "scores",
    )
)  # fmt: skip


class PlainRecords:
    """Reads plain records. What it has learned changes how fast it reads, never what it gives."""

    def __init__(self) -> None:
        self._learned: dict[str, str] = {}  # key in the record to name of the field
        self._decoder = msgspec.json.Decoder(_PlainRecord)

    def learn(self, keys: Iterable[str]) -> None:
        """Expect these keys of a record, those that are not known yet, from now on."""
        new = [key for key in keys if key not in _KNOWN and key not in self._learned]
        if not new or len(self._learned) + len(new) > _KEYS_LEARNED or not THOROUGH_KEYS.isdisjoint(new):
            return
        if not all(map(_FIELD_NAME.fullmatch, new)):
            return
        for key in new:
            self._learned[key] = f"learned_{len(self._learned)}"
        fields = [(name, Any, msgspec.UNSET) for name in self._learned.values()]
        names = {name: key for key, name in self._learned.items()}
        shape = msgspec.defstruct("_LearnedRecord", fields, bases=(_PlainRecord,), rename=names, gc=False)
        self._decoder = msgspec.json.Decoder(shape)

    def read(self, record: RawRecord, format: str) -> Trajectory | None:
        """The trajectory of a record, or None where it is not plain."""
        try:
            plain = self._decoder.decode(record.raw)
            tools = normalize_tools(bytes(plain.tools))
        except (msgspec.MsgspecError, RecursionError, RecordRefusedError):
            return None
        messages = plain_messages(plain.messages)
        if messages is None:
            return None
        metadata = plain.metadata or {}
        for key, name in self._learned.items():
            value = getattr(plain, name)
            if value is not msgspec.UNSET:
                metadata.setdefault(key, value)
        task_id = _text(plain.task_id)
        return Trajectory(
            trajectory_id=record.trajectory_id(),
            messages=messages,
            source=record.source(format),
            task_id=task_id,
            group_id=_text(plain.group_id) or task_id,
            episode_id=plain.episode_id,
            task_type=plain.task_type,
            agent=plain.agent,
            model=plain.model,
            started_at=plain.started_at or None,
            ended_at=plain.ended_at,
            contexts=[] if tools is None else [Context(0, tools)],
            terminated=plain.terminated is True,
            truncated=plain.truncated is True,
            stop_reason=plain.stop_reason,
            outcome=_outcome(plain),
            metadata=metadata,
            session_id=plain.session_id,
            user_id=plain.user_id,
        )


_KNOWN = frozenset(_PlainRecord.__struct_fields__)


def _text(value: str | int | None) -> str | None:
    return value if value is None or type(value) is str else str(value)


def _outcome(plain: _PlainRecord) -> Outcome:
    success, score, reward = plain.success, plain.score, plain.reward
    if success is None and score is None and reward is None:
        return _NOT_LOGGED
    if reward is None:
        return Outcome("scored", success, score)
    if score is None:
        return Outcome("scored", success, reward)
    return Outcome("scored", success, score, {"reward": reward})
