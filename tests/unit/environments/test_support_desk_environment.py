"""The environment: tools, judge, penalties, endings, and that nothing an agent says can crash it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_arl import environments
from offline_arl.environments.protocol import Task
from offline_arl.environments.support_desk import SupportDesk, family
from offline_arl.environments.support_desk.tasks import DeskPayload, Order, Request
from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import Message, ToolCall, text_message, tool_call


def task(*requests: Request, orders: list[Order], withheld: bool = False) -> Task:
    payload = DeskPayload(requests=list(requests), orders=orders, opening="Hello.", withheld=withheld)
    return Task("t", "compound" if len(requests) > 1 else requests[0].kind, msgspec.to_builtins(payload))


def call(name: str, arguments: str | dict[str, str]) -> Message:
    return Message(role="assistant", tool_calls=[tool_call(name, arguments, id="c1")])


def say(text: str) -> Message:
    return text_message("assistant", text)


REFUND = task(Request("refund", "17"), orders=[Order("17", "delivered", "a", weeks=2), Order("18", "shipped", "b")])


def test_a_refund_done_right_earns_one() -> None:
    desk = SupportDesk()
    start = desk.reset(REFUND)
    assert [message.role for message in start.messages] == ["system", "user"]
    looked_up = desk.step(call("get_order", {"order_id": "17"}))
    assert looked_up.messages[0].text == '{"status": "delivered", "weeks": 2}'
    assert looked_up.messages[0].tool_call_id == "c1"
    assert (looked_up.reward, looked_up.terminated, looked_up.truncated) == (0.0, False, False)
    desk.step(call("refund_order", {"order_id": "17"}))
    end = desk.step(say("Your refund is on its way."))
    assert (end.reward, end.terminated, end.stop_reason, end.messages) == (1.0, True, "answered", [])
    assert desk.outcome().success is True


@pytest.mark.parametrize(
    ("messages", "failed"),
    [
        ([say("Your refund is on its way.")], "database"),  # promise without action
        ([call("refund_order", {"order_id": "17"}), say("Sorry, not possible.")], "answer"),
        (
            [call("refund_order", {"order_id": "17"}), call("refund_order", {"order_id": "18"}), say("Done.")],
            "database",
        ),
        (
            [
                call("refund_order", {"order_id": "17"}),
                call("open_ticket", {"order_id": "17", "topic": "late"}),
                say("Done."),
            ],
            "tickets",
        ),
    ],
)
def test_what_the_judge_fails(messages: list[Message], failed: str) -> None:
    desk = SupportDesk()
    desk.reset(REFUND)
    for message in messages:
        result = desk.step(message)
    assert result.reward == 0.0
    components = desk.outcome().components
    assert [name for name, passed in components.items() if not passed] == [failed]


def test_the_tools_do_not_check_the_policy_for_the_agent() -> None:
    desk = SupportDesk()
    desk.reset(task(Request("refund", "17"), orders=[Order("17", "delivered", "a", weeks=8)]))
    assert desk.step(call("refund_order", {"order_id": "17"})).messages[0].text == '{"ok": true}'
    assert desk.step(say("Sorry, that is not possible.")).reward == 0.0


def test_a_status_answer_names_the_status_and_no_other() -> None:
    for answer, reward in (("It is shipped.", 1.0), ("It is processing or shipped.", 0.0), ("Soon.", 0.0)):
        desk = SupportDesk()
        desk.reset(task(Request("status", "17"), orders=[Order("17", "shipped", "a")]))
        assert desk.step(say(answer)).reward == reward


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (call("find_order", {"order_id": "17"}), "unknown_tool"),
        (call("get_order", '{"order_id": "17'), "invalid_json"),
        (call("get_order", '["17"]'), "invalid_json"),
        (call("get_order", {"order": "17"}), "invalid_arguments"),
        (call("open_ticket", {"order_id": "17", "topic": "rude"}), "invalid_arguments"),
        (call("update_address", {"order_id": "17", "address": ""}), "invalid_arguments"),
    ],
)
def test_a_malformed_action_costs_a_penalty_and_the_episode_goes_on(message: Message, kind: str) -> None:
    desk = SupportDesk()
    desk.reset(REFUND)
    result = desk.step(message)
    assert (result.reward, result.terminated, result.info) == (-0.05, False, {"invalid_actions": 1})
    assert result.messages[0].text == f'{{"error": "{kind}"}}'
    assert result.messages[0].error is not None
    assert result.messages[0].error.type == kind
    desk.step(call("refund_order", {"order_id": "17"}))
    assert desk.step(say("Done.")).reward == 1.0


def test_an_order_that_does_not_exist_is_an_error_but_no_malformed_action() -> None:
    desk = SupportDesk()
    desk.reset(REFUND)
    result = desk.step(call("get_order", {"order_id": "99"}))
    assert (result.reward, result.messages[0].text) == (0.0, '{"error": "no such order"}')


def test_an_empty_message_is_malformed() -> None:
    desk = SupportDesk()
    desk.reset(REFUND)
    result = desk.step(say("  "))
    assert (result.reward, result.terminated, result.messages[0].role) == (-0.05, False, "user")


def test_the_customer_gives_the_number_once_when_asked() -> None:
    desk = SupportDesk()
    desk.reset(task(Request("refund", "17"), orders=[Order("17", "delivered", "a", weeks=2)], withheld=True))
    asked = desk.step(say("What is your order number?"))
    assert (asked.terminated, asked.messages[0].text) == (False, "It is order 17.")
    assert desk.step(say("What is your order number?")).terminated


def test_running_out_of_steps_truncates_and_does_not_terminate() -> None:
    desk = SupportDesk(max_steps=2)
    desk.reset(REFUND)
    desk.step(call("get_order", {"order_id": "17"}))
    last = desk.step(call("get_order", {"order_id": "17"}))
    assert (last.terminated, last.truncated, last.stop_reason, last.reward) == (False, True, "max_steps", 0.0)
    assert desk.outcome().success is False
    with pytest.raises(UsageError, match="reset"):
        desk.step(say("Hello."))


names = st.one_of(st.sampled_from(["get_order", "update_address", "refund_order", "open_ticket"]), st.text(max_size=8))
raw = st.one_of(
    st.text(max_size=20),
    st.dictionaries(
        st.sampled_from(["order_id", "address", "topic", "x"]), st.one_of(st.none(), st.integers(), st.text(max_size=5))
    )
    .map(msgspec.json.encode)
    .map(bytes.decode),
)
calls = st.one_of(
    st.builds(tool_call, names, raw),
    st.builds(ToolCall, name=names, arguments_raw=raw, parse_error=st.just("broken")),
    st.builds(ToolCall, name=names, arguments_raw=raw),
)
messages = st.builds(
    lambda text, made: Message(role="assistant", content=text_message("assistant", text).content, tool_calls=made),
    st.one_of(st.none(), st.text(max_size=20)),
    st.lists(calls, max_size=3),
)


@settings(deadline=None, max_examples=100)
@given(st.lists(messages, min_size=1, max_size=10), st.integers(0, 19))
def test_nothing_an_agent_says_raises(said: list[Message], index: int) -> None:
    desk = family.make()
    desk.reset(family.tasks("train", 20, seed=0)[index])
    for message in said:
        result = desk.step(message)
        assert -0.05 <= result.reward <= 1.0
        assert (result.stop_reason is not None) == (result.terminated or result.truncated)
        if result.terminated or result.truncated:
            break


def test_environments_are_found_by_name() -> None:
    assert environments.load("support_desk").name == "support_desk"
    with pytest.raises(UsageError, match=r"unknown environment 'desk'; available: .*support_desk"):
        environments.load("desk")


def test_a_desk_that_says_sorry_to_everyone_is_never_right() -> None:
    for task in family.tasks("test", 200, seed=0):
        environment = SupportDesk()
        environment.reset(task)
        while not (result := environment.step(text_message("assistant", "Sorry, that is not possible."))).terminated:
            assert not result.truncated
        assert environment.outcome().success is False


@pytest.mark.parametrize(
    ("looked_up", "right"), [(["A1"], False), (["B2"], False), (["A1", "C3"], False), (["A1", "B2"], True)]
)
def test_each_order_that_is_declined_was_looked_up(looked_up: list[str], right: bool) -> None:
    """Two refunds that come too late: by 1 week the one, by 5 the other; a third order is nobody's wish."""
    orders = [Order(name, "delivered", "a", weeks) for name, weeks in (("A1", 5), ("B2", 9), ("C3", 1))]
    desk = SupportDesk()
    desk.reset(task(Request("refund", "A1"), Request("refund", "B2"), orders=orders))
    for order_id in looked_up:
        desk.step(call("get_order", {"order_id": order_id}))
    desk.step(say("Sorry, a refund is not possible."))
    assert desk.outcome().success is right


def test_a_malformed_call_is_no_look_at_an_order() -> None:
    """`find_order` does not exist, so nothing is known about the order when the refund is declined."""
    desk = SupportDesk()
    desk.reset(task(Request("refund", "A1"), orders=[Order("A1", "delivered", "a", 5)]))
    desk.step(call("find_order", {"order_id": "A1"}))
    desk.step(say("Sorry, a refund is not possible."))
    assert desk.outcome().success is False
