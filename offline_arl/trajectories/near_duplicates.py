"""Finding trajectories that say nearly the same: MinHash over word shingles, with locality-sensitive hashing.

Each trajectory is the set of its overlapping word triples (texts of all messages but the system prompt, names and
arguments of tool calls). One-permutation MinHash (Li, Owen and Zhang, 2012) with rotation densification
(Shrivastava and Li, 2014) turns it into a signature of 128 numbers at the price of one hash a shingle; signatures
that agree in a band of rows become candidates (Broder, 1997; Leskovec et al., Mining of Massive Datasets,
section 3.4), and candidates are compared by the similarity that the filled bins of their signatures estimate
(standard deviation at most 0.045; for texts of a few words it is nearly exact). All arithmetic runs on whole batches
of texts.

Near duplicates are marked, never dropped: attempts at one task may well be alike. What the marks are for is splits
that do not leak (`splits.assign_splits` keeps marked ones together) and a look at how varied a log is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from offline_arl.errors import UsageError
from offline_arl.trajectories.store import Store

NEAR_DUPLICATES = "near_duplicates"
BINS = 128
SHINGLE_WORDS = 3
_BATCH_BYTES = 1 << 18  # what a batch needs fits the processor's cache
_EMPTY = np.uint32(0xFFFFFFFF)
_BORROWED = np.uint32(0x80000000)  # the bit that marks values which fill an empty bin
_RECALL_AT_THRESHOLD = 0.99
_ROUNDS = 32
_PRIME = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2^64

Hashes = npt.NDArray[np.uint64]
Signatures = npt.NDArray[np.uint32]


class _Part(msgspec.Struct):
    text: str | None = None


class _Call(msgspec.Struct):
    name: str
    arguments_raw: str


class _Message(msgspec.Struct):
    role: str
    content: list[_Part] | None = None
    tool_calls: list[_Call] = []


class Bands(NamedTuple):
    """How a signature is cut: `number` bands of `rows` numbers each."""

    number: int
    rows: int

    def chance(self, similarity: float) -> float:
        """Probability that two sets of this Jaccard similarity become candidates."""
        missed_by_one: float = 1.0 - similarity**self.rows
        return 1.0 - float(missed_by_one**self.number)


def mark_near_duplicates(store: Store, *, threshold: float = 0.8) -> pl.DataFrame:
    """Find near duplicates and write the side table `near_duplicates`.

    Args:
        store: The store; an earlier table is replaced.
        threshold: Jaccard similarity of word triples from which two trajectories count as near duplicates, in
            (0, 1].

    Returns:
        One row for each trajectory that is a near duplicate of an earlier one: `trajectory_id`,
        `near_duplicate_of` (the first of its cluster) and `similarity` (estimated, to that first one; it can be
        below the threshold where a chain of others connects the two).

    Raises:
        UsageError: The threshold is out of range, or another writer is at work.
    """
    ids: list[str] = []
    parts = []
    for names, texts in _texts(store):
        ids.extend(names)
        parts.append(signatures(texts))
    found = clusters(np.concatenate(parts) if parts else np.empty((0, BINS), np.uint32), threshold)
    rows = [(ids[member], ids[first], similarity) for member, first, similarity in found]
    frame = pl.DataFrame(
        rows,
        schema={"trajectory_id": pl.String(), "near_duplicate_of": pl.String(), "similarity": pl.Float64()},
        orient="row",
    )
    store.write_side_table(NEAR_DUPLICATES, frame)
    return frame


def _texts(store: Store) -> Iterator[tuple[list[str], list[bytes]]]:
    decoder = msgspec.json.Decoder(list[_Message])
    for frame in store.iter_frames(["trajectory_id", "messages"]):
        names = frame["trajectory_id"].to_list()
        for start in range(0, frame.height, 4096):
            chunk = frame["messages"][start : start + 4096]
            yield names[start : start + 4096], [_text(decoder.decode(text)) for text in chunk]


def _text(messages: Sequence[_Message]) -> bytes:
    pieces: list[str] = []
    for message in messages:
        if message.role in ("system", "developer"):
            continue
        pieces.extend(part.text for part in message.content or () if part.text)
        for call in message.tool_calls:
            pieces.append(call.name)
            pieces.append(call.arguments_raw)
    return " ".join(pieces).lower().encode()


def signatures(texts: Sequence[bytes]) -> Signatures:
    """MinHash signatures of texts, [len(texts), BINS].

    >>> a, b, c = signatures([b"cancel my order A17 please", b"cancel my order A17 please", b"where is my parcel"])
    >>> bool((a == b).all()), bool((a == c).all())
    (True, False)
    """
    result = np.full((len(texts), BINS), _EMPTY, np.uint32)
    start = 0
    while start < len(texts):
        end, size = start, 0
        while end < len(texts) and (end == start or size + len(texts[end]) < _BATCH_BYTES):
            size += len(texts[end]) + 1
            end += 1
        hashes, documents = shingles(texts[start:end])
        bins = (hashes >> np.uint64(57)).astype(np.int64)
        values = ((hashes >> np.uint64(20)) & np.uint64(0x7FFFFFFF)).astype(np.uint32)
        np.minimum.at(result[start:end].reshape(-1), documents * BINS + bins, values)
        start = end
    return _densified(result)


def shingles(texts: Sequence[bytes]) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Hashes of the word triples of all texts, and the text that each belongs to.

    Words are runs of ASCII letters and digits and of bytes beyond ASCII. A text of fewer than three words gives
    its single words.
    """
    data = np.frombuffer(b" ".join((b"", *texts, b"")), np.uint8)  # blanks around, so that words have two edges
    in_word = _WORD_BYTES.take(data)
    edges = np.flatnonzero(in_word[1:] != in_word[:-1]) + 1
    starts, ends = edges[::2], edges[1::2]
    offsets = np.cumsum([1] + [len(text) + 1 for text in texts[:-1]])
    documents = np.searchsorted(offsets, starts, side="right") - 1
    words = _word_hashes(data, starts, ends)
    if len(words) < SHINGLE_WORDS:
        return _mixed(words), documents
    triples = words[:-2] * np.uint64(0xC2B2AE3D27D4EB4F) + words[1:-1] * np.uint64(0x165667B19E3779F9) + words[2:]
    whole = documents[:-2] == documents[2:]
    counts = np.bincount(documents, minlength=len(texts))
    short = (counts < SHINGLE_WORDS)[documents]
    hashes = np.concatenate([triples[whole], words[short]])
    return _mixed(hashes), np.concatenate([documents[:-2][whole], documents[short]])


