"""Near duplicates: signatures estimate the Jaccard similarity, planted copies are found, strangers are not joined."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from offline_arl.errors import UsageError
from offline_arl.trajectories.near_duplicates import (
    BINS,
    bands_for,
    clusters,
    mark_near_duplicates,
    shingles,
    signatures,
)
from offline_arl.trajectories.schema import Source, Trajectory, text_message, tool_call
from offline_arl.trajectories.store import Store

VOCABULARY = [f"word{number}" for number in range(2000)]


def words(rng: random.Random, count: int) -> list[str]:
    return [rng.choice(VOCABULARY) for _ in range(count)]


def changed(rng: random.Random, text: list[str], count: int) -> list[str]:
    copy = list(text)
    for place in rng.sample(range(len(copy)), count):
        copy[place] = rng.choice(VOCABULARY)
    return copy


def encoded(text: list[str]) -> bytes:
    return " ".join(text).encode()


def jaccard(left: list[str], right: list[str]) -> float:
    """The exact similarity of two sets of word triples, the slow way."""
    first, second = ({tuple(text[start : start + 3]) for start in range(len(text) - 2)} for text in (left, right))
    return len(first & second) / len(first | second)


@pytest.mark.parametrize("changes", [2, 10, 40, 120])
def test_signatures_estimate_the_jaccard_similarity(changes: int) -> None:
    rng = random.Random(changes)
    originals = [words(rng, 400) for _ in range(60)]
    copies = [changed(rng, text, changes) for text in originals]
    left, right = (signatures([encoded(text) for text in texts]) for texts in (originals, copies))
    estimated = (left == right).mean(axis=1)
    exact = np.array([jaccard(one, two) for one, two in zip(originals, copies, strict=True)])
    # A mean over 60 pairs of estimates with a standard deviation of at most sqrt(1/4/128) = 0.044 each.
    assert abs(float((estimated - exact).mean())) < 4 * 0.044 / np.sqrt(60)
    assert float((estimated - exact).std()) < 0.06


def test_short_texts_have_signatures_of_their_own() -> None:
    table = signatures([b"yes please do it now", b"yes please do it now", b"no thanks", b"no", b"", b"  "])
    assert (table[0] == table[1]).all()
    assert (table[0] == table[2]).mean() < 0.1
    assert (table[2] == table[3]).mean() > 0.2  # "no" is one of the two words of "no thanks"
    assert [row for row, _, _ in clusters(table, 0.8)] == [1]  # texts without a word are like nothing


@pytest.mark.parametrize("shared", [1, 2, 4, 5])
def test_short_texts_are_not_taken_for_more_alike_than_they_are(shared: int) -> None:
    rng = random.Random(shared)
    texts = []
    for _ in range(300):
        common = words(rng, shared + 2)  # `shared` triples
        texts.append(encoded([*common, *words(rng, 4 - shared // 2)]))
        texts.append(encoded([*common, *words(rng, 4 - shared // 2)]))
    pairs = [(texts[start].decode().split(), texts[start + 1].decode().split()) for start in range(0, 600, 2)]
    too_alike = sum(jaccard(one, two) >= 0.8 for one, two in pairs)
    found = [row for row, first, _ in clusters(signatures(texts), 0.8) if first == row - 1]
    assert len(found) <= too_alike + 3  # of 300 pairs


def test_words_are_separated_by_anything_else_and_hashed_by_content() -> None:
    one, _ = shingles([b"a1, b2; c3"])
    two, _ = shingles([b"   a1\nb2 (c3)"])
    other, _ = shingles([b"a1 b2 c4"])
    assert one.tolist() == two.tolist() != other.tolist()
    hashes, documents = shingles([b"a b c d", b"", b"a b c"])
    assert documents.tolist() == [0, 0, 2]
    assert hashes[0] == hashes[2]


def test_planted_copies_are_found_and_strangers_are_not() -> None:
    rng = random.Random(1)
    originals = [words(rng, 300) for _ in range(2000)]
    copies = [changed(rng, text, 5) for text in originals[:500]]  # similarity about 0.90
    relatives = [changed(rng, text, 60) for text in originals[500:700]]  # about 0.35
    table = signatures([encoded(text) for text in [*originals, *copies, *relatives]])
    found = {row: first for row, first, _ in clusters(table, 0.8)}
    assert sum(found.get(2000 + number) == number for number in range(500)) >= 495
    assert set(found) <= set(range(2000, 2500))


def test_a_cluster_is_named_by_its_first_member() -> None:
    rng = random.Random(2)
    text = words(rng, 200)
    table = signatures([encoded(words(rng, 200)), *(encoded(changed(rng, text, 2)) for _ in range(50))])
    assert [(row, first) for row, first, _ in clusters(table, 0.7)] == [(row, 1) for row in range(2, 51)]


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 0.95, 1.0])
def test_bands_miss_at_most_one_pair_in_a_hundred_at_the_threshold(threshold: float) -> None:
    bands = bands_for(threshold)
    assert bands.chance(threshold) >= 0.99
    assert bands.number * bands.rows <= BINS
    longer = BINS // (bands.rows + 1)
    assert bands.rows == BINS or 1 - (1 - threshold ** (bands.rows + 1)) ** longer < 0.99


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.5, float("nan")])
def test_a_threshold_out_of_range_is_told(threshold: float) -> None:
    with pytest.raises(UsageError, match="threshold: must be above 0 and at most 1"):
        clusters(np.zeros((2, BINS), np.uint32), threshold)


def test_a_store_is_marked(tmp_path: Path) -> None:
    rng = random.Random(3)
    question, answer = words(rng, 80), words(rng, 80)

    def trajectory(number: int, asked: list[str], answered: list[str]) -> Trajectory:
        call = tool_call("look_up", {"order": asked[0]})
        messages = [
            text_message("system", "The same long prompt everywhere. " * 50),
            text_message("user", " ".join(asked)),
            text_message("assistant", " ".join(answered)),
        ]
        messages.append(text_message("assistant", None))
        messages[-1].tool_calls.append(call)
        return Trajectory(f"t{number}", messages, Source("test"))

    store = Store.create(tmp_path / "store")
    with store.writer() as writer:
        writer.add(trajectory(0, question, answer))
        writer.add(trajectory(1, words(rng, 80), words(rng, 80)))
        writer.add(trajectory(2, question, changed(rng, answer, 2)))
    frame = mark_near_duplicates(store, threshold=0.8)
    assert frame.select("trajectory_id", "near_duplicate_of").rows() == [("t2", "t0")]
    assert frame["similarity"][0] >= 0.8
    assert store.side_table("near_duplicates").collect().equals(frame)
    assert mark_near_duplicates(Store.create(tmp_path / "empty")).height == 0
