"""Tasks: the policy of the shop, splits that never overlap, every type in every split."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from offline_arl.environments.support_desk.tasks import (
    DeskPayload,
    Order,
    Request,
    decode_payload,
    expectation,
    generate_tasks,
    is_allowed,
    split_of,
)
from offline_arl.errors import UsageError


@pytest.mark.parametrize(
    ("kind", "order", "allowed"),
    [
        ("address", Order("1", "processing", "a"), True),
        ("address", Order("1", "shipped", "a"), False),
        ("refund", Order("1", "delivered", "a", weeks=4), True),
        ("refund", Order("1", "delivered", "a", weeks=5), False),
        ("refund", Order("1", "delivered", "a", weeks=3, refunded=True), False),
        ("refund", Order("1", "shipped", "a"), False),
        ("complaint", Order("1", "shipped", "a"), True),
        ("status", None, False),
    ],
)
def test_the_policy_of_the_shop(kind: str, order: Order | None, allowed: bool) -> None:
    assert is_allowed(Request(kind, "1", address="b", topic="late"), order) is allowed  # type: ignore[arg-type]


def test_expectation_of_a_compound_request_with_one_part_refused() -> None:
    payload = DeskPayload(
        requests=[
            Request("address", "1", address="9 New Road"),
            Request("refund", "2"),
            Request("complaint", "3", topic="late"),
        ],
        orders=[
            Order("1", "processing", "1 Old Road"),
            Order("2", "delivered", "2 Old Road", weeks=6),
            Order("3", "shipped", "3 Old Road"),
        ],
        opening="",
    )
    expected = expectation(payload)
    assert expected.orders["1"].address == "9 New Road"
    assert not expected.orders["2"].refunded
    assert expected.tickets == {("3", "late")}
    assert expected.declined == {"2"}
    assert expected.granted


def test_splits_share_no_content_whatever_the_seeds() -> None:
    contents = {
        split: {
            msgspec.json.encode(task.payload) for seed in range(3) for task in generate_tasks(split, 200, seed=seed)
        }
        for split in ("train", "validation", "test")
    }
    assert not contents["train"] & contents["test"]
    assert not contents["train"] & contents["validation"]
    assert not contents["validation"] & contents["test"]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_each_split_covers_every_type_in_fixed_shares(split: str) -> None:
    # One cycle of 20 tasks: 3 status, 4 address, 4 refund, 3 complaint, 6 compound.
    counts = Counter(task.task_type for task in generate_tasks(split, 40, seed=1))
    assert counts == {"status": 6, "address": 8, "refund": 8, "complaint": 6, "compound": 12}


def test_tasks_depend_on_split_seed_and_index_alone() -> None:
    short, long = generate_tasks("test", 5, seed=3), generate_tasks("test", 25, seed=3)
    assert long[:5] == short
    assert generate_tasks("test", 5, seed=4) != short
    assert all(split_of(decode_payload(task.payload)) == "test" for task in long)


def test_an_unknown_split_is_named() -> None:
    with pytest.raises(UsageError, match=r"'tests'.*train, validation, test"):
        generate_tasks("tests", 1, seed=0)
