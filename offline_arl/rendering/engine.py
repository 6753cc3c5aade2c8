"""A chat template with all that was found out about it, and the choice of the template to use."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from offline_arl.errors import TemplateError
from offline_arl.rendering.conversation import ConversationBuilder
from offline_arl.rendering.masks import TurnFinder
from offline_arl.rendering.plain_text import ControlText, PieceEncoder, control_texts
from offline_arl.rendering.prefix import prefix_behavior
from offline_arl.rendering.profile import TemplateProbe
from offline_arl.rendering.template import ChatTemplate, own_template, training_variant, with_hermes_tools
from offline_arl.trajectories.schema import Message, TextPart, text_message, tool_call

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)


class TemplateEngine:
    """What rendering needs of one template, probed once.

    Attributes:
        template: The template.
        controls: Guards message text.
        profile: Facts about the template.
        builder: Messages to the template's form.
        finder: Splits its text into context and actions.
        encoder: Tokenizes the parts.
        prefix_preserving: Earlier turns never change, and what follows a turn does not depend on it.

    Raises:
        TemplateError: The template has no assistant turn that could be trained.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self.controls = ControlText(control_texts(template.tokenizer, template.source))
        self.profile = TemplateProbe(template, self.controls).profile()
        self.builder = ConversationBuilder(template, self.profile, self.controls)
        self.finder = TurnFinder(self.profile, self.controls)
        self.encoder = PieceEncoder(template.tokenizer, self.controls, self.profile.stops[0])
        behavior = prefix_behavior(self.builder, self.finder, self.extension, with_tools=self.profile.takes_tools)
        self.prefix_preserving = behavior.preserving
        self.finder.scannable &= behavior.scannable

    def extension(self, new_messages: Sequence[Message]) -> str:
        """Guarded text between the stop token of an assistant turn and the end of the next generation prompt.

        Rendered behind a two-message stand-in for the conversation: a prefix-preserving template does not look
        further back.
        """
        answers = [message for message in new_messages if message.role == "tool"]
        calls = [
            tool_call(message.name or "tool", {}, id=message.tool_call_id or f"call{index:05d}")
            for index, message in enumerate(answers[:1] if self.profile.single_call else answers)
        ]
        turn = Message(role="assistant", content=None if calls else [TextPart("Hi")], tool_calls=calls)
        conversation = self.builder.build([text_message("user", "Hi"), turn, *new_messages])
        text = conversation.text(None, generation_prompt=True)
        end = self.finder.first_stop(text, len(self._opening))
        if end is None:
            written = conversation.text(None, upto=2, generation_prompt=False)
            end = len(self._opening) + len(self.finder.action(self._opening, written))
            if text[:end] != written[:end]:
                raise TemplateError("the chat template rewrites an assistant turn when messages follow it")
        return text[end:]

    @cached_property
    def _opening(self) -> str:
        return self.builder.build([text_message("user", "Hi")]).text(None, generation_prompt=True)


def choose_engine(
    tokenizer: PreTrainedTokenizerBase,
    chat_template: str | None,
    *,
    training: bool,
    arguments: Mapping[str, Any],
) -> TemplateEngine:
    """The engine of the given template, or of the best one for the tokenizer.

    A template without tools gets a Hermes-style preamble. A tokenizer's own template that rewrites earlier turns,
    or cannot be trained at all, is replaced by TRL's training variant of it where `training` allows and TRL has one.

    Raises:
        TemplateError: No assistant turn can be trained.
    """
    source = chat_template if chat_template is not None else own_template(tokenizer)
    name = tokenizer.name_or_path or type(tokenizer).__name__
    problem: TemplateError | None = None
    try:
        engine = _with_tools(ChatTemplate(tokenizer, source, arguments), name)
        if engine.prefix_preserving and engine.profile.shows_reasoning:
            return engine
    except TemplateError as error:
        problem = error
    variant = training_variant(tokenizer) if training and chat_template is None else None
    if variant is not None:
        better = _with_tools(ChatTemplate(tokenizer, variant, arguments), name)
        if better.prefix_preserving:
            logger.info(
                "the chat template of %s %s; using TRL's training variant of it: serve the policy with "
                "Renderer.chat_template, or keep the original with training_template=False",
                name,
                "cannot be trained" if problem is not None else "rewrites earlier turns or drops reasoning",
            )
            return better
    if problem is not None:
        raise TemplateError(f"{name}: {problem}") from problem
    if not engine.profile.shows_reasoning:
        logger.warning("the chat template of %s drops the reasoning of messages; it is not trained", name)
    if engine.prefix_preserving:
        return engine
    logger.warning(
        "the chat template of %s rewrites earlier turns: a trajectory becomes several segments, up to one a step, "
        "and conversations cannot be extended token by token",
        name,
    )
    return engine


def _with_tools(template: ChatTemplate, name: str) -> TemplateEngine:
    engine = TemplateEngine(template)
    if engine.profile.takes_tools:
        return engine
    source = with_hermes_tools(template.source, system_as_user=engine.profile.system_as_user)
    adapted = TemplateEngine(ChatTemplate(template.tokenizer, source, template.arguments))
    if not adapted.profile.takes_tools:
        logger.warning("the chat template of %s has no tools and cannot be given any", name)
        return engine
    logger.info("the chat template of %s has no tools; they are written in Hermes style", name)
    return adapted
