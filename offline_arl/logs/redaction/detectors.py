"""All detectors of a configuration, and which of them have anything to look for in a text."""

from __future__ import annotations

import re
from bisect import bisect, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import polars as pl

from offline_arl.logs.redaction.config import Kind, RedactionConfig
from offline_arl.logs.redaction.credentials import (
    KEY_GATE,
    LABEL,
    Assignments,
    Authorization,
    UrlCredentials,
    class_of_key,
    is_password_key,
    is_secret,
)
from offline_arl.logs.redaction.findings import Detector, Finding
from offline_arl.logs.redaction.personal import (
    BankAccounts,
    CreditCards,
    Emails,
    IpAddresses,
    PhoneNumbers,
    SocialSecurityNumbers,
)
from offline_arl.logs.redaction.placeholders import PLACEHOLDER
from offline_arl.logs.redaction.texts import PIECE, body_of, decoded
from offline_arl.logs.redaction.tokens import ApiKeys, JsonWebTokens, PrivateKeys

# Characters that JSON may hold as numbers (`\\u0040`): then nothing can be said before they are decoded.
_ESCAPED = r"\\u00[2-7]"


class Suspect(NamedTuple):
    """A string literal in which something may be found."""

    text: int  # index of the text that it is in
    start: int  # of the body, without quotes, in bytes
    end: int
    key: str  # the last one before it; "" for keys; as it is written, with escapes
    body: str  # as it is written


class Detectors:
    """The detectors of a configuration.

    Python's regular expressions are too slow to run a dozen over every text. Those of Polars, which run over many
    texts at once, say first which literals are worth it (`suspects`) and for which detectors (`selected`).
    A selection is an integer with a bit for each detector.

    Raises:
        MissingDependencyError: A package that a kind needs is not installed.
    """

    def __init__(self, config: RedactionConfig) -> None:
        self._detectors = [_detector(kind, config) for kind in config.kinds]
        self._patterns = [(name.lower(), name.upper(), re.compile(form)) for name, form in config.patterns.items()]
        self._keep = [re.compile(form) for form in config.keep]
        self._gates = [detector.gate for detector in self._detectors]
        # Two expressions: one for all of it needs more states than Rust keeps, and takes longer than both.
        tokens = [gate for gate in self._gates if gate == ApiKeys.gate]
        others = [gate for gate in dict.fromkeys(self._gates) if gate != ApiKeys.gate]
        self._any_gates = [
            "|".join(f"(?:{gate})" for gate in gates) for gates in (tokens, [*others, _ESCAPED]) if gates
        ]
        self._patterns_gate = _gate_of(config.patterns.values())
        self._kinds = frozenset(config.kinds)
        self.everything = (1 << len(self._detectors)) - 1

    def suspects(self, texts: Sequence[str]) -> list[Suspect]:
        """The string literals of JSON texts in which something may be found, in order."""
        frame = pl.DataFrame({"text": pl.Series(range(len(texts))), "piece": pl.Series(texts, dtype=pl.String)})
        if self._patterns_gate is None:
            frame = frame.filter(self._has_suspects())
        frame = frame.with_columns(pl.col("piece").str.extract_all(PIECE)).explode("piece").drop_nulls()
        is_key = pl.col("piece").str.ends_with(":")
        frame = frame.with_columns(
            is_key.alias("is_key"),
            pl.col("piece").str.len_bytes().cum_sum().over("text").alias("end"),
            pl.when(is_key).then("piece").forward_fill().over("text").alias("key"),
        )
        keys = frame.filter("is_key").get_column("piece")
        names = keys.filter(keys.str.contains(KEY_GATE)).unique().to_list()
        telling = [name for name in names if class_of_key(decoded(body_of(name)))]
        suspect = self._has_suspects()
        if telling:
            suspect |= pl.col("key").is_in(telling) & ~pl.col("is_key")
        if self._patterns_gate is not None:
            suspect |= pl.col("piece").str.contains(self._patterns_gate)
        rows = frame.filter(suspect).select("text", "piece", "end", "key", "is_key").iter_rows()
        return [_suspect(*row) for row in rows]

    def _has_suspects(self) -> pl.Expr:
        return pl.any_horizontal(*(pl.col("piece").str.contains(gate) for gate in self._any_gates))

    def selected(self, literals: Sequence[tuple[str, str]]) -> Iterator[tuple[tuple[str, str], int]]:
        """Literals, as key and body, with the detectors that may find something in each."""
        bodies = pl.Series([body for _, body in literals], dtype=pl.String)
        chosen = [0] * len(literals)
        for bit, gate in enumerate(self._gates):
            for index in bodies.str.contains(gate).arg_true().to_list():
                chosen[index] |= 1 << bit
        for index in bodies.str.contains(_ESCAPED).arg_true().to_list():
            chosen[index] = self.everything
        return zip(literals, chosen, strict=True)

    def find(self, text: str, readable: str, key: str, chosen: int) -> list[Finding]:
        """What is to be replaced in a text, in order, without overlap.

        Args:
            text: The text.
            readable: The same with escapes replaced by white space; what detectors see.
            key: The JSON key that it stands under, or "".
            chosen: The detectors to ask.
        """
        taken: list[Finding] = []
        for name, label, form in self._patterns:
            for match in form.finditer(text):
                start, end = match.span(1 if form.groups and match[1] is not None else 0)
                if start < end:
                    _add(taken, Finding(start, end, name, label, text[start:end]))
        for bit, detector in enumerate(self._detectors):
            if chosen >> bit & 1:
                for found in detector.find(readable, key):
                    _add(taken, found)
        if taken and self._keep:
            taken = [item for item in taken if not self._is_kept(text[item.start : item.end])]
        if taken and "<" in text:
            ours = [Finding(*match.span(), "", "", "") for match in PLACEHOLDER.finditer(text)]
            taken = [item for item in taken if _is_free(ours, item)]
        return taken

    def under_key(self, text: str, key: str, kind: str, chosen: int) -> list[Finding] | None:
        """What is secret in a text because of its key; None where the key does not decide."""
        found: list[Finding] = []
        if kind == "header" and "authorization" in self._kinds:
            found = list(Authorization().in_header(text))
        elif (
            kind == "secret" and "password" in self._kinds and is_secret(text, chosen=is_password_key(key), quoted=True)
        ):
            found = [Finding(0, len(text), "password", LABEL, text, by_context=True)]
        if not found:
            return None
        # What has a form of its own is labelled by it, as everywhere else.
        formed = self.find(text, text, key, chosen)
        found = [item for item in found if not any(_overlap(item, other) for other in formed)]
        kept = [item for item in found if not self._is_kept(text[item.start : item.end])]
        return sorted([*formed, *kept])

    def _is_kept(self, value: str) -> bool:
        return any(form.fullmatch(value) for form in self._keep)


