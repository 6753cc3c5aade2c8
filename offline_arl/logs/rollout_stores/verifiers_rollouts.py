"""Rollouts of verifiers before its version 1: `{example_id, prompt, completion, reward, metrics, ...}`.

Metrics are keys of the record itself, and since 0.1.10 under `metrics` too. Tool calls are JSON text, and the ids in
tool messages may be missing. A rollout whose error lies outside the agent (model server, sandbox, tunnel) has a reward
of 0 that nobody gave.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError
from offline_arl.logs.platforms.message_shapes import decode_text
from offline_arl.logs.platforms.tool_shapes import tools_text
from offline_arl.logs.primitives.pairing import needs_pairing, pair_by_order
from offline_arl.logs.primitives.scores import finite_number, make_score
from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_list, as_object, as_text, decode_object, json_type
from offline_arl.logs.providers.openai_messages import convert_messages
from offline_arl.trajectories.schema import (
    Context,
    Message,
    Outcome,
    Producer,
    Score,
    TokenRecord,
    Trajectory,
    text_message,
)

_PRODUCERS = {
    "system": Producer("script"),
    "developer": Producer("script"),
    "user": Producer("script"),
    "assistant": Producer("copy"),
    "tool": Producer("environment"),
}
# Errors that the agent made; all others are those of servers, sandboxes and tunnels.
_AGENT_ERRORS = frozenset({"ToolError", "ToolParseError", "ToolCallError"})
_OVERLONG = "OverlongPromptError"
_OWN_NUMBERS = frozenset({"example_id", "reward", "advantage"})
_ERROR_NAME = re.compile(r"\w*(?:Error|Exception)\b")


class VerifiersRolloutAdapter:
    """Reads results of verifiers before version 1."""

    name = "verifiers"
    title = "verifiers rollouts (before version 1)"
    keeps = "reward, metrics as scores, token ids of each step, group by example, errors, how the rollout ended"
    lacks = "token ids where the steps' prompts do not extend one another (kept in the metadata)"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has an example id, a prompt, a completion and a reward."""
        return isinstance(record, dict) and record.keys() >= {"example_id", "prompt", "completion", "reward"}

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The one trajectory of a rollout."""
        values = decode_object(record.raw)
        prompt = [
            msgspec.structs.replace(message, producer=_PRODUCERS[message.role])
            for message in _messages(values.pop("prompt", None), "prompt", "user")
        ]
        model = as_text(values.pop("model", None))
        completion = [
            _sampled(message, model) for message in _messages(values.pop("completion", None), "completion", "assistant")
        ]
        messages = [*prompt, *completion]
        if not messages:
            raise RecordRefusedError("prompt and completion: both are empty")
        if any(map(needs_pairing, messages)):
            messages = pair_by_order(messages)
        messages, values = _with_tokens(messages, len(prompt), values)
        return [_trajectory(record, messages, values, model)]


def _trajectory(record: RawRecord, messages: list[Message], values: dict[str, Any], model: str | None) -> Trajectory:
    metrics = _take_metrics(values)
    info = decode_text(values.get("info"))
    tools = tools_text(values.pop("tool_defs", None) or values.pop("oai_tools", None))
    if tools is None:
        tools = tools_text(as_object(info).get("oai_tools"))
    task = as_text(values.get("task"))
    example = values.get("example_id")
    task_id = f"{task}/{example}" if task else str(example)
    error = _error_name(values.get("error"))
    truncated = values.pop("is_truncated", None) is True or error == _OVERLONG
    completed = values.pop("is_completed", None) is True
    identifiers = {}
    if (trajectory_id := as_text(values.get("trajectory_id"))) is not None:
        identifiers["rollout"] = trajectory_id
    return Trajectory(
        trajectory_id=record.trajectory_id(),
        messages=messages,
        source=record.source(VerifiersRolloutAdapter.name),
        task_id=task_id,
        group_id=task_id,
        task_type=task,
        model=model,
        started_at=iso_time(as_object(values.get("timing")).get("start_time")),
        contexts=[Context(0, tools)] if tools is not None else [],
        terminated=completed and not truncated and error is None,
        truncated=truncated,
        stop_reason=as_text(values.pop("stop_condition", None)) or error,
        outcome=_outcome(values, error),
        metadata=values,
        identifiers=identifiers,
        scores=metric_scores(metrics),
    )


def _take_metrics(values: dict[str, Any]) -> dict[str, Any]:
    """Take the metrics and their copies on the top level, where alone they stand before 0.1.10."""
    if "metrics" in values:
        metrics = as_object(values.pop("metrics"))
    else:
        metrics = {
            name: value
            for name, value in values.items()
            if name not in _OWN_NUMBERS and not name.endswith("_ms") and isinstance(value, float)
        }
    for name in metrics:
        values.pop(name, None)
    return metrics


def metric_scores(metrics: dict[str, Any]) -> list[Score]:
    """Metrics of a rollout; None says that scoring did not run, and is no score."""
    return [
        make_score(name, value, scorer="verifiers", kind="code") for name, value in metrics.items() if value is not None
    ]


def _messages(logged: object, where: str, role: str) -> list[Message]:
    """Messages of a prompt or completion: a list, its JSON text, or the text of a completion model."""
    if logged is None:
        return []
    if isinstance(logged, str):
        decoded = decode_text(logged)
        if not (isinstance(decoded, list) and decoded and isinstance(decoded[0], dict) and "role" in decoded[0]):
            return [text_message("assistant" if role == "assistant" else "user", logged)]
        logged = decoded
    if not isinstance(logged, list):
        raise RecordRefusedError(f"{where}: expected a list of messages or a string, got {json_type(logged)}")
    for message in logged:
        calls = as_object(message).get("tool_calls")
        if isinstance(calls, list):
            message["tool_calls"] = [decode_text(call) for call in calls]
    return convert_messages(logged, where) if logged else []


def _sampled(message: Message, model: str | None) -> Message:
    if message.role == "assistant":
        return msgspec.structs.replace(message, producer=Producer("model", model))
    return msgspec.structs.replace(message, producer=Producer("environment"))


def _with_tokens(
    messages: list[Message], prompt_length: int, values: dict[str, Any]
) -> tuple[list[Message], dict[str, Any]]:
    """Give each model turn the token ids of its step; steps that do not fit stay in the metadata."""
    steps = as_list(values.get("trajectory"))
    turns = [index for index in range(prompt_length, len(messages)) if messages[index].role == "assistant"]
    if not steps or len(steps) != len(turns):
        return messages, values
    records = [_token_record(as_object(step).get("tokens")) for step in steps]
    if not any(records):
        return messages, values
    messages = list(messages)
    for index, tokens in zip(turns, records, strict=True):
        messages[index] = msgspec.structs.replace(messages[index], tokens=tokens)
    kept = ("reward", "advantage", "is_truncated", "trajectory_id", "extras")
    rest = [{key: as_object(step)[key] for key in kept if as_object(step).get(key) is not None} for step in steps]
    return messages, {**values, "trajectory": rest}


def _token_record(logged: object) -> TokenRecord | None:
    tokens = as_object(logged)
    record = {
        "token_ids": tokens.get("completion_ids"),
        "fingerprint": "unknown",
        "logprobs": tokens.get("completion_logprobs") or None,
        "prompt_token_ids": tokens.get("prompt_ids") or None,
    }
    try:
        return msgspec.convert(record, TokenRecord) if record["token_ids"] else None
    except msgspec.ValidationError:
        return None


def _error_name(error: object) -> str | None:
    """The name of the error's class: of `{"error": "InfraError", ...}` or of `InfraError('...')`."""
    if error is None:
        return None
    text = as_text(as_object(error).get("error")) if isinstance(error, dict) else as_text(error)
    found = _ERROR_NAME.match(text) if text else None
    return found[0] if found else "error"


def _outcome(values: dict[str, Any], error: str | None) -> Outcome:
    if error is not None and error not in _AGENT_ERRORS and error != _OVERLONG:
        return Outcome("infrastructure_error", scorer="verifiers")
    logged = values.pop("reward", None)
    reward = finite_number(logged)
    if reward is None:
        if logged is not None:
            raise RecordRefusedError(f"reward: expected a number, got {json_type(logged)}")
        return Outcome()
    return Outcome("scored", score=reward, scorer="verifiers")
