"""Rollouts of NeMo Gym: the request's parameters, the response's items, and what the verifier said of them.

The response holds the items of the whole rollout, those of the environment (tool results, messages of the user)
among them. Rows without a rollout are set apart; a crash of the harness is not a failure of the agent.
"""

from __future__ import annotations

from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError, RecordSetApartError
from offline_arl.logs.primitives.scores import direction_of, finite_number, make_score
from offline_arl.logs.primitives.times import iso_time
from offline_arl.logs.primitives.values import as_count, as_object, as_text, decode_object, json_type
from offline_arl.logs.providers.openai_responses import responses_items_to_messages, responses_tools
from offline_arl.trajectories.schema import (
    Context,
    Message,
    Outcome,
    Producer,
    Score,
    Trajectory,
    Usage,
    text_message,
)

_PROMPT_PRODUCERS = {
    "system": Producer("script"),
    "developer": Producer("script"),
    "user": Producer("script"),
    "assistant": Producer("copy"),  # an answer in the prompt was not sampled in this rollout
    "tool": Producer("environment"),
}
# Placeholders have creation times like 0 and 1001; responses of models have existed since 2020.
_EARLIEST_TIME = 1.5e9
_REQUEST_KEYS_USED = ("input", "instructions", "tools")
_RESPONSE_KEYS_USED = ("id", "created_at", "model", "object", "output", "tools", "usage", "error", "incomplete_details")