def _suspect(text: int, piece: str, end: int, key: str | None, is_key: bool) -> Suspect:
    body = body_of(piece)
    stop = end - (len(piece) - piece.rindex('"'))  # what stands behind the body is ASCII
    start = stop - (len(body) if body.isascii() else len(body.encode()))
    return Suspect(text, start, stop, "" if key is None or is_key else body_of(key), body)


def _detector(kind: Kind, config: RedactionConfig) -> Detector:
    match kind:
        case "private_key":
            return PrivateKeys()
        case "jwt":
            return JsonWebTokens()
        case "api_key":
            return ApiKeys()
        case "url_credentials":
            return UrlCredentials()
        case "authorization":
            return Authorization()
        case "password":
            return Assignments()
        case "email":
            return Emails()
        case "iban":
            return BankAccounts()
        case "credit_card":
            return CreditCards()
        case "us_ssn":
            return SocialSecurityNumbers()
        case "phone":
            return PhoneNumbers(config.phone_regions)
        case "ip_address":
            return IpAddresses(config.ip_addresses)


def _gate_of(patterns: Iterable[str]) -> str | None:
    """A gate for users' expressions, which see decoded text: what is escaped passes, as does all that Rust refuses."""
    forms = [f"(?:{pattern})" for pattern in patterns]
    if not forms:
        return None
    gate = "|".join([*forms, r"\\"])
    try:
        pl.Series([""]).str.contains(gate)
    except pl.exceptions.ComputeError:
        return ""
    return gate


def _add(taken: list[Finding], found: Finding) -> None:
    """Take in a finding, in order, unless an earlier detector, which knows better, has some of the same text."""
    if _is_free(taken, found):
        insort(taken, found)


def _is_free(taken: Sequence[Finding], found: Finding) -> bool:
    """Whether a finding shares no text with others that are in order and share none."""
    place = bisect(taken, found)
    return not any(_overlap(item, found) for item in taken[max(0, place - 1) : place + 1])


def _overlap(one: Finding, other: Finding) -> bool:
    return one.start < other.end and other.start < one.end
