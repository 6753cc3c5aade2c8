"""A real MCP server as a world, and environments that are written as a file."""

from __future__ import annotations

import math
import shutil
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from offline_arl import optional
from offline_arl.environments import load
from offline_arl.environments.checking import check
from offline_arl.environments.mcp_world import McpServer, McpWorld
from offline_arl.environments.protocol import Task, closing
from offline_arl.environments.task_files import Rules, TaskFileFamily, verdicts
from offline_arl.environments.tool_environment import FunctionJudge, ScriptedUser, ToolEnvironment
from offline_arl.environments.tools import ToolBox
from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.schema import Message, MessageError, Outcome, text_message, tool_call

CLOCK = shutil.which("mcp-server-time", path=str(Path(sys.executable).parent))
needs_mcp = pytest.mark.skipif(
    not optional.available("mcp"), reason="MCP is not installed: pip install 'offline_arl[environments]'"
)
needs_clock = pytest.mark.skipif(CLOCK is None, reason="mcp-server-time is not installed: pip install mcp-server-time")

# A server with a memory, a tool that fails and one that hangs.
SHOP = """
import os
import time
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("shop")
cart = []

@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look() -> str:
    return ",".join(cart)

@server.tool()
def add(item: str) -> str:
    cart.append(item)
    return f"{len(cart)} items"

@server.tool()
def fail() -> str:
    raise ValueError("out of stock")

@server.tool()
def die() -> str:
    os._exit(3)

@server.tool()
def babble() -> str:
    os.write(1, b"no word of the protocol\\n" * 100)
    return "x" * 100_000

@server.tool()
def hang() -> str:
    time.sleep(30)
    return "late"

server.run()
"""


@pytest.fixture
def shop(tmp_path: Path) -> McpServer:
    (tmp_path / "shop.py").write_text(SHOP)
    return McpServer(sys.executable, [str(tmp_path / "shop.py")], timeout_s=5.0)


@needs_mcp
def test_a_servers_tools_are_tools_like_any_others(shop: McpServer) -> None:
    world = McpWorld(shop)
    try:
        box = ToolBox(world.tools)
        assert [(tool.name, tool.writes) for tool in world.tools] == [
            ("look", False), ("add", True), ("fail", True), ("die", True), ("babble", True), ("hang", True),
        ]  # fmt: skip
        calls = [tool_call("add", '{"item": "tea"}'), tool_call("look", "{}"), tool_call("fail", "{}")]
        added, seen, failed = box.call([*calls])
        assert (added.text, seen.text) == ("1 items", "tea")
        assert failed.fate == "failed"
        assert "Error executing tool fail" in failed.text
        assert box.call([tool_call("add", '{"item": 3}')])[0].fate == "refused"
    finally:
        world.close()
    after = box.call([tool_call("look", "{}")])[0]
    assert after.fate == "failed"
    assert "has ended" in after.text


@needs_mcp
def test_a_call_that_hangs_times_out_and_the_server_goes_on(shop: McpServer) -> None:
    world = McpWorld(McpServer(shop.command, shop.args, timeout_s=0.5, tools=["hang", "look"]))
    try:
        box = ToolBox(world.tools)
        assert [tool.name for tool in world.tools] == ["look", "hang"]
        started = time.monotonic()
        assert box.call([tool_call("hang", "{}")])[0].fate == "timeout"
        assert time.monotonic() - started < 5
    finally:
        world.close()


