"""Precision and recall of redaction on a labelled set: strings as agents' logs have them.

All values are made up, with check digits that hold. The set was written by who wrote the detectors, so it tells what
they are meant to do rather than how they fare on logs that nobody has seen.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("detect_secrets", reason="pip install 'offline_arl[redact]'")
pytest.importorskip("phonenumbers", reason="pip install 'offline_arl[redact]'")
pytest.importorskip("stdnum", reason="pip install 'offline_arl[redact]'")

from offline_arl.logs.redaction.config import KINDS, RedactionConfig
from offline_arl.logs.redaction.placeholders import PLACEHOLDER
from offline_arl.logs.redaction.redactor import Redactor

FOLDER = Path(__file__).parent / "redaction"
MARK = re.compile(r"⟦([a-z_]+)\|(.*?)⟧", re.DOTALL)
# The misses that remain are cases of a real limit (a national number of a country that was not chosen); a fall below
# these floors is a fault.
FLOOR = 0.99
FLOOR_OF_KIND = 0.95


class Labelled(NamedTuple):
    """A text, what is to be found in it, and the text with gaps for that."""

    text: str
    secrets: list[tuple[str, str]]
    gaps: str


def labelled(name: str) -> Iterator[Labelled]:
    for line in (FOLDER / name).read_text().splitlines():
        if line and not line.startswith("# "):
            marked = line.replace("‖", "").replace("⏎", "\n")
            text = MARK.sub(lambda match: match[2], marked)
            yield Labelled(text, MARK.findall(marked), MARK.sub("\0", marked))


def test_precision_and_recall(capsys: pytest.CaptureFixture[str]) -> None:
    redactor = Redactor(RedactionConfig(), b"k" * 32)
    found, missed, wrong = Counter[str](), Counter[str](), Counter[str]()
    for case in [*labelled("secrets.txt"), *labelled("harmless.txt")]:
        result = redactor.text(case.text)
        counts = Counter(redactor.take_counts())
        for kind, value in case.secrets:
            # A value counts where nothing of it is left and the right kind says so.
            hit = counts[kind] > 0 and value not in result
            (found if hit else missed)[kind] += 1
            counts[kind] -= hit
        wrong.update(+counts)
        if not counts.total() and not any(value in result for _, value in case.secrets):
            assert PLACEHOLDER.sub("\0", result) == case.gaps, "no more and no less than the value is replaced"

    lines = [f"{'kind':16} {'labelled':>8} {'recall':>7} {'precision':>9}"]
    for kind in [*KINDS, "all"]:
        hits, misses, faults = (
            sum(counter.values()) if kind == "all" else counter[kind] for counter in (found, missed, wrong)
        )
        recall, precision = hits / (hits + misses), hits / (hits + faults)
        lines.append(f"{kind:16} {hits + misses:8} {recall:7.3f} {precision:9.3f}")
        floor = FLOOR if kind == "all" else FLOOR_OF_KIND
        assert recall >= floor, f"recall of {kind} is {recall:.3f}"
        assert precision >= floor, f"precision of {kind} is {precision:.3f}"
    with capsys.disabled():
        pass


def test_the_set_is_large_and_has_every_kind() -> None:
    secrets = [kind for case in labelled("secrets.txt") for kind, _ in case.secrets]
    assert set(secrets) == set(KINDS)
    assert len(secrets) >= 250
    assert min(Counter(secrets).values()) >= 6
    assert sum(1 for _ in labelled("harmless.txt")) >= 250


def test_harmless_texts_stay_as_they_are() -> None:
    redactor = Redactor(RedactionConfig(), b"k" * 32)
    changed = [case.text for case in labelled("harmless.txt") if redactor.text(case.text) != case.text]
    assert changed == []