_WORD_BYTES = np.array([chr(byte).isalnum() if byte < 128 else True for byte in range(256)])


def _word_hashes(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Hashes:
    """A polynomial hash of each word: differences of one running sum, shifted back to the start of the word."""
    powers, inverses = _powers(1 << len(data).bit_length())
    sums = np.cumsum((data.astype(np.uint64) + np.uint64(1)) * powers[: len(data)], dtype=np.uint64)
    hashes: Hashes = (sums[ends - 1] - sums[starts - 1]) * inverses[starts]
    return hashes


@lru_cache(maxsize=4)
def _powers(size: int) -> tuple[Hashes, Hashes]:
    prime, inverse = np.uint64(_PRIME), np.uint64(pow(_PRIME, -1, 1 << 64))
    powers, inverses = (np.full(size, base, np.uint64) for base in (prime, inverse))
    powers[0] = inverses[0] = 1
    return np.multiply.accumulate(powers), np.multiply.accumulate(inverses)


def _mixed(hashes: Hashes) -> Hashes:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): every input bit reaches every output bit."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = hashes ^ (hashes >> np.uint64(31))
    return mixed


def _densified(result: Signatures) -> Signatures:
    """Give an empty bin the value of the next filled one, marked with the distance; all-empty rows stay empty."""
    empty = result == _EMPTY
    if not empty.any():
        return result
    twice = np.concatenate([empty, empty], axis=1)
    places = np.where(twice, 2 * BINS, np.arange(2 * BINS))
    following = np.minimum.accumulate(places[:, ::-1], axis=1)[:, ::-1][:, :BINS]
    distance = following - np.arange(BINS)
    values = np.take_along_axis(result, following % BINS, axis=1)
    # The top bit is free in hashed values; the distance keeps borrowed values of different bins apart.
    borrowed = values ^ _BORROWED ^ (distance.astype(np.uint32) * np.uint32(0x9E3779B1) >> np.uint32(1))
    dense = np.where(empty, borrowed, result)
    dense[empty.all(axis=1)] = _EMPTY
    return dense.astype(np.uint32, copy=False)


