"""Redaction of log records: what is found is replaced in place, everything else stays to the byte."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec
import polars as pl

from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.primitives.json_values import decode_json
from offline_arl.logs.redaction.config import RedactionConfig
from offline_arl.logs.redaction.credentials import class_of_key
from offline_arl.logs.redaction.detectors import Detectors, Suspect
from offline_arl.logs.redaction.findings import Finding
from offline_arl.logs.redaction.placeholders import placeholder
from offline_arl.logs.redaction.texts import decoded, encoded, is_json, json_spans, literals, without_escapes

# Characters of texts whose outcome is remembered; system prompts and histories recur.
_REMEMBERED = 16 * 2**20
_MAX_DEPTH = 8
_MIN_SPREAD = 6
_MANY = 20


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
        if not documents:
            return []
        results = list(documents)
        whole: dict[int, str] = {}
        for index, document in enumerate(documents):
            text = document.decode(errors="surrogateescape")
            if is_json(text) or _is_readable(document):
                whole[index] = text
            else:
                results[index] = self._damaged(document)
        indices = list(whole)
        for number, suspects in groupby(self._suspects(list(whole.values())), lambda suspect: suspect.text):
            index = indices[number]
            results[index] = self._replaced_in(documents[index], suspects)
        return results

    def text(self, text: str, key: str = "") -> str:
        """Redact a text, which may be or hold JSON."""
        chosen = self._detectors.everything
        if _is_unicode(text):
            chosen = next(chosen for _, chosen in self._detectors.selected([(key, text)]))
        outcome = self._value(text, key, chosen, 0)
        self._counts.update(outcome.kinds)
        return _spread(outcome.text, outcome.elsewhere)

    def _suspects(self, texts: Sequence[str]) -> list[Suspect]:
        """The literals of these texts in which something is replaced; what becomes of them is known then."""
        suspects = self._detectors.suspects(texts)
        fresh = dict.fromkeys((item.key, item.body) for item in suspects if (item.key, item.body) not in self._known)
        if fresh:
            for (key, body), chosen in self._detectors.selected(list(fresh)):
                self._remember(key, body, self._literal(key, body, chosen, 0))
        return [item for item in suspects if self._known[item.key, item.body].kinds]

    def _remember(self, key: str, body: str, outcome: _Outcome) -> None:
        self._known_size += len(body)
        if self._known_size > _REMEMBERED:
            self._known.clear()
            self._known_size = len(body)
        self._known[key, body] = outcome

    def _replaced_in(self, document: bytes, suspects: Iterable[Suspect]) -> bytes:
        pieces: list[bytes] = []
        elsewhere: list[tuple[str, str]] = []
        end = 0
        for item in suspects:
            outcome = self._known[item.key, item.body]
            pieces += (document[end : item.start], outcome.text.encode())
            end = item.end
            self._counts.update(outcome.kinds)
            elsewhere += outcome.elsewhere
        pieces.append(document[end:])
        redacted = b"".join(pieces)
        return _spread(redacted.decode(), elsewhere).encode() if elsewhere else redacted

    def _damaged(self, document: bytes) -> bytes:
        """Redact what is not JSON: the literals that it seems to have, and what lies between them as well."""
        text = document.decode(errors="surrogateescape")
        everything = self._detectors.everything
        elsewhere: tuple[tuple[str, str], ...] = ()
        if _is_unicode(text):
            # A literal that is cut off at the end is one, too.
            closed = self._replaced_in(document + b'"', self._suspects([text + '"']))
            text = closed[:-1].decode()
            chosen = next(chosen for _, chosen in self._detectors.selected([("", text)]))
        else:
            inner = self._spliced(text, 1, everything)
            self._counts.update(inner.kinds)
            text, elsewhere, chosen = inner.text, inner.elsewhere, everything
        outer = self._plain(text, "", chosen)
        self._counts.update(outer.kinds)
        return _spread(outer.text, elsewhere + outer.elsewhere).encode(errors="surrogateescape")

    def _spliced(self, text: str, depth: int, chosen: int) -> _Outcome:
        """Redact the literals of a JSON text."""
        pieces: list[str] = []
        kinds: list[str] = []
        elsewhere: list[tuple[str, str]] = []
        end = 0
        for item in literals(text):
            outcome = self._literal(item.key, item.body, chosen, depth)
            if outcome.kinds:
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
    redacted = msgspec.structs.replace(record, raw=raw)
    redacted.__dict__["_sha256"] = record.sha256
    return redacted


def _is_readable(raw: bytes) -> bool:
    try:
        decode_json(raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _is_unicode(text: str) -> bool:
    return re.search("[\ud800-\udfff]", text) is None


def _spread(text: str, values: Sequence[tuple[str, str]]) -> str:
    """Replace values that words beside them gave away also where they stand alone."""
    replacements = dict(values)
    if len(replacements) > _MANY:
        # One search for all of them says which are worth one of their own.
        found = pl.Series([text.encode(errors="replace").decode()]).str.extract_many(
            list(replacements), overlapping=True
        )
        replacements = {value: replacements[value] for value in dict.fromkeys(found.explode().to_list()) if value}
    for value, new in replacements.items():
        if value in text:
            # Before it may stand an escaped line end.
            text = re.sub(rf"(?:(?<![\w<])|(?<=\\[nrtbf])){re.escape(value)}(?!\w)", new, text)
    return text
