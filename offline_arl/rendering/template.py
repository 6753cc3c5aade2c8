"""The chat template in use: which one it is, and how text is made with it."""

from __future__ import annotations

import datetime as dt
import importlib.resources
import logging
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from offline_arl.errors import TemplateError
from offline_arl.optional import available, require

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_Found = TypeVar("_Found")

# Some templates write today's date into the system prompt; a fixed one keeps token ids and fingerprints stable.
_DATE = dt.datetime(2024, 7, 26)


class ChatTemplate:
    """A Jinja chat template bound to a tokenizer.

    Args:
        tokenizer: Gives the special tokens and transformers' sandboxed Jinja environment.
        source: The template's text.
        arguments: Extra variables for the template, for example `{"enable_thinking": False}`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: str, arguments: Mapping[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.source = source
        self.arguments = dict(arguments)
        # Set by the probe: the end of the generation prompt that the template's own assistant turns do not begin with.
        self.dropped_opening = ""
        self._variables = {"strftime_now": _DATE.strftime, **arguments}

    def text(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, *, generation_prompt: bool
    ) -> str:
        """The rendered conversation.

        Raises:
            TemplateError: The template refuses the messages; the message is the template's own.
        """
        try:
            text: str = self.tokenizer.apply_chat_template(
                messages,
                tools=tools or None,
                tokenize=False,
                add_generation_prompt=generation_prompt,
                chat_template=self.source,
                **self._variables,
            )
        except Exception as error:  # a template is a foreign program and may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise TemplateError(
                f"the chat template refuses this conversation ({reason}); pass another with chat_template="
            ) from error
        return text.removesuffix(self.dropped_opening) if generation_prompt else text

    def try_text(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, *, generation_prompt: bool
    ) -> str | None:
        """Like `text`, but None where the template refuses."""
        try:
            return self.text(messages, tools, generation_prompt=generation_prompt)
        except TemplateError:
            return None


def own_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """The tokenizer's template; of several named ones, the one for tool use.

    A tokenizer without any gets plain ChatML where it has the ChatML tokens.

    Raises:
        TemplateError: The tokenizer has no template and no ChatML tokens.
    """
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    if template is not None:
        return str(template)
    if {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.get_vocab()):
        logger.info("the tokenizer has no chat template; using ChatML, whose tokens it has")
        return _shipped("chatml.jinja")
    raise TemplateError(
        f"the tokenizer {tokenizer.name_or_path or type(tokenizer).__name__!r} has no chat template and no ChatML "
        "tokens; use an instruction-tuned model or pass chat_template="
    )


def with_hermes_tools(source: str, *, system_as_user: bool) -> str:
    """`source` behind a preamble that writes tools, calls and results as Hermes-style text."""
    flag = "true" if system_as_user else "false"
    return f"{{%- set system_as_user = {flag} -%}}\n{_shipped('hermes_tools.jinja')}{source}"


def _shipped(name: str) -> str:
    return (importlib.resources.files("offline_arl.rendering") / "templates" / name).read_text(encoding="utf-8")


def training_variant(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """TRL's variant of the tokenizer's template that never rewrites earlier turns, where TRL has one."""

    def find() -> str | None:
        utilities = require("trl.chat_template_utils", extra="train")
        variant = utilities.get_training_chat_template(tokenizer)
        return None if variant is None else str(variant)

    return _from_trl(find)


def response_template(source: str) -> dict[str, Any] | None:
    """TRL's response template (for transformers' `parse_response`) of `source`, where it has one."""

    def find() -> dict[str, Any] | None:
        utilities = require("trl.chat_template_utils", extra="train")
        # TRL looks it up by the template's text and sets an attribute; the user's tokenizer stays as it is.
        holder = utilities.add_response_schema(SimpleNamespace(chat_template=source))
        found: dict[str, Any] | None = getattr(holder, "response_template", None)
        return found

    return _from_trl(find)


def _from_trl(find: Callable[[], _Found | None]) -> _Found | None:
    if not available("trl"):
        return None
    try:
        return find()
    except ValueError:  # TRL does not know this template
        return None
