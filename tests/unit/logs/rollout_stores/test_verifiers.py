"""Rollouts of verifiers before version 1, and traces since.

`TRACE` has the shape that `Trace.to_record` of verifiers 0.4.0 writes, the null fields of its tasks and configurations
left out.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Branch, Outcome, Producer, TokenRecord, Usage
from offline_arl.trajectories.validate import errors_of


def read(tmp_path: Path, *rows: Any) -> LogContents:
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    contents = read_logs(path)
    assert [errors_of(trajectory) for trajectory in contents.trajectories] == [[]] * len(contents.trajectories)
    return contents


ROLLOUT: dict[str, Any] = {
    "example_id": 4,
    "task": "sums",
    "prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": "2+3?"}],
    # The format writes each call as JSON text, flat.
    "completion": [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": ['{"id": "c1", "name": "add", "arguments": "{\\"a\\": 2}"}'],
        },
        {"role": "tool", "content": "5", "tool_call_id": "c1"},
        {"role": "assistant", "content": "5"},
    ],
    "reward": 0.5,
    "metrics": {"exact": 1.0, "num_turns": 2.0, "judge": None},
    "exact": 1.0,
    "num_turns": 2.0,
    "is_completed": True,
    "is_truncated": False,
    "stop_condition": "no_tools_called",
    "timing": {"start_time": 1750000000.0, "total_ms": 12.0},
    "tool_defs": [{"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}],
    "answer": "5",
    "trajectory": [
        {"tokens": {"prompt_ids": [1], "completion_ids": [2, 3], "completion_logprobs": [-0.1, -0.2]}, "reward": None},
        {"tokens": {"prompt_ids": [1, 2, 3, 4], "completion_ids": [5], "completion_logprobs": [-0.3]}, "reward": 0.5},
    ],
}


def test_a_rollout(tmp_path: Path) -> None:
    contents = read(tmp_path, ROLLOUT)
    assert list(contents.formats.values()) == ["verifiers"]
    (trajectory,) = contents.trajectories
    assert (trajectory.task_id, trajectory.group_id, trajectory.task_type) == ("sums/4", "sums/4", "sums")
    assert trajectory.outcome == Outcome("scored", score=0.5, scorer="verifiers")
    assert (trajectory.terminated, trajectory.stop_reason) == (True, "no_tools_called")
    call = trajectory.messages[2].tool_calls[0]
    assert (call.id, call.name, call.arguments) == ("c1", "add", {"a": 2})
    assert trajectory.messages[2].tokens == TokenRecord([2, 3], "unknown", [-0.1, -0.2], [1])
    assert trajectory.messages[4].tokens == TokenRecord([5], "unknown", [-0.3], [1, 2, 3, 4])
    # A metric that did not run is no score, and the copies of the metrics on the top level are not kept twice.
    assert [(score.name, score.value) for score in trajectory.scores] == [("exact", 1.0), ("num_turns", 2.0)]
    assert "exact" not in trajectory.metadata
    assert trajectory.metadata["answer"] == "5"
    assert trajectory.started_at == "2025-06-15T15:06:40Z"


def test_a_row_as_0_1_9_saved_it(tmp_path: Path) -> None:
    """Saved by way of an Arrow table: no ids in tool messages, null calls everywhere, metrics among the columns."""
    call = '{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}'
    row = {
        "example_id": 0,
        "prompt": [{"role": "user", "content": "2+3?"}],
        "completion": [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "5", "tool_calls": None},
            {"role": "assistant", "content": "5", "tool_calls": None},
        ],
        "task": "sums",
        "reward": 0.0,
        "error": "RuntimeError('x')",
        "generation_ms": 1.0,
        "answer": "5",
        "exact": 1.0,
    }
    (trajectory,) = read(tmp_path, row).trajectories
    assert [(score.name, score.value) for score in trajectory.scores] == [("exact", 1.0)]
    assert trajectory.messages[2].tool_call_id == trajectory.messages[1].tool_calls[0].id == "c1"
    assert trajectory.outcome == Outcome("infrastructure_error", scorer="verifiers")
    assert trajectory.metadata["generation_ms"] == 1.0


def test_errors_outside_the_agent_are_no_reward(tmp_path: Path) -> None:
    infra = {"error": "SandboxError", "error_chain_repr": "SandboxError('x')", "error_chain_str": "SandboxError"}
    contents = read(
        tmp_path,
        ROLLOUT | {"error": infra, "reward": 0.0},
        ROLLOUT | {"error": "ModelError('no answer')", "reward": 0.0},
        ROLLOUT | {"error": {"error": "ToolCallError"}, "reward": 0.0},
        ROLLOUT | {"error": {"error": "OverlongPromptError"}, "reward": 0.0},
        ROLLOUT | {"reward": None},
    )
    statuses = [(trajectory.outcome.status, trajectory.outcome.score) for trajectory in contents.trajectories]
    assert statuses == [
        ("infrastructure_error", None),
        ("infrastructure_error", None),
        ("scored", 0.0),
        ("scored", 0.0),
        ("unscored", None),
    ]
    assert [trajectory.truncated for trajectory in contents.trajectories] == [False, False, False, True, False]
    assert [trajectory.terminated for trajectory in contents.trajectories] == [False, False, False, False, True]


def test_steps_that_do_not_fit_stay_in_the_metadata(tmp_path: Path) -> None:
    (trajectory,) = read(tmp_path, ROLLOUT | {"trajectory": ROLLOUT["trajectory"][:1]}).trajectories
    assert [message.tokens for message in trajectory.messages] == [None] * 5
    assert trajectory.metadata["trajectory"] == ROLLOUT["trajectory"][:1]


def test_completion_models_have_texts(tmp_path: Path) -> None:
    (trajectory,) = read(tmp_path, ROLLOUT | {"prompt": "2+3=", "completion": "5", "trajectory": []}).trajectories
    assert [(message.role, message.text) for message in trajectory.messages] == [("user", "2+3="), ("assistant", "5")]


def node(parent: int | None, role: str, content: Any, *, sampled: bool = False, **more: Any) -> dict[str, Any]:
    text = {"role": role, "content": content, **more.pop("message", {})}
    tokens = {"token_ids": [], "mask": [], "logprobs": [], "advantages": None, "semantic_parents": []}
    return {"parent": parent, "message": text, "sampled": sampled, "timestamp": 1750000001.0, **tokens, **more}


TRACE: dict[str, Any] = {
    "version": 1,
    "id": "trace-1",
    "verifiers": {"version": "0.4.0", "commit": None},
    "task": {"type": "Sums", "data": {"idx": 3, "prompt": "2+3?"}, "key": "k3", "hash": "h"},
    "agent": {"config": {"model": "tiny"}, "runtime": None, "name": "solver", "trainable": True},
    "tools": [],
    "nodes": [
        node(
            None,
            "system",
            "Add.",
            token_ids=[1, 2],
            mask=[False, False],
            tools=[{"type": "function", "name": "add", "namespace": None, "description": "", "parameters": {}}],
        ),
        node(0, "user", "2+3?", token_ids=[3, 4], mask=[False, False]),
        node(
            1,
            "assistant",
            None,
            sampled=True,
            message={
                "reasoning_content": "hm",
                "tool_calls": [{"id": "c1", "type": "function", "name": "add", "namespace": None, "arguments": "{}"}],
                "provider_state": None,
            },
            token_ids=[5, 6, 7],
            mask=[False, True, True],
            logprobs=[-0.1, -0.2],
        ),
        node(2, "tool", "5", message={"tool_call_id": "c1", "name": None}, token_ids=[8], mask=[False]),
        node(3, "assistant", "5", sampled=True, token_ids=[9, 10], mask=[False, True], logprobs=[-0.5]),
        # The history was replaced by a summary, which the model of the next request did not sample.
        node(1, "assistant", "Was adding.", semantic_parents=[{"node": 4, "type": "compaction"}]),
        node(5, "assistant", "It is 5.", sampled=True),
    ],
    "calls": [
        {
            "node": 2,
            "model": "tiny-2",
            "finish_reason": "tool_calls",
            "usage": {"prompt_tokens": 4, "completion_tokens": 2, "cached_input_tokens": 1, "cost": None},
            "error": None,
        },
        {"node": None, "model": "tiny", "finish_reason": None, "usage": None, "error": {"type": "ProviderError"}},
    ],
    "rewards": {"exact": {"score": 1.0, "weight": 0.5}, "style": None},
    "metrics": {"turns": 2.0, "accuracy": None},
    "is_completed": True,
    "ok": True,
    "stop_condition": "agent_completed",
    "is_timeout": False,
    "errors": [],
    "timing": {"start": 1750000000.0},
}


def test_paths_through_a_trace_are_trajectories(tmp_path: Path) -> None:
    contents = read(tmp_path, TRACE)
    assert list(contents.formats.values()) == ["verifiers_trace"]
    first, second = contents.trajectories
    assert [message.text for message in first.messages] == ["Add.", "2+3?", "", "5", "5"]
    assert [message.text for message in second.messages] == ["Add.", "2+3?", "Was adding.", "It is 5."]
    assert first.branch is None
    assert second.branch == Branch(first.trajectory_id, 2)
    kinds = [message.producer.kind for message in second.messages]
    assert kinds == ["script", "script", "summary", "model"]
    for trajectory in (first, second):
        # None of a reward says that scoring did not run; the sum is of weighted rewards.
        assert trajectory.outcome == Outcome("scored", score=0.5, components={"exact": 0.5}, scorer="verifiers")
        assert [(score.name, score.value) for score in trajectory.scores] == [("turns", 2.0)]
        assert (trajectory.task_id, trajectory.agent, trajectory.model) == ("k3", "solver", "tiny")
        assert trajectory.identifiers == {"trace": "trace-1"}
        assert (trajectory.terminated, trajectory.truncated) == (True, False)


def test_tokens_of_a_trace_are_the_sampled_ones(tmp_path: Path) -> None:
    first, second = read(tmp_path, TRACE).trajectories
    turn, answer = first.messages[2], first.messages[4]
    assert turn.tokens == TokenRecord([6, 7], "unknown", [-0.1, -0.2], [1, 2, 3, 4, 5])
    assert answer.tokens == TokenRecord([10], "unknown", [-0.5], [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert turn.producer == Producer("model", "tiny-2")
    assert turn.usage == Usage(input_tokens=5, output_tokens=2)
    assert turn.reasoning == "hm"
    assert second.messages[3].tokens is None
    tools = first.tools_at(0)
    assert tools is not None
    assert tools[0]["function"]["name"] == "add"


def test_a_failed_trace_has_no_reward_and_a_limit_truncates(tmp_path: Path) -> None:
    failed = TRACE | {"ok": False, "errors": [{"type": "SandboxError", "message": "gone"}], "rewards": {"exact": None}}
    limited = TRACE | {"stop_condition": "max_turns"}
    unscored = TRACE | {"rewards": {"exact": None}}
    contents = read(tmp_path, failed, limited, unscored)
    statuses = [trajectory.outcome.status for trajectory in contents.trajectories[::2]]
    assert statuses == ["infrastructure_error", "scored", "unscored"]
    assert [(t.terminated, t.truncated) for t in contents.trajectories[::2]] == [
        (False, False),
        (False, True),
        (True, False),
    ]


def test_agents_that_are_not_trained_and_given_up_compactions(tmp_path: Path) -> None:
    judge = copy.deepcopy(TRACE)
    judge["agent"]["trainable"] = False
    (first, _) = read(tmp_path, judge).trajectories
    assert [message.trainable for message in first.messages] == [None, None, False, None, False]
    attempt = copy.deepcopy(TRACE)
    attempt["nodes"][6]["semantic_parents"] = [{"node": 4, "type": "compaction_attempt"}]
    first, second = read(tmp_path, attempt).trajectories
    assert [message.trainable for message in first.messages] == [None] * 5
    assert [message.trainable for message in second.messages] == [None, None, False, False]


def test_an_episode_has_the_traces_of_several_agents(tmp_path: Path) -> None:
    judge = copy.deepcopy(TRACE)
    judge["agent"]["name"], judge["nodes"] = "judge", TRACE["nodes"][:5]
    episode = {
        "id": "episode-1",
        "env": {"id": "sums"},
        "task": TRACE["task"],
        "group": {"id": "group-1"},
        "ok": True,
        "traces": [TRACE, judge],
    }
    empty = {**episode, "traces": [], "errors": [{"type": "EnvError", "message": "no"}]}
    contents = read(tmp_path, episode, empty)
    assert [trajectory.agent for trajectory in contents.trajectories] == ["solver", "solver", "judge"]
    assert {trajectory.group_id for trajectory in contents.trajectories} == {"group-1"}
    assert {trajectory.episode_id for trajectory in contents.trajectories} == {"episode-1"}
    assert len({trajectory.trajectory_id for trajectory in contents.trajectories}) == 3
    assert contents.fates[1].fate == "set_apart"
    assert contents.fates[1].reason == "an episode without messages: EnvError"


def test_a_node_before_its_parent_is_refused(tmp_path: Path) -> None:
    loop = copy.deepcopy(TRACE)
    loop["nodes"][1]["parent"] = 4
    (fate,) = read(tmp_path, loop).fates
    assert fate.reason == "nodes[1].parent: expected the index of an earlier node, got 4"
