"""Find the sampled text of each assistant turn in a rendered conversation.

An action is what a rollout samples: everything after the generation prompt, up to and including the stop token.
All other text is context, whatever its role.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from offline_arl.errors import TemplateError
from offline_arl.rendering.conversation import Conversation, Tools
from offline_arl.rendering.plain_text import ControlText
from offline_arl.rendering.profile import TemplateProfile


class Piece(NamedTuple):
    """A stretch of guarded text: context (message -1), or the action of the assistant message `message`."""

    text: str
    message: int


class TurnFinder:
    """Splits rendered text into context and actions, for one template."""

    def __init__(self, profile: TemplateProfile, controls: ControlText) -> None:
        self._prompt = profile.generation_prompt
        self._stop = re.compile("|".join(re.escape(stop) for stop in profile.stops))
        # With a control token in the generation prompt its text cannot stem from a message: those are guarded.
        self.scannable = controls.guard(self._prompt) != self._prompt

    def scan(self, text: str, assistants: Sequence[int]) -> list[Piece] | None:
        """Split by the generation prompts in `text`; None where they are not one per assistant message.

        Args:
            text: Rendered without a generation prompt at the end, or with one.
            assistants: Indices of the assistant messages, in order.
        """
        if not self.scannable:
            return None
        pieces: list[Piece] = []
        position = 0
        for message in assistants:
            opened = text.find(self._prompt, position)
            if opened == -1:
                return None
            start = opened + len(self._prompt)
            match = self._stop.search(text, start)
            if match is None:
                return None
            pieces += (Piece(text[position:start], -1), Piece(text[start : match.end()], message))
            position = match.end()
        rest = text[position:]
        if rest.count(self._prompt) > rest.endswith(self._prompt):
            return None
        pieces.append(Piece(rest, -1))
        return pieces

    def first_stop(self, text: str, start: int) -> int | None:
        """End of the first stop token after `start`, where that is known to end the turn."""
        match = self._stop.search(text, start) if self.scannable else None
        return None if match is None else match.end()

    def split(self, context: str) -> list[str]:
        """Context text cut behind each generation prompt, so that actions within it are tokenized on their own."""
        if not self.scannable:
            return [context]
        *opened, rest = context.split(self._prompt)
        return [text + self._prompt for text in opened] + [rest]

    def action(self, prompt: str, turn: str) -> str:
        """The action that turns `prompt` into `turn`, both guarded text.

        Raises:
            TemplateError: The turn does not continue the prompt, or ends without a stop token.
        """
        if not turn.startswith(prompt):
            raise TemplateError(
                "the chat template does not continue its own generation prompt when it writes an assistant turn, so "
                "there is nothing to train on; pass a template for training with chat_template="
            )
        written = turn[len(prompt) :]
        matches = list(self._stop.finditer(written))
        if not matches:
            raise TemplateError(
                "the chat template ends an assistant turn without a stop token; pass a template for training with "
                "chat_template="
            )
        return written[: matches[-1].end()]


def chained(
    conversation: Conversation,
    finder: TurnFinder,
    steps: Sequence[int],
    tools: Sequence[Tools],
    *,
    join: bool = True,
) -> list[list[Piece]]:
    """Pieces of each segment, for conversations whose earlier turns may be rewritten as it grows.

    Each step gets the exact prompt and action of its moment. A step joins the segment before it where its prompt
    begins with that segment's text, and opens a new one where the template has rewritten something.

    Args:
        conversation: The messages.
        finder: Of the same template.
        steps: Indices of the assistant messages to train.
        tools: The tools in force at each of `steps`.
        join: Let steps share a segment where the template allows it.

    Raises:
        TemplateError: See `TurnFinder.action`; or the template refuses the messages.
    """
    segments: list[list[Piece]] = []
    text = ""
    for message, tools_here in zip(steps, tools, strict=True):
        prompt = conversation.text(tools_here, upto=message, generation_prompt=True)
        turn = conversation.text(tools_here, upto=message + 1, generation_prompt=False)
        action = finder.action(prompt, turn)
        if join and segments and prompt.startswith(text):
            segments[-1].append(Piece(prompt[len(text) :], -1))
        else:
            segments.append([Piece(prompt, -1)])
        segments[-1].append(Piece(action, message))
        text = prompt + action
    return segments