class NeMoGymAdapter:
    """Reads rollout files of NeMo Gym."""

    name = "nemo_gym"
    title = "NeMo Gym rollouts"
    keeps = (
        "reward and its components, verifier fields as scores, token ids with log-probabilities, group by task index"
    )
    lacks = "rows without a response, which are tasks and not rollouts, are set apart"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has `responses_create_params`, or is NeMo RL's test file of such records."""
        if not isinstance(record, dict):
            return False
        return isinstance(record.get("responses_create_params"), dict) or _is_token_fixture(record)

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The one trajectory of a rollout."""
        values = decode_object(record.raw)
        if _is_token_fixture(values):
            raise RecordSetApartError("expected outputs of a test: token ids without text")
        request = values.pop("responses_create_params", None)
        if not isinstance(request, dict):
            raise RecordRefusedError(f"responses_create_params: expected an object, got {json_type(request)}")
        response = values.pop("response", None)
        failure = as_text(values.get("exception_type")) or as_text(values.get("error"))
        if response is None and failure is None:
            raise RecordSetApartError("a task without a rollout: there is no response")
        if response is not None and not isinstance(response, dict):
            raise RecordRefusedError(f"response: expected an object, got {json_type(response)}")
        response = as_object(response)
        model = as_text(response.get("model")) or as_text(request.get("model"))
        prompt = _prompt(request)
        rollout = responses_items_to_messages(
            response.get("output") or [], "response.output", assistant=Producer("model", model)
        )
        if not rollout and failure is None:
            raise RecordSetApartError("a placeholder: the response holds no items")
        messages = [*prompt, *map(_from_environment, rollout)]
        if not messages:
            raise RecordRefusedError("responses_create_params.input: is empty, and so is the response")
        return [_trajectory(record, messages, values, request, response, model, failure)]


def _trajectory(
    record: RawRecord,
    messages: list[Message],
    values: dict[str, Any],
    request: dict[str, Any],
    response: dict[str, Any],
    model: str | None,
    failure: str | None,
) -> Trajectory:
    # An empty list is what Gym fills in: agents with tools of their own (Claude Code, Pi) have it too.
    tools = responses_tools(request.get("tools") or response.get("tools") or None, "responses_create_params.tools")
    agent = as_text(as_object(values.get("agent_ref")).get("name"))
    task_id = _task_id(values.get("_ng_task_index"), agent)
    components = _components(values.get("reward_components"))
    cut = as_text(as_object(response.get("incomplete_details")).get("reason"))
    terminated = values.pop("terminated", None) is True or values.get("finished_naturally") is True
    truncated = values.pop("truncated", None) is True or cut is not None
    identifiers = {}
    if (response_id := as_text(response.get("id"))) is not None:
        identifiers["response"] = response_id
    return Trajectory(
        trajectory_id=record.trajectory_id(),
        messages=_with_usage(messages, response.get("usage")),
        source=record.source(NeMoGymAdapter.name),
        task_id=task_id,
        group_id=task_id,
        agent=agent,
        model=model,
        started_at=_time(response.get("created_at")),
        contexts=[Context(0, tools)] if tools is not None else [],
        terminated=terminated,
        truncated=truncated and not terminated,
        stop_reason=cut,
        outcome=_outcome(values, components, failure),
        metadata=_metadata(values, request, response),
        identifiers=identifiers,
        scores=_scores(values, components),
    )


def _is_token_fixture(record: dict[str, Any]) -> bool:
    outputs = record.get("expected_output")
    return isinstance(outputs, list) and bool(outputs) and "message_log" in as_object(outputs[0])


def _prompt(request: dict[str, Any]) -> list[Message]:
    messages = [
        msgspec.structs.replace(message, producer=_PROMPT_PRODUCERS[message.role])
        for message in responses_items_to_messages(request.get("input") or [], "responses_create_params.input")
    ]
    instructions = as_text(request.get("instructions"))
    return [text_message("system", instructions, kind="script"), *messages] if instructions else messages


def _from_environment(message: Message) -> Message:
    if message.role == "assistant":
        return message
    return msgspec.structs.replace(message, producer=Producer("environment"))


def _with_usage(messages: list[Message], logged: object) -> list[Message]:
    """Put the response's usage on the model's turn where there is one; it is the sum of several otherwise."""
    turns = [index for index, message in enumerate(messages) if message.producer.kind == "model"]
    usage = as_object(logged)
    counts = as_count(usage.get("input_tokens")), as_count(usage.get("output_tokens"))
    if len(turns) == 1 and counts != (None, None):
        messages = list(messages)
        messages[turns[0]] = msgspec.structs.replace(messages[turns[0]], usage=Usage(*counts))
    return messages


def _task_id(index: object, agent: str | None) -> str | None:
    """The index counts the tasks of one environment, so the agent, which is configured for one, is part of the id."""
    if isinstance(index, bool) or not isinstance(index, (int, str)):
        return None
    return f"{agent}/{index}" if agent is not None else str(index)


def _time(created_at: object) -> str | None:
    number = finite_number(created_at)
    return iso_time(number) if number is not None and number > _EARLIEST_TIME else None


def _components(logged: object) -> dict[str, float]:
    numbers = {name: finite_number(value) for name, value in as_object(logged).items()}
    return {name: number for name, number in numbers.items() if number is not None}


def _outcome(values: dict[str, Any], components: dict[str, float], failure: str | None) -> Outcome:
    logged = values.get("reward")
    reward = finite_number(logged)
    if failure is not None:
        # The harness writes a reward of 0 when it crashed; it stays in the metadata and is no judgement.
        return Outcome("infrastructure_error", scorer="nemo_gym")
    if reward is None:
        if logged is not None:
            raise RecordRefusedError(f"reward: expected a number, got {json_type(logged)}")
        return Outcome(components=components)
    del values["reward"]
    return Outcome("scored", score=reward, components=components, scorer="nemo_gym")


def _scores(values: dict[str, Any], components: dict[str, float]) -> list[Score]:
    """The verifier's fields that are judgements by their names; everything else is metadata only."""
    scores = []
    for name, value in values.items():
        if name in components or name == "reward" or finite_number(value) is None:
            continue
        if direction_of(name) != "unknown":
            scores.append(make_score(name, value, scorer="nemo_gym", kind="environment"))
    return scores


def _metadata(values: dict[str, Any], request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    logged = values.pop("metadata", None)
    metadata = dict(values)
    if logged is not None:
        metadata["metadata"] = logged
    sampling = {key: value for key, value in request.items() if key not in _REQUEST_KEYS_USED and value is not None}
    rest = {key: value for key, value in response.items() if key not in _RESPONSE_KEYS_USED and value is not None}
    for key in ("usage", "error", "incomplete_details"):
        if response.get(key) is not None:
            rest[key] = response[key]
    if sampling:
        metadata["request"] = sampling
    if rest:
        metadata["response"] = rest
    return metadata
