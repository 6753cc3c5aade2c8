"""Inspect logs as one JSON document: one sample a record, as in an `.eval` archive (`zip_archive`)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from offline_arl.errors import DataError
from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.primitives.json_values import decode_json
from offline_arl.logs.records import LogFile

_START = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"status"\s*:\s*"\w+"\s*,\s*"eval"\s*:\s*\{')
_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])
# What a log says of its run from the start; the rest is known when it ends, and repeats the samples.
LASTING_KEYS = ("version", "eval", "plan")


def matches(head: bytes, name: str) -> bool:
    """Whether the first bytes are those of a log of Inspect."""
    return _START.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


def read(file: LogFile) -> Iterator[RawRecord]:
    """Yield the samples in order; a log without samples, or one that is damaged, is one record.

    Raises:
        DataError: The file cannot be opened.
    """
    try:
        data = file.path.read_bytes().removeprefix(b"\xef\xbb\xbf").strip()
    except OSError as error:
        raise DataError(f"{file.shown}: cannot be read: {error.strerror or error}") from error
    header, samples = _cut(data)
    if not samples:
        yield RawRecord(file.shown, file.label, 0, data)
    for position, sample in enumerate(samples):
        yield RawRecord(file.shown, file.label, position, record_prefix(header) + sample + b"]}")


def record_prefix(header: dict[str, bytes]) -> bytes:
    """The start of the record of a sample: what lasts of the header, up to the opened list of samples."""
    kept = [f'"{key}":'.encode() + header[key] for key in LASTING_KEYS if key in header]
    return b"{" + b"".join(part + b"," for part in kept) + b'"samples":['


def _cut(data: bytes) -> tuple[dict[str, bytes], list[bytes]]:
    """The header and the samples as JSON; both empty where the document cannot be cut."""
    try:
        fields = _decoder.decode(data)
        samples = _list_decoder.decode(fields.get("samples", b"[]"))
    except (msgspec.DecodeError, RecursionError):
        return _cut_slowly(data)
    return {key: bytes(value) for key, value in fields.items()}, [bytes(sample) for sample in samples]


def _cut_slowly(data: bytes) -> tuple[dict[str, bytes], list[bytes]]:
    # NaN and the like are in most logs with scores that could not be told.
    try:
        value = decode_json(data)
    except (msgspec.DecodeError, RecursionError):
        return {}, []
    samples = value.get("samples") if isinstance(value, dict) else None
    if not isinstance(samples, list):
        return {}, []
    header = {key: msgspec.json.encode(value[key]) for key in LASTING_KEYS if key in value}
    return header, [msgspec.json.encode(sample) for sample in samples]
