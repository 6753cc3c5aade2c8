"""Ten thousand reasons that say the same are one row; those that do not stay apart."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_arl.analysis.reasons import ReasonGroups, code_of, normalized
from offline_arl.analysis.store_report import Example


def example(line: int) -> Example:
    return Example(None, "a.jsonl", line - 1, line, None, "text")


def test_ten_thousand_similar_reasons_are_one_row() -> None:
    groups = ReasonGroups()
    for number in range(10_000):
        reason = (
            f"messages[{number}].tool_calls[{number % 7}].id: the id {uuid.UUID(int=number)} of 'tool {number}' "
            f'in logs/day-{number}/part.jsonl:{number} is {number * 1.5}, not "x{number}"'
        )
        groups.add(reason, f"format {number % 9}", [example(number + 1)])
    found = groups.top(5)
    (row,) = found.rows
    assert row.reason == "messages[N].tool_calls[N].id: the id ID of '…' in PATH:N is N, not \"…\""
    assert (found.count, row.count, found.more, found.others) == (10_000, 10_000, 0, 0)
    assert row.formats == tuple(f"format {number}" for number in range(5))
    assert [item.line for item in row.examples] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("expected an object, got a list", "expected an object, got a string"),
        ("messages[0].role: is missing", "messages[0].content: is missing"),
        ("invalid JSON: truncated", "invalid JSON: malformed"),
        ("and/or", "either/or"),  # no paths
    ],
)
def test_reasons_that_say_different_things_stay_apart(one: str, other: str) -> None:
    assert normalized(one) != normalized(other)


def test_words_are_left_alone() -> None:
    text = "a record of OpenHands V0 isn't an event; see docs: utf8, o3, and/or --format"
    assert normalized(text) == text


@given(st.text(max_size=400))
def test_a_normalized_reason_is_short_and_on_one_line(text: str) -> None:
    found = normalized(text)
    assert len(found) <= 301
    assert found == found.strip()
    assert "\n" not in found


def test_memory_is_bounded_and_counts_still_add_up() -> None:
    groups = ReasonGroups()
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [a + b + c for a in letters for b in letters for c in letters][:12_000]
    for number, word in enumerate(words):
        groups.add(f"about {word}", None, [example(number + 1)])
    found = groups.top(3)
    assert found.rows[0].reason == "other reasons"
    assert found.rows[0].count == 2_000
    assert found.rows[1].count == 1
    assert found.count == 12_000 == sum(row.count for row in found.rows) + found.others
    assert found.more == 10_001 - 3


def test_codes_are_read_from_the_end_of_a_refusal() -> None:
    assert code_of("trajectory 'x': messages: there are none (no_messages)") == "no_messages"
    assert code_of("messages: there are none (unheard_of)") is None
    assert code_of("(no_messages) is not at the end") is None
