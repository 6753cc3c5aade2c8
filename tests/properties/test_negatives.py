"""10,000 negatives: each is wrong, by the JSON Schema or by an environment that is asked anew."""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from offline_arl import environments
from offline_arl.datasets.negatives import EnvironmentJudge, NegativeMaker, log_judge
from offline_arl.datasets.negatives.generation import MALFORMED
from offline_arl.datasets.pairs.pair import Pair
from offline_arl.environments.support_desk.logs import write_logs
from offline_arl.environments.support_desk.tasks import generate_tasks
from offline_arl.rewards.preferences import NegativesConfig
from offline_arl.trajectories.schema import (
    Context,
    Message,
    Outcome,
    Source,
    TextPart,
    Trajectory,
    is_policy_message,
    tool_call,
)
from offline_arl.trajectories.store import open_store
from offline_arl.workflows.ingest import ingest

_TYPES = ("string", "integer", "number", "boolean", "array", "object")


def _schema(kind: str, generator: np.random.Generator) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": kind}
    if kind == "string" and generator.random() < 0.3:
        schema["enum"] = ["red", "green", "blue"]
    if kind == "integer" and generator.random() < 0.3:
        schema.update(minimum=0, maximum=100)
    if kind == "array":
        schema["items"] = {"type": str(generator.choice(["string", "integer"]))}
    return schema


def _value(schema: dict[str, Any], generator: np.random.Generator) -> Any:
    number = int(generator.integers(100))
    kind = schema["type"]
    if "enum" in schema:
        return schema["enum"][number % 3]
    if kind == "array":
        return [number, number + 1] if schema["items"]["type"] == "integer" else [f"w{number}"]
    by_type = {"string": f"w{number}", "integer": number, "number": number / 4, "boolean": number % 2 == 0}
    return by_type.get(kind, {"key": number})


def _tool(name: str, generator: np.random.Generator) -> dict[str, Any]:
    names = [f"p{index}" for index in range(int(generator.integers(1, 5)))]
    properties = {key: _schema(str(generator.choice(_TYPES)), generator) for key in names}
    required = [key for key in names if generator.random() < 0.6]
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if generator.random() < 0.5:
        parameters["additionalProperties"] = False
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def random_attempt(seed: int) -> Trajectory:
    """A successful attempt whose calls fit the random schemas of its tools."""
    generator = np.random.default_rng(seed)
    tools = [_tool(name, generator) for name in ("get_item", "update_item", "search")]
    messages = [Message("user", [TextPart("Go on.")])]
    for step in range(12):
        function = tools[int(generator.integers(3))]["function"]
        schema = function["parameters"]
        chosen = [key for key in schema["properties"] if key in schema["required"] or generator.random() < 0.7]
        arguments = {key: _value(schema["properties"][key], generator) for key in chosen}
        messages.append(Message("assistant", tool_calls=[tool_call(function["name"], arguments, id=f"c{step}")]))
        messages.append(Message("tool", [TextPart(f"ok {step}")], tool_call_id=f"c{step}"))
    messages.append(Message("assistant", [TextPart("Done.")]))
    outcome = Outcome("scored", success=True)
    return Trajectory(
        f"random-{seed}", messages, Source("test"), contexts=[Context(0, json.dumps(tools))], outcome=outcome
    )


@lru_cache
def _validators(tools: str) -> dict[str, Any]:
    functions = [tool["function"] for tool in json.loads(tools)]
    return {function["name"]: jsonschema.Draft202012Validator(function["parameters"]) for function in functions}


def breaks_the_schema(pair: Pair) -> bool:
    """Asked of jsonschema itself, not of the checker that made the negative."""
    validators = _validators(pair.chosen.trajectory.context_at(pair.chosen.position).tools or "[]")
    calls = pair.rejected.messages[-1].tool_calls
    return not all(
        call.name in validators and validators[call.name].is_valid(json.loads(call.arguments_raw)) for call in calls
    )


def fails_in_the_desk(pair: Pair, tasks: dict[str, Any]) -> bool:
    """Play the attempt with the rejected step in it; the attempt itself succeeds."""
    trajectory, step = pair.chosen.trajectory, pair.rejected.messages[-1]
    position = pair.chosen.position
    # A needless or early call is put in before the step, all else stands in its place.
    rest = trajectory.messages[
        position if pair.evidence["negative"] in ("needless_call", "wrong_order") else position + 1 :
    ]

    def success(messages: list[Message]) -> bool | None:
        desk = environments.load("support_desk").make()
        desk.reset(tasks[trajectory.task_id or ""])
        for message in messages:
            if is_policy_message(message) and desk.step(message).terminated:
                break
        return desk.outcome().success

    assert success(trajectory.messages) is True
    return success([*trajectory.messages[:position], step, *rest]) is False


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Trajectory], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("desk")
    write_logs(folder / "logs.jsonl", 1400, seed=3)
    ingest([folder / "logs.jsonl"], folder / "store")
    tasks = {task.task_id: task for task in generate_tasks("train", 700, seed=3)}
    return list(open_store(Path(folder / "store")).iter_trajectories()), tasks


def test_ten_thousand_negatives_are_wrong(desk: tuple[list[Trajectory], dict[str, Any]]) -> None:
    trajectories, tasks = desk
    config = NegativesConfig(per_step=7)
    made: list[Pair] = []
    for seed in range(300):
        made += NegativeMaker(config)([random_attempt(seed)], Counter())
    judge = EnvironmentJudge(environments.load("support_desk"), lambda item: tasks.get(item.task_id or ""))
    maker = NegativeMaker(config, (judge, log_judge))
    made += maker(trajectories, Counter())
    assert len(made) >= 10_000
    by_judge = Counter(pair.scorer for pair in made)
    assert by_judge.keys() == {"schema", "environment support_desk", "log"}
    assert set(maker.made) == set(config.kinds)
    for pair in made:
        assert pair.chosen.messages[-1] != pair.rejected.messages[-1]
        if pair.evidence["negative"] in MALFORMED:
            assert pair.scorer == "schema"
            assert breaks_the_schema(pair), pair.rejected.messages[-1]
        else:
            assert not breaks_the_schema(pair)
        if pair.scorer == "environment support_desk":
            assert fails_in_the_desk(pair, tasks), pair.rejected.messages[-1]
