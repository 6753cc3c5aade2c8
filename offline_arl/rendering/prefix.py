"""Does a template keep earlier turns as they were? Tried on conversations of every kind that agents have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from offline_arl.errors import TemplateError
from offline_arl.rendering.conversation import ConversationBuilder
from offline_arl.rendering.masks import TurnFinder, chained
from offline_arl.trajectories.schema import ContentPart, Message, ReasoningPart, TextPart, text_message, tool_call

_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look something up.",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}},
        },
    }
]


class PrefixBehavior(NamedTuple):
    """What the trial conversations showed."""

    preserving: bool  # every earlier turn stays as it was, and what follows a turn does not depend on it
    scannable: bool  # splitting at the generation prompts finds the same actions as rendering turn by turn


def prefix_behavior(
    builder: ConversationBuilder,
    finder: TurnFinder,
    extension: Callable[[Sequence[Message]], str],
    *,
    with_tools: bool,
) -> PrefixBehavior:
    """Render the trial conversations turn by turn and as a whole.

    Args:
        builder: Of the template in question.
        finder: Of the same template.
        extension: Makes the text between the end of an assistant turn and the next generation prompt.
        with_tools: The template takes tools.

    Raises:
        TemplateError: The template refuses all of the conversations.
    """
    preserving = scannable = True
    refusal: TemplateError | None = None
    tried = 0
    for messages, tools in _conversations(with_tools=with_tools):
        conversation = builder.build(messages)
        steps = [index for index, message in enumerate(messages) if message.role == "assistant"]
        try:
            segments = chained(conversation, finder, steps, [tools] * len(steps))
            whole = conversation.text(tools, upto=steps[-1] + 1, generation_prompt=False)
        except TemplateError as error:
            refusal = error
            continue
        tried += 1
        if len(segments) != 1:
            preserving = False
            continue
        scanned = finder.scan(whole, steps)
        if scanned is None or scanned[:-1] != segments[0]:
            scannable = False
        for step, following, piece in zip(steps, steps[1:], segments[0][2::2], strict=False):
            if extension(messages[step + 1 : following]) != piece.text:
                preserving = False
    if tried == 0:
        raise refusal or TemplateError("the chat template was not tried on any conversation")
    return PrefixBehavior(preserving, scannable)


def _assistant(text: str, *calls: str, reasoning: str = "") -> Message:
    content: list[ContentPart] = [ReasoningPart(reasoning)] if reasoning else []
    if text:
        content.append(TextPart(text))
    return Message(
        role="assistant",
        content=content,
        tool_calls=[tool_call("look_up", {"key": key}, id=f"callid{key:>03}") for key in calls],
    )


def _result(key: str) -> Message:
    return Message(
        role="tool", content=[TextPart(f'{{"found": "{key}"}}')], tool_call_id=f"callid{key:>03}", name="look_up"
    )


def _conversations(*, with_tools: bool) -> Iterator[tuple[list[Message], list[dict[str, Any]] | None]]:
    """Several user turns, tool loops, text beside calls, reasoning or none, with and without system and tools."""
    system, hello, more = (
        text_message("system", "You help."),
        text_message("user", "Hello."),
        text_message("user", "And then?"),
    )
    for thought in ("", "Let me think.\nDone."):
        chat = [
            hello,
            _assistant("Hi.\n\nWhat is it?", reasoning=thought),
            more,
            _assistant(" Wait ", reasoning=thought),
            more,
            _assistant("Bye."),
        ]
        yield chat, None
        yield [system, *chat], None
        if not with_tools:
            continue
        loop = [
            hello,
            _assistant("", "1", reasoning=thought),
            _result("1"),
            _assistant("Again.", "2", reasoning=thought),
            _result("2"),
            _assistant("Found.", reasoning=thought),
            more,
            _assistant("", "3"),
            _result("3"),
            _assistant("Yes.", reasoning=thought),
        ]
        yield loop, _TOOLS
        yield [system, *loop], _TOOLS
        pair = [
            system,
            hello,
            _assistant("", "1", "2", reasoning=thought),
            _result("1"),
            _result("2"),
            _assistant("", "3"),
            _result("3"),
            _assistant("Done."),
        ]
        yield pair, _TOOLS
