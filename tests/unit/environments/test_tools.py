"""Tools answer whatever happens, in order, within their time."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec
import pytest

from offline_arl.environments.faults import Faults, with_faults
from offline_arl.environments.tools import Tool, ToolBox, ToolError
from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import ToolCall, tool_call

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def tool(name: str, function: Any, **settings: Any) -> Tool:
    return Tool(name, f"The tool {name}.", NUMBER, function, **settings)


def call(name: str, number: int = 1) -> ToolCall:
    return tool_call(name, f'{{"n": {number}}}', id=f"{name}-{number}")


def test_results_are_text_or_json_in_the_order_of_the_calls() -> None:
    box = ToolBox(
        [tool("text", lambda arguments: "plain"), tool("double", lambda arguments: {"n": 2 * arguments["n"]})]
    )
    results = box.call([call("double", 4), call("text"), call("double", 5)])
    assert [result.text for result in results] == ['{"n":8}', "plain", '{"n":10}']
    assert [result.fate for result in results] == ["ok"] * 3
    message = results[0].message("shop")
    assert (message.role, message.tool_call_id, message.name, message.error) == ("tool", "double-4", "double", None)
    assert (message.producer.kind, message.producer.name) == ("environment", "shop")


def test_what_is_no_call_of_a_tool_is_refused_and_nothing_runs() -> None:
    ran: list[dict[str, Any]] = []
    box = ToolBox([tool("look", ran.append)])
    malformed = tool_call("look", '{"n": ', id="a")
    wrong = tool_call("look", '{"n": "one"}', id="b")
    results = box.call([malformed, wrong, call("find")])
    assert [result.fate for result in results] == ["refused"] * 3
    kinds = [result.error.type for result in results if result.error]
    assert kinds == ["invalid_json", "invalid_arguments", "unknown_tool"]
    assert ran == []


def test_a_tool_that_raises_answers_with_its_reason_and_only_crashes_are_repeated() -> None:
    tries = {"no": 0, "crash": 0, "flaky": 0}

    def no(arguments: dict[str, Any]) -> str:
        tries["no"] += 1
        raise ToolError("no such order")

    def crash(arguments: dict[str, Any]) -> str:
        tries["crash"] += 1
        raise KeyError("x")

    def flaky(arguments: dict[str, Any]) -> str:
        tries["flaky"] += 1
        if tries["flaky"] < 3:
            raise ConnectionError("lost")
        return "done"

    box = ToolBox([tool("no", no, retries=2), tool("crash", crash, retries=2), tool("flaky", flaky, retries=2)])
    refused, crashed, recovered = box.call([call("no"), call("crash"), call("flaky")])
    assert refused.text == '{"error":"no such order"}'
    assert (refused.fate, refused.tries) == ("failed", 1)
    assert crashed.error is not None
    assert (crashed.fate, crashed.tries, crashed.error.type) == ("failed", 3, "tool_crash")
    assert (recovered.fate, recovered.tries, recovered.text) == ("ok", 3, "done")
    assert tries == {"no": 1, "crash": 3, "flaky": 3}


def test_a_tool_that_hangs_takes_its_time_and_no_more_and_no_other_tool_waits() -> None:
    release = threading.Event()
    box = ToolBox([tool("hang", lambda arguments: release.wait(20), timeout_s=0.1), tool("quick", lambda a: "ok")])
    started = time.monotonic()
    results = box.call([call("hang", number) for number in range(12)] + [call("quick")])
    assert time.monotonic() - started < 2.0
    release.set()
    assert [result.fate for result in results] == ["timeout"] * 12 + ["ok"]
    assert results[0].text == '{"error":"no result within 0.1 s"}'


def test_calls_that_read_run_side_by_side_and_calls_that_write_in_order() -> None:
    seen: list[str] = []
    meet = threading.Barrier(2, timeout=5)  # passes only if both calls are there at once

    def read(arguments: dict[str, Any]) -> str:
        meet.wait()
        seen.append("read")
        return "ok"

    def write(arguments: dict[str, Any]) -> str:
        seen.append(f"write {arguments['n']}")
        return "ok"

    box = ToolBox([tool("read", read), tool("write", write, writes=True)])
    results = box.call([call("read", 1), call("read", 2), call("write", 1), call("write", 2)])
    assert {result.fate for result in results} == {"ok"}
    assert seen == ["read", "read", "write 1", "write 2"]


def test_a_huge_result_is_cut_and_says_so() -> None:
    (result,) = ToolBox([tool("big", lambda arguments: "x" * 1000)], max_characters=10).call([call("big")])
    assert result.text == "x" * 10 + "\n[... 990 more characters]"


def test_results_that_json_cannot_carry_become_text_or_an_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    box = ToolBox([tool("object", lambda arguments: {"at": object}), tool("loop", lambda arguments: loop)])
    known, cyclic = box.call([call("object"), call("loop")])
    assert known.text == '{"at":"<class \'object\'>"}'
    assert cyclic.fate == "failed"


def test_tools_that_cannot_work_are_told() -> None:
    with pytest.raises(UsageError, match="same name"):
        ToolBox([tool("a", str), tool("a", str)])
    with pytest.raises(UsageError, match="timeout_s"):
        tool("a", str, timeout_s=0)


def test_faults_hit_the_asked_share_and_the_same_calls_each_time() -> None:
    def fates(seed: int) -> list[str]:
        tools = with_faults(
            [tool("a", lambda arguments: "result")], Faults(errors=0.3, malformed=0.2, huge=0.1), seed=seed
        )
        box = ToolBox(tools, max_characters=100)
        return [box.call([call("a")])[0].text[:8] for _ in range(1000)]

    found = fates(0)
    assert found == fates(0) != fates(1)
    shares = [found.count('{"error"') / 1000, found.count("res") / 1000, found.count("resultxx") / 1000]
    # Within four standard errors of the shares that were asked for.
    assert shares == pytest.approx([0.3, 0.2, 0.1], abs=0.058)
    with pytest.raises(UsageError, match="together at most 1"):
        with_faults([], Faults(errors=0.6, delays=0.6), seed=0)


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


def _raises(error: BaseException) -> Any:
    def function(arguments: dict[str, Any]) -> None:
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "fate", "text"),
    [
        (_raises(ToolError("\ud800 is no order")), "failed", '{"error":"? is no order"}'),
        (_raises(KeyError("\ud800")), "failed", "KeyError"),
        (_raises(UnspeakableError()), "failed", "UnspeakableError: (it does not say what)"),
        (_raises(SystemExit(3)), "failed", "SystemExit(3)"),
        (lambda _: "half \ud800", "ok", "half ?"),
        (lambda _: {"half": "\ud800"}, "failed", "surrogates not allowed"),
        (lambda _: float("nan"), "ok", "null"),
        (_raises(ValueError("x" * 1_000_000)), "failed", "more characters]"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])  # two are run side by side
def test_whatever_a_tool_says_can_be_read_written_and_tokenized(
    function: Any, fate: str, text: str, count: int
) -> None:
    results = ToolBox([tool("odd", function)]).call([call("odd")] * count)
    for result in results:
        assert result.fate == fate
        assert text in result.text
        assert len(result.text) < 20_100
        told = result.message("shop")
        msgspec.json.encode(told)
        assert told.error is None or len(told.error.text) < 20_100


@pytest.mark.parametrize(
    "schema", [{"type": "nonsense"}, {"$ref": "#/nowhere"}, {"properties": {"n": {"pattern": "("}}}, {"allOf": 3}, []]
)
def test_a_schema_that_is_none_accepts_any_object(schema: Any) -> None:
    box = ToolBox([Tool("odd", "", schema, lambda arguments: "ran")])
    assert [result.fate for result in box.call([call("odd"), tool_call("odd", "[1]")])] == ["ok", "refused"]
