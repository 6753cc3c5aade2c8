"""ShareGPT, LLaMA-Factory (both versions) and ms-swift."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import Branch, FilePart, ImagePart, Outcome, ReasoningPart, TextPart
from offline_arl.trajectories.validate import errors_of

REAL_LOGS = Path(__file__).resolve().parents[5] / "shared/real_logs"


def read(tmp_path: Path, *rows: Any, format: str = "sharegpt") -> LogContents:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    contents = read_logs(path)
    assert list(contents.formats.values()) == [format]
    assert [errors_of(trajectory) for trajectory in contents.trajectories] == [[]] * len(contents.trajectories)
    return contents


def real(name: str, format: str) -> LogContents:
    path = REAL_LOGS / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    contents = read_logs(path)
    assert contents.formats == {str(path): format}
    assert [errors_of(trajectory) for trajectory in contents.trajectories] == [[]] * len(contents.trajectories)
    return contents


def turns(*pairs: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"from": role, "value": value} for role, value in pairs]


ADD = '[{"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}]'


def test_calls_and_observations_are_turns(tmp_path: Path) -> None:
    row = {
        "conversations": turns(
            ("human", "2+3?"),
            ("function_call", '{"name": "add", "arguments": {"a": 2, "b": 3}}'),
            ("observation", "5"),
            ("gpt", "5"),
        ),
        "system": "You add.",
        "tools": ADD,
        "source": "hand",
    }
    (trajectory,) = read(tmp_path, row).trajectories
    assert [message.role for message in trajectory.messages] == ["system", "user", "assistant", "tool", "assistant"]
    (call,) = trajectory.messages[2].tool_calls
    assert (call.name, call.arguments) == ("add", {"a": 2, "b": 3})
    assert trajectory.messages[3].tool_call_id == call.id
    tools = trajectory.tools_at(0)
    assert tools is not None
    assert tools[0]["function"]["name"] == "add"
    assert trajectory.metadata == {"source": "hand"}


def test_text_and_parallel_calls_of_one_turn_are_one_message(tmp_path: Path) -> None:
    row = {
        "messages": [
            {"role": "user", "content": "2+3 and 4+4?"},
            {"role": "assistant", "content": "Let me add."},
            {"role": "tool_call", "content": '{"name": "add", "arguments": {"a": 2}}'},
            {"role": "tool_call", "content": '{"name": "add", "arguments": "{\\"a\\": 4}"}'},
            {"role": "tool_response", "content": "5"},
            {"role": "tool_response", "content": {"sum": 8}},
            {"role": "assistant", "content": "5 and 8.", "loss": False},
        ]
    }
    (trajectory,) = read(tmp_path, row).trajectories
    assert [message.role for message in trajectory.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    turn = trajectory.messages[1]
    assert turn.text == "Let me add."
    assert [call.arguments for call in turn.tool_calls] == [{"a": 2}, {"a": 4}]
    assert [message.tool_call_id for message in trajectory.messages[2:4]] == [call.id for call in turn.tool_calls]
    assert trajectory.messages[3].text == '{"sum":8}'
    assert trajectory.messages[4].trainable is False


@pytest.mark.parametrize(
    "value",
    [
        '[{"name": "add", "arguments": {"a": 2}}, {"name": "add", "arguments": {"a": 4}}]',
        '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {"a": 4}}\n</tool_call>',
        "[{'name': 'add', 'arguments': {'a': 2}}, {'name': 'add', 'arguments': {'a': 4}}]",
    ],
    ids=["list", "tags", "literal of Python"],
)
def test_several_calls_in_one_turn(tmp_path: Path, value: str) -> None:
    row = {"conversations": turns(("human", "?"), ("function_call", value))}
    (trajectory,) = read(tmp_path, row).trajectories
    assert [call.arguments for call in trajectory.messages[1].tool_calls] == [{"a": 2}, {"a": 4}]


def test_a_call_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    contents = read(tmp_path, {"conversations": turns(("human", "?"), ("function_call", "add 2 and 3"))})
    assert not contents.trajectories
    assert contents.fates[0].reason == ("conversations[1].value: expected the JSON of a call with a name, got a string")


def test_pairs_of_llama_factory(tmp_path: Path) -> None:
    row = {
        "conversations": turns(("human", "2+3?")),
        "chosen": {"from": "gpt", "value": "5"},
        "rejected": {"from": "gpt", "value": "6"},
    }
    first, second = read(tmp_path, row).trajectories
    assert [message.text for message in first.messages] == ["2+3?", "5"]
    assert [message.text for message in second.messages] == ["2+3?", "6"]
    assert second.branch == Branch(first.trajectory_id, 1)
    assert [trajectory.scores[0].value for trajectory in (first, second)] == [1.0, 0.0]


def test_a_rejected_response_stands_for_all_after_the_last_message_of_the_user(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": "2+3?"},
        {"role": "tool_call", "content": '{"name": "add", "arguments": {}}'},
        {"role": "tool_response", "content": "5"},
        {"role": "assistant", "content": "5"},
    ]
    first, second = read(tmp_path, {"messages": messages, "rejected_response": "6"}).trajectories
    assert [message.role for message in first.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert [message.text for message in second.messages] == ["You add.", "2+3?", "6"]
    assert second.branch == Branch(first.trajectory_id, 2)
    other = [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "7"}]
    first, second = read(tmp_path, {"messages": messages, "rejected_messages": other}).trajectories
    # The rejected conversation has the system prompt of the chosen one.
    assert [message.text for message in second.messages] == ["You add.", "2+3?", "7"]
    assert second.branch == Branch(first.trajectory_id, 2)


def test_verdicts_are_outcomes_and_classes_are_not(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        {"conversations": turns(("human", "2+3?"), ("gpt", "5")), "kto_tag": True},
        {"conversations": turns(("human", "2+3?"), ("gpt", "6")), "label": False},
        {"conversations": turns(("human", "2+3?"), ("gpt", "6")), "label": 3},
    )
    assert [trajectory.outcome for trajectory in contents.trajectories] == [
        Outcome("scored", success=True, scorer="label"),
        Outcome("scored", success=False, scorer="label"),
        Outcome(),
    ]
    assert contents.trajectories[2].metadata == {"label": 3}


def test_media_stand_where_their_markers_are(tmp_path: Path) -> None:
    contents = read(
        tmp_path,
        {
            "conversations": turns(("human", "<image>A<video><image>"), ("gpt", "Both.")),
            "images": ["1.png", {"bytes": None, "path": "2.png"}],
            "videos": ["3.mp4"],
        },
        {"conversations": turns(("human", "<image>A"), ("gpt", "B")), "images": ["1.png", "2.png"]},
    )
    first, second = contents.trajectories
    assert first.messages[0].content == [
        ImagePart("1.png"),
        TextPart("A"),
        FilePart("3.mp4", "video"),
        ImagePart("2.png"),
    ]
    # One marker and two pictures: nobody can tell which it stands for.
    assert second.messages[0].content == [TextPart("<image>A")]
    assert second.metadata == {"images": ["1.png", "2.png"]}


def test_real_glaive_conversations() -> None:
    contents = real("llama-factory/glaive_toolcall_en_demo.json", "sharegpt")
    assert contents.count("used") == len(contents.fates) == 300
    rows = json.loads((REAL_LOGS / "llama-factory/glaive_toolcall_en_demo.json").read_text())
    for row, trajectory in zip(rows, contents.trajectories, strict=True):
        calls = [turn["value"] for turn in row["conversations"] if turn["from"] == "function_call"]
        assert [
            {"name": call.name, "arguments": call.arguments}
            for message in trajectory.messages
            for call in message.tool_calls
        ] == [json.loads(call) for call in calls]
        assert len(trajectory.messages) == len(row["conversations"])
        tools = trajectory.tools_at(0) or []
        assert [tool["function"]["name"] for tool in tools] == [
            tool["name"] for tool in json.loads(row["tools"] or "[]")
        ]


def test_real_verdicts() -> None:
    contents = real("llama-factory/kto_en_demo.json", "sharegpt")
    successes = [trajectory.outcome.success for trajectory in contents.trajectories]
    assert (successes.count(True), successes.count(False), len(successes)) == (150, 150, 300)


def test_real_pictures() -> None:
    contents = real("llama-factory/mllm_demo.json", "sharegpt")
    assert [len(trajectory.messages) for trajectory in contents.trajectories] == [4] * 6
    first = contents.trajectories[0].messages
    assert first[0].content == [ImagePart("mllm_demo_data/1.jpg"), TextPart("Who are they?")]
    assert first[2].content == [TextPart("What are they doing?"), ImagePart("mllm_demo_data/1.jpg")]


def test_real_roles_of_ms_swift() -> None:
    contents = real("ms-swift/conversations.jsonl", "sharegpt")
    assert [[message.role for message in trajectory.messages] for trajectory in contents.trajectories] == [
        ["system", "user", "assistant"],
        ["user", "assistant", "user", "assistant"],
        ["user", "assistant", "user", "assistant"],
    ]


def test_real_index_of_data_sets_is_set_apart() -> None:
    contents = real("llama-factory/dataset_info.json", "llama_factory")
    (fate,) = contents.fates
    assert (fate.fate, fate.reason) == ("set_apart", "an index of data sets (dataset_info.json), not a conversation")


def test_real_messages_of_parts() -> None:
    contents = real("llama-factory/reason_tool_use_demo_50.jsonl", "llama_factory")
    assert contents.count("used") == len(contents.fates) == 50
    messages = [message for trajectory in contents.trajectories for message in trajectory.messages]
    roles = Counter(message.role for message in messages)
    assert roles == {"system": 50, "user": 70, "assistant": 112, "tool": 42}
    # 41 turns with one call, 9 with two, 3 with three; all 112 turns of the model start with reasoning.
    counts = [len(message.tool_calls) for message in messages]
    assert (counts.count(1), counts.count(2), counts.count(3)) == (41, 9, 3)
    assert all(message.reasoning for message in messages if message.role == "assistant")
    call = contents.trajectories[1].messages[2].tool_calls[0]
    assert (call.name, call.arguments) == ("get_movie_details", {"title": "Inception"})


def parts(role: str, *pairs: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"role": role, "content": [{"type": kind, "value": value} for kind, value in pairs], **more}


def test_parts_of_one_turn_stay_together(tmp_path: Path) -> None:
    row = {
        "messages": [
            parts("user", ("text", "2+3?")),
            parts(
                "assistant",
                ("reasoning", "I add."),
                ("text", "Let me see."),
                ("tool_call", '{"name": "add", "arguments": {"a": 2}}'),
                ("audio_url", "x.wav"),
                loss_weight=0.0,
            ),
            parts("tool", ("text", "5")),
            parts("assistant", ("text", "5"), loss_weight=0.5),
        ],
        "tools": ADD,
    }
    (trajectory,) = read(tmp_path, row, format="llama_factory").trajectories
    turn = trajectory.messages[1]
    assert turn.content == [ReasoningPart("I add."), TextPart("Let me see.")]
    assert turn.tool_calls[0].arguments == {"a": 2}
    assert turn.metadata == {"other_parts": [{"index": 3, "part": {"type": "audio_url", "value": "x.wav"}}]}
    assert [message.trainable for message in trajectory.messages] == [None, False, None, True]
    assert trajectory.messages[3].metadata == {"loss_weight": 0.5}


def test_pairs_of_parts(tmp_path: Path) -> None:
    chosen = [parts("user", ("text", "2+3?")), parts("assistant", ("text", "5"))]
    rejected = [parts("user", ("text", "2+3?")), parts("assistant", ("text", "6"))]
    row = {"chosen_messages": chosen, "rejected_messages": rejected}
    first, second = read(tmp_path, row, format="llama_factory").trajectories
    assert [message.text for message in first.messages] == ["2+3?", "5"]
    assert second.branch == Branch(first.trajectory_id, 1)
