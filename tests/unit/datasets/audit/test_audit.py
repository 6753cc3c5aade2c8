"""The audit finds what is wrong with pairs and labels, and nothing else."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from offline_arl.datasets.audit import AuditConfig, AuditReport, Fault, audit, fix
from offline_arl.datasets.audit.balance import chosen_longer, task_shares, without_dominant_tasks, without_length_bias
from offline_arl.datasets.pairs import PairDataset, PairRow, PreferenceWriter, UnpairedDataset, UnpairedRow
from offline_arl.errors import DataError
from offline_arl.trajectories.schema import Message, TextPart, tool_call

N_PAIRS, N_FAULTS = 5_000, 500
Audited = tuple[PairDataset, PairDataset, AuditReport, dict[Fault, set[str]]]
_WORDS = [hashlib.sha256(str(number).encode()).hexdigest()[:6] for number in range(4_000)]


def tokens(text: str) -> list[int]:
    """A token for each word and each sign, as a tokenizer would make them."""
    words = text.replace("{", " { ").replace("}", " } ").replace('"', ' " ').split()
    return [int(hashlib.sha256(word.encode()).hexdigest()[:6], 16) for word in words]


def message(text: str, **arguments: Any) -> Message:
    """An answer, or a call where there are arguments."""
    if arguments:
        return Message("assistant", tool_calls=[tool_call("look", arguments)])
    return Message("assistant", [TextPart(text)])


def sequence(prompt: str, said: Message) -> tuple[Any, Any]:
    calls = " ".join(f"look {call.arguments_raw}" for call in said.tool_calls)
    before, after = tokens(f"<user> {prompt} <agent>"), tokens(f"{said.text} {calls} <end>")
    mask = np.array([False] * len(before) + [True] * len(after))
    return np.array([*before, *after], dtype=np.int32), mask


def pair(number: int, prompt: str, chosen: Message, rejected: Message, **fields: Any) -> PairRow:
    left, left_mask = sequence(prompt, chosen)
    right, right_mask = sequence(prompt, rejected)
    texts = {
        name: msgspec.json.encode(messages).decode()
        for name, messages in (
            ("prompt", [Message("user", [TextPart(prompt)])]), ("chosen", [chosen]), ("rejected", [rejected]),
        )
    }  # fmt: skip
    row = PairRow(
        pair_id=f"pair-{number}", kind="step", task_id=f"task-{number // 5}", task_type=None, split=None, weight=1.0,
        margin=1.0, scorer="judge", chosen_score=1.0, rejected_score=0.0, chosen_trajectory_id=f"good-{number}",
        rejected_trajectory_id=f"bad-{number}", chosen_message=1, rejected_message=1, same_prompt=True,
        prompt_length=int(np.argmax(left_mask)), chosen_token_ids=left, chosen_action_mask=left_mask,
        rejected_token_ids=right, rejected_action_mask=right_mask, tools=None, evidence="{}", **texts,
    )  # fmt: skip
    return replace(row, **fields)


def sentence(generator: np.random.Generator, low: int = 5, high: int = 40) -> str:
    return " ".join(generator.choice(_WORDS, size=int(generator.integers(low, high))))


def clean(number: int, generator: np.random.Generator, **fields: Any) -> PairRow:
    """A pair with nothing wrong: an answer or a call on either side, sometimes much alike but short."""
    prompt = f"request {number} {sentence(generator)}"
    if number % 4 == 0:  # a call with another value: little text, all the difference
        return pair(number, prompt, message("", id=f"A{number}"), message("", id=f"B{number}"), **fields)
    return pair(number, prompt, message(sentence(generator)), message(sentence(generator)), **fields)


def saved(rows: Sequence[Any], folder: Path, kind: Any = "pairs") -> Any:
    with PreferenceWriter(folder, kind=kind, fingerprint="f", config={"max_tokens": None}) as writer:
        for row in rows:
            writer.add(row)
    return PairDataset.load(folder) if kind == "pairs" else UnpairedDataset.load(folder)


def _equal(row: PairRow, generator: np.random.Generator, number: int) -> list[PairRow]:
    said = message(sentence(generator))
    return [pair(number, f"equal {number}", said, said)]


def _cosmetic(row: PairRow, generator: np.random.Generator, number: int) -> list[PairRow]:
    text = sentence(generator)
    other = (text.upper(), f"{text} !", text.replace(" ", " , ", 1))[number % 3]
    if number % 4 == 0:
        return [pair(number, f"call {number}", message("", a="x", b="y"), message("", b="y", a="x"))]
    return [pair(number, f"cosmetic {number}", message(text), message(other))]


def _near(row: PairRow, generator: np.random.Generator, number: int) -> list[PairRow]:
    words = sentence(generator, 40, 60).split()
    other = list(words)
    for index in generator.choice(len(words), size=1 + number // 8 % 2, replace=False):
        other[index] = "different"
    return [pair(number, f"near {number}", message(" ".join(words)), message(" ".join(other)))]


def _tie(row: PairRow, generator: np.random.Generator, number: int) -> list[PairRow]:
    return [replace(row, margin=0.0, rejected_score=1.0)]


def _flipped(row: PairRow, generator: np.random.Generator, number: int) -> list[PairRow]:
    return [replace(row, margin=-0.5, chosen_score=0.25, rejected_score=0.75)]


def _contradiction(row: PairRow, generator: np.random.Generator, number: int) -> list[PairRow]:
    turned = replace(
        row, pair_id=f"{row.pair_id}-turned", chosen=row.rejected, rejected=row.chosen,
        chosen_token_ids=row.rejected_token_ids, chosen_action_mask=row.rejected_action_mask,
        rejected_token_ids=row.chosen_token_ids, rejected_action_mask=row.chosen_action_mask,
    )  # fmt: skip
    return [row, turned]


def _empty(row: PairRow, generator: np.random.Generator, number: int) -> list[PairRow]:
    return [replace(row, rejected_action_mask=np.zeros_like(row.rejected_action_mask))]


def _leak(row: PairRow, generator: np.random.Generator, number: int) -> list[PairRow]:
    return [replace(row, task_id=f"leaked-{number}", split="train")]


PLANTERS: dict[Fault, Callable[[PairRow, np.random.Generator, int], list[PairRow]]] = {
    "equal_sides": _equal, "cosmetic_difference": _cosmetic, "near_equal_sides": _near, "tie": _tie,
    "flipped": _flipped, "contradiction": _contradiction, "empty_side": _empty, "leak": _leak,
}  # fmt: skip


def planted_dataset() -> tuple[list[PairRow], list[PairRow], dict[Fault, set[str]]]:
    """5,000 pairs of which 500 are faulty, a validation set, and the ids of the faulty ones."""
    generator = np.random.default_rng(0)
    rows: list[PairRow] = []
    validation: list[PairRow] = []
    faulty: dict[Fault, set[str]] = defaultdict(set)
    kinds = list(PLANTERS)
    number = planted = 0
    while planted < N_FAULTS - 60:
        kind = kinds[number % len(kinds)]
        made = PLANTERS[kind](clean(number, generator), generator, number)
        if kind == "leak":
            validation.append(pair(number + 10**6, "other", message("a b"), message("c d"), task_id=f"leaked-{number}"))
        rows += made
        faulty[kind] |= {row.pair_id for row in made}
        planted += len(made)
        number += 1
    for index in range(30):  # the same pair again, under another id
        row = clean(number, generator)
        rows += [row, replace(row, pair_id=f"{row.pair_id}-again")]
        faulty["duplicate"].add(f"{row.pair_id}-again")
        prompt = clean(number + 1, generator)  # a prompt that the validation set has, of another task
        rows.append(prompt)
        validation.append(replace(prompt, pair_id=f"v{index}", task_id=f"v{index}", chosen_trajectory_id=f"v{index}",
                                  rejected_trajectory_id=f"w{index}"))  # fmt: skip
        faulty["leak"].add(prompt.pair_id)
        number += 2
    while len(rows) < N_PAIRS:
        rows.append(clean(number, generator))
        number += 1
    order = generator.permutation(len(rows))
    return [rows[index] for index in order], validation, faulty


@pytest.fixture(scope="module")
def audited(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[PairDataset, PairDataset, AuditReport, dict[Fault, set[str]]]:
    folder = tmp_path_factory.mktemp("planted")
    rows, validation, faulty = planted_dataset()
    dataset, other = saved(rows, folder / "train"), saved(validation, folder / "validation")
    return dataset, other, audit(dataset, against=other), faulty


def test_all_of_500_planted_faults_in_5000_pairs_are_found_and_nothing_else(
    audited: Audited,
) -> None:
    dataset, _, report, faulty = audited
    assert len(dataset) == N_PAIRS
    assert sum(map(len, faulty.values())) >= N_FAULTS
    found = {finding.fault: set(finding.row_ids) for finding in report.findings}
    # Of two rows that are the same, the audit names the one that comes later; either was planted as the copy.
    copies = {name.removesuffix("-again") for name in faulty["duplicate"]}
    assert {name.removesuffix("-again") for name in found.pop("duplicate")} == copies
    assert found == {fault: names for fault, names in faulty.items() if fault != "duplicate"}


def test_what_is_mended_has_no_fault_left(audited: Audited, tmp_path: Path) -> None:
    dataset, other, report, faulty = audited
    manifest = fix(dataset, report, tmp_path / "fixed")
    fixed = PairDataset.load(tmp_path / "fixed")
    assert audit(fixed, against=other).findings == []
    assert len(fixed) == manifest.counts["rows"] == N_PAIRS - sum(map(len, faulty.values()))
    assert sum(manifest.excluded.values()) == sum(map(len, faulty.values()))
    assert manifest.excluded["audit_flipped"] == len(faulty["flipped"])
    assert manifest.config["audit"]["found"]["flipped"] == len(faulty["flipped"])
    kept = fix(dataset, report, tmp_path / "kept", keep=("flipped", "tie"))
    assert kept.counts["rows"] - manifest.counts["rows"] == len(faulty["flipped"]) + len(faulty["tie"])


def test_findings_have_examples_and_a_json_form(
    audited: Audited,
) -> None:
    _, _, report, _ = audited
    flipped = report.finding("flipped")
    assert flipped is not None
    assert flipped.severity == "error"
    assert flipped.examples[0].note == "the rejected side scored 0.5 more (judge)"
    assert flipped.examples[0].prompt.startswith("user: request ")
    written = msgspec.json.decode(msgspec.json.encode(report.as_dict()))
    assert {item["fault"]: item["count"] for item in written["findings"]}["flipped"] == len(flipped.rows)
    assert written["faulty_rows"] == len(report.faulty_rows)


def test_negatives_and_corrections_are_meant_to_be_close(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    for kind in ("negative", "correction"):
        rows = [replace(row, kind=kind) for number in range(8) for row in _near(clean(0, generator), generator, number)]
        assert audit(saved(rows, tmp_path / kind)).findings == []


def test_splits_of_one_dataset_leak_too(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    rows = [clean(number, generator, split="train") for number in range(4)]
    answers = [sentence(generator) for _ in range(4)]
    for number, split in ((20, "train"), (21, "train"), (22, "test")):
        sides = (message(answers[number - 20]), message(answers[number - 19]))
        rows.append(pair(number, "the same request", *sides, split=split))
    rows.append(clean(9, generator, split="test+train"))
    finding = audit(saved(rows, tmp_path / "data")).finding("leak")
    assert finding is not None
    assert list(finding.row_ids) == ["pair-22", "pair-9"]
    assert finding.examples[0].note == "the split train has the same prompt"


def test_a_task_that_drowns_the_others_is_named_and_loses_weight(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    rows = [clean(number, generator, task_id=f"t{number % 40}") for number in range(200)]
    rows += [clean(1000 + number, generator, task_id="big") for number in range(60)]
    dataset = saved(rows, tmp_path / "data")
    report = audit(dataset)
    (finding,) = report.findings
    assert (finding.fault, len(finding.rows), set(finding.details["shares"])) == ("dominant_task", 60, {"big"})
    assert report.measures["largest_task_share"] == pytest.approx(60 / 260)
    fix(dataset, report, tmp_path / "fixed")
    fixed = PairDataset.load(tmp_path / "fixed")
    assert len(fixed) == 260
    limit = 5 / 41  # five times the mean of 41 tasks, which is more than 5 %
    shares = task_shares(fixed.column("task_id"), np.array(fixed.column("weight")))
    assert shares["big"] == pytest.approx(limit, rel=1e-5)
    assert audit(fixed).findings == []


def longer(number: int, generator: np.random.Generator, *, chosen: bool) -> PairRow:
    short, long = sentence(generator, 5, 12), sentence(generator, 12, 30)
    sides = (long, short) if chosen else (short, long)
    return pair(number, f"length {number}", *map(message, sides))


def test_lengths_that_give_the_label_away_are_measured_and_balanced(tmp_path: Path) -> None:
    generator = np.random.default_rng(4)
    rows = [longer(number, generator, chosen=number % 4 != 0) for number in range(400)]
    dataset = saved(rows, tmp_path / "data")
    report = audit(dataset)
    (finding,) = report.findings
    assert (finding.fault, len(finding.rows)) == ("length_bias", 300)
    assert report.measures["chosen_longer"] == pytest.approx(0.75)
    sizes = [[row.chosen_action_mask.sum(), row.rejected_action_mask.sum()] for row in dataset]
    expected = np.corrcoef(np.array(sizes).T.ravel(), [1.0] * 400 + [0.0] * 400)[0, 1]
    assert report.measures["length_correlation"] == pytest.approx(expected)
    manifest = fix(dataset, report, tmp_path / "fixed")
    fixed = PairDataset.load(tmp_path / "fixed")
    after = audit(fixed)
    assert manifest.counts["rows"] == 400
    assert after.measures["chosen_longer"] == pytest.approx(0.5, abs=1e-6)
    assert abs(after.measures["length_correlation"]) < 0.05
    assert sum(fixed.column("weight")) == pytest.approx(400, rel=1e-5)


def test_balanced_lengths_by_hand() -> None:
    # One stratum of gaps of 1: three pairs with the chosen side longer, one with it shorter. Each direction gets half
    # of the weight, 2: three times 2/3, and 2.
    chosen, rejected = np.array([2.0, 2.0, 2.0, 1.0]), np.array([1.0, 1.0, 1.0, 2.0])
    weights = without_length_bias(chosen, rejected, np.ones(4))
    assert weights.tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2.0])
    assert chosen_longer(chosen, rejected, weights) == pytest.approx(0.5)


def test_several_dominant_tasks_are_lowered_together() -> None:
    tasks = ["a"] * 50 + ["b"] * 40 + ["c"] * 10
    weights = without_dominant_tasks(tasks, np.ones(100), 0.4)
    shares = task_shares(tasks, weights)
    assert (shares["a"], shares["b"]) == (pytest.approx(0.4), pytest.approx(0.4))
    assert weights[tasks.index("c")] == 1.0


def unpaired(number: int, text: str, label: bool, **fields: Any) -> UnpairedRow:
    token_ids, mask = sequence(f"ask {number}", message(text))
    row = UnpairedRow(
        row_id=f"row-{number}-{label}", source="outcome", task_id=f"t{number}", task_type=None, split=None, label=label,
        weight=1.0, scorer="judge", score=float(label), trajectory_id=f"a{number}", message=1,
        prompt_length=int(np.argmax(mask)), token_ids=token_ids, action_mask=mask,
        prompt=msgspec.json.encode([Message("user", [TextPart(f"ask {number}")])]).decode(),
        completion=msgspec.json.encode([message(text)]).decode(), tools=None, evidence="{}",
    )  # fmt: skip
    return replace(row, **fields)


def test_labels_that_disagree_repeat_or_are_out_of_balance(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    rows = [unpaired(number, sentence(generator), number % 4 == 0) for number in range(100)]
    rows += [replace(rows[0], row_id="against", label=False), replace(rows[1], row_id="again")]
    dataset = saved(rows, tmp_path / "data", "unpaired")
    report = audit(dataset)
    found = {finding.fault: list(finding.row_ids) for finding in report.findings}
    assert found["contradiction"] == ["row-0-True", "against"]
    assert found["duplicate"] == ["again"]
    assert len(found["imbalance"]) == 77
    assert report.finding("imbalance").details["desirable"] == pytest.approx(77 / 25)  # type: ignore[union-attr]
    manifest = fix(dataset, report, tmp_path / "fixed")
    assert (manifest.counts["desirable"], manifest.counts["undesirable"]) == (24, 75)
    assert manifest.config["recommended"] == {"desirable_weight": pytest.approx(75 / 24), "undesirable_weight": 1.0}


def test_the_lines_can_be_drawn_elsewhere(tmp_path: Path) -> None:
    generator = np.random.default_rng(6)
    rows = [row for number in range(20) for row in _near(clean(0, generator), generator, number)]
    dataset = saved(rows, tmp_path / "data")
    assert len(audit(dataset).faulty_rows) == 20
    assert audit(dataset, config=AuditConfig(near_equal=1.0)).finding("near_equal_sides") is None
    assert audit(dataset, config=AuditConfig(near_equal_tokens=500)).finding("near_equal_sides") is None


def test_where_every_row_is_faulty_nothing_is_written(tmp_path: Path) -> None:
    said = message("the same")
    dataset = saved([pair(number, f"p{number}", said, said) for number in range(3)], tmp_path / "data")
    with pytest.raises(DataError, match="would be empty"):
        fix(dataset, audit(dataset), tmp_path / "fixed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
