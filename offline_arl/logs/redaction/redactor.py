"""Redaction of log records: what is found is replaced in place, everything else stays to the byte."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.primitives.json_values import decode_json
from offline_arl.logs.redaction.config import RedactionConfig
from offline_arl.logs.redaction.credentials import class_of_key
from offline_arl.logs.redaction.detectors import Detectors
from offline_arl.logs.redaction.findings import Finding
from offline_arl.logs.redaction.placeholders import placeholder
from offline_arl.logs.redaction.texts import decoded, encoded, json_spans, literals, without_escapes

# Characters of texts whose outcome is remembered; system prompts and histories recur.
_REMEMBERED = 16 * 2**20
_MAX_DEPTH = 8
_MIN_SPREAD = 6


class _Outcome(NamedTuple):
    """What became of a text: the new one, and what was replaced."""

    text: str
    kinds: tuple[str, ...]
    elsewhere: tuple[tuple[str, str], ...]  # values to be replaced in all of the record, with their placeholders


class Redactor:
    """Replaces what a configuration names by placeholders made with a key.

    Not for use by several threads at once. Give each process its own, with the same configuration and key.
    """

    def __init__(self, config: RedactionConfig, key: bytes) -> None:
        self._key = key
        self._detectors = Detectors(config)
        self._known: dict[tuple[str, str], _Outcome] = {}
        self._known_size = 0
        self._counts: Counter[str] = Counter()

    def take_counts(self) -> dict[str, int]:
        """How many values were replaced since this was last asked, by kind."""
        counts = dict(self._counts)
        self._counts.clear()
        return counts

    def records(self, records: Sequence[RawRecord]) -> list[RawRecord]:
        """The records with their content redacted; hashes, positions and ids stay those of the originals."""
        documents = self.documents([record.raw for record in records])
        return [_with_content(record, raw) for record, raw in zip(records, documents, strict=True)]

    def documents(self, documents: Sequence[bytes]) -> list[bytes]:
        """Redact JSON documents, one by one; text that is not JSON is redacted as it stands."""
        texts = [document.decode(errors="surrogateescape") for document in documents]
        suspects = self._detectors.suspects(texts)
        self._look_into([texts[index] for index in suspects])
        results = list(documents)
        for index in suspects:
            redacted = self._document(texts[index], documents[index])
            if redacted != texts[index]:
                results[index] = redacted.encode(errors="surrogateescape")
        return results

    def text(self, text: str, key: str = "") -> str:
        """Redact a text, which may be or hold JSON."""
        outcome = self._value(text, key, self._detectors.everything, 0)
        self._counts.update(outcome.kinds)
        return _spread(outcome.text, outcome.elsewhere)

    def _look_into(self, texts: Iterable[str]) -> None:
        """Find out, many at a time, what becomes of the literals in these texts."""
        new = {(item.key, item.body) for text in texts for item in literals(text)}
        fresh = [item for item in new if item not in self._known]
        for (key, body), chosen in self._detectors.selected(fresh):
            self._remember(key, body, self._literal(key, body, chosen, 0))

    def _remember(self, key: str, body: str, outcome: _Outcome) -> None:
        self._known_size += len(body)
        if self._known_size > _REMEMBERED:
            self._known.clear()
            self._known_size = len(body)
        self._known[key, body] = outcome

    def _document(self, text: str, raw: bytes) -> str:
        outcome = self._spliced(text, 0, None)
        result, kinds, elsewhere = outcome
        if not _is_readable(raw):
            # Where quotes do not pair, literals are not where they seem to be.
            rest = self._plain(result, "", self._detectors.everything)
            result, kinds, elsewhere = rest.text, kinds + rest.kinds, elsewhere + rest.elsewhere
        self._counts.update(kinds)
        return _spread(result, elsewhere)

    def _spliced(self, text: str, depth: int, chosen: int | None) -> _Outcome:
        """Redact the literals of a JSON text; `chosen` is None where the outcomes are known already."""
        pieces: list[str] = []
        kinds: list[str] = []
        elsewhere: list[tuple[str, str]] = []
        end = 0
        for item in literals(text):
            outcome = self._known.get((item.key, item.body))
            if outcome is None and chosen is not None:
                outcome = self._literal(item.key, item.body, chosen, depth)
            if outcome is not None and outcome.kinds:
                pieces += (text[end : item.start], outcome.text)
                end = item.end
                kinds += outcome.kinds
                elsewhere += outcome.elsewhere
        pieces.append(text[end:])
        return _Outcome("".join(pieces), tuple(kinds), tuple(elsewhere))

    def _literal(self, key: str, body: str, chosen: int, depth: int) -> _Outcome:
        value = decoded(body)
        outcome = self._value(value, decoded(key), chosen, depth)
        if not outcome.kinds:
            return _Outcome(body, (), ())
        return outcome._replace(text=outcome.text if value is body else encoded(outcome.text, like=body))

    def _value(self, text: str, key: str, chosen: int, depth: int) -> _Outcome:
        """Redact a string, which may be JSON, hold lines of JSON, or stand under a key that makes it a secret."""
        if key and (kind := class_of_key(key)):
            whole = self._detectors.under_key(text, key, kind, chosen)
            if whole is not None:
                return self._replaced(text, whole)
        spans = json_spans(text) if depth < _MAX_DEPTH else []
        if not spans:
            return self._plain(text, key, chosen)
        parts: list[_Outcome] = []
        end = 0
        for start, stop in spans:
            parts.append(self._plain(text[end:start], key, chosen))
            parts.append(self._spliced(text[start:stop], depth + 1, chosen))
            end = stop
        parts.append(self._plain(text[end:], key, chosen))
        return _Outcome(
            "".join(part.text for part in parts),
            tuple(kind for part in parts for kind in part.kinds),
            tuple(pair for part in parts for pair in part.elsewhere),
        )

    def _plain(self, text: str, key: str, chosen: int) -> _Outcome:
        if len(text) < 4:
            return _Outcome(text, (), ())
        return self._replaced(text, self._detectors.find(text, without_escapes(text), key, chosen))

    def _replaced(self, text: str, findings: Sequence[Finding]) -> _Outcome:
        if not findings:
            return _Outcome(text, (), ())
        pieces: list[str] = []
        elsewhere: list[tuple[str, str]] = []
        end = 0
        for found in findings:
            new = placeholder(self._key, found.label, found.value)
            pieces += (text[end : found.start], new)
            end = found.end
            written = text[found.start : found.end]
            if found.by_context and len(written) >= _MIN_SPREAD and not written.isalpha():
                elsewhere.append((written, new))
        pieces.append(text[end:])
        return _Outcome("".join(pieces), tuple(found.kind for found in findings), tuple(elsewhere))


def _with_content(record: RawRecord, raw: bytes) -> RawRecord:
    if raw is record.raw:
        return record
    redacted = replace(record, raw=raw)
    redacted.__dict__["_sha256"] = record.sha256
    return redacted


def _is_readable(raw: bytes) -> bool:
    try:
        decode_json(raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _spread(text: str, values: Sequence[tuple[str, str]]) -> str:
    """Replace values that words beside them gave away also where they stand alone."""
    for value, new in dict(values).items():
        if value in text:
            text = re.sub(rf"(?<![\w<]){re.escape(value)}(?!\w)", new, text)
    return text