def bands_for(threshold: float) -> Bands:
    """The longest bands with which pairs at the threshold become candidates with a chance of 99 %.

    >>> bands_for(0.8)
    Bands(number=21, rows=6)
    """
    best = Bands(BINS, 1)
    for rows in range(2, BINS + 1):
        bands = Bands(BINS // rows, rows)
        if bands.chance(threshold) >= _RECALL_AT_THRESHOLD:
            best = bands
    return best


def clusters(table: Signatures, threshold: float) -> list[tuple[int, int, float]]:
    """Rows that are near duplicates of earlier rows: (row, first row of its cluster, similarity of the two).

    Args:
        table: Signatures, [N, BINS]; rows without any shingle are near duplicates of nothing.
        threshold: Estimated Jaccard similarity from which rows are joined, in (0, 1].

    Raises:
        UsageError: The threshold is out of range.
    """
    if not 0 < threshold <= 1:
        raise UsageError(f"threshold: must be above 0 and at most 1, not {threshold}")
    parents = np.arange(len(table))
    filled = np.flatnonzero((table != _EMPTY).any(axis=1))
    bands = bands_for(threshold)
    for band in range(bands.number):
        key = np.zeros(len(filled), np.uint64)
        for column in range(band * bands.rows, (band + 1) * bands.rows):
            key = _mixed(key * np.uint64(_PRIME) + table[filled, column])
        order = np.argsort(key, kind="stable")
        _join_bucket_members(table, threshold, parents, filled[order], key[order])
    roots = _roots(parents)
    members = np.flatnonzero(roots != np.arange(len(roots)))
    similar = _similarities(table, members, roots[members])
    return [(int(row), int(roots[row]), float(value)) for row, value in zip(members, similar, strict=True)]


def _join_bucket_members(
    table: Signatures, threshold: float, parents: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], keys: Hashes
) -> None:
    """Join the rows of each run of equal keys that are similar to the first one, then those left to their first."""
    for _ in range(_ROUNDS):
        is_first = np.concatenate([[True], keys[1:] != keys[:-1]]) if len(keys) else np.empty(0, bool)
        firsts = rows[is_first][np.cumsum(is_first) - 1]
        others = ~is_first
        if not others.any():
            return
        left, right = firsts[others], rows[others]
        roots = _roots(parents)
        same = roots[left] == roots[right]
        similar = same.copy()
        similar[~same] = _similarities(table, left[~same], right[~same]) >= threshold
        for first, second in zip(left[similar & ~same].tolist(), right[similar & ~same].tolist(), strict=True):
            _unite(parents, first, second)
        rows, keys = right[~similar], keys[others][~similar]


def _similarities(
    table: Signatures, left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Estimated Jaccard similarities of pairs of rows.

    Only bins that a shingle of one of the two fell into count: borrowed values repeat what others say, which in
    short texts is most of them.
    """
    found = np.empty(len(left))
    for start in range(0, len(left), 8192):
        one, other = table[left[start : start + 8192]], table[right[start : start + 8192]]
        own, others_own = one < _BORROWED, other < _BORROWED
        same = ((one == other) & own).sum(axis=1)
        found[start : start + 8192] = same / np.maximum(1, (own | others_own).sum(axis=1))
    return found


def _unite(parents: npt.NDArray[np.int64], first: int, second: int) -> None:
    first, second = _root(parents, first), _root(parents, second)
    parents[max(first, second)] = min(first, second)


def _root(parents: npt.NDArray[np.int64], node: int) -> int:
    while parents[node] != node:
        parents[node] = parents[parents[node]]
        node = int(parents[node])
    return node


def _roots(parents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    roots = parents.copy()
    while True:
        further = roots[roots]
        if (further == roots).all():
            return roots
        roots = further
