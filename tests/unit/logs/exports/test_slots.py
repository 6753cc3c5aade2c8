"""The slot says what a record does not, once, and gives way where another tool changed the record."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from export_examples import ANSWER, QUESTION, rich
from hypothesis import given
from hypothesis import strategies as st

from offline_arl.logs.adapter import RawRecord, RecordRefusedError
from offline_arl.logs.exports.catalog import exporters
from offline_arl.logs.exports.exporter import record_of
from offline_arl.logs.providers.openai_chat import OpenAIChatAdapter
from offline_arl.logs.slots.slot import KEY
from offline_arl.trajectories.schema import Branch, Message, Producer, TextPart, Trajectory, tool_call


def read(record: dict[str, Any]) -> Trajectory:
    raw = RawRecord("f.jsonl", "f.jsonl", 0, msgspec.json.encode(record))
    (trajectory,) = OpenAIChatAdapter().convert(raw)
    return trajectory


def exported(trajectory: Trajectory, name: str = "trl") -> dict[str, Any]:
    return record_of(exporters()[name], [trajectory])


def slot_of(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record[KEY])
    return found


@pytest.mark.parametrize("name", ["trl", "verl", "atif", "prime_rl", "sharegpt"])
def test_a_slot_repeats_no_text_of_the_record(name: str) -> None:
    record = exported(rich(), name)
    slot = record.get(KEY) or record.get("extra", {}).get(KEY) or record["info"][KEY]
    text = slot if isinstance(slot, str) else json.dumps(slot)
    assert QUESTION not in text
    assert ANSWER not in text
    assert "two sums at once" not in text
    assert "Add." not in text  # the description of a tool


def test_of_own_records_the_slot_says_nothing_but_what_a_file_part_lacks() -> None:
    slot = exported(rich(), "openai_chat")[KEY]
    assert slot.keys() == {"version", "digest"}


def test_spelling_of_arguments_is_said_once_for_all_calls() -> None:
    calls = [tool_call("f", f'{{"number": {number}, "text": "Ä"}}', id=str(number)) for number in range(3)]
    odd = tool_call("f", '{ "number" :9}', id="9")
    chat = [Message("user", [TextPart("go")]), Message("assistant", None, [*calls, odd])]
    slot = slot_of(exported(msgspec.structs.replace(rich(), messages=chat)))
    assert slot["arguments"] == "spaced"
    assert slot["messages"]["1"]["tool_calls"] == {"3": {"arguments_raw": '{ "number" :9}'}}


def test_what_all_messages_of_a_role_need_is_said_once() -> None:
    answer = Message("assistant", [TextPart("yes")], producer=Producer("model", "tiny"))
    human = Message("assistant", [TextPart("no")], producer=Producer("human"))
    chat = [Message("user", [TextPart("?")]), answer, answer, human, answer]
    slot = slot_of(exported(msgspec.structs.replace(rich(), messages=chat)))
    assert slot["roles"] == {"assistant": {"producer": {"kind": "model", "name": "tiny"}}}
    assert slot["messages"] == {"3": {"producer": {"kind": "human"}}}


def test_tools_are_named_and_not_repeated() -> None:
    slot = slot_of(exported(rich()))
    assert slot["contexts"] == [{"start": 0, "tools": ["add"]}, {"start": 3, "tools": ["add", "find"]}]


def test_a_changed_record_is_another_trajectory() -> None:
    record = exported(rich())
    record["messages"][-1]["content"] = "The sums are 5 and 43."
    changed = read(record)
    assert changed.trajectory_id != "t1"
    assert changed.metadata["edited_trajectory_id"] == "t1"
    assert changed.messages[-1].text == "The sums are 5 and 43."
    # Whose it is still holds; what it was worth, what it shares, and what was said of single messages do not.
    assert (changed.task_id, changed.group_id, changed.user_id, changed.model) == ("sums/1", "g", "u", "tiny")
    assert changed.outcome.status == "unscored"
    assert (changed.branch, changed.scores) == (None, [])
    assert changed.messages[2].usage is None


def test_an_unchanged_record_keeps_its_id_wherever_it_stands() -> None:
    record = exported(rich())
    raw = msgspec.json.encode(record)
    ids = {
        OpenAIChatAdapter().convert(RawRecord(name, name, position, raw))[0].trajectory_id
        for name, position in (("a.jsonl", 0), ("b.jsonl", 7))
    }
    assert ids == {"t1"}


def test_keys_of_this_project_in_records_of_others() -> None:
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day", "id": "m2"}]
    tools = [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}]
    trajectory = read(
        {
            "messages": chat,
            "tools": tools,
            "contexts": [{"start": 0, "tools": ["g"]}, {"start": 1, "tools": ["g", "f"]}],
            "trajectory_id": "mine",
            "parent_trajectory_id": "parent",
            "session_id": "s",
            "user_id": 7,
            "identifiers": {"run": "r"},
            "branch": {"trajectory_id": "other", "message_index": 1},
            "scores": [{"name": "toxicity", "value": 0.5, "direction": "lower_is_better", "message_index": 1}],
        }
    )
    assert (trajectory.trajectory_id, trajectory.parent_trajectory_id) == ("mine", "parent")
    assert (trajectory.session_id, trajectory.user_id, trajectory.identifiers) == ("s", "7", {"run": "r"})
    assert trajectory.branch == Branch("other", 1)
    assert trajectory.messages[1].id == "m2"
    assert [(score.name, score.direction, score.message_index) for score in trajectory.scores] == [
        ("toxicity", "lower_is_better", 1)
    ]
    assert [len(trajectory.tools_at(index) or ()) for index in (0, 1)] == [1, 2]
    assert trajectory.metadata == {}


def test_values_of_another_shape_stay_in_the_metadata() -> None:
    odd = {
        "trajectory_id": 7,
        "identifiers": ["r"],
        "branch": {"name": "main"},
        "scores": [{"name": "a", "value": 1, "unit": "%"}],
        "contexts": ["page 1"],
        KEY: {"theme": "dark"},
    }
    trajectory = read({"messages": [{"role": "user", "content": "hello"}], **odd})
    assert trajectory.metadata == odd


def test_a_score_on_a_message_that_is_not_there_stays_in_the_metadata() -> None:
    scores = [{"name": "a", "message_index": 1}]
    trajectory = read({"messages": [{"role": "user", "content": "hello"}], "scores": scores})
    assert trajectory.metadata == {"scores": scores}


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(slot: dict[str, Any]) -> None:
        *outer, last = path.split(".")
        for name in outer:
            slot = slot.setdefault(name, {})
        slot[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set("version", 2), "offline_arl.version: 2 is of a newer version of this program; update it"),
        (_set("layout", [9]), "offline_arl.layout[0]: the record has no message 9"),
        (_set("trajectory.score", 1), "offline_arl.trajectory: there is no field 'score'"),
        (_set("trajectory.terminated", "yes"), "offline_arl.trajectory.terminated: Expected `bool`, got `str`"),
        (_set("messages.0.role", "bishop"), "offline_arl.messages[0].role: Invalid enum value 'bishop'"),
        (_set("messages.0.content", [{"type": "text", "slice": [0, 999]}]),
         "offline_arl.messages[0].content[0].slice: expected two positions in the text"),
        (_set("contexts", [{"start": 0, "tools": ["h"]}]), "offline_arl.contexts[0].tools: the record has no tool 'h'"),
        (_set("messages.2.tool_calls", 7), "offline_arl.messages[2].tool_calls: expected an object or a list"),
    ],
)  # fmt: skip
def test_a_slot_that_does_not_fit_is_refused(change: Callable[[dict[str, Any]], None], reason: str) -> None:
    record = exported(rich())
    slot = slot_of(record)
    change(slot)
    with pytest.raises(RecordRefusedError) as error:
        read({**record, KEY: json.dumps(slot)})
    assert str(error.value) == reason


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
SLOT_KEYS = ["trajectory", "contexts", "arguments", "layout", "roles", "messages"]


@given(values=st.dictionaries(st.sampled_from(SLOT_KEYS), json_values), deep=json_values)
def test_any_slot_is_applied_or_refused(values: dict[str, Any], deep: Any) -> None:
    record = exported(rich())
    digest = slot_of(record)["digest"]
    layers = [
        {"version": 1, "digest": digest, **values},
        {"version": 1, "digest": digest, "messages": {"2": {"tool_calls": {"0": deep}, "content": [deep]}}},
        {"version": 1, "digest": digest, "trajectory": {"branch": deep, "scores": deep, "metadata": deep}},
    ]
    reasons = []
    for slot in layers:
        try:
            read({**record, KEY: slot})
        except RecordRefusedError as error:
            reasons.append(str(error))
    assert all(reason.startswith(KEY) for reason in reasons)
