"""agent-lightning: spans as its emitters and tracer write them (0.3.0), events (1.0.2), and legacy reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Outcome, Producer, TokenRecord
from offline_arl.trajectories.validate import errors_of


def read(tmp_path: Path, *rows: Any) -> LogContents:
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    contents = read_logs(path)
    assert list(contents.formats.values()) == ["agent_lightning"]
    assert [errors_of(trajectory) for trajectory in contents.trajectories] == [[]] * len(contents.trajectories)
    assert len(contents.fates) == len(rows)
    return contents


def span(sequence: int, name: str, attributes: dict[str, Any], attempt: str = "at-1") -> dict[str, Any]:
    return {
        "rollout_id": "ro-1",
        "attempt_id": attempt,
        "sequence_id": sequence,
        "trace_id": "3b8f23ec58aa0e1e60969f4f1f45dcd4",
        "span_id": f"{sequence:016x}",
        "parent_id": None,
        "name": name,
        "status": {"status_code": "UNSET", "description": None},
        "attributes": attributes,
        "events": [],
        "links": [],
        "start_time": 1750000000.0 + sequence,
        "end_time": 1750000000.5 + sequence,
    }


def llm_span(sequence: int, turns: list[str], **more: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = {"gen_ai.request.model": "tiny", "gen_ai.response.id": f"cmpl-{sequence}"}
    for index, text in enumerate(turns[:-1]):
        attributes[f"gen_ai.prompt.{index}.role"] = "user" if index % 2 == 0 else "assistant"
        attributes[f"gen_ai.prompt.{index}.content"] = text
    attributes |= {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": turns[-1]}
    return span(sequence, "openai.chat.completion", attributes | more)


def test_spans_of_an_attempt_are_stitched_and_rewards_follow_their_step(tmp_path: Path) -> None:
    first = llm_span(1, ["2+3?", "5"], prompt_token_ids=[1, 2], response_token_ids=[3, 4])
    # In the file, the spans stand in no order; their number says it.
    contents = read(
        tmp_path,
        span(5, "agent", {}),
        llm_span(3, ["2+3?", "5", "And 4+4?", "8"]),
        span(
            4,
            "agentlightning.annotation",
            {
                "agentlightning.reward.0.name": "task",
                "agentlightning.reward.0.value": 1.0,
                "agentlightning.reward.1.name": "format",
                "agentlightning.reward.1.value": 0.5,
            },
        ),
        span(
            2,
            "agentlightning.annotation",
            {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.25},
        ),
        first,
    )
    assert [fate.fate for fate in contents.fates] == ["set_apart", "used", "used", "used", "used"]
    assert contents.fates[0].reason == "span agent: neither a model call nor a reward"
    (trajectory,) = contents.trajectories
    assert [message.text for message in trajectory.messages] == ["2+3?", "5", "And 4+4?", "8"]
    assert trajectory.messages[1].tokens == TokenRecord([3, 4], "unknown", None, [1, 2])
    assert trajectory.messages[1].producer == Producer("model", "tiny")
    assert [(score.name, score.value, score.message_index) for score in trajectory.scores] == [
        ("primary", 0.25, 1),
        ("task", 1.0, 3),
        ("format", 0.5, 3),
    ]
    # The last report counts, and of its dimensions the first.
    assert trajectory.outcome == Outcome(
        "scored", score=1.0, components={"task": 1.0, "format": 0.5}, scorer="agent_lightning"
    )
    assert trajectory.identifiers["rollout"] == "ro-1"


def test_a_reward_of_none_is_not_zero(tmp_path: Path) -> None:
    empty = span(2, "agentops.op", {"agentops.task.output": '{"type": "reward", "value": null}'})
    contents = read(tmp_path, llm_span(1, ["2+3?", "5"]), empty)
    assert contents.trajectories[0].outcome == Outcome(scorer="agent_lightning")
    assert contents.trajectories[0].scores == []
    assert contents.fates[1].fate == "set_apart"


def test_rewards_in_older_forms(tmp_path: Path) -> None:
    old = span(2, "agentlightning.annotation", {"reward": 0.5})
    older = span(3, "agentops.op", {"agentops.entity.output": '{"type": "reward", "value": 0.75}'})
    (trajectory,) = read(tmp_path, llm_span(1, ["2+3?", "5"]), old, older).trajectories
    assert [score.value for score in trajectory.scores] == [0.5, 0.75]
    assert trajectory.outcome.score == 0.75


def event(kind: str, attempt: str, **data: Any) -> dict[str, Any]:
    return {"event_type": kind, "rollout_id": "r", "attempt_id": attempt, "timestamp": 1750000000.0, "data": data}


def request(attempt: str, answer: str, response_id: str, **more: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": answer},
        "finish_reason": "stop",
        "token_ids": [7],
    }
    return event(
        "model_request",
        attempt,
        model="tiny",
        model_version=3,
        request={"messages": [{"role": "user", "content": "2+3?"}], "temperature": 0.5},
        response={"id": response_id, "choices": [choice], "prompt_token_ids": [1, 2]},
        status="ok",
        **more,
    )


def test_attempts_at_a_rollout_are_a_group_and_not_branches(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        request("0", "5", "c1"),
        event("reward", "0", value=1.0, source="agent", message="right"),
        request("1", "6", "c2"),
        event("reward", "1", value=0.0, source="fallback"),
        event("note", "1", text="hello"),
    )
    right, other = contents.trajectories
    assert right.group_id == other.group_id == "r"
    assert right.branch is other.branch is None
    assert right.trajectory_id != other.trajectory_id
    assert right.outcome == Outcome("scored", score=1.0, scorer="agent_lightning")
    assert right.scores[0].comment == "right"
    assert right.messages[1].tokens == TokenRecord([7], "unknown", None, [1, 2])
    # What the store fills in when no reward came is not a reward.
    assert other.outcome == Outcome(scorer="agent_lightning")
    assert [(fate.fate, fate.reason) for fate in contents.fates[3:]] == [
        ("set_apart", "a reward that nobody gave (fallback or empty)"),
        ("set_apart", "event note: neither a model call nor a reward"),
    ]


def test_the_rollouts_own_record_names_the_task_and_its_failure(tmp_path: Path) -> None:
    rollout = {
        "rollout_id": "r",
        "input": {"task_id": "sum-7", "question": "2+3?"},
        "is_train": True,
        "config": {},
        "status": {"state": "failed", "error_message": "job lost"},
    }
    contents = read(tmp_path, rollout, request("0", "5", "c1"))
    (trajectory,) = contents.trajectories
    assert (trajectory.task_id, trajectory.group_id) == ("sum-7", "sum-7")
    assert trajectory.outcome == Outcome("infrastructure_error", scorer="agent_lightning")
    assert trajectory.metadata["rollout"]["status"]["error_message"] == "job lost"
    assert [fate.fate for fate in contents.fates] == ["set_apart", "used"]


def test_a_failed_call_is_no_step(tmp_path: Path) -> None:
    failed = event(
        "model_request",
        "0",
        request={"messages": [{"role": "user", "content": "2+3?"}]},
        response={"error": {"message": "overloaded"}},
        http_status=503,
        status="error",
    )
    contents = read(tmp_path, failed, request("0", "5", "c1"))
    (trajectory,) = contents.trajectories
    assert [message.text for message in trajectory.messages] == ["2+3?", "5"]
    assert [failed["error"]["text"] for failed in trajectory.metadata["failed_calls"]] == ["overloaded"]


def test_a_legacy_report(tmp_path: Path) -> None:
    def triplet(answer: str, reward: float | None, response_id: str, *before: str) -> dict[str, Any]:
        roles = ["user", "assistant"] * 4
        turns = [{"role": role, "content": text} for role, text in zip(roles, before, strict=False)]
        return {
            "prompt": {"token_ids": [1, 2], "raw_content": turns, "image_urls": []},
            "response": {"token_ids": [3], "raw_content": [{"role": "assistant", "content": answer}]},
            "reward": reward,
            "metadata": {"response_id": response_id, "agent_name": "adder"},
        }

    report = {
        "rollout_id": "old",
        "task": {"input": {"id": 12}},
        "final_reward": 0.5,
        "triplets": [triplet("5", None, "a", "2+3?"), triplet("8", None, "b", "2+3?", "5", "4+4?")],
    }
    (trajectory,) = read(tmp_path, report).trajectories
    assert [message.text for message in trajectory.messages] == ["2+3?", "5", "4+4?", "8"]
    assert trajectory.messages[3].tokens == TokenRecord([3], "unknown", None, [1, 2])
    # The final reward belongs to the last step; a step's reward of None is not zero.
    assert [(score.value, score.message_index) for score in trajectory.scores] == [(0.5, 3)]
    assert trajectory.outcome.score == 0.5
    assert trajectory.task_id == "12"


def test_triplets_of_token_ids_only_are_refused(tmp_path: Path) -> None:
    report = {"rollout_id": "x", "triplets": [{"prompt": {"token_ids": [1]}, "response": {"token_ids": [2]}}]}
    (fate,) = read(tmp_path, report).fates
    assert fate.fate == "refused"
    assert fate.reason == "triplets[0]: has no messages (token ids alone are not read)"
