"""What stands between an agent and its environment holds, whatever the agent says."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from offline_arl.environments.approvals import ApprovalRequest, Callback, Standing, WithTimeout
from offline_arl.environments.audit import AuditEntry, AuditTrail, verify
from offline_arl.environments.protocol import (
    Environment,
    HasExamples,
    KnowsTargetReturns,
    Reversible,
    StepResult,
    StopReason,
    Task,
)
from offline_arl.environments.safety import Forbidden, Guarded, SafetyPolicy
from offline_arl.environments.safety_config import GuardedFamily, SafetyConfig
from offline_arl.environments.support_desk import family
from offline_arl.environments.support_desk.environment import SupportDesk
from offline_arl.environments.tool_environment import FunctionJudge, ScriptedUser, ToolEnvironment
from offline_arl.environments.tools import Tool
from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import Message, MessageError, Outcome, TextPart, tool_call

WRITES = frozenset({"update_address", "refund_order", "open_ticket"})


def says(*calls: tuple[str, str], text: str = "") -> Message:
    made = [tool_call(name, raw, id=f"call_{number}") for number, (name, raw) in enumerate(calls)]
    return Message("assistant", [TextPart(text)] if text else [], tool_calls=made)


def desk_task(kind: str = "refund", *, allowed: tuple[str, ...] | None = None) -> tuple[Task, str]:
    """A task of a kind about an order that exists, and its order number."""
    for task in family.tasks("train", 200, seed=0):
        orders = {order["order_id"] for order in task.payload["orders"]}
        (request, *others) = task.payload["requests"]
        if request["kind"] == kind and not others and request["order_id"] in orders:
            return Task(task.task_id, task.task_type, task.payload, allowed), request["order_id"]
    raise AssertionError(f"no task of kind {kind}")


def entries(path: Path) -> list[AuditEntry]:
    return [msgspec.json.decode(line, type=AuditEntry) for line in path.read_bytes().splitlines()]


def test_only_allowed_tools_are_shown_and_run(tmp_path: Path) -> None:
    task, order = desk_task(allowed=("get_order", "refund_order"))
    desk = SupportDesk()
    with AuditTrail(tmp_path / "audit") as audit:
        guarded = Guarded(desk, SafetyPolicy(writes=WRITES, allowed_tools=frozenset({"get_order"})), audit=audit)
        start = guarded.reset(task)
        assert [tool["function"]["name"] for tool in start.tools] == ["get_order"]
        before = desk.snapshot()
        result = guarded.step(says(("get_order", f'{{"order_id": "{order}"}}'), ("refund_order", "{}")))
    assert desk.snapshot() == before  # not even the allowed call of the message ran
    assert result.reward == pytest.approx(-0.05)
    assert [reply.error and reply.error.type for reply in result.messages] == ["not_allowed", "not_allowed"]
    assert [entry.kind for entry in entries(tmp_path / "audit")] == ["start", "refused"]


def test_a_forbidden_action_is_not_run_ends_the_episode_and_is_a_failure() -> None:
    task, order = desk_task()
    desk = SupportDesk()
    refunds = Forbidden("no refunds today", lambda call: call.name == "refund_order")
    guarded = Guarded(desk, SafetyPolicy(writes=WRITES, forbidden=[refunds]))
    guarded.reset(task)
    result = guarded.step(says(("refund_order", f'{{"order_id": "{order}"}}')))
    assert (result.terminated, result.stop_reason, result.reward) == (True, StopReason.FORBIDDEN_ACTION, -10.0)
    assert guarded.outcome().success is False
    assert guarded.outcome().components["forbidden_action"] == 1.0
    assert not any(order.refunded for order in desk._desk.orders.values())
    with pytest.raises(UsageError, match="has ended"):
        guarded.step(says(text="hello"))


def test_a_rule_that_cannot_judge_a_call_forbids_it() -> None:
    task, _ = desk_task()
    broken = Forbidden("broken", lambda call: bool(call.arguments["missing"]))  # type: ignore[index]
    guarded = Guarded(SupportDesk(), SafetyPolicy(writes=WRITES, forbidden=[broken]))
    guarded.reset(task)
    assert guarded.step(says(("get_order", "{}"))).stop_reason == StopReason.FORBIDDEN_ACTION


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (SafetyPolicy(writes=WRITES, max_calls=2), StopReason.CALL_LIMIT),
        (SafetyPolicy(writes=WRITES, max_cost=0.5, costs={"get_order": 0.2}), StopReason.COST_LIMIT),
        (SafetyPolicy(writes=WRITES, max_seconds=0.05), StopReason.TIME_LIMIT),
    ],
)
def test_limits_truncate_before_they_are_exceeded(policy: SafetyPolicy, reason: StopReason) -> None:
    task, order = desk_task()
    guarded = Guarded(SupportDesk(), policy)
    guarded.reset(task)
    look = says(("get_order", f'{{"order_id": "{order}"}}'))
    results: list[StepResult] = []
    while not results or not results[-1].truncated:
        if reason is StopReason.TIME_LIMIT and len(results) == 2:
            time.sleep(0.06)
        results.append(guarded.step(look))
    assert len(results) == 3
    assert results[-1].stop_reason == reason
    assert results[-1].messages[0].error is not None
    assert results[-1].messages[0].error.type == "limit"


def test_writes_of_an_episode_that_fails_are_taken_back_after_the_verdict(tmp_path: Path) -> None:
    task, order = desk_task("address")
    desk = SupportDesk()
    with AuditTrail(tmp_path / "audit") as audit:
        guarded = Guarded(desk, SafetyPolicy(writes=WRITES), audit=audit)
        guarded.reset(task)
        before = desk._desk.orders.copy()
        guarded.step(says(("refund_order", f'{{"order_id": "{order}"}}')))
        assert desk._desk.orders != before
        guarded.step(says(text="Done."))
    assert guarded.outcome().success is False
    assert desk._desk.orders == before
    assert [entry.kind for entry in entries(tmp_path / "audit")][-2:] == ["end", "write_undone"]


def test_writes_of_an_episode_that_succeeds_stay() -> None:
    tasks = family.tasks("train", 40, seed=0)
    kept = 0
    for task in tasks:
        desk = SupportDesk()
        guarded = Guarded(desk, SafetyPolicy(writes=WRITES))
        guarded.reset(task)
        for message in family.examples(task).success or ():
            guarded.step(message)
        assert guarded.outcome().success is True
        kept += any(order.refunded for order in desk._desk.orders.values())
    assert kept > 0


class HalfWriting(SupportDesk):
    """Its second write of a message changes the database and then fails."""

    def step(self, message: Message) -> StepResult:
        result = super().step(message)
        if len(message.tool_calls) < 2:
            return result
        broken = msgspec.structs.replace(result.messages[1], error=MessageError("tool_crash", "lost"))
        return StepResult([result.messages[0], broken], result.reward, result.terminated, result.truncated)


def test_a_failed_write_takes_the_message_back_and_the_agent_is_told() -> None:
    task, order = desk_task("address")
    desk = HalfWriting()
    guarded = Guarded(desk, SafetyPolicy(writes=WRITES))
    guarded.reset(task)
    before = desk._desk.orders.copy()
    address = f'{{"order_id": "{order}", "address": "1 Elm Road"}}'
    result = guarded.step(says(("update_address", address), ("refund_order", f'{{"order_id": "{order}"}}')))
    assert desk._desk.orders == before
    assert [reply.error and reply.error.type for reply in result.messages] == ["undone", "tool_crash"]
    assert "undone" in result.messages[0].text


class Crashing(SupportDesk):
    """The harness dies after a write."""

    def step(self, message: Message) -> StepResult:
        super().step(message)
        raise ConnectionError("the database is gone")


def test_a_crash_of_the_harness_takes_the_write_back() -> None:
    task, order = desk_task()
    desk = Crashing()
    guarded = Guarded(desk, SafetyPolicy(writes=WRITES))
    guarded.reset(task)
    before = desk._desk.orders.copy()
    with pytest.raises(ConnectionError):
        guarded.step(says(("refund_order", f'{{"order_id": "{order}"}}')))
    assert desk._desk.orders == before


def test_an_abandoned_episode_is_judged_and_taken_back() -> None:
    task, order = desk_task("address")
    desk = SupportDesk()
    guarded = Guarded(desk, SafetyPolicy(writes=WRITES))
    guarded.reset(task)
    before = desk._desk.orders.copy()
    guarded.step(says(("refund_order", f'{{"order_id": "{order}"}}')))
    guarded.abandon("context_length")
    assert desk._desk.orders == before
    assert guarded.outcome().success is False


def test_approvals_are_waited_for_counted_and_recorded(tmp_path: Path) -> None:
    task, order = desk_task()
    asked: list[ApprovalRequest] = []

    def person(request: ApprovalRequest) -> bool:
        asked.append(request)
        return len(asked) > 1

    policy = SafetyPolicy(writes=WRITES, needs_approval=frozenset({"refund_order"}))
    refund = says(("refund_order", f'{{"order_id": "{order}"}}'))
    with AuditTrail(tmp_path / "audit") as audit:
        guarded = Guarded(SupportDesk(), policy, audit=audit, approver=Callback(person, by="lead", cost=0.02))
        guarded.reset(task)
        denied, granted = guarded.step(refund), guarded.step(refund)
    assert [request.call.name for request in asked] == ["refund_order"] * 2
    assert denied.messages[0].error is not None
    assert denied.messages[0].error.type == "denied"
    assert (denied.reward, granted.reward) == (pytest.approx(-0.02), pytest.approx(-0.02))
    assert granted.messages[0].error is None
    approvals = [entry.details for entry in entries(tmp_path / "audit") if entry.kind == "approval"]
    assert [(entry["granted"], entry["by"], entry["cost"]) for entry in approvals] == [
        (False, "lead", 0.02), (True, "lead", 0.02),
    ]  # fmt: skip


def test_nobody_who_answers_is_a_no_and_so_is_an_approver_that_fails() -> None:
    task, _ = desk_task()
    request = ApprovalRequest(task.task_id, tool_call("refund_order", "{}"), "needs approval")
    slow = Callback(lambda request: bool(time.sleep(5)) or True)
    started = time.monotonic()
    answer = WithTimeout(slow, seconds=0.05).ask(request)
    assert time.monotonic() - started < 2
    assert (answer.granted, answer.by) == (False, "timeout")
    assert WithTimeout(Standing(granted=True), seconds=5).ask(request).granted
    assert not Callback(lambda request: bool(1 / 0)).ask(request).granted


@pytest.mark.parametrize(
    ("rule", "raw", "found"),
    [
        ({"pattern": "<script"}, '{"text": "\\u003cscript>"}', True),  # as JSON means it
        ({"pattern": "<script"}, '{"text": "<script', True),  # no JSON at all
        ({"pattern": "<script"}, '{"text": "script"}', False),
        ({"arguments": {"order_id": "Z99"}}, '{"order_id": "\\u005a99", "more": 1}', True),
        ({"arguments": {"order_id": "Z99"}}, '{"order_id": "A10"}', False),
        ({"arguments": {"order_id": "Z99"}}, "Z99", False),  # such a call runs nowhere
        ({"tools": ["refund_order"]}, "{}", True),
        ({"tools": ["other"]}, "{}", False),
        ({"tools": ["refund_order"], "pattern": "Z"}, '{"order_id": "A10"}', False),
    ],
)
def test_forbidden_calls_by_configuration(rule: dict[str, Any], raw: str, found: bool) -> None:
    config = SafetyConfig.model_validate({"forbidden": [{"name": "rule", **rule}], "writes": list(WRITES)})
    assert config.forbidden[0].matches(tool_call("refund_order", raw)) is found
    family_within = GuardedFamily(family, config)
    environment = family_within.make()
    environment.reset(desk_task()[0])
    assert (environment.step(says(("refund_order", raw))).stop_reason == StopReason.FORBIDDEN_ACTION) is found
    assert isinstance(family_within, HasExamples)
    assert not isinstance(family_within, KnowsTargetReturns)


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        ({"writes": ["refund_ordr"]}, "safety.writes: no task has a tool 'refund_ordr'; did you mean refund_order"),
        ({"allowed_tools": ["get_order", "x"]}, "safety.allowed_tools: no task has a tool 'x'; known: get_order"),
        ({"forbidden": [{"name": "r", "tools": ["refunds"]}]}, "safety.forbidden: no task has a tool 'refunds'"),
        ({"needs_approval": ["pay"]}, "safety.needs_approval"),
        ({"costs": {"pay": 1.0}}, "safety.costs"),
    ],
)
def test_bounds_on_tools_that_no_task_has_are_refused(bounds: dict[str, Any], told: str) -> None:
    within = GuardedFamily(family, SafetyConfig.model_validate(bounds))
    with pytest.raises(UsageError, match=re.escape(told)):
        within.tasks("test", 3, seed=0)
    right = GuardedFamily(family, SafetyConfig.model_validate({"writes": ["refund_order"], "costs": {"get_order": 1}}))
    assert right.tasks("test", 3, seed=0) == family.tasks("test", 3, seed=0)


@pytest.mark.parametrize(("approval", "granted"), [("deny", False), ("grant", True)])
def test_standing_answers_by_configuration(approval: str, granted: bool) -> None:
    config = SafetyConfig.model_validate({"needs_approval": ["refund_order"], "approval": approval})
    task, order = desk_task()
    environment = GuardedFamily(family, config).make()
    environment.reset(task)
    reply = environment.step(says(("refund_order", f'{{"order_id": "{order}"}}'))).messages[0]
    assert (reply.error is None) is granted


def test_what_tools_cost_is_what_the_environment_says_unless_the_policy_does() -> None:
    tool = Tool("ask", "", {"type": "object"}, lambda _: "yes", cost=2.0)
    world = type("World", (), {"tools": [tool], "close": lambda self: None})()
    ask = Message("assistant", None, tool_calls=[tool_call("ask", "{}")])
    judge = FunctionJudge(lambda task, messages, world: Outcome("scored", True, 1.0))
    for costs, calls in (({}, 2), ({"ask": 0.5}, 9)):
        environment = ToolEnvironment(lambda task: world, user=ScriptedUser, judge=judge)
        guarded = Guarded(environment, SafetyPolicy(max_cost=4.5, costs=costs))
        guarded.reset(Task("t", "x", {"prompt": "?"}))
        count = 0
        while guarded.step(ask).stop_reason != StopReason.COST_LIMIT:
            count += 1
        assert count == calls


def test_whatever_an_agent_writes_can_be_put_on_the_trail(tmp_path: Path) -> None:
    task, _ = desk_task()
    with AuditTrail(tmp_path / "audit") as audit:
        guarded = Guarded(SupportDesk(), SafetyPolicy(writes=WRITES), audit=audit)
        guarded.reset(task)
        guarded.step(says(("get_order", '{"order_id": "\ud800"}'), ("\udfff", "\ud800"), text="\ud83d"))
        guarded.step(says(("get_order", '{"order_id": "\ud800"}')))
    assert verify(tmp_path / "audit").entries == 4
    assert entries(tmp_path / "audit")[1].details["calls"][1] == ["\\udfff", "\\ud800"]


def test_bounds_that_could_not_be_kept_are_refused() -> None:
    class Forgetful:
        max_steps = 3

        def reset(self, task: Task) -> None: ...
        def step(self, message: Message) -> None: ...
        def outcome(self) -> None: ...

    forgetful: Environment = Forgetful()  # type: ignore[assignment]
    with pytest.raises(UsageError, match="cannot undo writes"):
        Guarded(forgetful, SafetyPolicy())
    Guarded(forgetful, SafetyPolicy(writes=frozenset()))
    with pytest.raises(UsageError, match="approver"):
        Guarded(SupportDesk(), SafetyPolicy(needs_approval=frozenset({"refund_order"})))


def test_no_sequence_of_random_actions_gets_out_of_bounds(tmp_path: Path) -> None:
    """10,000 random actions: no tool outside the allow-list runs, no limit is exceeded, no failed write stays in the
    database, and every call that ran was on the trail before."""
    generator = np.random.default_rng(0)
    tasks = family.tasks("train", 50, seed=1)
    names = ["get_order", "update_address", "refund_order", "open_ticket", "drop_table", ""]
    policy = SafetyPolicy(
        writes=WRITES,
        max_calls=6,
        max_cost=3.0,
        costs={"refund_order": 1.0},
        forbidden=[Forbidden("tickets about lateness", lambda call: "late" in call.arguments_raw)],
    )
    actions = episodes = 0
    ran: list[str] = []

    class Watched(SupportDesk):
        def step(self, message: Message) -> StepResult:
            ran.extend(call.name for call in message.tool_calls)
            return super().step(message)

    trail = tmp_path / "audit"
    with AuditTrail(trail) as audit:
        while actions < 10_000:
            base = tasks[int(generator.integers(len(tasks)))]
            allowed = tuple(name for name in names[:4] if generator.random() < 0.7)
            task = Task(f"episode-{episodes}", base.task_type, base.payload, allowed)
            desk = Watched()
            assert isinstance(desk, Reversible)
            guarded = Guarded(desk, policy, audit=audit)
            guarded.reset(task)
            before, calls, cost = desk._desk.orders.copy(), len(ran), 0.0
            episodes += 1
            for _ in range(int(generator.integers(1, 12))):
                actions += 1
                message = _random_message(generator, names, [o["order_id"] for o in base.payload["orders"]])
                ran_before = len(ran)
                result = guarded.step(message)
                assert set(ran[ran_before:]) <= set(allowed)
                cost += sum(policy.costs.get(name, 0.0) for name in ran[ran_before:])
                assert len(ran) - calls <= 6
                assert cost <= 3.0
                if result.terminated or result.truncated:
                    break
            else:
                guarded.abandon("stopped")
            if not guarded.outcome().success:
                assert desk._desk.orders == before
                assert not desk._desk.tickets
    verify(trail)
    logged = [entry.details["tool"] for entry in entries(trail) if entry.kind == "call"]
    assert logged == ran
    assert len(ran) > 1_000  # bounds that let nothing through would be easy to keep


def _random_message(generator: np.random.Generator, names: list[str], orders: list[str]) -> Message:
    if generator.random() < 0.1:
        return says(text=["Done.", "", "What is your order number?"][int(generator.integers(3))])
    calls = []
    for _ in range(int(generator.integers(1, 3))):
        order = orders[int(generator.integers(len(orders)))] if orders and generator.random() < 0.8 else "Z99"
        arguments = [
            f'{{"order_id": "{order}"}}',
            f'{{"order_id": "{order}", "address": "1 Elm Road"}}',
            f'{{"order_id": "{order}", "topic": "damaged"}}',
            f'{{"order_id": "{order}", "topic": "late"}}',
            '{"order_id": ',
            "null",
        ]
        weights = np.array([0.4, 0.25, 0.2, 0.02, 0.08, 0.05])
        calls.append((names[int(generator.integers(len(names)))], arguments[int(generator.choice(6, p=weights))]))
    return says(*calls)