@needs_mcp
def test_a_server_that_dies_is_a_fault_of_the_harness_and_not_a_failure_of_the_agent(shop: McpServer) -> None:
    judge = FunctionJudge(lambda task, messages, world: Outcome("scored", False, 0.0))
    environment = ToolEnvironment(lambda task: McpWorld(shop), user=ScriptedUser, judge=judge)
    task = Task("t", "x", {"prompt": "?"})
    with closing(environment):
        environment.reset(task)
        failed = environment.step(Message("assistant", None, tool_calls=[tool_call("fail", "{}")]))
        assert failed.messages[0].error is not None  # of the agent's doing: the episode goes on
        noisy = environment.step(Message("assistant", None, tool_calls=[tool_call("babble", "{}")]))
        assert noisy.messages[0].text.endswith("[... 80000 more characters]")
        with pytest.raises(DataError, match="has ended"):
            environment.step(Message("assistant", None, tool_calls=[tool_call("die", "{}")]))
        environment.reset(task)  # with a server of its own
        environment.step(Message("assistant", None, tool_calls=[tool_call("look", "{}")]))


@needs_mcp
def test_a_server_that_does_not_start_is_told(tmp_path: Path, shop: McpServer) -> None:
    with pytest.raises(DataError, match="did not start"):
        McpWorld(McpServer(str(tmp_path / "nothing"), start_s=10))
    with pytest.raises(DataError, match="did not start"):
        McpWorld(McpServer(sys.executable, ["-c", "raise SystemExit(3)"], start_s=10))
    with pytest.raises(DataError, match="has no tool 'sell'; it has: look, add"):
        McpWorld(McpServer(shop.command, shop.args, tools=["sell"]))


def clock(folder: Path, **changes: Any) -> Path:
    call = {"name": "get_current_time", "arguments": {"timezone": "Europe/Rome"}}
    rome = {
        "id": "rome",
        "prompt": "What time is it in Rome?",
        "split": "test",
        "allowed_tools": ["get_current_time"],
        "success": {"calls": [call], "answer_contains": ["Rome"], "answer_lacks": ["do not know"]},
        "examples": {
            "success": [{"calls": [call]}, {"text": "I looked up the time in Rome."}],
            "failure": [{"text": "I do not know the time in Rome."}],
        },
    }
    raw = {
        "name": "clock",
        "system_prompt": "You tell the time.",
        "mcp": {"command": CLOCK},
        "tasks": [rome],
        **changes,
    }
    path = folder / "clock.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


