"""Keep text that merely looks like a control token from becoming one.

A tool result may contain `<|im_end|>`; a tokenizer given the rendered conversation would turn it into the real
token and end the turn. So control text inside messages is swapped for private-use placeholders before the chat
template runs ("guarded"). The template, the search for turns and the mask then only ever see the control text
that the template itself wrote. At tokenization the placeholders are put back, cut after their first character,
and the parts are tokenized one by one: the pieces spell the same text and no piece is a control token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Placeholders are the escape character and one more private-use character of plane 16. An escape character that
# the text itself contains is escaped too, so guarding is reversible for any text.
ESCAPE = "\U0010fffd"
_CONTROL_BASE = 0x100000
_SLOT_BASE = 0x108000
_RAW_SLOT_BASE = 0x10C000
_LITERAL = ESCAPE
_PLACEHOLDER = re.compile(ESCAPE + "(.)", re.DOTALL)
_MARKUP = re.compile(r"[<\[].*[>\]]", re.DOTALL)
_CHAT_MARKUP = re.compile(r"[|_▁]|^</?think>$")


def control_texts(tokenizer: PreTrainedTokenizerBase, template: str) -> list[str]:
    """The texts that must not be tokenized as control tokens when they stand inside a message.

    All special tokens, and those ordinary added tokens that are chat markup (`<tool_call>`, `<think>`, whatever
    the template writes). Other added tokens (runs of blanks, the HTML tags of Gemma) are plain vocabulary.
    """

    def is_markup(text: str) -> bool:
        return bool(_MARKUP.fullmatch(text)) and (text in template or bool(_CHAT_MARKUP.search(text)))

    found: set[str] = set()
    for token in tokenizer.added_tokens_decoder.values():
        text = token.content
        if len(text.strip()) > 1 and (token.special or is_markup(text)):
            found.add(text)
    found.update(text for text in tokenizer.all_special_tokens if len(text.strip()) > 1)
    return sorted(found, key=lambda text: (-len(text), text))


def slot(index: int) -> str:
    """The placeholder of a text that is filled in after the template ran."""
    return ESCAPE + chr(_SLOT_BASE + index)


def raw_slot(index: int) -> str:
    """Like `slot`, for raw call arguments: quotes that a template puts around it, taking it for text, go too."""
    return ESCAPE + chr(_RAW_SLOT_BASE + index)


class ControlText:
    """Guards text against a fixed list of control texts, and undoes it."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = tuple(texts)
        self._codes = {text: ESCAPE + chr(_CONTROL_BASE + index) for index, text in enumerate(texts)}
        self._codes[ESCAPE] = ESCAPE + _LITERAL
        self._pattern = re.compile("|".join(re.escape(text) for text in (*texts, ESCAPE)))
        # One pass over the text for the first characters is much cheaper than the alternation.
        self._first = re.compile("[" + "".join(re.escape(char) for char in sorted({t[0] for t in self._codes})) + "]")

    def guard(self, text: str) -> str:
        """`text` with control text (and the escape character) replaced by placeholders."""
        if self._first.search(text) is None:
            return text
        return self._pattern.sub(lambda match: self._codes[match.group()], text)

    def guard_json(self, value: Any) -> Any:
        """A JSON value with all its strings guarded, keys included."""
        if isinstance(value, str):
            return self.guard(value)
        if isinstance(value, dict):
            return {self.guard(key): self.guard_json(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.guard_json(item) for item in value]
        return value

    def fill(self, text: str, slots: Sequence[str]) -> str:
        """Put the (guarded) texts of `slots` in place of their placeholders."""
        if not slots or ESCAPE not in text:
            return text
        parts = _PLACEHOLDER.split(text)
        filled = parts[0]
        for code, following in zip(parts[1::2], parts[2::2], strict=True):
            index = ord(code)
            if _SLOT_BASE <= index < _RAW_SLOT_BASE:
                filled += slots[index - _SLOT_BASE] + following
            elif _RAW_SLOT_BASE <= index < ord(_LITERAL):
                if filled.endswith('"') and following.startswith('"'):
                    filled, following = filled[:-1], following[1:]
                filled += slots[index - _RAW_SLOT_BASE] + following
            else:
                filled += ESCAPE + code + following
        return filled

    def reveal(self, text: str) -> str:
        """Undo `guard`."""
        if ESCAPE not in text:
            return text
        return _PLACEHOLDER.sub(lambda match: self._original(match.group(1)), text)

    def chunks(self, text: str) -> list[str]:
        """Cut guarded text so that its chunks, tokenized one by one, hold no control text from messages."""
        if ESCAPE not in text:
            return [text]
        parts = _PLACEHOLDER.split(text)
        chunks, current = [], parts[0]
        for code, following in zip(parts[1::2], parts[2::2], strict=True):
            original = self._original(code)
            if code == _LITERAL:
                current += original + following
            else:
                chunks.append(current + original[0])
                current = original[1:] + following
        chunks.append(current)
        return chunks

    def _original(self, code: str) -> str:
        return ESCAPE if code == _LITERAL else self.texts[ord(code) - _CONTROL_BASE]


class PieceEncoder:
    """Tokenizes consecutive pieces of one guarded text so that they join as if sampled and appended.

    Args:
        tokenizer: Any Hugging Face tokenizer.
        controls: What guarded the text.
        anchor: Text of a control token (the stop token) after which pieces begin.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, controls: ControlText, anchor: str) -> None:
        self._tokenizer = tokenizer
        self._controls = controls
        self._anchor = ""
        # SentencePiece puts a blank before the first word of a text and some control tokens swallow the blanks
        # after them: then a piece must be tokenized behind a control token for its ids to be those in context.
        anchor_ids = self._ids([anchor])[0]
        probes = ["\nHello there", "Hello", " Hello", "\n\nHello\n"]
        joined, alone = self._ids([anchor + probe for probe in probes]), self._ids(probes)
        if any(left != anchor_ids + right for left, right in zip(joined, alone, strict=True)):
            self._anchor = anchor
        self._anchor_length = len(anchor_ids) if self._anchor else 0

    def encode(self, pieces: Sequence[str], *, continued: bool) -> list[list[int]]:
        """Token ids of each piece.

        Args:
            pieces: Guarded texts, each following the one before.
            continued: The first piece follows other tokens too, rather than beginning the sequence.
        """
        flat: list[str] = []
        counts: list[int] = []
        for piece in pieces:
            chunks = [chunk for chunk in self._controls.chunks(piece) if chunk]
            counts.append(len(chunks))
            flat.extend(chunks)
        if not flat:
            return [[] for _ in pieces]
        begins = 0 if continued else 1  # number of leading chunks that are not anchored
        if self._anchor:
            flat[begins:] = [self._anchor + chunk for chunk in flat[begins:]]
        encoded = self._ids(flat)
        if self._anchor:
            encoded[begins:] = [ids[self._anchor_length :] for ids in encoded[begins:]]
        result, position = [], 0
        for count in counts:
            ids = (
                encoded[position] if count == 1 else [i for part in encoded[position : position + count] for i in part]
            )
            result.append(ids)
            position += count
        return result

    def _ids(self, texts: list[str]) -> list[list[int]]:
        options = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
        try:
            ids: list[list[int]] = self._tokenizer(texts, verbose=False, **options)["input_ids"]
        except (UnicodeEncodeError, TypeError):  # lone surrogates, which no tokenizer takes
            clean = [text.encode("utf-8", "surrogatepass").decode("utf-8", "replace") for text in texts]
            ids = self._tokenizer(clean, verbose=False, **options)["input_ids"]
        return ids
