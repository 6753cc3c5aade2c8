"""Training sets of pairs and verdicts: TRL, OpenAI's fine-tuning files, Alpaca."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Branch, ImagePart, Outcome, TextPart, Trajectory
from offline_arl.trajectories.validate import errors_of

REAL_LOGS = Path(__file__).resolve().parents[5] / "shared/real_logs"
PROMPT = [{"role": "user", "content": "2+3?"}]
GOOD = [{"role": "assistant", "content": "5"}]
BAD = [{"role": "assistant", "content": "6"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}


def read(tmp_path: Path, *rows: Any, format: str) -> LogContents:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    contents = read_logs(path)
    assert list(contents.formats.values()) == [format]
    assert [errors_of(trajectory) for trajectory in contents.trajectories] == [[]] * len(contents.trajectories)
    return contents


def said(trajectory: Trajectory) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in trajectory.messages]


def assert_pair(contents: LogContents, prompt: int, chosen: list[str], rejected: list[str]) -> None:
    """The two trajectories of one row share the prompt, a group and a comparison; the first was chosen."""
    first, second = contents.trajectories
    assert [message.text for message in first.messages[prompt:]] == chosen
    assert [message.text for message in second.messages[prompt:]] == rejected
    assert first.messages[:prompt] == second.messages[:prompt]
    assert first.branch is None
    assert second.branch == (Branch(first.trajectory_id, prompt) if prompt else None)
    assert first.group_id == second.group_id is not None
    assert [trajectory.scores[0].value for trajectory in (first, second)] == [1.0, 0.0]
    assert first.scores[0].comparison_id == second.scores[0].comparison_id is not None
    # Being preferred is not success.
    assert first.outcome == second.outcome == Outcome()


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": PROMPT, "chosen": GOOD, "rejected": BAD},
        {"chosen": PROMPT + GOOD, "rejected": PROMPT + BAD},
        {"prompt": "2+3?", "chosen": "5", "rejected": "6"},
        {"prompt": PROMPT, "chosen": PROMPT + GOOD, "rejected": PROMPT + BAD},
        {"chosen": "\n\nHuman: 2+3?\n\nAssistant: 5", "rejected": "\n\nHuman: 2+3?\n\nAssistant: 6"},
    ],
    ids=["explicit", "implicit", "text", "explicit and repeated", "HH"],
)
def test_trl_preferences(tmp_path: Path, row: dict[str, Any]) -> None:
    assert_pair(read(tmp_path, row, format="trl"), 1, ["5"], ["6"])


def test_trl_preference_where_one_answer_goes_on_after_the_other(tmp_path: Path) -> None:
    longer = [*GOOD, {"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes."}]
    contents = read(tmp_path, {"chosen": PROMPT + longer, "rejected": PROMPT + GOOD}, format="trl")
    # The shorter conversation is a prefix of the longer one; its answer is not part of the prompt.
    assert_pair(contents, 1, ["5", "Sure?", "Yes."], ["5"])


def test_trl_preference_that_starts_with_a_call(tmp_path: Path) -> None:
    chosen = [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
    row = {"prompt": PROMPT, "chosen": chosen, "rejected": BAD, "tools": TOOLS}
    contents = read(tmp_path, row, format="trl")
    assert_pair(contents, 1, [""], ["6"])
    first, second = contents.trajectories
    assert first.messages[1].tool_calls[0].arguments == {"a": 2}
    assert first.tools_at(0) == second.tools_at(0) == TOOLS


@pytest.mark.parametrize("tools", [TOOLS, json.dumps(TOOLS), [json.dumps(TOOLS[0])], [TOOLS[0]["function"]]])
def test_trl_tools_in_any_form(tmp_path: Path, tools: Any) -> None:
    row = {"prompt": PROMPT, "completion": GOOD, "tools": tools, "chat_template_kwargs": {"enable_thinking": False}}
    (trajectory,) = read(tmp_path, row, format="trl").trajectories
    assert trajectory.tools_at(0) == TOOLS
    assert trajectory.metadata == {"chat_template_kwargs": {"enable_thinking": False}}


def test_tools_that_cannot_be_read_are_not_passed_over(tmp_path: Path) -> None:
    row = {"prompt": PROMPT, "completion": GOOD, "tools": "[{name: add}]"}
    contents = read(tmp_path, {"prompt": PROMPT, "completion": GOOD, "tools": "null"}, row, format="trl")
    assert contents.trajectories[0].contexts == []
    assert contents.fates[1].fate == "refused"
    assert contents.fates[1].reason == "tools: expected a list of tools or its JSON text, got a string"


def test_a_list_without_tools_is_not_a_list_that_was_not_logged(tmp_path: Path) -> None:
    rows = [{"prompt": PROMPT, "completion": GOOD, "tools": tools} for tools in ([], " [] ", {}, "")]
    contents = read(tmp_path, *rows, format="trl")
    assert [trajectory.tools_at(0) for trajectory in contents.trajectories] == [[], [], None, None]


def test_trl_verdicts_and_completions(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        {"prompt": PROMPT, "completion": GOOD, "label": True},
        {"prompt": "2+3?", "completion": "6", "label": False},
        {"prompt": "2+3?", "completion": "5"},
        format="trl",
    )
    assert [said(trajectory) for trajectory in contents.trajectories] == [
        [("user", "2+3?"), ("assistant", text)] for text in ("5", "6", "5")
    ]
    assert [(t.outcome.status, t.outcome.success) for t in contents.trajectories] == [
        ("scored", True),
        ("scored", False),
        ("unscored", None),
    ]


def test_trl_steps_have_labels(tmp_path: Path) -> None:
    row = {"prompt": "2+3+4?", "completions": ["2+3 is 5.", "5+4 is 8."], "labels": [True, False]}
    (trajectory,) = read(tmp_path, row, format="trl").trajectories
    assert [message.text for message in trajectory.messages] == ["2+3+4?", "2+3 is 5.", "5+4 is 8."]
    assert [(score.message_index, score.value) for score in trajectory.scores] == [(1, 1.0), (2, 0.0)]


def test_trl_rows_without_an_answer_are_set_apart(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        {"prompt": PROMPT, "answer": "5", "data_source": "sums"},
        {"prompt": "2+3?"},
        {"text": "Once upon a time."},
        {"prompt": PROMPT, "chosen": GOOD, "rejected": GOOD},
        {"prompt": PROMPT, "chosen": GOOD, "rejected": None},
        format="trl",
    )
    assert [(fate.fate, fate.reason) for fate in contents.fates] == [
        ("set_apart", "a prompt without an answer"),
        ("set_apart", "a prompt without an answer"),
        ("set_apart", "plain text without turns"),
        ("set_apart", "chosen and rejected are the same"),
        ("refused", "rejected: expected text or a list of messages, got null"),
    ]


def test_openai_preferences(tmp_path: Path) -> None:
    row = {
        "input": {"messages": PROMPT, "tools": TOOLS, "parallel_tool_calls": True},
        "preferred_output": GOOD,
        "non_preferred_output": BAD,
    }
    contents = read(tmp_path, row, format="openai_preferences")
    assert_pair(contents, 1, ["5"], ["6"])
    assert contents.trajectories[0].tools_at(0) == TOOLS
    assert contents.trajectories[0].metadata == {"input": {"parallel_tool_calls": True}}


def test_openai_supervised_files_have_weights(tmp_path: Path) -> None:
    messages = [*PROMPT, {"role": "assistant", "content": "6", "weight": 0}, *PROMPT, {**GOOD[0], "weight": 1}]
    (trajectory,) = read(tmp_path, {"messages": messages, "tools": TOOLS}, format="openai_chat").trajectories
    assert [message.trainable for message in trajectory.messages] == [None, False, None, True]


def test_alpaca_instructions(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        {
            "instruction": "Add.",
            "input": "2, 3",
            "output": "5",
            "system": "You add.",
            "history": [["1+1?", "2"]],
        },
        {"instruction": "2+3?", "input": "", "output": "6", "kto_tag": False},
        format="alpaca",
    )
    first, second = contents.trajectories
    assert said(first) == [
        ("system", "You add."),
        ("user", "1+1?"),
        ("assistant", "2"),
        ("user", "Add.\n2, 3"),
        ("assistant", "5"),
    ]
    assert said(second) == [("user", "2+3?"), ("assistant", "6")]
    assert second.outcome == Outcome("scored", success=False, scorer="label")


@pytest.mark.parametrize(
    "row",
    [
        {"instruction": "2+3?", "input": "", "chosen": "5", "rejected": "6"},
        {"query": "2+3?", "response": "5", "rejected_response": "6"},
    ],
)
def test_alpaca_pairs(tmp_path: Path, row: dict[str, Any]) -> None:
    assert_pair(read(tmp_path, row, format="alpaca"), 1, ["5"], ["6"])


def test_real_queries_with_pictures_in_tags() -> None:
    path = REAL_LOGS / "ms-swift/multi_modal_1.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    contents = read_logs(path)
    assert [fate.fate for fate in contents.fates] == ["used"] * 3
    one, two, none = contents.trajectories
    assert [len(trajectory.messages) for trajectory in (one, two, none)] == [2, 4, 6]
    url = "https://qianwen-res.oss-cn-beijing.aliyuncs.com/Qwen-VL/assets/demo.jpeg"
    assert one.messages[0].content == [ImagePart(url), TextPart("55555")]
    assert two.messages[2].content == [ImagePart(url), ImagePart(url), TextPart("eeeee")]
    assert said(two)[:2] == [("user", "hello"), ("assistant", "123")]
    assert [message.text for message in none.messages] == ["AAAAA", "BBBBB", "CCCCC", "DDDDD", "EEEEE", "FFFFF"]
