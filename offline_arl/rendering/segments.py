"""Tokenize the pieces of a conversation and put them into segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from offline_arl.rendering.engine import TemplateEngine
from offline_arl.rendering.masks import Piece
from offline_arl.trajectories.schema import Message, TokenRecord
from offline_arl.trajectories.segment import Segment


class SegmentWriter:
    """Makes token ids of pieces; recorded ids stand in for actions that were sampled with the same template.

    Args:
        engine: The template.
        fingerprint: Recorded token ids count only where theirs is the same.
        stop_token_ids: What ends a sampled action.
    """

    def __init__(self, engine: TemplateEngine, fingerprint: str, stop_token_ids: Sequence[int]) -> None:
        self._engine = engine
        self._fingerprint = fingerprint
        self._stops = frozenset(stop_token_ids)

    def recorded(self, message: Message) -> TokenRecord | None:
        """The recorded token ids of a message, where they are this template's."""
        record = message.tokens
        return record if record is not None and record.fingerprint == self._fingerprint and record.token_ids else None

    def encode(self, pieces: Sequence[Piece], messages: Sequence[Message]) -> list[list[int]]:
        """Token ids of each piece of a text that begins with the first.

        A recorded action without a stop token was cut for length: the stop token then begins the context after it.
        """
        engine = self._engine
        recorded: dict[int, list[int]] = {}
        texts: list[str] = []
        owners: list[int] = []
        missing_stop = ""
        for number, piece in enumerate(pieces):
            record = self.recorded(messages[piece.message]) if piece.message >= 0 else None
            if record is not None:
                recorded[number] = record.token_ids
                missing_stop = "" if record.token_ids[-1] in self._stops else engine.profile.stops[0]
                continue
            text, missing_stop = missing_stop + piece.text, ""
            parts = [text] if piece.message >= 0 else engine.finder.split(text)
            texts += parts
            owners += [number] * len(parts)
        result: list[list[int]] = [recorded.get(number, []) for number in range(len(pieces))]
        for number, ids in zip(owners, engine.encoder.encode(texts, continued=False), strict=True):
            result[number] = result[number] + ids if result[number] else ids
        return result

    def segment(
        self, trajectory_id: str, pieces: Sequence[Piece], messages: Sequence[Message], actions: Mapping[int, int]
    ) -> Segment:
        """The segment of `pieces`.

        Args:
            trajectory_id: Whose segment it is.
            pieces: Context and actions in order; `Piece.message` indexes `messages`.
            messages: The conversation.
            actions: Index of each message that is trained, and its step number.
        """
        encoded = self.encode(pieces, messages)
        length = sum(map(len, encoded))
        step_index = np.full(length, -1, dtype=np.int32)
        logprobs = np.full(length, np.nan, dtype=np.float32)
        rendered, start = False, 0
        for piece, ids in zip(pieces, encoded, strict=True):
            if piece.message in actions:
                span = slice(start, start + len(ids))
                step_index[span] = actions[piece.message]
                record = self.recorded(messages[piece.message])
                rendered |= record is None
                if record is not None and record.logprobs is not None and len(record.logprobs) == len(ids):
                    logprobs[span] = record.logprobs
            start += len(ids)
        return Segment(
            trajectory_id=trajectory_id,
            token_ids=np.fromiter((token for ids in encoded for token in ids), dtype=np.int32, count=length),
            action_mask=step_index >= 0,
            step_index=step_index,
            fingerprint=self._fingerprint,
            logprobs=None if np.isnan(logprobs).all() else logprobs,
            rendered=rendered,
        )
