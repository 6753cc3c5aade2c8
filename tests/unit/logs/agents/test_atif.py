"""ATIF documents and Harbor's trials: steps as messages, runs over several files, verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.adapter import adapter_named
from offline_arl.logs.convert import AssembledGroup, PiecePosition, assemble_group, group_place, split_record
from offline_arl.logs.reading import read_logs
from offline_arl.logs.records import LogFile, read_records
from offline_arl.trajectories.schema import (
    Branch,
    FilePart,
    ImagePart,
    Outcome,
    Producer,
    ReasoningPart,
    TextPart,
    TokenRecord,
    Trajectory,
    Usage,
)
from offline_arl.trajectories.validate import problems_of

Value = dict[str, Any]
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {}}}
AGENT = {"name": "terminus", "version": "2", "model_name": "lab/m", "tool_definitions": [TOOL]}


def steps(*values: Value) -> list[Value]:
    return [{"step_id": number, **value} for number, value in enumerate(values, start=1)]


def document(*values: Value, version: str = "1.7", **more: Any) -> Value:
    return {"schema_version": f"ATIF-v{version}", "agent": AGENT, "steps": steps(*values), **more}


SYSTEM = {"source": "system", "message": "You help."}
TASK = {"source": "user", "message": "Fix it."}
DONE = {"source": "agent", "message": "Done."}


def only(folder: Path, value: Value) -> Trajectory:
    path = folder / "trajectory.json"
    path.write_text(json.dumps(value, indent=1))
    contents = read_logs(path)
    assert contents.formats == {str(path): "atif"}
    assert [fate.fate for fate in contents.fates] == ["used"]
    [trajectory] = contents.trajectories
    assert [str(problem) for problem in problems_of(trajectory) if problem.severity == "error"] == []
    return trajectory


def assembled(folder: Path, files: dict[str, Value]) -> list[AssembledGroup]:
    """The groups of some files of one folder, with labels as `ingest` gives them."""
    groups: dict[str | None, list[tuple[PiecePosition, bytes]]] = {}
    for label, value in files.items():
        path = folder / label
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
        for record in read_records(LogFile(path, str(path), label)):
            split = split_record(adapter_named("atif"), record)
            assert split.refused is None
            for fragment in split.fragments:
                key, _ = group_place(fragment, record.label, str(path))
                groups.setdefault(key, []).append((PiecePosition.of(record), fragment.payload))
    return [assemble_group("atif", key, pieces) for key, pieces in groups.items()]


def test_a_step_is_an_answer_and_the_results_of_its_calls(tmp_path: Path) -> None:
    step = {
        "source": "agent",
        "message": "I look.",
        "timestamp": "2026-01-01T00:00:00Z",
        "reasoning_content": "Where is it?",
        "tool_calls": [
            {"tool_call_id": "c1", "function_name": "bash", "arguments": {"cmd": "ls"}, "extra": {"timeout": 5}},
            {"tool_call_id": "c2", "function_name": "bash", "arguments": {}},
        ],
        "observation": {
            "results": [
                {"source_call_id": "c2", "content": [{"type": "text", "text": "two"}]},
                {"source_call_id": "c1", "content": "one", "extra": {"exit": 0}},
            ]
        },
        "metrics": {
            "prompt_tokens": 9,
            "completion_tokens": 3,
            "cached_tokens": 4,
            "cost_usd": 0.5,
            "prompt_token_ids": [1, 2],
            "completion_token_ids": [3, 4, 5],
            "logprobs": [-0.1, -0.2, -0.3],
        },
        "extra": {"turn": 1},
    }
    trajectory = only(tmp_path, document(SYSTEM, TASK, step, session_id="s1", trajectory_id="t1", notes="n"))
    assert [(message.role, message.producer.kind, message.text) for message in trajectory.messages] == [
        ("system", "script", "You help."),
        ("user", "unknown", "Fix it."),
        ("assistant", "model", "I look."),
        ("tool", "environment", "two"),
        ("tool", "environment", "one"),
    ]
    answer = trajectory.messages[2]
    assert answer.content == [ReasoningPart("Where is it?"), TextPart("I look.")]
    assert answer.tokens == TokenRecord([3, 4, 5], "unknown", [-0.1, -0.2, -0.3], [1, 2])
    assert (answer.usage, answer.producer) == (Usage(9, 3, 0.5), Producer("model", "lab/m"))
    assert answer.metadata == {
        "step_id": 3,
        "extra": {"turn": 1},
        "tool_call_extras": {"0": {"timeout": 5}},
        "metrics": {"cached_tokens": 4},
    }
    assert [message.tool_call_id for message in trajectory.messages[3:]] == ["c2", "c1"]
    assert trajectory.messages[4].metadata == {"extra": {"exit": 0}}
    assert trajectory.tools_at(0) == [TOOL]
    assert (trajectory.session_id, trajectory.identifiers) == ("s1", {"trajectory": "t1"})
    assert (trajectory.agent, trajectory.model, trajectory.metadata["notes"]) == ("terminus", "lab/m", "n")
    # ATIF holds no reward.
    assert trajectory.outcome == Outcome()


def test_what_is_no_answer_of_the_model(tmp_path: Path) -> None:
    trajectory = only(
        tmp_path,
        document(
            {**SYSTEM, "is_copied_context": True},
            {**TASK, "is_copied_context": True},
            {"source": "agent", "message": "Earlier.", "is_copied_context": True},
            {"source": "agent", "message": "Dispatch.", "llm_call_count": 0},
            {"source": "agent", "message": "Mine.", "model_name": "lab/other", "llm_call_count": 2},
            {"source": "system", "message": "", "observation": {"results": [{"content": "Context was cut."}]}},
        ),
    )
    assert [(message.role, message.producer.kind, message.text) for message in trajectory.messages] == [
        ("system", "copy", "You help."),
        ("user", "copy", "Fix it."),
        ("assistant", "copy", "Earlier."),
        ("assistant", "script", "Dispatch."),
        ("assistant", "model", "Mine."),
        ("user", "environment", "Context was cut."),
    ]
    assert trajectory.step_indices() == [4]
    assert trajectory.messages[4].producer.name == "lab/other"


def test_results_of_no_call_are_told_in_the_role_of_the_user(tmp_path: Path) -> None:
    text_action = {"source": "agent", "message": "ls", "observation": {"results": [{"content": "a.py"}]}}
    unnamed = {
        "source": "agent",
        "message": "",
        "tool_calls": [{"tool_call_id": "c1", "function_name": "bash", "arguments": {}}],
        "observation": {"results": [{"content": None}]},
    }
    trajectory = only(tmp_path, document(TASK, text_action, unnamed))
    assert [(message.role, message.tool_call_id, message.content) for message in trajectory.messages[2:]] == [
        ("user", None, [TextPart("a.py")]),
        ("assistant", None, [TextPart("")]),
        ("tool", "c1", None),
    ]


def test_ids_of_calls_may_come_again_in_later_steps(tmp_path: Path) -> None:
    call = {
        "source": "agent",
        "message": "",
        "tool_calls": [{"tool_call_id": "call_0", "function_name": "bash", "arguments": {}}],
    }
    first = {**call, "observation": {"results": [{"source_call_id": "call_0", "content": "one"}]}}
    second = {**call, "observation": {"results": [{"source_call_id": "call_0", "content": "two"}]}}
    trajectory = only(tmp_path, document(TASK, first, second))
    assert [message.text for message in trajectory.messages if message.role == "tool"] == ["one", "two"]


def test_parts_costs_and_token_ids_of_other_versions(tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "See."},
        {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}},
        {"type": "audio", "source": {"media_type": "audio/wav", "path": "a.wav"}},
        {"type": "hologram"},
    ]
    uneven = {"completion_token_ids": [1, 2], "logprobs": [-0.5], "cost": 0.25}
    alone = {"logprobs": [-0.5], "prompt_token_ids": [1]}
    trajectory = only(
        tmp_path,
        document(
            {"source": "user", "message": parts},
            {"source": "agent", "message": "a", "metrics": uneven},
            {"source": "agent", "message": "b", "metrics": alone},
            version="1.8",
        ),
    )
    user, first, second = trajectory.messages
    assert user.content == [TextPart("See."), ImagePart("a.png"), FilePart("a.wav", "audio/wav")]
    assert user.metadata["other_parts"] == [{"index": 3, "part": {"type": "hologram"}}]
    assert first.tokens == TokenRecord([1, 2], "unknown")
    assert first.metadata["logprobs"] == [-0.5]
    assert first.usage == Usage(cost=0.25)
    assert second.tokens is None
    assert second.metadata["prompt_token_ids"] == [1]


def test_embedded_sub_agents(tmp_path: Path) -> None:
    grandchild = document({"source": "user", "message": "deep"}, DONE, trajectory_id="g")
    child = document(TASK, DONE, trajectory_id="c", subagent_trajectories=[grandchild])
    reference = {"source_call_id": "c1", "content": None, "subagent_trajectory_ref": [{"trajectory_id": "c"}]}
    asked = {
        "source": "agent",
        "message": "",
        "tool_calls": [{"tool_call_id": "c1", "function_name": "ask", "arguments": {}}],
        "observation": {"results": [reference]},
    }
    path = tmp_path / "trajectory.json"
    path.write_text(json.dumps(document(TASK, asked, session_id="s", subagent_trajectories=[child])))
    main, sub, deep = read_logs(path).trajectories
    assert (main.parent_trajectory_id, sub.parent_trajectory_id, deep.parent_trajectory_id) == (
        None,
        main.trajectory_id,
        sub.trajectory_id,
    )
    assert (sub.session_id, deep.session_id, sub.identifiers) == ("s", "s", {"trajectory": "c"})
    assert main.messages[2].metadata["subagent_trajectory_ref"] == [{"trajectory_id": "c"}]


def trial(**more: Any) -> Value:
    return {
        "id": "trial-id",
        "task_name": "org/hello",
        "trial_name": "hello__x",
        "task_id": {"path": "tasks/hello"},
        "source": "org",
        "agent_info": {"name": "terminus", "version": "2", "model_info": {"name": "m", "provider": "lab"}},
        "verifier_result": {"rewards": {"reward": 1.0}},
        "exception_info": None,
        "started_at": "2026-01-01T00:00:00Z",
        "finished_at": "2026-01-01T00:05:00Z",
        **more,
    }


def test_a_trial_with_a_continuation_and_a_summarizing_sub_agent(tmp_path: Path) -> None:
    first = document(
        SYSTEM, TASK, {"source": "agent", "message": "Half."}, continued_trajectory_ref="trajectory.cont-1.json"
    )
    copied = [{**step, "is_copied_context": True} for step in (SYSTEM, TASK)]
    second = document(*copied, {"source": "user", "message": "Summary."}, DONE)
    summary = document({"source": "user", "message": "Summarize."}, DONE)
    [group] = assembled(
        tmp_path,
        {
            "job/hello__x/agent/trajectory.cont-1.json": second,
            "job/hello__x/agent/trajectory.json": first,
            "job/hello__x/agent/trajectory.summarization-1-summary.json": summary,
            "job/hello__x/result.json": trial(),
        },
    )
    assert [fate for fate, _ in group.fates] == ["used"] * 4
    main, continuation, helper = group.trajectories
    assert [message.text for message in main.messages] == ["You help.", "Fix it.", "Half."]
    assert continuation.branch == Branch(main.trajectory_id, 2)
    assert (continuation.parent_trajectory_id, continuation.metadata["relation"]) == (main.trajectory_id, "compaction")
    assert (helper.parent_trajectory_id, helper.metadata["relation"]) == (continuation.trajectory_id, "sub_agent")
    assert [item.outcome for item in (main, continuation, helper)] == [
        Outcome(),
        Outcome("scored", True, 1.0, scorer="harbor_verifier"),
        Outcome(),
    ]
    for item in group.trajectories:
        assert (item.task_id, item.group_id, item.episode_id) == ("org/hello", "org/hello", "trial-id")
    assert (continuation.terminated, continuation.scores[0].name) == (True, "reward")
    assert continuation.metadata["trial"]["trial_name"] == "hello__x"


def test_trials_of_one_job_stay_apart(tmp_path: Path) -> None:
    files = {f"job/{name}/agent/trajectory.json": document(TASK, DONE) for name in ("a", "b")}
    files |= {f"job/{name}/result.json": trial(id=name) for name in ("a", "b")}
    found = [trajectory for group in assembled(tmp_path, files) for trajectory in group.trajectories]
    assert [trajectory.episode_id for trajectory in found] == ["a", "b"]
    assert len({trajectory.trajectory_id for trajectory in found}) == 2


def exception(name: str, **more: Any) -> Value:
    return {"exception_type": name, "exception_message": "m", **more}


@pytest.mark.parametrize(
    ("result", "outcome", "ending"),
    [
        ({}, Outcome("scored", True, 1.0, scorer="harbor_verifier"), (True, False, None)),
        (
            {"verifier_result": {"rewards": {"reward": 0.5, "tests": 1}}},
            Outcome("scored", None, 0.5, {"reward": 0.5, "tests": 1.0}, "harbor_verifier"),
            (True, False, None),
        ),
        (
            {"verifier_result": {"rewards": {"error_rate": 0}}},
            Outcome(scorer="harbor_verifier"),
            (True, False, None),
        ),
        (
            {"verifier_result": {"rewards": {"reward": 0}}, "exception_info": exception("AgentTimeoutError")},
            Outcome("scored", False, 0.0, scorer="harbor_verifier"),
            (False, True, "AgentTimeoutError"),
        ),
        (
            {"exception_info": exception("RateLimitError", policy={"has_valid_reward": False})},
            Outcome("infrastructure_error"),
            (False, False, "RateLimitError"),
        ),
        ({"reward_valid": False}, Outcome("infrastructure_error"), (True, False, None)),
        ({"verifier_result": None}, Outcome(), (True, False, None)),
        (
            {"verifier_result": None, "exception_info": exception("EnvironmentStartTimeoutError")},
            Outcome("infrastructure_error"),
            (False, False, "EnvironmentStartTimeoutError"),
        ),
        (
            {"verifier_result": None, "step_results": [{"exception_info": exception("AgentTimeoutError")}]},
            Outcome(),
            (False, True, "AgentTimeoutError"),
        ),
    ],
)
def test_verdicts_and_endings(tmp_path: Path, result: Value, outcome: Outcome, ending: tuple[Any, ...]) -> None:
    files = {"t/agent/trajectory.json": document(TASK, DONE), "t/result.json": trial(**result)}
    [group] = assembled(tmp_path, files)
    [trajectory] = group.trajectories
    assert trajectory.outcome == outcome
    assert (trajectory.terminated, trajectory.truncated, trajectory.stop_reason) == ending


def test_token_ids_that_the_agent_collected(tmp_path: Path) -> None:
    details = [{"prompt_token_ids": [[1], [1, 2, 3]], "completion_token_ids": [[2], [4]], "logprobs": [[-0.5], [-1.0]]}]
    value = document(TASK, {"source": "agent", "message": "One."}, {"source": "agent", "message": "Two."})
    result = trial(agent_result={"cost_usd": 1.0, "rollout_details": details})
    [group] = assembled(tmp_path, {"t/agent/trajectory.json": value, "t/result.json": result})
    [trajectory] = group.trajectories
    assert [message.tokens for message in trajectory.messages] == [
        None,
        TokenRecord([2], "unknown", [-0.5], [1]),
        TokenRecord([4], "unknown", [-1.0], [1, 2, 3]),
    ]
    assert trajectory.metadata["trial"]["agent_result"] == {"cost_usd": 1.0}
    # One turn more than answers: nobody knows which is whose, so that they are kept and not used.
    details[0] = {"completion_token_ids": [[2], [4], [5]]}
    [group] = assembled(tmp_path, {"t/agent/trajectory.json": value, "t/result.json": result})
    assert group.trajectories[0].messages[1].tokens is None
    assert group.trajectories[0].metadata["trial"]["agent_result"]["rollout_details"] == details


def test_what_holds_no_trajectory_and_what_is_refused(tmp_path: Path) -> None:
    [group] = assembled(tmp_path, {"t/result.json": trial()})
    assert group.fates == [("set_apart", "the result of a trial without trajectory")]
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"id": "j", "n_total_trials": 1, "stats": {}, "started_at": "t"}))
    assert [fate.fate for fate in read_logs(path).fates] == ["set_apart"]
    for steps_of, reason in (
        ([], "steps: expected a list with steps, got a list"),
        ([{"source": "robot", "message": ""}], "steps[0].source: expected one of system, user, agent, got 'robot'"),
        ([{"source": "agent", "message": 5}], "steps[0].message: expected a string or a list, got a number"),
    ):
        path.write_text(json.dumps({"schema_version": "ATIF-v1.7", "agent": AGENT, "steps": steps_of}))
        assert [(fate.fate, fate.reason) for fate in read_logs(path).fates] == [("refused", reason)]


def test_several_documents_of_one_file_are_several_runs(tmp_path: Path) -> None:
    path = tmp_path / "sample_std.json"
    path.write_text(json.dumps([document(TASK, DONE, session_id=name) for name in ("a", "b")]))
    found = read_logs(path).trajectories
    assert [trajectory.session_id for trajectory in found] == ["a", "b"]
    assert [trajectory.parent_trajectory_id for trajectory in found] == [None, None]


@pytest.mark.parametrize("value", [None, {}, {"schema_version": "2", "steps": []}, {"schema_version": [], "steps": []}])
def test_other_records_are_not_recognized(value: Any) -> None:
    assert not adapter_named("atif").recognizes(value)