@needs_mcp
@needs_clock
def test_a_server_from_the_package_index_is_an_environment(tmp_path: Path) -> None:
    family = load(f"file:{clock(tmp_path)}")
    (task,) = family.tasks("test", 5, seed=0)
    environment = family.make()
    start = environment.reset(task)
    assert [tool["function"]["name"] for tool in start.tools] == ["get_current_time"]
    call = tool_call("get_current_time", '{"timezone": "Europe/Rome"}', id="a")
    result = environment.step(Message("assistant", None, tool_calls=[call]))
    assert '"timezone": "Europe/Rome"' in result.messages[0].text
    wrong = tool_call("get_current_time", '{"timezone": "Europe/Atlantis"}', id="b")
    assert environment.step(Message("assistant", None, tool_calls=[wrong])).messages[0].error is not None
    last = environment.step(text_message("assistant", "It is noon in Rome."))
    assert (last.terminated, last.reward) == (True, 1.0)
    report = check(family, [task])
    assert (report.examples, report.problems) == (2, [])


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"calls": [{"name": "look"}]}, {"calls": True}),
        ({"calls": [{"name": "look", "arguments": {"n": 2}}]}, {"calls": False}),
        ({"calls": [{"name": "pay"}]}, {"calls": False}),  # in vain
        ({"no_calls": ["pay"]}, {"no_calls": False}),
        ({"no_calls": ["sell"]}, {"no_calls": True}),
        ({"no_calls": ["look"]}, {"no_calls": False}),
        ({"answer_contains": ["DONE"], "answer_lacks": ["sorry"]}, {"answer_contains": True, "answer_lacks": True}),
        ({"answer_matches": r"^All \w+\.$"}, {"answer_matches": True}),
    ],
)
def test_rules_say_what_success_is(rules: dict[str, Any], expected: dict[str, bool]) -> None:
    messages = [
        text_message("user", "pay sorry"),
        Message("assistant", None, tool_calls=[tool_call("pay", "{}"), tool_call("look", '{"n": 1, "m": 0}')]),
        msgspec.structs.replace(text_message("tool", "no"), error=MessageError("unknown_tool", "no such tool")),
        text_message("tool", "yes"),
        text_message("assistant", "All done."),
    ]
    assert verdicts(Rules.model_validate(rules), messages) == expected


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tasks": []}, "tasks"),
        ({"tasks": [{"id": "a", "prompt": "p", "success": {}}]}, "no rule says what success is"),
        ({"tasks": [{"id": "a", "prompt": "p", "success": {"answer_matches": "("}}]}, "no regular expression"),
        ({"surprise": 1}, "surprise: unknown key 'surprise'; known: name, system_prompt, mcp"),
        ({"mcp": {"command": "x", "timeouts": 1}}, "unknown key 'timeouts'; did you mean timeout_s?"),
        (
            {"tasks": [{"id": "a", "prompt": "p", "success": {"call": [{"name": "x"}]}}]},
            r"tasks\.0\.success\.call: unknown key 'call'; did you mean calls",
        ),
        (
            {
                "tasks": [
                    {"id": "a", "prompt": "p", "success": {"no_calls": ["x"]}, "examples": {"success": [{"txt": 1}]}}
                ]
            },
            r"examples\.success\.0\.txt: unknown key 'txt'; did you mean text",
        ),
        ({"mcp": None}, "tasks.0 has calls, and there is no mcp"),
        (
            {
                "tasks": [
                    {"id": "a", "prompt": "p", "success": {"calls": [{"name": "f", "arguments": {"x": math.nan}}]}}
                ]
            },
            "nothing that JSON can say",
        ),
        ({"tasks": 2 * [{"id": "a", "prompt": "p", "success": {"no_calls": ["x"]}}]}, "two tasks have the id 'a'"),
    ],
)
def test_files_with_mistakes_are_one_line(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(DataError, match=text) as caught:
        TaskFileFamily(clock(tmp_path, **changes))
    assert "\n" not in str(caught.value)


@needs_mcp
@needs_clock
def test_a_check_finds_tools_that_rules_and_examples_misspell(tmp_path: Path) -> None:
    task = {"id": "a", "prompt": "What time is it in Rome?", "split": "test"}
    misspelt = {**task, "success": {"no_calls": ["get_curent_time"], "answer_contains": ["Rome"]}}
    family = TaskFileFamily(clock(tmp_path, tasks=[misspelt]))
    told = [problem.text for problem in check(family, family.tasks("test", 1)).problems]
    assert told == ["names the tool 'get_curent_time'; did you mean get_current_time?"]


def test_dates_in_rules_are_the_texts_that_calls_have() -> None:
    rules = Rules.model_validate({"calls": [{"name": "book", "arguments": {"day": date(2024, 5, 20)}}]})
    booked = Message("assistant", None, tool_calls=[tool_call("book", '{"day": "2024-05-20"}')])
    assert verdicts(rules, [booked, text_message("tool", "booked")]) == {"calls": True}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "dictionary"),
        ("[" * 5000, "recursion"),
        ("name: a\nname: b\n", "stands twice"),
        ("!!python/object/apply:os.system [exit]", "could not determine a constructor"),
        ("\xff", "dictionary"),
    ],
)
def test_what_is_no_such_file_is_one_line(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(DataError, match=told) as caught:
        TaskFileFamily(tmp_path / "x.yaml")
    assert "\n" not in str(caught.value)


def test_files_that_are_none_and_splits_that_are_empty_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file of tasks"):
        TaskFileFamily(tmp_path / "missing.yaml")
    with pytest.raises(UsageError, match="no task of the split 'train'"):
        TaskFileFamily(clock(tmp_path)).tasks("train", 1)
