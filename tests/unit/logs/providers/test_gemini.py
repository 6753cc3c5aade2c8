"""Gemini contents and responses, Gemini CLI sessions and the responses of its test runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.providers.gemini_messages import convert_contents, convert_response, normalize_tools
from offline_arl.logs.reading import LogContents, read_logs
from offline_arl.trajectories.schema import (
    Branch,
    ImagePart,
    MessageError,
    Producer,
    ReasoningPart,
    TextPart,
    TokenRecord,
    Trajectory,
    Usage,
)

REAL_LOGS = Path(__file__).resolve().parents[5] / "shared/real_logs"


def read(folder: Path, records: Sequence[Any], name: str = "log.jsonl") -> LogContents:
    path = folder / name
    path.write_text("".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records))
    contents = read_logs(path)
    assert len(contents.fates) == len(records)
    return contents


def outline(trajectory: Trajectory) -> list[str]:
    return [
        f"{m.role[0]} {m.text}"
        + "".join(f" +{c.id}" for c in m.tool_calls)
        + (f" ={m.tool_call_id}" * (m.role == "tool"))
        for m in trajectory.messages
    ]


def fates(contents: LogContents) -> list[str]:
    return [item.fate for item in contents.fates]


def function_call(name: str, **args: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args}}


def function_response(name: str, response: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": response}}


def test_calls_without_ids_are_paired_by_name_and_order() -> None:
    messages = convert_contents(
        [
            {"role": "user", "parts": [{"text": "Read both."}]},
            {
                "role": "model",
                "parts": [
                    {"text": "Plan.", "thought": True, "thoughtSignature": "S0"},
                    {**function_call("read", path="a"), "thoughtSignature": "S1"},
                    function_call("write", path="b"),
                    function_call("read", path="c"),
                ],
            },
            {
                "role": "user",
                "parts": [
                    function_response("read", {"output": "A"}),
                    function_response("read", {"error": "no c"}),
                    function_response("write", {"output": "B", "lines": 3}),
                    {"text": "Go on."},
                ],
            },
        ]
    )
    assert [m.role[0] for m in messages] == list("uatttu")
    assert messages[1].content == [ReasoningPart("Plan.", "S0")]
    assert [(c.id, c.name, c.arguments) for c in messages[1].tool_calls] == [
        ("call_1_0", "read", {"path": "a"}),
        ("call_1_1", "write", {"path": "b"}),
        ("call_1_2", "read", {"path": "c"}),
    ]
    assert messages[1].metadata == {"tool_call_extras": {"0": {"thoughtSignature": "S1"}}}
    assert [(m.tool_call_id, m.text, m.error) for m in messages[2:5]] == [
        ("call_1_0", "A", None),
        ("call_1_2", "no c", MessageError("tool_error", "no c")),
        ("call_1_1", '{"output":"B","lines":3}', None),
    ]


def test_a_stream_is_one_answer() -> None:
    chunks = [
        {"candidates": [{"content": {"parts": [{"text": "Think.", "thought": True}], "role": "model"}}]},
        {"candidates": [{"content": {"parts": [{"text": "He"}]}}], "usageMetadata": {"promptTokenCount": 5}},
        {
            "candidates": [{"content": {"parts": [{"text": "llo"}]}, "finishReason": "MAX_TOKENS", "index": 0}],
            "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2, "thoughtsTokenCount": 7},
            "modelVersion": "gemini-2.5",
            "responseId": "r",
        },
    ]
    (answer,) = convert_response(chunks)
    (message,) = answer.messages
    assert message.content == [ReasoningPart("Think."), TextPart("Hello")]
    assert (message.usage, message.producer, message.id) == (Usage(5, 2), Producer("model", "gemini-2.5"), "r")
    assert message.metadata == {"finish_reason": "MAX_TOKENS", "usage": {"thoughtsTokenCount": 7}}
    assert (answer.stop_reason, answer.truncated) == ("MAX_TOKENS", True)


def test_candidates_code_execution_and_log_probabilities() -> None:
    chosen = [{"token": "4", "tokenId": 17, "logProbability": -0.5}]
    first, second = convert_response(
        {
            "candidates": [
                {
                    "content": {
                        "parts": [
                            {"executableCode": {"language": "PYTHON", "code": "2+2"}},
                            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "4"}},
                            {"text": "4"},
                        ]
                    },
                    "logprobsResult": {"chosenCandidates": chosen},
                },
                {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "bad"},
            ]
        }
    )
    assert [(m.role, m.text) for m in first.messages] == [("assistant", ""), ("tool", "4"), ("assistant", "4")]
    assert first.messages[0].tool_calls[0].arguments == {"language": "PYTHON", "code": "2+2"}
    assert first.messages[2].tokens == TokenRecord([17], "unknown", [-0.5])
    assert second.error == MessageError("MALFORMED_FUNCTION_CALL", "bad")


def test_media_and_tools() -> None:
    (message,) = convert_contents(
        {"parts": [{"inlineData": {"mimeType": "image/png", "data": "aGk="}}, {"file_data": {"file_uri": "gs://a"}}]}
    )
    assert message.content is not None
    assert message.content[0] == ImagePart("data:image/png;base64,aGk=")
    tools = normalize_tools(
        [
            {
                "functionDeclarations": [
                    {"name": "f", "parameters": {"type": "OBJECT", "properties": {"type": {"type": "STRING"}}}}
                ]
            },
            {"googleSearch": {}},
        ]
    )
    assert tools is not None
    assert [tool["function"] for tool in json.loads(tools)] == [
        {"name": "f", "parameters": {"type": "object", "properties": {"type": {"type": "string"}}}},
        {"name": "googleSearch"},
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "contents: there are none"),
        ([7], r"contents\[0\]: expected an object, got a number"),
        ([{"role": "elf", "parts": []}], r"contents\[0\]\.role"),
        ([{"parts": [7]}], r"contents\[0\]\.parts\[0\]"),
        ([{"role": "model", "parts": [{"functionCall": {}}]}], r"functionCall\.name"),
    ],
)
def test_what_is_no_content_is_refused_with_its_place(value: object, reason: str) -> None:
    with pytest.raises(RecordRefusedError, match=reason):
        convert_contents(value)


def test_logged_calls_become_a_conversation(tmp_path: Path) -> None:
    ask = {"role": "user", "parts": [{"text": "Weather?"}]}
    call = {"role": "model", "parts": [function_call("weather", city="Oslo")]}
    result = {"role": "user", "parts": [function_response("weather", {"output": "rain"})]}
    tools = [{"functionDeclarations": [{"name": "weather"}]}]
    request = {"model": "g", "contents": [ask], "systemInstruction": {"parts": [{"text": "S"}]}, "tools": tools}
    contents = read(
        tmp_path,
        [
            {"request": request, "response": {"candidates": [{"content": call, "finishReason": "STOP"}]}},
            {
                "request": {**request, "contents": [ask, call, result]},
                "response": [{"candidates": [{"content": {"parts": [{"text": "Rain."}]}, "finishReason": "STOP"}]}],
            },
        ],
    )
    assert set(contents.formats.values()) == {"gemini_calls"}
    (trajectory,) = contents.trajectories
    assert [m.role[0] for m in trajectory.messages] == list("suata")
    assert trajectory.messages[3].tool_call_id == trajectory.messages[2].tool_calls[0].id
    assert [m.producer for m in trajectory.messages if m.role == "assistant"] == [Producer("model", "g")] * 2
    assert [tool["function"]["name"] for tool in trajectory.tools_at(0) or []] == ["weather"]
    assert fates(contents) == ["used", "used"]


def test_a_record_of_contents_is_a_conversation(tmp_path: Path) -> None:
    record = {
        "systemInstruction": {"parts": [{"text": "S"}]},
        "contents": [{"role": "user", "parts": [{"text": "A"}]}, {"role": "model", "parts": [{"text": "B"}]}],
        "label": "x",
    }
    contents = read(tmp_path, [record, {"contents": [{"role": "user", "parts": [None]}]}])
    (trajectory,) = contents.trajectories
    assert outline(trajectory) == ["s S", "u A", "a B"]
    assert trajectory.metadata == {"label": "x"}
    assert fates(contents) == ["used", "refused"]


HEADER = {"sessionId": "s", "projectHash": "h", "startTime": "2026-01-01T00:00:00Z", "kind": "main"}


def said(message_id: str, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"id": message_id, "type": kind, "content": content, "timestamp": "2026-01-01T00:00:01Z", **more}


def test_a_session_keeps_the_last_state_of_a_message_and_branches_at_a_rewind(tmp_path: Path) -> None:
    call = {"id": "c1", "name": "ls", "args": {"d": "/"}, "status": "cancelled", "resultDisplay": "x"}
    contents = read(
        tmp_path,
        [
            HEADER,
            said("u1", "user", [{"text": "One"}]),
            said("g1", "gemini", "1"),
            said("g1", "gemini", "1", model="gemini-3", toolCalls=[call]),
            said("i1", "info", "Update available"),
            {"$set": {"summary": "Counting"}},
            said("u2", "user", "Two"),
            said(
                "g2",
                "gemini",
                "2",
                thoughts=[{"subject": "Sum", "description": "Add."}],
                tokens={"input": 3, "output": 4},
            ),
            {"$rewindTo": "u2"},
            said("u3", "user", "Three"),
            said("g3", "gemini", "3"),
            '{"id": "g4", "type": "gem',
            said("x", "oracle", "?"),
        ],
    )
    assert set(contents.formats.values()) == {"gemini_cli"}
    first, second = contents.trajectories
    assert outline(first) == ["u One", "a 1 +c1", "t  =c1", "u Two", "a 2"]
    assert outline(second) == ["u One", "a 1 +c1", "t  =c1", "u Three", "a 3"]
    assert second.branch == Branch(first.trajectory_id, 3)
    assert not set(second.step_indices()) & set(range(3))  # the shared turns are steps of the first only
    assert first.messages[1].text == second.messages[1].text
    assert (first.stop_reason, first.model, first.session_id) == ("rewound", "gemini-3", "s")
    assert first.messages[2].error == MessageError("cancelled")
    assert [(score.name, score.message_index, score.direction) for score in first.scores] == [
        ("user_cancellation", 1, "lower_is_better")
    ]
    assert (first.messages[4].reasoning, first.messages[4].usage) == ("**Sum**\nAdd.", Usage(3, 4))
    assert first.metadata["summary"] == "Counting"
    assert fates(contents) == [
        *("used", "used", "duplicate", "used", "set_apart", "used", "used", "used"),
        *("used", "used", "used", "refused", "refused"),
    ]


def test_a_session_that_ends_in_an_error_of_the_program(tmp_path: Path) -> None:
    document = {
        **HEADER,
        "messages": [said("u1", "user", "Hi"), said("g1", "gemini", "Hello"), said("e1", "error", "quota")],
    }
    path = tmp_path / "session.json"
    path.write_text(json.dumps(document, indent=1))
    (trajectory,) = read_logs(path).trajectories
    assert outline(trajectory) == ["u Hi", "a Hello"]
    assert (trajectory.outcome.status, trajectory.metadata["errors"]) == ("infrastructure_error", ["quota"])


def test_a_session_written_anew(tmp_path: Path) -> None:
    again = [said("u1", "user", "Hi"), said("g2", "gemini", "Hello again")]
    contents = read(
        tmp_path, [HEADER, said("u1", "user", "Hi"), said("g1", "gemini", "Hello"), {"$set": {"messages": again}}]
    )
    assert [outline(trajectory) for trajectory in contents.trajectories] == [["u Hi", "a Hello again"]]
    assert fates(contents) == ["used", "duplicate", "duplicate", "used"]


def real(name: str) -> LogContents:
    path = REAL_LOGS / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return read_logs(path)


def test_real_session() -> None:
    contents = real("gemini-cli-session/gemini_with_tool_error.jsonl")
    (trajectory,) = contents.trajectories
    assert [m.role[0] for m in trajectory.messages] == list("uatuatuatatua")
    assert [c.name for m in trajectory.messages for c in m.tool_calls] == [
        *("edit_file", "edit_file", "read_file", "edit_file")
    ]
    assert [i for i, m in enumerate(trajectory.messages) if m.error is not None] == [5]
    assert trajectory.messages[8].text == '{"port": 9000, "host": "127.0.0.1", "debug": true}'
    assert sum(m.usage.output_tokens or 0 for m in trajectory.messages if m.usage) == 50 + 60 + 80 + 70 + 40
    assert fates(contents) == ["used"] * 10


def test_real_responses() -> None:
    contents = real("gemini-cli-responses/parallel-tools.responses")
    assert fates(contents) == ["set_apart", "used", "used"]
    (trajectory,) = contents.trajectories
    assert [c.arguments for c in trajectory.messages[0].tool_calls] == [
        {"file_path": "file1.txt"},
        {"file_path": "file2.txt"},
        {"file_path": "output.txt", "content": "wave2"},
        {"file_path": "file3.txt"},
        {"file_path": "file4.txt"},
    ]
    assert [m.text for m in trajectory.messages] == ["All waves completed successfully."] * 2

    contents = real("gemini-cli-responses/hooks-system.telemetry.responses")
    (trajectory,) = contents.trajectories
    assert trajectory.messages[0].reasoning.startswith("**Initializing File Creation**")
    assert [m.usage for m in trajectory.messages] == [Usage(12779, 24), Usage(12951, 2)]

    contents = real("gemini-cli-responses/hooks-system.multiple-events.responses")
    (trajectory,) = contents.trajectories
    assert [m.text for m in trajectory.messages] == ["", "\n", "\n", "BeforeAgent: User request processed"]
    assert [len(m.content or ()) for m in trajectory.messages] == [2, 1, 1, 3]
