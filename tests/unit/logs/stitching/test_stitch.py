"""Model calls become the trajectories that people would draw on paper, one case a test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from offline_arl.logs.adapter import Group, Piece
from offline_arl.logs.stitching.stitch import ModelCall, assembly_of, conversation_key, stitch
from offline_arl.trajectories.schema import (
    Context,
    ImagePart,
    Message,
    MessageError,
    Producer,
    ReasoningPart,
    Score,
    TextPart,
    TokenRecord,
    Trajectory,
    Usage,
    text_message,
    tool_call,
)
from offline_arl.trajectories.validate import errors_of

SYSTEM = text_message("system", "You are a careful assistant.")
TOOLS = '[{"type":"function","function":{"name":"search"}}]'


def user(text: str) -> Message:
    return text_message("user", text)


def said(text: str | None, **arguments: Any) -> Message:
    """An answer; keyword arguments become one call of `search`."""
    calls = [tool_call("search", arguments, id=f"call-{'-'.join(map(str, arguments.values()))}")] if arguments else []
    return Message("assistant", None if text is None else [TextPart(text)], calls)


def result(text: str, id: str) -> Message:
    return Message("tool", [TextPart(text)], tool_call_id=id)


def call(number: int, messages: list[Message], *choices: Message, **fields: Any) -> ModelCall:
    """The call with this number: it starts in this second and is read from this piece."""
    defaults: dict[str, Any] = {"call_id": f"call {number}", "started_at": at(number), "model": "model-1"}
    return ModelCall(messages=messages, choices=list(choices), pieces=(number,), **{**defaults, **fields})


def at(second: float) -> str:
    return f"2025-03-03T10:00:{second:06.3f}Z"


def group(size: int = 20, key: str = "session") -> Group:
    return Group("log", key, [Piece(b"", "log.jsonl", "log.jsonl", i, f"{i:064}", i + 1) for i in range(size)])


def lines(trajectory: Trajectory) -> list[str]:
    """A message a line: role, who made it where that is known, the text and the arguments of its calls."""
    shown = []
    for message in trajectory.messages:
        kind = message.producer.kind
        calls = "".join(f" {item.name}({item.arguments_raw})" for item in message.tool_calls)
        shown.append(f"{message.role}{'' if kind == 'unknown' else f' [{kind}]'}: {message.text}{calls}")
    return shown


def stitched(*calls: ModelCall) -> list[Trajectory]:
    """The trajectories of calls of which none is set apart."""
    found = stitch(calls, group())
    assert found.set_apart == {}
    assert found.duplicates == {}
    for trajectory in found.trajectories:
        assert errors_of(trajectory) == []
    return found.trajectories


def test_calls_that_extend_one_another_are_one_trajectory() -> None:
    sampled = Message(
        "assistant",
        [ReasoningPart("hm", signature="seal"), TextPart("Let me look.")],
        [tool_call("search", '{"q": "tea"}', id="c1")],
        tokens=TokenRecord([1, 2], "tokenizer"),
        usage=Usage(10, 2),
    )
    repeated = Message("assistant", [TextPart("Let me look.")], [tool_call("search", '{"q":"tea"}', id="c1")])
    first = call(1, [SYSTEM, user("Find tea.")], sampled, tools=TOOLS, stop_reason="tool_calls", ended_at=at(1.5))
    history = [SYSTEM, user("Find tea."), repeated, result("green", "c1"), user("And milk?")]
    second = call(2, history, said("Both are here."), tools=TOOLS, stop_reason="stop", ended_at=at(2.5))

    (trajectory,) = stitched(first, second)

    assert lines(trajectory) == [
        "system: You are a careful assistant.",
        "user: Find tea.",
        'assistant [model]: Let me look. search({"q": "tea"})',
        "tool [environment]: green",
        "user: And milk?",
        "assistant [model]: Both are here.",
    ]
    answer = trajectory.messages[2]
    assert answer.reasoning == "hm"
    assert answer.tokens == TokenRecord([1, 2], "tokenizer")
    assert answer.usage == Usage(10, 2)
    assert answer.producer == Producer("model", "model-1")
    assert answer.id == "call 1"
    assert answer.metadata == {"stop_reason": "tool_calls"}
    assert [message.timestamp for message in trajectory.messages] == [None, at(1), at(1.5), at(2), at(2), at(2.5)]
    assert (trajectory.started_at, trajectory.ended_at) == (at(1), at(2.5))
    assert trajectory.stop_reason == "stop"
    assert (trajectory.terminated, trajectory.truncated) == (False, False)
    assert trajectory.contexts == [Context(start=0, tools=TOOLS)]
    assert trajectory.trajectory_id == group().trajectory_id("call 1")
    assert trajectory.source == group().source([1, 2])


@pytest.mark.parametrize(
    "repeated",
    [
        said("Hello  there"),
        Message("assistant", [TextPart("Hello "), TextPart(" there")]),
        said("Hello  there\n"),
        said("<think>hm</think>\n\nHello  there"),
        Message("assistant", [ReasoningPart("", "seal", encrypted=True), TextPart("Hello  there")]),
        msgspec.structs.replace(said("Hello  there"), metadata={"cache_control": {"type": "ephemeral"}}, id="x"),
        msgspec.structs.replace(said("Hello  there"), producer=Producer("human"), timestamp="2020-01-01"),
    ],
)
def test_an_answer_is_the_same_however_the_history_repeats_its_text(repeated: Message) -> None:
    answer = Message("assistant", [ReasoningPart("hm"), TextPart("Hello  there")])
    (trajectory,) = stitched(
        call(1, [user("Hi")], answer), call(2, [user("Hi"), repeated, user("Bye")], said("See you"))
    )
    assert [message.role for message in trajectory.messages] == ["user", "assistant", "user", "assistant"]
    assert trajectory.messages[1].content == answer.content
    assert trajectory.messages[1].producer.kind == "model"


@pytest.mark.parametrize(
    ("content", "raw", "id"),
    [
        ([], '{"n": 1, "q": "é"}', "c1"),
        ([TextPart("")], '{"q":"\\u00e9","n":1.0}', "c1"),
        (None, '{\n  "q": "é",\n  "n": 1\n}', None),
        (None, '{"q": "é", "n": 1}', "renamed"),
    ],
)
def test_an_answer_is_the_same_however_the_history_repeats_its_calls(content: Any, raw: str, id: str | None) -> None:
    sampled = Message("assistant", None, [tool_call("search", '{"q": "é", "n": 1}', id="c1")])
    repeated = Message("assistant", content, [tool_call("search", raw, id=id)])
    results = result("found", id) if id else Message("tool", [TextPart("found")], tool_call_id="c1")
    (trajectory,) = stitched(call(1, [user("Hi")], sampled), call(2, [user("Hi"), repeated, results], said("Done")))
    assert trajectory.messages[1].tool_calls == sampled.tool_calls
    assert [message.tool_call_id for message in trajectory.messages] == [None, None, "c1", None]


def test_ids_that_only_the_history_has_are_taken_from_it() -> None:
    sampled = Message("assistant", None, [tool_call("search", {"q": 1}), tool_call("search", {"q": 2})])
    repeated = Message(
        "assistant", None, [tool_call("search", {"q": 1}, id="a"), tool_call("search", {"q": 2}, id="b")]
    )
    history = [user("Hi"), repeated, result("two", "b"), result("one", "a")]
    (trajectory,) = stitched(call(1, [user("Hi")], sampled), call(2, history, said("Done")))
    assert [item.id for item in trajectory.messages[1].tool_calls] == ["a", "b"]
    assert [message.tool_call_id for message in trajectory.messages[2:4]] == ["b", "a"]


def test_an_answer_that_the_history_splits_is_one_message() -> None:
    sampled = said("Let me look.", q=1)
    history = [user("Hi"), said("Let me look."), said(None, q=1), result("one", "call-1")]
    (trajectory,) = stitched(call(1, [user("Hi")], sampled), call(2, history, said("Done")))
    assert lines(trajectory) == [
        "user: Hi",
        'assistant [model]: Let me look. search({"q":1})',
        "tool [environment]: one",
        "assistant [model]: Done",
    ]


def test_an_answer_whose_text_the_history_drops_is_the_same() -> None:
    history = [user("Hi"), said(None, q=1), result("one", "call-1")]
    (trajectory,) = stitched(call(1, [user("Hi")], said("Let me look.", q=1)), call(2, history, said("Done")))
    assert lines(trajectory)[1] == 'assistant [model]: Let me look. search({"q":1})'


def test_an_answer_in_parts_that_the_history_joins_is_the_same() -> None:
    sampled = Message("assistant", [TextPart("One."), TextPart("Two.")])
    (trajectory,) = stitched(
        call(1, [user("Hi")], sampled), call(2, [user("Hi"), said("One.\n\nTwo."), user("More")], said("Three."))
    )
    assert lines(trajectory) == [
        "user: Hi",
        "assistant [model]: One.Two.",
        "user: More",
        "assistant [model]: Three.",
    ]


def test_a_beginning_put_into_the_answers_mouth_stays_apart_from_what_was_sampled() -> None:
    prompt = [user("JSON please"), said('{"answer":')]
    history = [user("JSON please"), said('{"answer": 42}'), user("Thanks")]
    (trajectory,) = stitched(call(1, prompt, said(" 42}")), call(2, history, said("Welcome")))
    assert lines(trajectory) == [
        "user: JSON please",
        'assistant: {"answer":',
        "assistant [model]:  42}",
        "user: Thanks",
        "assistant [model]: Welcome",
    ]


def test_a_cut_answer_that_is_continued_keeps_both_samples() -> None:
    first = call(
        1, [user("Count")], said("one two"), truncated=True, stop_reason="length", scores=[Score("clear", 1.0)]
    )
    second = call(2, [user("Count"), said("one two")], said(" three"))
    third = call(3, [user("Count"), said("one two three"), user("Go on")], said("four"))
    (trajectory,) = stitched(first, second, third)
    assert lines(trajectory) == [
        "user: Count",
        "assistant [model]: one two",
        "assistant [model]:  three",
        "user: Go on",
        "assistant [model]: four",
    ]
    assert trajectory.scores == [Score("clear", 1.0, message_index=1)]
    assert trajectory.truncated is False


def test_a_system_prompt_that_tells_the_time_is_one_prompt_and_its_changes_are_kept() -> None:
    now, later = (text_message("system", f"You plan trips. It is {time} now.") for time in ("10:15", "9:07"))
    trajectories = stitched(
        call(1, [now, user("Hi")], said("Where to?")),
        call(2, [later, user("Hi"), said("Where to?"), user("Rome")], said("Booked.")),
    )
    assert [lines(trajectory) for trajectory in trajectories] == [
        [
            "system: You plan trips. It is 10:15 now.",
            "user: Hi",
            "assistant [model]: Where to?",
            "user: Rome",
            "assistant [model]: Booked.",
        ]
    ]
    change = {"message_index": 4, "system_index": 0, "start": 22, "end": 27, "text": "9:07"}
    assert trajectories[0].metadata == {"system_changes": [change]}
    assert now.text[:22] + "9:07" + now.text[27:] == later.text


def test_tools_that_change_midway_are_a_new_context_from_the_answer_on() -> None:
    other = '[{"type":"function","function":{"name":"book"}}]'
    history = [user("Hi"), said("Where to?"), user("Rome")]
    (trajectory,) = stitched(
        call(1, [user("Hi")], said("Where to?"), tools=TOOLS),
        call(2, history, said("When?"), tools=TOOLS),
        call(3, [*history, said("When?"), user("Now")], said("Booked."), tools=other),
        call(4, [*history, said("When?"), user("Now"), said("Booked."), user("Bye")], said("Bye."), tools=None),
    )
    assert trajectory.contexts == [Context(0, TOOLS), Context(5, other)]


def test_interleaved_sub_agents_are_children_of_the_call_that_started_them() -> None:
    helper = text_message("system", "You look things up and report.")
    asked = Message(
        "assistant",
        None,
        [tool_call("task", {"prompt": "Find tea."}, id="a"), tool_call("task", {"prompt": "Find milk."}, id="b")],
    )
    history = [SYSTEM, user("Shop"), asked, result("green", "a"), result("fresh", "b")]
    tea, milk = [helper, user("Find tea.")], [helper, user("Find milk.")]
    main, first, second = stitched(
        call(1, [SYSTEM, user("Shop")], asked, tools=TOOLS),
        call(2, tea, said(None, q="tea")),
        call(3, milk, said(None, q="milk")),
        call(4, [*milk, said(None, q="milk"), result("1 l", "call-milk")], said("fresh")),
        call(5, [*tea, said(None, q="tea"), result("2 kg", "call-tea")], said("green")),
        call(6, history, said("Done."), tools=TOOLS),
    )
    assert lines(main)[-1] == "assistant [model]: Done."
    assert main.parent_trajectory_id is None
    assert lines(first) == [
        "system: You look things up and report.",
        "user: Find tea.",
        'assistant [model]:  search({"q":"tea"})',
        "tool [environment]: 2 kg",
        "assistant [model]: green",
    ]
    assert lines(second)[-1] == "assistant [model]: fresh"
    for child in (first, second):
        assert child.parent_trajectory_id == main.trajectory_id
        assert child.branch is None
        assert child.metadata == {"relation": "sub_agent", "parent_message_id": "call 1"}


def test_the_tool_call_that_the_log_names_started_the_sub_agent() -> None:
    helper = text_message("system", "You look things up and report.")
    asked = said(None, q="tea")
    main, child = stitched(
        call(1, [SYSTEM, user("Shop")], asked),
        call(2, [SYSTEM, user("Shop"), asked, result("green", "call-tea")], said("Done.")),
        call(3, [helper, user("Where?")], said("There."), parent_tool_call_id="call-tea"),
    )
    assert child.parent_trajectory_id == main.trajectory_id
    assert child.metadata == {"relation": "sub_agent", "parent_message_id": "call 1"}


def test_choices_are_branches_and_the_one_that_went_on_says_so() -> None:
    asked = [SYSTEM, user("Name a color")]
    red, blue = stitched(
        call(1, asked, said("Red"), said("Blue")),
        call(2, [*asked, said("Blue"), user("Another")], said("Green")),
    )
    assert lines(red) == ["system: You are a careful assistant.", "user: Name a color", "assistant [model]: Red"]
    assert lines(blue) == [
        "system: You are a careful assistant.",
        "user: Name a color",
        "assistant [model]: Blue",
        "user: Another",
        "assistant [model]: Green",
    ]
    assert blue.branch is not None
    assert (blue.branch.trajectory_id, blue.branch.message_index) == (red.trajectory_id, 2)
    assert blue.metadata == {"relation": "choice", "continued": True}
    assert blue.parent_trajectory_id is None
    assert (red.trajectory_id, blue.trajectory_id) == (
        group().trajectory_id("call 1"),
        group().trajectory_id("call 1#1"),
    )


def test_another_answer_to_the_same_prompt_is_a_branch_even_if_it_says_the_same() -> None:
    asked = [SYSTEM, user("Name a color")]
    first, again = stitched(call(1, asked, said("Red")), call(2, asked, said("Red")))
    assert lines(first) == lines(again)
    assert again.branch is not None
    assert (again.branch.trajectory_id, again.branch.message_index) == (first.trajectory_id, 2)
    assert again.metadata == {"relation": "regenerated", "continued": False}


def test_a_greeting_before_any_user_spoke_is_no_step() -> None:
    opening = [said("Welcome, how can I help?"), user("Where is my order?")]
    (trajectory,) = stitched(call(0, opening, said("On its way.")))
    assert [message.producer.kind for message in trajectory.messages] == ["script", "unknown", "model"]
    assert trajectory.step_indices() == [2]
    # Without a user, or after one, an answer that no logged call made may well be the agent's own.
    (trajectory,) = stitched(call(0, [text_message("system", "Go on."), said("Step 1.")], said("Step 2.")))
    assert trajectory.step_indices() == [1, 2]
    (trajectory,) = stitched(call(0, [user("Hi."), said("Hello."), user("Where is it?")], said("On its way.")))
    assert trajectory.step_indices() == [1, 3]


def test_two_conversations_that_begin_alike_stay_two() -> None:
    asked, answer = [user("Hi")], said("Hello")
    one, other = stitched(
        call(1, asked, answer),
        call(2, asked, answer),
        call(3, [*asked, answer, user("Tea?")], said("Yes")),
        call(4, [*asked, answer, user("Milk?")], said("No")),
    )
    assert {lines(one)[2], lines(other)[2]} == {"user: Tea?", "user: Milk?"}
    assert [message.producer.kind for message in one.messages if message.role == "assistant"] == ["model", "model"]
    assert [message.producer.kind for message in other.messages if message.role == "assistant"] == ["model", "model"]


def test_ids_of_tool_calls_tell_which_of_two_equal_answers_went_on() -> None:
    asked, answers = [user("Hi")], [Message("assistant", None, [tool_call("search", {}, id=id)]) for id in "ab"]
    one, other = stitched(
        call(1, asked, answers[0]),
        call(2, asked, answers[1]),
        call(3, [*asked, answers[0], result("found", "a")], said("There")),
    )
    assert [message.tool_call_id for message in one.messages] == [None, None, "a", None]
    assert len(other.messages) == 2


def test_calls_with_traces_go_on_in_their_own() -> None:
    asked, answer = [user("Hi")], said("Hello")
    one, other = stitched(
        call(1, asked, answer, trace_id="t1", session_id="s"),
        call(2, asked, answer, trace_id="t2", session_id="s"),
        call(3, [*asked, answer, user("Tea?")], said("Yes"), trace_id="t1", session_id="s"),
        call(4, [*asked, answer, user("Milk?")], said("No"), trace_id="t2", session_id="s"),
    )
    assert lines(one)[2] == "user: Tea?"
    assert lines(other)[2] == "user: Milk?"
    assert one.identifiers == {"trace": "t1"}


def test_a_rewritten_turn_starts_a_branch_with_the_answers_before_it_as_copies() -> None:
    history = [SYSTEM, user("Find tea."), said(None, q=1), result("a long page", "call-1")]
    cleared = [*history[:3], result("[cleared]", "call-1"), said("Found.", q=2), result("more", "call-2")]
    first, second = stitched(
        call(1, history[:2], said(None, q=1)),
        call(2, history, said("Found.", q=2)),
        call(3, cleared, said("All done.")),
    )
    assert lines(first)[-1] == 'assistant [model]: Found. search({"q":2})'
    assert lines(second) == [
        "system: You are a careful assistant.",
        "user: Find tea.",
        'assistant [copy]:  search({"q":1})',
        "tool [environment]: [cleared]",
        'assistant [copy]: Found. search({"q":2})',
        "tool [environment]: more",
        "assistant [model]: All done.",
    ]
    assert second.branch is not None
    assert (second.branch.trajectory_id, second.branch.message_index) == (first.trajectory_id, 3)
    assert second.metadata == {"relation": "rewritten"}


def test_a_reminder_that_is_gone_in_the_next_prompt_makes_a_branch_of_each_call() -> None:
    reminder = user("<reminder>be brief</reminder>")
    first, second = stitched(
        call(1, [SYSTEM, user("One"), reminder], said("1")),
        call(2, [SYSTEM, user("One"), said("1"), user("Two"), reminder], said("2")),
    )
    assert lines(second)[1:] == [
        "user: One",
        "assistant [copy]: 1",
        "user: Two",
        "user: <reminder>be brief</reminder>",
        "assistant [model]: 2",
    ]
    assert second.branch is not None
    assert second.branch.message_index == 2
    assert [message.producer.kind for message in first.messages].count("model") == 1


def long_conversation(numbers: range) -> list[Message]:
    return [
        message for n in numbers for message in (user(f"Question {n}"), said(f"This is the answer to question {n}"))
    ]


def test_a_summary_starts_a_child_and_the_call_that_made_it_is_set_apart() -> None:
    history = [SYSTEM, *long_conversation(range(3))]
    summary = "The user asked three questions and got three answers; nothing is open."
    carried = user(f"This session is being continued from a previous conversation. {summary}")
    calls = [
        call(1, history[:-1], history[-1], tools=TOOLS),
        call(2, [*history, user("Summarize the conversation so far, in detail.")], said(summary), tools=TOOLS),
        call(3, [SYSTEM, carried, user("Question 3")], said("It is three."), tools=TOOLS),
    ]
    found = stitch(calls, group())
    assert found.set_apart == {1: "utility call: summary"}
    first, second = found.trajectories
    assert lines(first)[-1] == "assistant [model]: This is the answer to question 2"
    assert lines(second) == [
        "system: You are a careful assistant.",
        f"user [summary]: {carried.text}",
        "user: Question 3",
        "assistant [model]: It is three.",
    ]
    assert second.parent_trajectory_id == first.trajectory_id
    assert second.branch is None
    assert second.metadata == {"relation": "compaction"}


def test_a_summary_that_is_carried_on_in_parts_is_found() -> None:
    history = [SYSTEM, *long_conversation(range(3))]
    summary = "The user asked three questions, one after the other.\nAll of them were answered, nothing is open now."
    asked = user("Your task is to create a detailed summary of the conversation so far.")
    carried = text_message("user", f"What happened before:\n{summary}\nGo on.")
    calls = [
        call(1, history[:-1], history[-1], tools=TOOLS),
        call(2, [*history, asked], said(f"<analysis>Short one.</analysis>\n{summary}"), tools=TOOLS),
        call(3, [SYSTEM, carried], said("It is three."), tools=TOOLS),
    ]
    found = stitch(calls, group())
    assert found.set_apart == {1: "utility call: summary"}
    assert found.trajectories[1].messages[1].producer.kind == "summary"
    assert found.trajectories[1].parent_trajectory_id == found.trajectories[0].trajectory_id


def test_a_suggestion_that_is_asked_for_with_the_tools_of_the_agent_is_set_apart() -> None:
    history = [SYSTEM, *long_conversation(range(2))]
    asked = user("[SUGGESTION MODE: Suggest what the user might naturally type next.]")
    calls = [
        call(1, history[:2], history[2], tools=TOOLS),
        call(2, [*history[:3], asked], said("run the tests"), tools=TOOLS),
        call(3, history[:4], history[4], tools=TOOLS),
    ]
    found = stitch(calls, group())
    assert found.set_apart == {1: "utility call: suggestions"}
    assert len(found.trajectories) == 1


def test_a_summary_after_the_first_message_is_a_child_that_shares_the_first_message() -> None:
    history = [SYSTEM, *long_conversation(range(3))]
    summary = user("<conversation_summary>Three questions were answered.</conversation_summary>")
    _, second = stitched(
        call(1, history[:-1], history[-1]),
        call(2, [*history[:2], summary, user("Question 3")], said("It is three.")),
    )
    assert lines(second)[2] == f"user [summary]: {summary.text}"
    assert second.parent_trajectory_id == group().trajectory_id("call 1")
    assert second.branch is not None
    assert second.branch.message_index == 2
    assert second.metadata == {"relation": "compaction"}


def test_a_window_over_the_last_messages_is_a_child_with_copies() -> None:
    history = [SYSTEM, *long_conversation(range(3))]
    first, second = stitched(
        call(1, history[:2], history[2]),
        call(2, history[:4], history[4]),
        call(3, history[:6], history[6]),
        call(4, [SYSTEM, *history[5:], user("Question 3")], said("It is three.")),
    )
    assert lines(second) == [
        "system: You are a careful assistant.",
        "user: Question 2",
        "assistant [copy]: This is the answer to question 2",
        "user: Question 3",
        "assistant [model]: It is three.",
    ]
    assert second.parent_trajectory_id == first.trajectory_id
    assert second.metadata == {"relation": "compaction"}


def test_another_agent_that_takes_over_is_a_child_with_copies() -> None:
    expert = text_message("system", "You know everything about refunds and nothing else. Be kind.")
    moved = said(None, to="refunds")
    history = [user("My money!"), moved, result("refunds takes over", "call-refunds")]
    first, second = stitched(
        call(1, [SYSTEM, user("My money!")], moved), call(2, [expert, *history], said("Of course."))
    )
    assert lines(second) == [
        "system: You know everything about refunds and nothing else. Be kind.",
        "user: My money!",
        'assistant [copy]:  search({"to":"refunds"})',
        "tool [environment]: refunds takes over",
        "assistant [model]: Of course.",
    ]
    assert second.parent_trajectory_id == first.trajectory_id
    assert second.branch is None
    assert second.metadata == {"relation": "handoff", "parent_message_id": "call 1"}


def test_a_history_that_no_call_made_stays_unknown() -> None:
    history = [user("Hi"), said("Hello"), user("Tea?")]
    (trajectory,) = stitched(call(1, history, said("Yes")), call(2, [*history, said("Yes"), user("Milk?")], said("No")))
    assert lines(trajectory) == [
        "user: Hi",
        "assistant: Hello",
        "user: Tea?",
        "assistant [model]: Yes",
        "user: Milk?",
        "assistant [model]: No",
    ]
    assert [message.timestamp for message in trajectory.messages] == [None, None, at(1), at(1), at(2), at(2)]


def test_a_call_that_was_not_logged_leaves_an_unknown_answer() -> None:
    history = [user("Hi"), said("Hello"), user("Tea?"), said("Yes"), user("Milk?")]
    (trajectory,) = stitched(call(1, history[:1], said("Hello")), call(3, history, said("No")))
    assert lines(trajectory)[3] == "assistant: Yes"
    assert lines(trajectory)[5] == "assistant [model]: No"


ERROR = MessageError("rate_limit", "slow down")


def test_a_retry_goes_on_and_the_failure_is_recorded() -> None:
    asked = [SYSTEM, user("Hi")]
    (trajectory,) = stitched(call(1, asked, error=ERROR, metadata={"status": 429}), call(2, asked, said("Hello")))
    assert lines(trajectory) == ["system: You are a careful assistant.", "user: Hi", "assistant [model]: Hello"]
    assert trajectory.stop_reason is None
    assert trajectory.started_at == at(1)
    assert trajectory.metadata == {
        "failed_calls": [
            {
                "message_index": 2,
                "call_id": "call 1",
                "error": {"type": "rate_limit", "text": "slow down"},
                "started_at": at(1),
                "model": "model-1",
                "metadata": {"status": 429},
            }
        ]
    }
    assert trajectory.source == group().source([1, 2])


def test_a_failure_at_the_end_is_an_error_and_no_outcome() -> None:
    history = [user("Hi"), said(None, q=1), result("found", "call-1")]
    (trajectory,) = stitched(
        call(1, history[:1], said(None, q=1), stop_reason="tool_calls", truncated=True),
        call(2, history, error=ERROR),
        call(3, history, error=ERROR),
    )
    assert lines(trajectory) == ["user: Hi", 'assistant [model]:  search({"q":1})', "tool [environment]: found"]
    assert trajectory.stop_reason == "error"
    assert trajectory.truncated is False
    assert trajectory.outcome.status == "unscored"
    assert [item["message_index"] for item in trajectory.metadata["failed_calls"]] == [3, 3]


def test_a_prompt_that_failed_and_was_changed_is_kept_with_its_failure() -> None:
    too_long = result("page " * 10, "call-1")
    start = [user("Hi"), said(None, q=1)]
    (trajectory,) = stitched(
        call(1, start[:1], said(None, q=1)),
        call(2, [*start, too_long], error=MessageError("context_length")),
        call(3, [*start, result("page", "call-1")], said("Read.")),
    )
    assert lines(trajectory)[2:] == ["tool [environment]: page", "assistant [model]: Read."]
    (failure,) = trajectory.metadata["failed_calls"]
    assert failure["message_index"] == 2
    assert failure["messages"] == [msgspec.to_builtins(too_long)]


def test_calls_that_only_failed_are_set_apart() -> None:
    found = stitch([call(1, [user("Hi")], error=ERROR), call(2, [user("Hi")])], group())
    assert found.trajectories == []
    assert found.set_apart == {0: "failed call: rate_limit: slow down", 1: "failed call: it has no answer"}


def test_a_stream_that_broke_off_is_a_failure_unless_the_conversation_went_on_from_it() -> None:
    broken = call(1, [user("Hi")], said("Hel"), error=ERROR)
    (trajectory,) = stitched(broken, call(2, [user("Hi")], said("Hello")))
    assert lines(trajectory) == ["user: Hi", "assistant [model]: Hello"]
    assert trajectory.metadata["failed_calls"][0]["choices"] == [msgspec.to_builtins(said("Hel"))]

    (trajectory,) = stitched(broken, call(2, [user("Hi"), said("Hel"), user("Go on")], said("lo")))
    assert lines(trajectory)[1] == "assistant [model]: Hel"
    assert trajectory.messages[1].error == ERROR


def test_a_call_that_is_logged_again_is_a_duplicate_and_the_richest_version_stays() -> None:
    partial, whole = call(1, [user("Hi")], said("Hel")), call(2, [user("Hi")], said("Hello"), call_id="call 1")
    empty = call(3, [user("Hi")], error=ERROR, call_id="call 1")
    judged = replace(partial, scores=[Score("helpful", 1.0)])
    found = stitch([judged, whole, empty], group())
    assert [lines(trajectory) for trajectory in found.trajectories] == [["user: Hi", "assistant [model]: Hello"]]
    assert found.trajectories[0].scores == [Score("helpful", 1.0, message_index=1)]
    assert found.duplicates == {0: "the call call 1 is logged again", 2: "the call call 1 is logged again"}


def test_an_answer_from_a_cache_is_a_duplicate_if_it_is_marked() -> None:
    cached = call(2, [user("Hi")], said("Hello"), metadata={"cache_hit": True})
    found = stitch([call(1, [user("Hi")], said("Hello")), cached], group())
    assert len(found.trajectories) == 1
    assert found.duplicates == {1: "repeats the answer of the call call 1 from a cache"}
    assert len(stitch([cached], group()).trajectories) == 1


def test_order_is_by_time_then_by_length_then_by_position() -> None:
    history = [user("Hi"), said("Hello"), user("Tea?"), said("Yes"), user("Milk?")]
    first, second, third = (
        call(1, history[:1], said("Hello")),
        call(2, history[:3], said("Yes")),
        call(3, history, said("No")),
    )
    expected = ["user: Hi", "assistant [model]: Hello", "user: Tea?", "assistant [model]: Yes"]
    expected += ["user: Milk?", "assistant [model]: No"]
    untimed = [replace(item, started_at=None) for item in (first, second, third)]
    same_time = [replace(item, started_at=at(0)) for item in (first, second, third)]
    zones = [replace(first, started_at="2025-03-03T12:00:01+02:00"), second, third]
    for log in (untimed, untimed[::-1], same_time[::-1], zones[::-1], [first, untimed[1], third]):
        assert [lines(trajectory) for trajectory in stitched(*log)] == [expected]


def test_an_answer_sampled_later_is_not_what_an_earlier_prompt_began_with() -> None:
    example = [user("Hi"), said("Hello"), user("Tea?")]
    first, second = stitched(call(1, example, said("Yes")), call(9, [user("Hi")], said("Hello")))
    assert lines(first)[1] == "assistant: Hello"
    assert lines(second) == ["user: Hi", "assistant [model]: Hello"]


TITLE = text_message("system", "Generate a short title for the user's request. Answer with the title only.")


@pytest.mark.parametrize(
    ("utility", "kind"),
    [
        (call(2, [TITLE, user("Find tea.")], said("Tea search")), "title"),
        (call(2, [user("Generate a concise, 3-5 word title for this conversation: Find tea.")], said("Tea")), "title"),
        (call(2, [user("Find tea.")], said('{"title": "Tea search"}')), "title"),
        (call(2, [user("Find tea.")], said("Tea search"), name="generateSessionTitle"), "title"),
        (call(2, [user("Find tea.")], said('{"isNewTopic": true, "title": "Tea"}')), "topic detection"),
        (call(2, [user("quota")], said("#")), "warm-up"),
        (call(2, [user("Analyze if this indicates a new conversation topic.")], said("no")), "topic detection"),
        (call(2, [user("Generate 1-3 broad tags for the themes of the chat history.")], said("tea")), "tags"),
        (call(2, [user("Decide whether generating search queries is needed.")], said("{}")), "search queries"),
        (call(2, [text_message("system", "Extract any file paths it reads."), user("ls")], said("-")), "command check"),
        (call(2, [user("CONTEXT CHECKPOINT COMPACTION")], said("Nothing yet.")), "summary"),
        (call(2, [user("Suggest three follow-up questions:\nFind tea.")], said("1. Milk?")), "suggestions"),
        (call(2, [user("Find tea.")], said("Tea search"), is_utility=True), "as the log says"),
    ],
)
def test_utility_calls_are_set_apart_where_an_agent_is_at_work(utility: ModelCall, kind: str) -> None:
    history = [SYSTEM, user("Find tea."), said(None, q=1), result("green", "call-1")]
    agent = [call(1, history[:2], said(None, q=1), tools=TOOLS), call(3, history, said("Green."), tools=TOOLS)]
    found = stitch([*agent, utility], group())
    assert found.set_apart == {2: f"utility call: {kind}"}
    assert [lines(trajectory)[-1] for trajectory in found.trajectories] == ["assistant [model]: Green."]


def test_what_looks_like_a_utility_call_is_kept_where_nothing_else_is() -> None:
    (trajectory,) = stitched(call(2, [TITLE, user("Find tea.")], said("Tea search")))
    assert lines(trajectory)[-1] == "assistant [model]: Tea search"


def test_what_looks_like_a_utility_call_is_kept_if_it_goes_on_or_has_tools() -> None:
    history = [TITLE, user("Find tea."), said("Tea search"), user("Shorter")]
    agent = call(1, [SYSTEM, user("Find tea.")], said("Green."))
    trajectories = stitched(
        agent,
        call(2, history[:2], said("Tea search")),
        call(3, history, said("Tea")),
        call(
            4, [text_message("system", "Suggest next questions to ask. Use tools."), user("x")], said("y"), tools=TOOLS
        ),
    )
    assert [lines(trajectory)[-1] for trajectory in trajectories] == [
        "assistant [model]: Green.",
        "assistant [model]: Tea",
        "assistant [model]: y",
    ]


def test_a_user_may_ask_an_agent_for_a_summary() -> None:
    history = [SYSTEM, *long_conversation(range(2)), user("Please summarize our conversation so far.")]
    (trajectory,) = stitched(call(1, history[:2], history[2]), call(2, history, said("Two questions.")))
    assert lines(trajectory)[-1] == "assistant [model]: Two questions."


def test_a_title_asked_for_at_the_end_of_the_history_does_not_break_it() -> None:
    history = [SYSTEM, *long_conversation(range(2))]
    asked = call(2, [*history[:3], user("Write a title for this conversation.")], said("Questions"))
    found = stitch([call(1, history[:2], history[2]), asked, call(3, history[:4], history[4])], group())
    assert found.set_apart == {1: "utility call: title"}
    (trajectory,) = found.trajectories
    assert lines(trajectory)[-1] == "assistant [model]: This is the answer to question 1"


def test_fields_of_the_calls_become_those_of_the_trajectory() -> None:
    fields: dict[str, Any] = {"name": "planner", "session_id": "s", "user_id": "u"}
    first = call(1, [user("Hi")], said("Hello"), trace_id="t1", metadata={"temperature": 0.5}, **fields)
    scores = [Score("helpful", 1.0, direction="higher_is_better"), Score("toxicity", 0.1)]
    second = call(
        2,
        [user("Hi"), said("Hello"), user("Tea?")],
        msgspec.structs.replace(said("Yes"), id="response 2", metadata={"finish_reason": "length"}),
        trace_id="t2",
        truncated=True,
        stop_reason="length",
        scores=scores,
        **fields,
    )
    (trajectory,) = stitched(first, second)
    assert (trajectory.agent, trajectory.model) == ("planner", "model-1")
    assert (trajectory.session_id, trajectory.user_id) == ("s", "u")
    assert trajectory.identifiers == {"trace": "t1", "trace_2": "t2"}
    assert trajectory.truncated is True
    assert trajectory.stop_reason == "length"
    assert trajectory.scores == [msgspec.structs.replace(score, message_index=3) for score in scores]
    assert trajectory.messages[1].metadata == {"temperature": 0.5}
    assert trajectory.messages[3].metadata == {
        "finish_reason": "length",
        "stop_reason": "length",
        "truncated": True,
        "message_id": "response 2",
    }
    assert trajectory.messages[3].id == "call 2"


def test_ids_do_not_depend_on_what_is_logged_later() -> None:
    history = [SYSTEM, *long_conversation(range(3))]
    calls = [
        call(1, history[:2], history[2], call_id=None),
        call(2, history[:2], said("Something else"), call_id=None),
        call(3, history[:4], history[4], call_id=None),
        call(4, history[:4], history[4], call_id=None),
        call(5, history[:6], history[6], call_id=None),
    ]
    known: set[str] = set()
    for size in range(1, 6):
        ids = {trajectory.trajectory_id for trajectory in stitched(*calls[:size])}
        assert known <= ids
        known = ids
    assert len(known) == 3
    assert {trajectory.trajectory_id for trajectory in stitch(calls, group(key="other")).trajectories}.isdisjoint(known)


def test_images_tell_messages_apart() -> None:
    shown, other = (Message("user", [TextPart("Look"), ImagePart(f"data:{name}")]) for name in "ab")
    first, second = stitched(
        call(1, [shown], said("A cat")), call(2, [other, said("A cat"), user("Sure?")], said("No"))
    )
    assert len(first.messages) == 2
    assert len(second.messages) == 4


def test_every_piece_has_one_fate() -> None:
    history = [SYSTEM, user("Find tea."), said(None, q=1), result("green", "call-1")]
    again = replace(call(1, history[:2], said(None, q=1), tools=TOOLS), pieces=(7, 8))
    calls = [
        call(1, history[:2], said(None, q=1), tools=TOOLS),
        replace(call(2, [TITLE, user("Find tea.")], said("Tea search")), pieces=(2, 3)),
        replace(call(4, history, said("Green."), tools=TOOLS), pieces=(3, 4)),
        again,
        call(5, [user("Other")], error=ERROR),
    ]
    assembly = assembly_of(calls, group())
    assert [trajectory.source for trajectory in assembly.trajectories] == [group().source([1, 3, 4])]
    assert assembly.set_apart == {2: "utility call: title", 5: "failed call: rate_limit: slow down"}
    assert assembly.duplicates == {7: "the call call 1 is logged again", 8: "the call call 1 is logged again"}


def test_conversation_key_is_that_of_the_beginning() -> None:
    start = [SYSTEM, user("Hi")]
    key = conversation_key(start)
    assert key == "f60a7aeb7310e2fc97d387699d995eb3"  # groups of stores refer to it
    assert conversation_key([*start, said("Hello"), user("Tea?")]) == key
    assert conversation_key([text_message("developer", SYSTEM.text + " "), user("Hi\n"), said("x")]) == key
    assert conversation_key([user("Hi")]) != key
    assert conversation_key([SYSTEM, user("Ho")]) != key
    timed = [[text_message("system", f"It is {time}."), user("Hi")] for time in ("10:15", "23:59:59")]
    assert conversation_key(timed[0]) == conversation_key(timed[1])
    assert conversation_key([]) == conversation_key([])
    assert conversation_key([said("Hello")]) != conversation_key([said("Ho")])
