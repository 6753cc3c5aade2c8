"""What a chat template can do, found out by rendering small conversations with it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from offline_arl.errors import TemplateError
from offline_arl.rendering.plain_text import ControlText
from offline_arl.rendering.template import ChatTemplate
from offline_arl.rendering.tool_calls import detect_format

# Distinct words that no template contains.
_USER, _TEXT, _RESULT, _REASON, _SYSTEM = "userprobe", "textprobe", "resultprobe", "reasonprobe", "systemprobe"
_NAME, _OTHER, _KEY, _VALUE = "nameprobe", "otherprobe", "keyprobe", "valueprobe"
_ARGUMENTS = {_KEY: _VALUE}
_OPENING = re.compile(r"<think>\s*\Z")
_NAME_HERE, _ARGUMENTS_HERE = "\x00name\x00", "\x00arguments\x00"


@dataclass(frozen=True)
class CallStyle:
    """How the template writes calls as text, for calls that it cannot write itself.

    Those are calls with arguments that are not JSON, bodies that are no call at all, and calls that the template
    would drop (text beside a call, several calls at once in Llama's templates).
    """

    pattern: str  # one call, with placeholders for name and arguments
    separator: str  # between two calls
    after_text: str  # between visible text and the first call

    def call(self, name: str, arguments: str) -> str:
        """One call. With no name, `arguments` is the whole body of a call that could not be read."""
        if not name:
            start, end = self.pattern.find("{"), self.pattern.rfind("}")
            return self.pattern[:start] + arguments + self.pattern[end + 1 :]
        before, _, rest = self.pattern.partition(_NAME_HERE)
        if _ARGUMENTS_HERE in rest:
            middle, _, after = rest.partition(_ARGUMENTS_HERE)
            return before + name + middle + arguments + after
        first, _, middle = before.partition(_ARGUMENTS_HERE)
        return first + arguments + middle + name + rest


@dataclass(frozen=True)
class TemplateProfile:
    """The facts about a chat template that rendering needs."""

    generation_prompt: str  # what opens an assistant turn
    stops: tuple[str, ...]  # control texts that end an assistant turn
    takes_tools: bool  # tools, calls and results all appear in the text
    takes_developer: bool  # knows the role "developer"
    system_as_user: bool  # has no system role
    reasoning_key: str | None  # the message field that the template shows as reasoning
    shows_reasoning: bool  # by that field, or as text in <think> tags
    string_arguments: bool  # wants call arguments as JSON text
    raw_arguments: bool  # shows arguments that are given as text, in quotes or not
    names_results: bool  # shows the name of the tool on its results
    short_ids: bool  # wants call ids of nine characters (Mistral)
    single_call: bool  # refuses several calls in one message
    keeps_text: bool  # shows the text of a message that has calls
    call_style: CallStyle | None
    call_format: str | None  # of tool_calls.FORMATS


def _common_prefix(left: str, right: str) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))


def _user() -> dict[str, Any]:
    return {"role": "user", "content": _USER}


def _assistant(content: str, *calls: dict[str, Any], **fields: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content, **fields}
    if calls:
        message["tool_calls"] = list(calls)
    return message


def _tool(name: str) -> dict[str, Any]:
    properties = {_KEY: {"type": "string", "description": "a key"}}
    parameters = {"type": "object", "properties": properties, "required": [_KEY]}
    return {"type": "function", "function": {"name": name, "description": "a tool", "parameters": parameters}}


class TemplateProbe:
    """Renders probes with one template and reads the facts off the text."""

    def __init__(self, template: ChatTemplate, controls: ControlText) -> None:
        self._template = template
        self._controls = controls
        self._string_arguments = False
        self._short_ids = False

    def profile(self) -> TemplateProfile:
        """Probe everything.

        Raises:
            TemplateError: No assistant turn can be told apart in what the template writes.
        """
        turn, prompt = self._text_turn(), self._generation_prompt()
        lead, _, rest = turn.partition(_TEXT)
        stops = [self._text_stop(rest)]
        call = self._call_turn()
        call_style = call_format = None
        single_call, keeps_text = False, True
        if call is not None:
            rest = call[call.rindex(_VALUE) + len(_VALUE) :]
            stops.append(stops[0] if stops[0] in rest else self._last_control(rest) or self._no_stop())
            body = call[: call.rindex(stops[-1])].removeprefix(lead)
            call_format = detect_format(body, _NAME, dict(_ARGUMENTS))
            single_call = self._turn(_assistant("", self._call(_NAME), self._call(_OTHER))) is None
            beside = self._turn(_assistant(_TEXT, self._call(_NAME)))
            keeps_text = beside is not None and _TEXT in beside
            call_style = self._call_style(lead, body, call, beside if keeps_text else None, single=single_call)
        key = self._reasoning_key()
        thought = self._turn(_assistant(f"<think>\n{_REASON}\n</think>\n\n{_TEXT}"))
        return TemplateProfile(
            generation_prompt=prompt,
            stops=tuple(dict.fromkeys(stops)),
            takes_tools=call is not None and self._shows_tools(),
            takes_developer="developer" in self._template.source,
            system_as_user=self._system_as_user(),
            reasoning_key=key,
            shows_reasoning=key is not None or (thought is not None and _REASON in thought),
            string_arguments=self._string_arguments,
            raw_arguments=self._raw_arguments(),
            names_results=self._names_results(),
            short_ids=self._short_ids,
            single_call=single_call,
            keeps_text=keeps_text,
            call_style=call_style,
            call_format=call_format,
        )

    def _call(self, name: str) -> dict[str, Any]:
        arguments = json.dumps(_ARGUMENTS) if self._string_arguments else dict(_ARGUMENTS)
        call_id = f"{name[:4]}00001" if self._short_ids else f"call_{name}_00001"
        return {"type": "function", "id": call_id, "function": {"name": name, "arguments": arguments}}

    def _generation_prompt(self) -> str:
        """The text that only a generation prompt adds, without a part that turns do not begin with."""
        closed = self._template.text([_user()], generation_prompt=False)
        opened = self._template.text([_user()], generation_prompt=True)
        cut = _common_prefix(closed, opened)
        # Where the closed text ends differently (Phi 3 adds its end-of-text token) the two may share the first
        # characters of a control token.
        for text in self._controls.texts:
            start = opened.rfind(text, 0, cut + len(text))
            if start < cut < start + len(text) and start != -1:
                cut = start
        return opened[cut:]

    def _text_turn(self) -> str:
        """What follows the generation prompt for a message with text.

        Some reasoning models' prompts open `<think>`, and their turns without reasoning do not: then the prompt is
        taken without it, so that a policy begins its turns itself.
        """
        message = _assistant(_TEXT)
        turn = self._turn(message)
        opening = _OPENING.search(self._template.text([_user()], generation_prompt=True))
        if turn is None and opening is not None:
            self._template.dropped_opening = opening.group()
            turn = self._turn(message)
        if turn is None or turn.count(_TEXT) != 1:
            raise TemplateError(
                "the chat template has no trainable assistant turn: the text of an assistant message does not follow "
                "the generation prompt; pass a template for training with chat_template="
            )
        return turn

    def _turn(self, message: dict[str, Any]) -> str | None:
        """What the template writes after the generation prompt for this last message; None where it refuses."""
        opened = self._template.try_text([_user()], generation_prompt=True)
        whole = self._template.try_text([_user(), message], generation_prompt=False)
        if opened is None or whole is None or not whole.startswith(opened):
            return None
        return whole[len(opened) :]

    def _text_stop(self, rest: str) -> str:
        """The control text that ends a turn, of those in `rest`, which follows the text of a last message.

        Only what also stands there when another message follows belongs to the turn; of several, the last one.
        """
        followed = self._template.try_text([_user(), _assistant(_TEXT), _user()], generation_prompt=False) or ""
        shared = rest[: _common_prefix(rest, followed.partition(_TEXT)[2])]
        return self._last_control(shared) or self._last_control(rest) or self._no_stop()

    def _last_control(self, text: str) -> str | None:
        found = [(text.rfind(control), len(control), control) for control in self._controls.texts if control in text]
        return max(found)[2] if found else None

    @staticmethod
    def _no_stop() -> NoReturn:
        raise TemplateError(
            "the chat template ends an assistant turn without a control token of the tokenizer, so a policy would "
            "never learn to stop; pass a template for training with chat_template="
        )

    def _call_turn(self) -> str | None:
        """The turn of one call, trying the forms in which templates want it; None where calls are not shown."""
        for self._string_arguments in (False, True):
            for self._short_ids in (False, True):
                turn = self._turn(_assistant("", self._call(_NAME)))
                if turn is not None and all(word in turn for word in (_NAME, _KEY, _VALUE)):
                    return turn
        self._string_arguments = self._short_ids = False
        return None

    def _call_style(self, lead: str, body: str, turn: str, beside: str | None, *, single: bool) -> CallStyle | None:
        written = next((text for text in self._spellings() if body.count(text) == 1), None)
        if written is None or body.replace(written, "").count(_NAME) != 1:
            return None
        before, _, after = body.partition(written)
        pattern = before.replace(_NAME, _NAME_HERE) + _ARGUMENTS_HERE + after.replace(_NAME, _NAME_HERE)
        # Composed text goes through the template as plain content; the result must be what the template writes.
        if self._turn(_assistant(body)) != turn:
            return None
        separator = "; " if before.lstrip().startswith("{") else "\n"
        pair = None if single else self._turn(_assistant("", self._call(_NAME), self._call(_OTHER)))
        if pair is not None:
            second = re.escape(body.replace(_NAME, _OTHER))
            match = re.match(re.escape(lead + body) + f"(.*?){second}", pair, re.DOTALL)
            if match is None:
                return None
            separator = match[1]
        after_text = "\n"
        if beside is not None:
            match = re.match(re.escape(lead) + _TEXT + f"(.*?){re.escape(body)}", beside, re.DOTALL)
            if match is None:
                return None
            after_text = match[1]
        return CallStyle(pattern, separator, after_text)

    @staticmethod
    def _spellings() -> tuple[str, ...]:
        return json.dumps(_ARGUMENTS), json.dumps(_ARGUMENTS, separators=(",", ":")), json.dumps(_ARGUMENTS, indent=4)

    def _shows_tools(self) -> bool:
        call = self._call(_NAME)
        result = {"role": "tool", "name": _NAME, "tool_call_id": call["id"], "content": _RESULT}
        messages = [_user(), _assistant("", call), result]
        listed = self._template.try_text([_user()], [_tool(_OTHER)], generation_prompt=True)
        answered = self._template.try_text(messages, generation_prompt=True)
        return listed is not None and _OTHER in listed and answered is not None and _RESULT in answered

    def _raw_arguments(self) -> bool:
        call = self._call(_NAME)
        call["function"]["arguments"] = _VALUE
        turn = self._turn(_assistant("", call))
        return turn is not None and _VALUE in turn

    def _names_results(self) -> bool:
        call = self._call(_NAME)
        result = {"role": "tool", "name": _OTHER, "tool_call_id": call["id"], "content": _RESULT}
        text = self._template.try_text([_user(), _assistant("", call), result], generation_prompt=True)
        return text is not None and _OTHER in text

    def _system_as_user(self) -> bool:
        system = {"role": "system", "content": _SYSTEM}
        text = self._template.try_text([system, _user()], generation_prompt=True)
        return text is None or _SYSTEM not in text

    def _reasoning_key(self) -> str | None:
        for key in ("reasoning_content", "reasoning", "thinking"):
            turn = self._turn(_assistant(_TEXT, **{key: _REASON}))
            if turn is not None and _REASON in turn:
                return key
        return None
