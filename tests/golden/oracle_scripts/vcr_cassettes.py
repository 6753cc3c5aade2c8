"""Oracles of the vcr-* files: cassettes read with PyYAML, which calls form a conversation listed by hand.

Run: `python tests/golden/oracle_scripts/vcr_cassettes.py` (needs pyyaml).

A conversation is the request of its last call, and that call's response. The same prompt asked again is another
sample: a branch of the first at the end of the prompt.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, message, write_oracle

Messages = list[dict[str, Any]]


def interactions(file: str) -> list[tuple[dict[str, Any], str]]:
    """(request body, decompressed text of the response) of every interaction."""
    pairs = []
    for item in yaml.safe_load((REAL_LOGS / file).read_text())["interactions"]:
        body = item["response"]["body"]["string"]
        data = body.encode() if isinstance(body, str) else body
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
        pairs.append((json.loads(item["request"]["body"]), text))
    return pairs


def server_events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def chat_answer(text: str) -> str:
    """Text of a chat completion, whole or streamed; none of the saved ones has tool calls."""
    if not text.startswith("data:"):
        (choice,) = json.loads(text)["choices"]
        assert not choice["message"].get("tool_calls")
        return str(choice["message"]["content"])
    deltas = [choice["delta"] for event in server_events(text) for choice in event["choices"]]
    assert all(set(delta) <= {"role", "content", "refusal"} for delta in deltas)
    return "".join(delta.get("content") or "" for delta in deltas)


def chat(request: dict[str, Any], response: str) -> Messages:
    messages: Messages = []
    callers: dict[str, int] = {}
    for turn in request["messages"]:
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in turn.get("tool_calls", ())]
        callers |= {call["id"]: len(messages) for call in turn.get("tool_calls", ())}
        answers = callers[turn["tool_call_id"]] if turn["role"] == "tool" else None
        messages.append(message(turn["role"], turn.get("content") or "", calls=calls, answers=answers))
    return [*messages, message("assistant", chat_answer(response))]


def responses(request: dict[str, Any], response: str) -> Messages:
    """Instructions, input and output; each item of the saved ones is a message of its own."""
    messages = [message("system", request["instructions"])] if request.get("instructions") else []
    given = request["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if response.startswith("event:"):
        (done,) = [event for event in server_events(response) if event["type"] == "response.completed"]
        output = done["response"]["output"]
    else:
        output = json.loads(response)["output"]
    callers: dict[str, int] = {}
    for item in [*items, *output]:
        if item.get("type") == "function_call":
            callers[item["call_id"]] = len(messages)
            messages.append(message("assistant", calls=[(item["name"], item["arguments"])]))
        elif item.get("type") == "function_call_output":
            messages.append(message("tool", item["output"], answers=callers[item["call_id"]]))
        else:
            content = item["content"]
            text = content if isinstance(content, str) else "".join(part["text"] for part in content)
            messages.append(message(item["role"], text))
    return messages


def anthropic_turn(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    return message(
        "assistant",
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        reasoning="".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        calls=[(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
    )


def streamed_blocks(text: str) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for event in server_events(text):
        if event["type"] == "content_block_start":
            blocks.append(
                dict(event["content_block"], input="") if "input" in event["content_block"] else event["content_block"]
            )
        elif event["type"] == "content_block_delta":
            kind, block, delta = event["delta"]["type"], blocks[event["index"]], event["delta"]
            key = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(
                kind, "input"
            )
            block[key] += delta["partial_json" if key == "input" else key]
    return blocks


def anthropic(request: dict[str, Any], response: str) -> Messages:
    assert "system" not in request
    messages: Messages = []
    callers: dict[str, int] = {}
    for turn in request["messages"]:
        blocks = turn["content"]
        if turn["role"] == "assistant":
            callers |= {block["id"]: len(messages) for block in blocks if block["type"] == "tool_use"}
            messages.append(anthropic_turn(blocks))
        elif isinstance(blocks, str) or blocks[0]["type"] == "text":
            messages.append(message("user", blocks if isinstance(blocks, str) else blocks[0]["text"]))
        else:
            (result,) = blocks
            messages.append(message("tool", result["content"], answers=callers[result["tool_use_id"]]))
    answer = streamed_blocks(response) if response.startswith("event:") else json.loads(response)["content"]
    return [*messages, anthropic_turn(answer)]


def trajectory(messages: Messages, tools: list[str] | None, branch: dict[str, int] | None = None) -> dict[str, Any]:
    return {
        "messages": messages,
        "outcome": {"status": "unscored", "success": None, "score": None},
        "scores": [],
        "branch": branch,
        "parent": None,
        "truncated": False,
    } | ({} if tools is None else {"tools": tools})


def write(file: str, trajectories: list[dict[str, Any]], used: int, set_apart: int = 0) -> None:
    records = {"used": used, "refused": 0, "set_apart": set_apart, "duplicate": 0}
    made_by = "PyYAML, conversations by hand"
    write_oracle(file, {"made_by": made_by, "records": records, "trajectories": trajectories})


def write_chat() -> None:
    file = "vcr-openai-chat/test_chat_history_message_dict.yaml"
    calls = interactions(file)  # three runs of two calls each; the prompt is one message
    again = {"of": 0, "at": 1}
    runs = [chat(*calls[last]) for last in (1, 3, 5)]
    write(file, [trajectory(run, None, again if index else None) for index, run in enumerate(runs)], used=6)

    file = "vcr-openai-chat/test_chat_streaming_partial_consumption.yaml"
    joke, count, recount = [chat(*call) for call in interactions(file)]
    write(
        file, [trajectory(joke, None), trajectory(count, None), trajectory(recount, None, {"of": 1, "at": 1})], used=3
    )

    # The call in the prompt was made by no logged call, so the log does not say by whom. It is a step once.
    file = "vcr-openai-chat/test_chat_tool_calls.yaml"
    samples = [chat(*call) for call in interactions(file)]
    for sample in samples[1:]:
        sample[0]["trained"] = False
    again = {"of": 0, "at": 2}
    write(file, [trajectory(sample, None, again if index else None) for index, sample in enumerate(samples)], used=3)


def write_responses() -> None:
    # The second interaction sends spans to the provider's trace store.
    file = "vcr-openai-responses/test_recipe_workflow_agent_handoffs_with_function_tools.yaml"
    messages = responses(*interactions(file)[3])
    tools = ["search_recipes", "plan_and_apply_recipe_modifications"]
    write(file, [trajectory(messages, tools)], used=3, set_apart=1)

    file = "vcr-openai-responses/test_responses_streaming_with_content.yaml"
    first, second = [responses(*call) for call in interactions(file)]
    write(file, [trajectory(first, None), trajectory(second, None, {"of": 0, "at": 1})], used=2)

    file = "vcr-openai-responses/test_responses_with_input_history.yaml"
    calls = interactions(file)
    first, second = responses(*calls[1]), responses(*calls[3])
    write(file, [trajectory(first, None), trajectory(second, None, {"of": 0, "at": 1})], used=4)

    # Again the second interaction goes to the trace store; system prompt and question are shared.
    file = "vcr-openai-responses/test_tool_call_and_result_attributes.yaml"
    calls = interactions(file)
    first, second = responses(*calls[2]), responses(*calls[4])
    tools = ["get_city_info"]
    write(file, [trajectory(first, tools), trajectory(second, tools, {"of": 0, "at": 2})], used=4, set_apart=1)


def write_anthropic() -> None:
    names = {"thinking_streaming": None, "tools_history": ["get_weather", "get_time"]}
    names["tools_streaming"] = names["tools_history"]
    for name, tools in names.items():
        file = f"vcr-anthropic/test_anthropic_{name}_legacy.yaml"
        (call,) = interactions(file)
        write(file, [trajectory(anthropic(*call), tools)], used=1)


if __name__ == "__main__":
    write_chat()
    write_responses()
    write_anthropic()
