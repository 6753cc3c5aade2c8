"""NeMo Gym rollouts: the real files by their counts, and small rows for what they do not show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Outcome, Producer, ReasoningPart, TokenRecord
from offline_arl.trajectories.validate import errors_of, problems_of

REAL_LOGS = Path(__file__).resolve().parents[5] / "shared/real_logs/nemo-gym"


def real(name: str) -> LogContents:
    path = REAL_LOGS / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    contents = read_logs(path)
    assert contents.formats == {str(path): "nemo_gym"}
    assert [errors_of(trajectory) for trajectory in contents.trajectories] == [[]] * len(contents.trajectories)
    return contents


def read(tmp_path: Path, *rows: Any) -> LogContents:
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_logs(path)


@pytest.mark.parametrize(
    ("name", "messages", "calls", "scores"),
    [
        ("blackjack.example_rollouts.jsonl", [6, 4, 4, 6, 4], 0, [-1, 1, -1, 1, 1]),
        ("claude_code_agent.example_math_rollouts.jsonl", [4, 4, 4, 6, 6], 7, [0, 0, 1, 0, 0]),
        ("example_multi_turn_gymnasium.example_rollouts.jsonl", [4, 4, 4, 6, 4], 0, [1, 1, 1, 1, 1]),
        ("example_single_tool_call.example_rollouts.jsonl", [3, 3, 5, 5, 5], 3, [1, 1, 1, 1, 1]),
        ("example_tool_call_multireward.example_rollouts.jsonl", [5, 5, 5, 5, 5], 5, [2, 2, 2, 2, 2]),
        ("pi_agent.example_rollout.jsonl", [2, 2, 4, 2, 4], 2, [0, 0, 1, 0, 1]),
        ("swe_pivot.example_rollouts.jsonl", [3, 3, 3, 3, 3], 0, [0, 0, 0, 0, 0]),
        ("terminal_multi_harness.example_rollouts.jsonl", [2, 2, 2, 2, 2], 5, [1, 1, 1, 1, 0]),
        ("xlam_fc.example_rollouts.jsonl", [5, 5, 6, 5, 5], 6, [1, 1, 1, 0, 0]),
    ],
)
def test_real_rollouts(name: str, messages: list[int], calls: int, scores: list[float]) -> None:
    contents = real(name)
    assert [fate.fate for fate in contents.fates] == ["used"] * 5
    assert [len(trajectory.messages) for trajectory in contents.trajectories] == messages
    assert sum(len(m.tool_calls) for trajectory in contents.trajectories for m in trajectory.messages) == calls
    assert [trajectory.outcome.score for trajectory in contents.trajectories] == scores


@pytest.mark.parametrize(
    ("name", "count", "reason"),
    [
        ("genrm_compare.example_rollouts.jsonl", 5, "a task without a rollout: there is no response"),
        ("gymnasium.example_rollouts.jsonl", 5, "a placeholder: the response holds no items"),
        ("nemo_rl_test_nemo_gym_sanity.json", 1, "expected outputs of a test: token ids without text"),
    ],
)
def test_real_files_without_rollouts(name: str, count: int, reason: str) -> None:
    contents = real(name)
    assert not contents.trajectories
    assert [(fate.fate, fate.reason) for fate in contents.fates] == [("set_apart", reason)] * count


def test_real_attempts_at_one_task_are_a_group() -> None:
    blackjack = real("blackjack.example_rollouts.jsonl").trajectories
    assert {trajectory.group_id for trajectory in blackjack} == {"blackjack_gymnasium_agent/0"}
    assert [(trajectory.terminated, trajectory.truncated) for trajectory in blackjack] == [(True, False)] * 5
    # What the environment says between turns of the model has the role of a user.
    kinds = [message.producer.kind for message in blackjack[0].messages]
    assert kinds == ["script", "script", "script", "model", "environment", "model"]
    math = real("claude_code_agent.example_math_rollouts.jsonl").trajectories
    assert len({trajectory.group_id for trajectory in math}) == 5
    older = real("example_single_tool_call.example_rollouts.jsonl").trajectories
    assert {trajectory.group_id for trajectory in older} == {None}


def test_real_components_and_scores() -> None:
    (first, *_) = real("example_tool_call_multireward.example_rollouts.jsonl").trajectories
    assert first.outcome == Outcome(
        "scored", score=2.0, components={"correctness": 1.0, "schema_valid": 1.0, "format": 0.0}, scorer="nemo_gym"
    )
    assert first.scores == []
    (pivot, *_) = real("swe_pivot.example_rollouts.jsonl").trajectories
    assert [(score.name, score.value, score.direction) for score in pivot.scores] == [
        ("tool_name_match", 0.0, "higher_is_better")
    ]
    assert pivot.metadata["similarity_score"] is None


def test_real_reasoning_text_and_call_are_one_turn() -> None:
    (first, *_) = real("xlam_fc.example_rollouts.jsonl").trajectories
    turn = first.messages[2]
    assert turn.content is not None
    assert isinstance(turn.content[0], ReasoningPart)
    assert turn.text == "\n\n"
    assert [call.name for call in turn.tool_calls] == ["web_chain_details"]
    assert turn.producer == Producer("model", "Qwen/Qwen3-30B-A3B")
    tools = first.tools_at(0)
    assert tools is not None
    assert [tool["function"]["name"] for tool in tools] == ["peers", "web_chain_details"]


@pytest.mark.parametrize("name", ["claude_code_agent.example_math_rollouts.jsonl", "pi_agent.example_rollout.jsonl"])
def test_real_agents_with_tools_of_their_own_call_no_unknown_tools(name: str) -> None:
    trajectories = real(name).trajectories
    assert [trajectory.tools_at(0) for trajectory in trajectories] == [None] * 5
    assert [problems_of(trajectory) for trajectory in trajectories] == [[]] * 5


REQUEST = {"input": [{"role": "user", "content": "2+3?"}], "instructions": "Add."}


def message(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


def test_token_ids_may_be_on_any_item_of_a_turn(tmp_path: Path) -> None:
    tokens = {"prompt_token_ids": [1, 2], "generation_token_ids": [3, 4], "generation_log_probs": [-0.1, -0.2]}
    call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "5"}
    last = {"prompt_token_ids": [1, 2, 3, 4, 5], "generation_token_ids": [6], "generation_log_probs": [-0.3]}
    # The first turn has them on its first item, the second on its last.
    items = [
        message("Let me see.", **tokens),
        call,
        output,
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "five"}]},
        message("5", **last),
    ]
    row = {"responses_create_params": REQUEST, "response": {"output": items, "model": "m"}, "reward": 1.0}
    (trajectory,) = read(tmp_path, row).trajectories
    assert [message.role for message in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert trajectory.messages[2].tokens == TokenRecord([3, 4], "unknown", [-0.1, -0.2], [1, 2])
    assert trajectory.messages[4].tokens == TokenRecord([6], "unknown", [-0.3], [1, 2, 3, 4, 5])
    assert trajectory.messages[4].reasoning == "five"


def test_a_crash_of_the_harness_is_not_a_reward_of_zero(tmp_path: Path) -> None:
    row = {
        "responses_create_params": REQUEST,
        "response": {"output": [], "created_at": 0},
        "reward": 0.0,
        "exception_type": "RuntimeError",
        "_ng_task_index": 3,
    }
    (trajectory,) = read(tmp_path, row).trajectories
    assert trajectory.outcome == Outcome("infrastructure_error", scorer="nemo_gym")
    assert trajectory.group_id == "3"
    assert trajectory.metadata["reward"] == 0.0
    assert trajectory.started_at is None


def test_a_missing_reward_is_not_zero_and_a_cut_answer_is_truncated(tmp_path: Path) -> None:
    response = {"output": [message("5")], "incomplete_details": {"reason": "max_output_tokens"}}
    contents = read(
        tmp_path,
        {"responses_create_params": REQUEST, "response": response},
        {"responses_create_params": REQUEST, "response": {"output": [message("5")]}, "reward": "high"},
    )
    (trajectory,) = contents.trajectories
    assert trajectory.outcome == Outcome()
    assert (trajectory.terminated, trajectory.truncated) == (False, True)
    assert trajectory.stop_reason == "max_output_tokens"
    assert contents.fates[1].reason == "reward: expected a number, got a string"


def test_the_sum_of_usage_is_put_on_a_single_turn_only(tmp_path: Path) -> None:
    usage = {"input_tokens": 9, "output_tokens": 2}
    user = {"type": "message", "role": "user", "content": "And?"}
    contents = read(
        tmp_path,
        {"responses_create_params": REQUEST, "response": {"output": [message("5")], "usage": usage}},
        {
            "responses_create_params": REQUEST,
            "response": {"output": [message("5"), user, message("6")], "usage": usage},
        },
    )
    one, two = contents.trajectories
    assert one.messages[-1].usage is not None
    assert one.messages[-1].usage.input_tokens == 9
    assert [message.usage for message in two.messages] == [None] * 5
    assert two.metadata["response"]["usage"] == usage
