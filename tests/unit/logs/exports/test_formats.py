"""What the other tool gets to see of a trajectory, format by format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from export_examples import ADD, ANSWER, FIND, MODEL, QUESTION, compared, rich, text, tools

from offline_arl.logs.exports.catalog import exporters
from offline_arl.logs.exports.exporter import NoRecordError, ToolAwareExporter, ToolShapes, record_of
from offline_arl.logs.exports.pairs import Pairs
from offline_arl.logs.slots.slot import KEY
from offline_arl.trajectories.schema import (
    Branch,
    Context,
    Message,
    Outcome,
    ReasoningPart,
    Score,
    TextPart,
    TokenRecord,
    Trajectory,
    tool_call,
)


def exported(name: str, *trajectories: Trajectory, shapes: ToolShapes | None = None) -> dict[str, Any]:
    exporter = exporters()[name]
    if shapes is not None:
        assert isinstance(exporter, ToolAwareExporter)
        exporter = exporter.with_tools(shapes)
    return record_of(exporter, trajectories)


def with_chat(*messages: Message, **fields: Any) -> Trajectory:
    return msgspec.structs.replace(rich(), messages=list(messages), branch=None, scores=[], contexts=[], **fields)


def test_openai_chat_has_everything_in_its_own_place() -> None:
    record = exported("openai_chat", rich())
    assert record["messages"][2] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "two sums at once",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}},
            {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{2,"}},
        ],
        "tokens": {
            "token_ids": [7, 8],
            "fingerprint": "f",
            "logprobs": [-0.5, -1.0],
            "prompt_token_ids": [1, 2, 3],
        },
        "timestamp": "2026-01-02T03:04:05Z",
        "id": "call-1",
        "producer": {"kind": "model", "name": "tiny"},
        "usage": {"prompt_tokens": 20, "completion_tokens": 7, "cost": 0.5},
    }
    assert record["messages"][1]["content"][1] == {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}
    assert record["messages"][4]["error"] == {"type": "invalid", "text": "not JSON"}
    assert record["messages"][5]["weight"] == 0
    assert record["tools"] == [ADD, FIND]
    assert record["contexts"] == [{"start": 0, "tools": ["add"]}, {"start": 3, "tools": ["add", "find"]}]
    assert record["branch"] == {"trajectory_id": "t0", "message_index": 2}
    assert record["outcome"] == {"status": "scored", "success": True, "score": 1.0, "scorer": "judge"}


def test_trl_has_arguments_as_objects_and_tools_as_text() -> None:
    record = exported("trl", rich())
    assert [message["role"] for message in record["messages"]] == [
        "system", "user", "assistant", "tool", "tool", "assistant",
    ]  # fmt: skip
    calls = record["messages"][2]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == [{"a": 2, "b": 3}, "{2,"]
    assert record["messages"][1]["content"] == QUESTION
    # Templates of some models write the name of the tool beside its result.
    assert record["messages"][3] == {"role": "tool", "content": "5", "tool_call_id": "c1", "name": "add"}
    assert json.loads(record["tools"]) == [ADD, FIND]
    assert all(isinstance(record[column], str) for column in ("tools", KEY))


def test_trl_answers_begin_where_the_agent_decides() -> None:
    chat = [
        text("system", "s"),
        text("assistant", "hello", producer={"kind": "script"}),
        text("user", "u"),
        text("assistant", "a"),
        text("user", "v"),
        text("assistant", "b"),
    ]
    record = exported("trl_prompt_completion", with_chat(*chat))
    assert [message["content"] for message in record["completion"]] == ["a", "v", "b"]
    # What a branch shares with another trajectory is part of the prompt.
    branch = msgspec.structs.replace(with_chat(*chat), branch=Branch("t0", 5))
    assert [message["content"] for message in exported("trl_prompt_completion", branch)["completion"]] == ["b"]
    with pytest.raises(NoRecordError, match="no answer of the agent to a user or a tool"):
        exported("trl_prompt_completion", with_chat(*chat[:3]))


@pytest.mark.parametrize(
    ("outcome", "label"),
    [
        (Outcome("scored", success=True), True),
        (Outcome("scored", success=False), False),
        (Outcome("scored", score=1.0), None),
        (Outcome(), None),
        (Outcome("infrastructure_error", success=False), None),
    ],
)
def test_trl_verdicts_are_verdicts(outcome: Outcome, label: bool | None) -> None:
    trajectory = msgspec.structs.replace(rich(), outcome=outcome)
    if label is None:
        with pytest.raises(NoRecordError, match="no verdict on its outcome"):
            exported("trl_unpaired", trajectory)
    else:
        assert exported("trl_unpaired", trajectory)["label"] is label


def test_trl_preferences_share_a_prompt() -> None:
    record = exported("trl_preference", *compared())
    sides = [[message["content"] for message in record[side]] for side in ("prompt", "chosen", "rejected")]
    assert sides == [["2 + 3?"], ["5"], ["6"]]


def test_trl_preferences_part_before_a_call_and_not_before_its_result() -> None:
    call = Message("assistant", None, [tool_call("add", '{"a": 1}', id="c")], producer=MODEL)
    sides = [
        with_chat(text("user", "u"), call, text("tool", result, tool_call_id="c"), text("assistant", result))
        for result in ("1", "2")
    ]
    record = exported("trl_preference", *sides)
    assert [message["role"] for message in record["prompt"]] == ["user"]
    assert [message["role"] for message in record["rejected"]] == ["assistant", "tool", "assistant"]


def test_pairs_are_those_of_one_comparison() -> None:
    chosen, rejected = compared()
    lone = msgspec.structs.replace(chosen, trajectory_id="lone", scores=[Score("preference", 1.0, comparison_id="x")])
    bare = msgspec.structs.replace(chosen, trajectory_id="bare", scores=[])
    pairs = Pairs(fetch=lambda name: pytest.fail(f"{name} is still held"))
    found = list(pairs.of([lone, rejected, bare, chosen]))
    assert found == [(chosen, rejected)]
    assert pairs.unpaired == {"lone", "bare"}


def test_pairs_that_are_far_apart_are_fetched_again() -> None:
    chosen, rejected = compared()
    others = [
        msgspec.structs.replace(
            chosen, trajectory_id=f"o{number}", scores=[Score("preference", 1.0, comparison_id=f"{number}")]
        )
        for number in range(300)
    ]
    fetched = []

    def fetch(name: str) -> Trajectory:
        fetched.append(name)
        return chosen

    assert list(Pairs(fetch).of([chosen, *others, rejected])) == [(chosen, rejected)]
    assert fetched == ["chosen"]


def test_atif_has_results_in_the_step_that_called() -> None:
    record = exported("atif", rich())
    assert (record["schema_version"], record["trajectory_id"], record["session_id"]) == ("ATIF-v1.7", "t1", "s")
    assert record["agent"] == {
        "name": "adder", "version": "unknown", "model_name": "tiny", "tool_definitions": [ADD, FIND],
    }  # fmt: skip
    assert [step["source"] for step in record["steps"]] == ["system", "user", "agent", "agent"]
    assert record["steps"][2] == {
        "step_id": 3,
        "source": "agent",
        "message": "",
        "timestamp": "2026-01-02T03:04:05Z",
        "reasoning_content": "two sums at once",
        "tool_calls": [
            {"tool_call_id": "c1", "function_name": "add", "arguments": {"a": 2, "b": 3}},
            {"tool_call_id": "c2", "function_name": "add", "arguments": {}},
        ],
        "metrics": {
            "prompt_tokens": 20,
            "completion_tokens": 7,
            "cost_usd": 0.5,
            "prompt_token_ids": [1, 2, 3],
            "completion_token_ids": [7, 8],
            "logprobs": [-0.5, -1.0],
        },
        "observation": {
            "results": [
                {"content": "5", "source_call_id": "c1"},
                {"content": "no such sum", "source_call_id": "c2"},
            ]
        },
    }
    image = {"type": "image", "source": {"media_type": "image/png", "path": "https://a.b/c.png"}}
    assert record["steps"][1]["message"] == [{"type": "text", "text": QUESTION}, image]


def test_atif_steps_that_no_model_made() -> None:
    chat = [
        text("assistant", "hello", producer={"kind": "script"}),
        text("tool", "late", tool_call_id="gone"),
        text("assistant", "before", producer={"kind": "copy"}),
    ]
    steps = exported("atif", with_chat(*chat))["steps"]
    assert steps[0]["llm_call_count"] == 0
    # A result whose call is not there is an operation of the system; Harbor refuses a reference to nothing.
    assert steps[1] == {
        "step_id": 2, "source": "system", "message": "", "observation": {"results": [{"content": "late"}]},
    }  # fmt: skip
    assert steps[2]["is_copied_context"] is True


def nodes(*messages: Message) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = exported("prime_rl", with_chat(*messages))["nodes"]
    return found


def test_prime_rl_is_a_path_of_messages() -> None:
    trace = exported("prime_rl", rich())
    assert [node["parent"] for node in trace["nodes"]] == [None, 0, 1, 2, 3, 4]
    assert [node["sampled"] for node in trace["nodes"]] == [False, False, True, False, False, False]
    assert [call["name"] for call in trace["nodes"][2]["message"]["tool_calls"]] == ["add", "add"]
    assert trace["nodes"][0]["tools"] == [
        {"name": "add", "description": "Add.", "parameters": {"type": "object"}},
        {"name": "find", "parameters": {"type": "object", "properties": {"q": {}}}},
    ]
    assert trace["calls"] == [
        {"node": 2, "model": "tiny", "usage": {"prompt_tokens": 20, "completion_tokens": 7, "cost": 0.5}}
    ]
    assert trace["rewards"] == {"score": {"score": 1.0, "weight": 1.0}}
    assert (trace["task"]["key"], trace["is_completed"], trace["ok"]) == ("sums/1", True, True)


def test_prime_rl_gets_tokens_where_they_make_one_sequence() -> None:
    def answer(prompt: list[int] | None, sampled: list[int]) -> Message:
        record = TokenRecord(sampled, "f", [-1.0] * len(sampled), prompt)
        return Message("assistant", [TextPart("a")], producer=MODEL, tokens=record)

    user = text("user", "u")
    grown = nodes(user, answer([1, 2], [3]), user, answer([1, 2, 3, 4], [5, 6]))
    assert [node["token_ids"] for node in grown] == [[], [1, 2, 3], [], [4, 5, 6]]
    assert [node["mask"] for node in grown] == [[], [False, False, True], [], [False, True, True]]
    rewritten = nodes(user, answer([1, 2], [3]), user, answer([1, 9, 3, 4], [5, 6]))
    assert [node["token_ids"] for node in rewritten] == [[], [], [], []]
    unknown = nodes(user, answer(None, [3]))
    assert [node["token_ids"] for node in unknown] == [[], []]


def test_prime_rl_trains_what_branches_share_once() -> None:
    trajectory = msgspec.structs.replace(
        with_chat(text("user", "u"), text("assistant", "a"), text("user", "v"), text("assistant", "b")),
        branch=Branch("t0", 2),
    )
    assert [node["sampled"] for node in exported("prime_rl", trajectory)["nodes"]] == [False, False, False, True]


def turns(*messages: Message) -> list[tuple[str, str]]:
    record = exported("sharegpt", with_chat(*messages))
    return [(turn["from"], turn["value"]) for turn in record["conversations"]]


def test_sharegpt_alternates() -> None:
    record = exported("sharegpt", rich())
    assert [turn["from"] for turn in record["conversations"]] == [
        "system", "human", "function_call", "observation", "gpt",
    ]  # fmt: skip
    thought, _, calls = record["conversations"][2]["value"].rpartition("\n</think>\n\n")
    assert thought == "<think>\ntwo sums at once"
    assert json.loads(calls) == [
        {"name": "add", "arguments": {"a": 2, "b": 3}},
        {"name": "add", "arguments": "{2,"},
    ]
    assert record["conversations"][3]["value"] == "5\n</tool_response>\n<tool_response>\nno such sum"
    assert json.loads(record["tools"]) == [ADD, FIND]
    assert record["kto_tag"] is True


def test_sharegpt_keeps_its_order_whatever_comes() -> None:
    user, answer = text("user", "u"), text("assistant", "a")
    assert turns(answer, user, answer) == [("human", ""), ("gpt", "a"), ("human", "u"), ("gpt", "a")]
    assert turns(user, text("user", "v"), answer) == [("human", "u\n\nv"), ("gpt", "a")]
    assert turns(user, answer, user) == [("human", "u"), ("gpt", "a")]
    assert turns(user, text("system", "s"), answer) == [("human", "u\n\ns"), ("gpt", "a")]
    assert turns(user) == [("human", "u")]


def test_sharegpt_calls_stay_readable_whatever_they_say() -> None:
    tagged = tool_call("add", {"text": "<tool_call>{}</tool_call>"}, id="c")
    thought = [ReasoningPart("no </think> yet")]
    message = Message("assistant", thought, [tagged], producer=MODEL)
    value = '{"name":"add","arguments":{"text":"<tool_call>{}</tool_call>"}}'
    assert turns(text("user", "u"), message) == [("human", "u"), ("function_call", value)]


def verl_tools(*lists: Sequence[Any]) -> tuple[Any, Any]:
    """What stands in the column of tools, and the type of the column."""
    exporter = exporters()["verl"]
    assert isinstance(exporter, ToolAwareExporter)
    shaped = exporter.with_tools(ToolShapes(lists))
    trajectory = with_chat(text("user", "u"), text("assistant", "a"))
    trajectory = msgspec.structs.replace(trajectory, contexts=[Context(0, tools(*lists[0]))])
    return record_of(shaped, [trajectory])["tools"], shaped.arrow_columns()["tools"]


def test_verl_tools_are_nested_where_one_type_holds_them() -> None:
    value, kind = verl_tools([ADD])
    assert value == [ADD]
    assert pa.array([value], kind).to_pylist() == [[ADD]]


def test_verl_tools_never_get_parameters_of_other_tools() -> None:
    # As nested objects, each would have the keys of the other as nulls.
    other = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "required": ["q"]}}}
    value, kind = verl_tools([ADD], [other])
    assert value == [
        {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": '{"type":"object"}'}}
    ]
    assert pa.array([value], kind).to_pylist() == [value]


def test_verl_arguments_are_text_and_missing_tools_an_empty_list() -> None:
    record = exported("verl", with_chat(*rich().messages), shapes=ToolShapes())
    calls = record["messages"][2]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ['{"a": 2, "b": 3}', "{2,"]
    assert record["tools"] == []


def test_verl_prompts_end_before_the_first_answer() -> None:
    record = exported("verl_rl", rich())
    assert record["prompt"] == [{"role": "system", "content": "You add."}, {"role": "user", "content": QUESTION}]
    assert (record["data_source"], record["extra_info"]["task_id"]) == ("sums", "sums/1")
    # The answer is nowhere but in the slot.
    assert ANSWER in record["extra_info"].pop(KEY)
    assert ANSWER not in json.dumps(record)
