"""`Renderer`: messages to token ids with exact action masks, and sampled token ids back to messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from offline_arl.errors import TemplateError, UsageError
from offline_arl.rendering.conversation import Conversation, Tools
from offline_arl.rendering.engine import TemplateEngine, choose_engine
from offline_arl.rendering.fingerprint import fingerprint
from offline_arl.rendering.history import SegmentCache, history_steps_of, window
from offline_arl.rendering.masks import Piece, chained
from offline_arl.rendering.parser import NO_CALLS, RESPONSE_TEMPLATE, TurnParser
from offline_arl.rendering.segments import SegmentWriter
from offline_arl.rendering.template import response_template
from offline_arl.rendering.tool_calls import FORMATS
from offline_arl.rendering.windows import RenderPart, windowed
from offline_arl.trajectories.schema import Message, Trajectory
from offline_arl.trajectories.segment import Segment

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

_CACHED_TOOLS = 1024


class Renderer:
    """Renders trajectories for one tokenizer and chat template.

    For a prefix-preserving template, `prompt` of the first messages, then alternately sampled tokens and `extend`,
    gives the token ids that `render` gives for the whole trajectory. A policy whose tokenizer asks for a window of the
    history (`rendering.history`) gets each step as a segment of its own, with that window as its prompt.

    Args:
        tokenizer: Any Hugging Face tokenizer with a chat template; used as it is, never changed.
        tool_format: How the model writes tool calls: "hermes" (also Qwen 2.5 and 3, SmolLM), "llama3_json",
            "mistral", "qwen_xml" (from Qwen 3.5 on), "response_template" (transformers' `parse_response`), "none",
            or "auto" to find out by rendering a call.
        chat_template: A Jinja template to use in place of the tokenizer's.
        training_template: Where the tokenizer's own template rewrites earlier turns (Qwen 3 drops reasoning), use
            the variant of it that TRL ships and that does not, if there is one.
        template_arguments: Variables for the template, for example `{"enable_thinking": False}`.

    Attributes:
        fingerprint: Names tokenizer and template; recorded token ids are used only where theirs is the same.
        prefix_preserving: Earlier turns never change as a conversation grows. Found by rendering; never with a window.
        history_steps: Past steps that a prompt shows before the current observation; None: the whole chat.
        stop_token_ids: Tokens that end an assistant turn; a rollout stops at them. The template's own come first.
        chat_template: The template in use. Save it with the policy: a server needs the same.
        tool_format: The format in use.

    Raises:
        TemplateError: The template has no assistant turn that could be trained.
        UsageError: `tool_format` is unknown.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        tool_format: str = "auto",
        chat_template: str | None = None,
        training_template: bool = True,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        known = ("auto", *FORMATS, RESPONSE_TEMPLATE, NO_CALLS)
        if tool_format not in known:
            raise UsageError(f"unknown tool_format {tool_format!r}; use one of: {', '.join(known)}")
        self.tokenizer = tokenizer
        self._engine: TemplateEngine = choose_engine(
            tokenizer, chat_template, training=training_template, arguments=template_arguments or {}
        )
        self.chat_template = self._engine.template.source
        self.history_steps = history_steps_of(tokenizer)
        self.prefix_preserving = self._engine.prefix_preserving and self.history_steps is None
        self.fingerprint = fingerprint(tokenizer, self._engine.template, history_steps=self.history_steps)
        profile = self._engine.profile
        stops = [tokenizer.convert_tokens_to_ids(stop) for stop in profile.stops]
        if tokenizer.eos_token_id is not None:
            stops.append(tokenizer.eos_token_id)
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(stops))
        if tool_format == "auto":
            # The parsers here keep raw arguments and malformed calls, which a response template cannot.
            tool_format = profile.call_format or RESPONSE_TEMPLATE
            found = None if profile.call_format else self._response_template()
            if tool_format == RESPONSE_TEMPLATE and found is None:
                tool_format = NO_CALLS
                logger.warning("the chat template's form of tool calls is unknown; calls are read as text")
        else:
            found = self._response_template() if tool_format == RESPONSE_TEMPLATE else None
            if tool_format == RESPONSE_TEMPLATE and found is None:
                raise UsageError("the tokenizer has no response_template; use tool_format='auto'")
        self.tool_format = tool_format
        self._parser = TurnParser(
            tokenizer,
            call_format=tool_format,
            stop_token_ids=self.stop_token_ids,
            generation_prompt=profile.generation_prompt,
            response_template=found,
        )
        self._writer = SegmentWriter(self._engine, self.fingerprint, self.stop_token_ids)
        self._opening_ids = self._engine.encoder.encode([profile.generation_prompt], continued=True)[0]
        self._tools: dict[str | bytes, Tools] = {}
        self._windows = SegmentCache()

    def render(self, trajectory: Trajectory, max_tokens: int | None = None) -> list[Segment]:
        """Token ids and action masks of a trajectory.

        Trained are the policy's own messages whose `trainable` is not False. Messages whose recorded token ids have
        this renderer's fingerprint keep them; all others are rendered. Each trained step lies in exactly one
        segment; a segment ends with its last action token. Where the template rewrites earlier turns, or the tools
        in force change, a new segment begins, so that the tokens before every action are the prompt of its moment;
        with a window of the history, every step is a segment. A step is numbered as in `Trajectory.step_indices`.

        Args:
            trajectory: What to render.
            max_tokens: Upper bound on the length of a segment; longer trajectories become several segments. With a
                window of the history, a longer step is left out: no prompt shows another part of the chat.

        Returns:
            The segments, in order; empty where nothing is trained.

        Raises:
            TemplateError: The template refuses the messages; the error names the trajectory.
        """
        messages = trajectory.messages
        numbers = {index: step for step, index in enumerate(trajectory.step_indices())}
        steps = [index for index in numbers if messages[index].trainable is not False]
        if not steps:
            return []
        tools = {index: self._tools_at(trajectory, index) for index in steps}

        def part(shown: Sequence[int], trained: Sequence[int]) -> list[Segment]:
            return self._render(trajectory.trajectory_id, messages, numbers, tools, shown, trained)

        try:
            if self.history_steps is not None:
                return self._windowed(part, trajectory, numbers, steps, max_tokens)
            segments = part(range(steps[-1] + 1), steps)
            if max_tokens is not None and any(len(segment) > max_tokens for segment in segments):
                return windowed(part, messages, steps, segments, max_tokens)
        except TemplateError as error:
            raise TemplateError(f"trajectory {trajectory.trajectory_id}: {error}") from error
        return segments

    def prompt(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None) -> list[int]:
        """Token ids of the messages and the generation prompt for the next assistant message.

        With a window of the history, of the messages in it alone.

        Raises:
            TemplateError: The template refuses the messages.
        """
        if self.history_steps is not None:
            messages = [messages[index] for index in window(messages, len(messages), self.history_steps)]
        conversation = self._engine.builder.build(messages)
        text = conversation.text(self._guarded_tools(tools), generation_prompt=True)
        assistants = [index for index, message in enumerate(messages) if message.role == "assistant"]
        pieces = self._turns_of_prompt(conversation, text, assistants, self._guarded_tools(tools))
        return [token for ids in self._writer.encode(pieces, messages) for token in ids]

    def extend(
        self, token_ids: Sequence[int], new_messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None
    ) -> list[int]:
        """Token ids of the next prompt: `token_ids` as they are, the new messages, the next generation prompt.

        Args:
            token_ids: A prompt and the completion sampled after it. Where the completion has no stop token (it was
                cut for length), the stop token is added.
            new_messages: What the environment answered.
            tools: The tools in force. No prefix-preserving template repeats them, so they change nothing.

        Raises:
            TemplateError: The template is not prefix-preserving: its next prompt does not begin with `token_ids`;
                use `prompt` instead.
        """
        if self.history_steps is not None:
            raise TemplateError(
                "a policy that sees a window of its history has no prompt that goes on; "
                "render each prompt anew with Renderer.prompt"
            )
        if not self.prefix_preserving:
            raise TemplateError(
                "the chat template rewrites earlier turns, so a conversation cannot be extended token by token; "
                "render each prompt anew with Renderer.prompt, or use a template for training (chat_template=)"
            )
        if self._engine.profile.names_results and any(m.role == "tool" and not m.name for m in new_messages):
            new_messages = self._with_names(token_ids, new_messages)
        text = self._engine.extension(new_messages)
        if not token_ids or token_ids[-1] not in self.stop_token_ids:
            text = self._engine.profile.stops[0] + text
        (added,) = self._engine.encoder.encode([text], continued=True)
        return [*token_ids, *added]

    def parse(self, token_ids: Sequence[int], tools: Sequence[dict[str, Any]] | None = None) -> Message:
        """The assistant message that a completion spells; never raises.

        A call that cannot be read becomes a `ToolCall` with `parse_error` that keeps the raw text. The text outside
        calls is the content.

        Args:
            token_ids: The sampled tokens, with or without the stop token.
            tools: The tools in force; formats that write arguments as plain text ("qwen_xml", some of
                "response_template") need them to tell the number 17 from the text "17".
        """
        return self._parser.parse(token_ids, None if tools is None else list(tools))

    def _pieces(
        self, conversation: Conversation, tools: Tools, messages: Sequence[Message], last: int
    ) -> list[Piece] | None:
        """Context and actions up to message `last`, from one rendering of the whole; None where that is not exact.

        The probed behavior of the template is verified on each conversation: its text before the last action must be
        the prompt of that moment. (A template may look into messages: some switch thinking off by a word in them.)
        """
        text = conversation.text(tools, upto=last + 1, generation_prompt=False)
        assistants = [index for index, message in enumerate(messages[: last + 1]) if message.role == "assistant"]
        pieces = self._engine.finder.scan(text, assistants)
        if pieces is None:
            return None
        before = sum(len(piece.text) for piece in pieces[:-2])
        return pieces[:-1] if text[:before] == conversation.text(tools, upto=last, generation_prompt=True) else None

    def _turns_of_prompt(
        self, conversation: Conversation, text: str, assistants: Sequence[int], tools: Tools
    ) -> list[Piece]:
        if not self._engine.prefix_preserving:  # its earlier turns are other text than was sampled
            return [Piece(text, -1)]
        pieces = self._engine.finder.scan(text, assistants)
        if pieces is None:
            groups = chained(conversation, self._engine.finder, assistants, [tools] * len(assistants))
            pieces = groups[-1] if groups else []
            joined = "".join(piece.text for piece in pieces)
            if not text.startswith(joined):
                return [Piece(text, -1)]
            pieces.append(Piece(text[len(joined) :], -1))
        return pieces

    def _with_names(self, token_ids: Sequence[int], new_messages: Sequence[Message]) -> list[Message]:
        """Tool results without a name get that of the call they answer, read from the last completion."""
        opening = self._opening_ids
        size = len(opening)
        starts = (end for end in range(len(token_ids), size - 1, -1) if list(token_ids[end - size : end]) == opening)
        calls = self.parse(token_ids[next(starts, 0) :]).tool_calls
        names = {call.id or f"call{number:05d}": call.name for number, call in enumerate(calls)}
        order = iter(names.values())
        result = []
        for message in new_messages:
            if message.role == "tool":
                in_order = next(order, "")
                name = message.name or names.get(message.tool_call_id or "", in_order)
                message = msgspec.structs.replace(message, name=name or None)
            result.append(message)
        return result

    def _response_template(self) -> dict[str, Any] | None:
        """The tokenizer's response template, or TRL's for its chat template."""
        own: dict[str, Any] | None = getattr(self.tokenizer, "response_template", None)
        # TRL knows the original templates, not its own training variants of them.
        original = self.tokenizer.chat_template
        return own or response_template(original if isinstance(original, str) else self.chat_template)

    def _render(
        self,
        trajectory_id: str,
        messages: Sequence[Message],
        numbers: Mapping[int, int],
        tools: Mapping[int, Tools],
        shown: Sequence[int],
        trained: Sequence[int],
    ) -> list[Segment]:
        """Segments of the messages `shown`, with actions at the messages `trained` (both indices of `messages`)."""
        conversation = self._engine.builder.build([messages[index] for index in shown])
        position = {index: place for place, index in enumerate(shown)}
        places = [position[index] for index in trained]
        tools_here = [tools[index] for index in trained]
        groups: list[list[Piece]] = []
        if self._engine.prefix_preserving and all(other is tools_here[0] for other in tools_here):
            pieces = self._pieces(conversation, tools_here[0], [messages[index] for index in shown], places[-1])
            groups = [] if pieces is None else [pieces]
        if not groups:
            # What follows recorded tokens was sampled after the template's text for them, not after themselves.
            recorded = any(self._writer.recorded(messages[index]) for index in trained)
            join = self._engine.prefix_preserving or not recorded
            groups = chained(conversation, self._engine.finder, places, tools_here, join=join)
        actions = {place: numbers[index] for place, index in zip(places, trained, strict=True)}
        shown_messages = [messages[index] for index in shown]
        return [self._writer.segment(trajectory_id, group, shown_messages, actions) for group in groups]

    def _windowed(
        self,
        part: RenderPart,
        trajectory: Trajectory,
        numbers: Mapping[int, int],
        steps: Sequence[int],
        max_tokens: int | None,
    ) -> list[Segment]:
        """A segment for each of `steps`, with the window of the history as its prompt."""
        assert self.history_steps is not None
        segments: list[Segment] = []
        for index in steps:
            shown = [*window(trajectory.messages, index, self.history_steps), index]
            segment = self._windows.segment(trajectory, numbers[index], shown, part)
            if max_tokens is None or len(segment) <= max_tokens:
                segments.append(segment)
        return segments

    def _tools_at(self, trajectory: Trajectory, index: int) -> Tools:
        """The guarded tools in force at a message; the same object for the same tools."""
        text = trajectory.context_at(index).tools
        if text is None:
            return None
        if text not in self._tools:
            self._remember(text, msgspec.json.decode(text))
        return self._tools[text]

    def _guarded_tools(self, tools: Sequence[dict[str, Any]] | None) -> Tools:
        if not tools:
            return None
        key = msgspec.json.encode(tools)
        if key not in self._tools:
            self._remember(key, list(tools))
        return self._tools[key]

    def _remember(self, key: str | bytes, tools: Tools) -> None:
        if len(self._tools) >= _CACHED_TOOLS:
            self._tools.clear()
        self._tools[key] = self._engine.controls.guard_json(tools)
