"""Writes to what cannot be kept and restored are taken back one by one, newest first, and what cannot be is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from offline_arl.environments.audit import AuditEntry, AuditTrail, verify
from offline_arl.environments.protocol import Task
from offline_arl.environments.safety import Forbidden, Guarded, SafetyPolicy
from offline_arl.environments.tool_environment import FunctionJudge, ScriptedUser, ToolEnvironment, World
from offline_arl.environments.tools import Tool, ToolError
from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import Message, Outcome, text_message, tool_call

TASK = Task("t", "stack", {"prompt": "Go."})
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


class Shelf:
    """A system outside: a stack, of which only the top can be taken away. It may fail on purpose, before or after it
    did what it was asked for, and so may taking back."""

    def __init__(self) -> None:
        self.items: list[int] = []
        self.fail: Callable[[], str] = lambda: ""
        self.fail_undo: Callable[[], bool] = lambda: False
        self.closed = 0
        self.stuck: list[int] = []

    def put(self, arguments: dict[str, Any]) -> dict[str, int]:
        fate = self.fail()
        if fate == "refuse":
            raise ToolError("full")
        if fate == "before":
            raise ConnectionError("not reached")
        self.items.append(arguments["n"])
        if fate == "after":
            raise ConnectionError("no answer")
        return {"id": arguments["n"]}

    def take_back(self, arguments: dict[str, Any], result: Any) -> None:
        if result is None and (not self.items or self.items[-1] != arguments["n"]):
            return  # it was not reached
        if self.fail_undo():
            self.stuck.append(self.items.pop())
            raise PermissionError("locked")
        assert self.items[-1] == arguments["n"], "not the newest"
        self.items.pop()

    @property
    def tools(self) -> Sequence[Tool]:
        return [
            Tool("put", "", SCHEMA, self.put, writes=True, undo=self.take_back),
            Tool("look", "", SCHEMA, lambda _: self.items),
        ]

    def close(self) -> None:
        self.closed += 1


def judge(task: Task, messages: Sequence[Message], world: World | None) -> Outcome:
    success = messages[-1].text == "good"
    return Outcome("scored", success, float(success))


def environment(world: World) -> ToolEnvironment:
    return ToolEnvironment(lambda task: world, user=ScriptedUser, judge=FunctionJudge(judge), max_steps=50)


def puts(*numbers: int) -> Message:
    made = [tool_call("put", f'{{"n": {number}}}', id=f"c{number}") for number in numbers]
    return Message("assistant", None, tool_calls=made)


def entries(path: Path) -> list[AuditEntry]:
    return [msgspec.json.decode(line, type=AuditEntry) for line in path.read_bytes().splitlines()]


def test_an_episode_that_failed_is_taken_back_newest_first_while_the_world_is_still_open(tmp_path: Path) -> None:
    shelf = Shelf()
    with AuditTrail(tmp_path / "audit") as audit:
        guarded = Guarded(environment(shelf), SafetyPolicy(), audit=audit)
        guarded.reset(TASK)
        guarded.step(puts(1, 2))
        guarded.step(puts(3))
        assert shelf.items == [1, 2, 3]
        guarded.step(text_message("assistant", "bad"))
    assert shelf.items == []
    assert guarded.not_undone == []
    back = [(e.kind, e.details["id"]) for e in entries(tmp_path / "audit") if e.kind.startswith("compensat")]
    assert back == [(kind, f"c{n}") for n in (3, 2, 1) for kind in ("compensation", "compensated")]
    assert shelf.closed == 0
    guarded.close()
    assert shelf.closed == 1


def test_an_episode_that_succeeded_stays() -> None:
    shelf = Shelf()
    guarded = Guarded(environment(shelf), SafetyPolicy())
    guarded.reset(TASK)
    guarded.step(puts(1, 2))
    assert guarded.step(text_message("assistant", "good")).reward == 1.0
    guarded.close()
    assert shelf.items == [1, 2]


@pytest.mark.parametrize("fate", ["before", "after", "refuse"])
def test_a_message_of_which_one_write_failed_is_taken_back_as_a_whole(fate: str) -> None:
    shelf = Shelf()
    guarded = Guarded(environment(shelf), SafetyPolicy())
    guarded.reset(TASK)
    guarded.step(puts(1))
    fates = iter(["", fate])
    shelf.fail = lambda: next(fates)
    result = guarded.step(puts(2, 3))
    assert shelf.items == [1]
    failed = "tool_error" if fate == "refuse" else "tool_crash"
    assert [reply.error and reply.error.type for reply in result.messages] == ["undone", failed]


def test_what_cannot_be_taken_back_is_on_the_trail_and_reported_and_the_rest_is(tmp_path: Path) -> None:
    shelf = Shelf()
    with AuditTrail(tmp_path / "audit") as audit:
        guarded = Guarded(environment(shelf), SafetyPolicy(), audit=audit)
        guarded.reset(TASK)
        guarded.step(puts(1, 2, 3))
        locked = iter([False, True, False])
        shelf.fail_undo = lambda: next(locked)
        guarded.step(text_message("assistant", "bad"))
    assert (shelf.items, shelf.stuck) == ([], [2])
    assert guarded.not_undone == ["put"]
    assert guarded.outcome().components == {"forbidden_action": 0.0, "refused": 0.0, "not_undone": 1.0}
    (failure,) = [e.details for e in entries(tmp_path / "audit") if e.kind == "compensation_failed"]
    assert (failure["tool"], failure["id"], failure["error"]) == ("put", "c2", "PermissionError: locked")
    assert entries(tmp_path / "audit")[-1].details["not_undone"] == ["put"]


def test_the_agent_is_told_that_its_change_stays() -> None:
    shelf = Shelf()
    guarded = Guarded(environment(shelf), SafetyPolicy())
    guarded.reset(TASK)
    fates = iter(["", "before"])
    shelf.fail, shelf.fail_undo = lambda: next(fates), lambda: True
    result = guarded.step(puts(1, 2))
    assert [reply.error and reply.error.type for reply in result.messages] == ["not_undone", "tool_crash"]
    assert "not undone: put" in result.messages[0].text
    assert result.info["not_undone"] == 1


def test_a_write_that_comes_back_too_late_is_waited_for_and_one_that_does_not_is_told() -> None:
    done: list[str] = []

    def slow(seconds: float) -> Tool:
        return Tool(
            "slow", "", {"type": "object"}, lambda _: time.sleep(seconds) or "late", writes=True, timeout_s=0.05,
            undo=lambda _, result: done.append(result),
        )  # fmt: skip

    for seconds, expected, failed in ((0.08, ["late"], []), (0.5, [], ["slow"])):
        done.clear()
        world = Shelf()
        tools = [slow(seconds)]
        fixed = type("Fixed", (), {"tools": tools, "close": world.close})()
        guarded = Guarded(environment(fixed), SafetyPolicy())
        guarded.reset(TASK)
        reply = guarded.step(Message("assistant", None, tool_calls=[tool_call("slow", "{}")])).messages[0]
        assert reply.error is not None
        assert (reply.error.type, done, guarded.not_undone) == ("timeout", expected, failed)


def test_tools_that_write_without_a_way_back_are_refused_where_they_are_allowed() -> None:
    send = Tool("send", "", {"type": "object"}, lambda _: "sent", writes=True)
    mailer = type("Mailer", (), {"tools": [send], "close": lambda self: None})()
    with pytest.raises(UsageError, match="'send' writes and cannot be taken back"):
        Guarded(environment(mailer), SafetyPolicy()).reset(TASK)
    assert Guarded(environment(mailer), SafetyPolicy(allowed_tools=frozenset())).reset(TASK).tools == []
    only_reads = Guarded(environment(mailer), SafetyPolicy(writes=frozenset()))
    only_reads.reset(TASK)
    only_reads.step(Message("assistant", None, tool_calls=[tool_call("send", "{}")]))
    only_reads.step(text_message("assistant", "bad"))
    assert only_reads.not_undone == []


def test_no_sequence_of_actions_and_faults_leaves_a_failed_write_that_is_not_reported(tmp_path: Path) -> None:
    """What stays after 300 episodes of random actions, faults and locks is what succeeded and what is told to stay."""
    generator = np.random.default_rng(0)
    kept: list[int] = []
    told = stuck = number = 0
    sevens = Forbidden("sevens", lambda call: (call.arguments or {})["n"] % 7 == 0)
    policy = SafetyPolicy(max_calls=12, forbidden=[sevens])
    shelf = Shelf()
    shelf.fail = lambda: str(generator.choice(["", "before", "after", "refuse"], p=[0.85, 0.05, 0.05, 0.05]))
    shelf.fail_undo = lambda: bool(generator.random() < 0.1)
    trail = tmp_path / "audit"
    with AuditTrail(trail) as audit:
        for _ in range(300):
            guarded = Guarded(environment(shelf), policy, audit=audit)
            guarded.reset(TASK)
            ended = False
            while not ended:
                before = list(shelf.items)
                if generator.random() < 0.25:
                    message = text_message("assistant", str(generator.choice(["good", "bad"])))
                else:
                    count = int(generator.integers(1, 4))
                    message = puts(*range(number + 1, number + 1 + count))
                    number += count
                result = guarded.step(message)
                ended = result.terminated or result.truncated
                if not ended and any(reply.error is not None for reply in result.messages):
                    assert shelf.items == before
            if not guarded.outcome().success:
                assert shelf.items == kept
            kept = list(shelf.items)
            told += len(guarded.not_undone)
            assert guarded.outcome().components.get("not_undone", 0.0) == len(guarded.not_undone)
            stuck = len(shelf.stuck)
            assert told == stuck
    verify(trail)
    failures = [entry for entry in entries(trail) if entry.kind == "compensation_failed"]
    assert len(failures) == stuck > 20
    assert [int(entry.details["id"][1:]) for entry in failures] == shelf.stuck
    assert len(kept) > 50  # bounds under which nothing stays would be easy to keep
