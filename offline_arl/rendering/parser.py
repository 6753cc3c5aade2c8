"""Sampled token ids back to an assistant message."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from offline_arl.rendering.tool_calls import FORMATS, parse_no_calls, parse_qwen_xml, split_reasoning, typed_arguments
from offline_arl.trajectories.schema import ContentPart, Message, Producer, ReasoningPart, TextPart, ToolCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

RESPONSE_TEMPLATE = "response_template"
NO_CALLS = "none"


class TurnParser:
    """Parses completions in one tool-call format.

    Args:
        tokenizer: Decodes; also runs transformers' `parse_response` for the format "response_template".
        call_format: A name of `tool_calls.FORMATS`, "response_template" or "none".
        stop_token_ids: What may end a completion.
        generation_prompt: Text before every completion.
        response_template: For the format "response_template".
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        call_format: str,
        stop_token_ids: Sequence[int],
        generation_prompt: str,
        response_template: dict[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = frozenset(stop_token_ids)
        self._size = len(tokenizer)
        self._prompt = generation_prompt
        self._response_template = response_template if call_format == RESPONSE_TEMPLATE else None
        self._find_calls = FORMATS.get(call_format, parse_no_calls)
        # A prompt that opens <think> leaves the sampled text without the opening tag.
        self._opened = (
            generation_prompt.rpartition("<think>")[1] != ""
            and "</think>" not in (generation_prompt.rpartition("<think>")[2])
        )

    def parse(self, token_ids: Sequence[int], tools: list[dict[str, Any]] | None = None) -> Message:
        """The message that `token_ids` spell; never raises.

        Args:
            token_ids: A completion, with or without its stop token. What follows a stop token is ignored, as are
                ids outside the vocabulary.
            tools: The tools in force; formats that write arguments as plain text need them to tell types.
        """
        sampled: list[int] = []
        for token in token_ids:
            if token in self._stops:
                break
            if 0 <= token < self._size:
                sampled.append(int(token))
        text: str = self._tokenizer.decode(sampled, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if self._response_template is not None:
            return self._by_response_template(text, tools)
        reasoning, rest = split_reasoning(text, opened=self._opened)
        visible, calls = self._find_calls(rest)
        if self._find_calls is parse_qwen_xml:
            calls = [typed_arguments(call, tools) for call in calls]
        return _message(visible, reasoning, calls)

    def _by_response_template(self, text: str, tools: list[dict[str, Any]] | None) -> Message:
        try:
            parsed = self._tokenizer.parse_response(
                text, schema=self._response_template, prefix=self._prompt, tools=tools
            )
            calls = [_call(item) for item in parsed.get("tool_calls") or []]
            reasoning = parsed.get("reasoning_content") or parsed.get("thinking") or ""
            return _message(str(parsed.get("content") or ""), str(reasoning), calls)
        except Exception as error:  # foreign patterns over any text; the completion must not be lost
            logger.debug("response template could not parse a completion: %s", error)
            problem = f"unreadable turn: {' '.join(str(error).split())}"
            return _message("", "", [ToolCall(name="", arguments_raw=text, parse_error=problem)])


def _call(item: dict[str, Any]) -> ToolCall:
    function = item.get("function", item)
    arguments = function.get("arguments")
    arguments = {} if arguments is None else arguments
    raw = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    if isinstance(arguments, dict):
        return ToolCall(str(function["name"]), raw, arguments, id=item.get("id"))
    problem = f"arguments are a {type(arguments).__name__}, not an object"
    return ToolCall(str(function["name"]), raw, id=item.get("id"), parse_error=problem)


def _message(text: str, reasoning: str, calls: list[ToolCall]) -> Message:
    content: list[ContentPart] = []
    if reasoning:
        content.append(ReasoningPart(reasoning))
    if text:
        content.append(TextPart(text))
    return Message(role="assistant", content=content or None, tool_calls=calls, producer=Producer("model"))
