"""Auditing a preference dataset, and mending it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offline_arl.datasets.audit.balance import (
    Numbers,
    chosen_longer,
    correlation,
    length_correlation,
    ranks,
    task_limit,
    task_shares,
    without_dominant_tasks,
    without_length_bias,
)
from offline_arl.datasets.audit.checks import Leaks, RowChecks, split_leaks
from offline_arl.datasets.audit.report import DROPPED, AuditConfig, AuditReport, Example, Fault, Finding
from offline_arl.datasets.audit.sides import shown
from offline_arl.datasets.manifest import DatasetManifest, write_manifest
from offline_arl.datasets.pairs.folder import PairDataset, PreferenceRow, PreferenceWriter, UnpairedDataset
from offline_arl.datasets.pairs.labels import BALANCE, recommended_weights
from offline_arl.datasets.pairs.rows import PairRow

PreferenceData = PairDataset | UnpairedDataset

_EXAMPLES = 3
_TEXTS: Mapping[Fault, str] = {
    "empty_side": "a side has no trained token",
    "equal_sides": "both sides do the same",
    "cosmetic_difference": "the sides differ in case, punctuation, white space or the order of arguments only",
    "near_equal_sides": "the sides differ in little of much",
    "tie": "the evidence prefers neither side",
    "flipped": "the evidence prefers the rejected side",
    "contradiction": "rows about the same sides disagree",
    "duplicate": "rows say the same again",
    "leak": "another split has the same prompt, task or trajectory",
}


def audit(
    dataset: PreferenceData, *, config: AuditConfig | None = None, against: PreferenceData | None = None
) -> AuditReport:
    """Look for faults that make preference training wrong or worse.

    Args:
        dataset: Pairs or labeled answers.
        config: Where to draw the lines.
        against: Another split (validation, test) that must share no prompt, task and trajectory with it. Without it,
            leaks are looked for between the splits of the store that rows are of.

    Returns:
        The findings. Rows may have several faults.
    """
    config = config or AuditConfig()
    checks = RowChecks(config)
    leaks = None if against is None else Leaks(against)
    sizes: list[list[int]] = []
    leaking: dict[int, str] = {}
    rows: Iterable[PreferenceRow] = dataset
    for position, row in enumerate(rows):
        seen = checks.look(position, row)
        sizes.append([len(side.action_ids) for side in seen])
        reason = None if leaks is None else leaks.reason(row, seen)
        if reason is not None:
            leaking[position] = reason
    checks.compare()
    if leaks is None:
        leaking = split_leaks(checks.prompts, dataset.column("split"))
    checks.found["leak"] = sorted(leaking)
    notes = {**checks.notes, **leaking}
    faults = [fault for fault in DROPPED if checks.found[fault]]
    findings = [_finding(dataset, fault, sorted(checks.found[fault]), notes) for fault in faults]
    weights = np.array(dataset.column("weight"), dtype=np.float64)
    measured, balance = _balance(dataset, np.array(sizes, dtype=np.float64).reshape(len(dataset), -1), weights, config)
    findings = sorted([*findings, *balance], key=lambda item: (item.severity != "error", -len(item.rows)))
    return AuditReport(dataset.kind, len(dataset), findings, measured)


def fix(
    dataset: PreferenceData,
    report: AuditReport,
    output: str | Path,
    *,
    keep: Sequence[Fault] = (),
    config: AuditConfig | None = None,
) -> DatasetManifest:
    """Write the dataset without the rows that an audit found faulty, and with weights that balance the others.

    Of duplicates the first stays. Dominant tasks lose weight down to the limit, and lengths are balanced (see
    `balance`); no row is dropped for either.

    Args:
        dataset: The audited dataset.
        report: Its audit.
        output: Folder to create or replace.
        keep: Faults that are left as they are.
        config: As for the audit.

    Raises:
        DataError: No row is left.
    """
    config = config or AuditConfig()
    dropped = {
        row: finding.fault
        for finding in report.findings
        if finding.fault in DROPPED and finding.fault not in keep
        for row in finding.rows
    }
    kept = [position for position in range(len(dataset)) if position not in dropped]
    weights = _new_weights(dataset, kept, report, keep, config)
    manifest = dataset.manifest
    writer = PreferenceWriter(
        Path(output), kind=dataset.kind, fingerprint=manifest.fingerprint, config=_fixed_config(manifest, report, keep)
    )
    with writer:
        for fault in dropped.values():
            writer.exclude(f"audit_{fault}")
        for position in kept:
            writer.add(replace(dataset[position], weight=weights[position]))
        if dataset.kind == "unpaired":
            classes = recommended_weights(writer.counts["desirable"], writer.counts["undesirable"])
            writer.config["recommended"] = {
                "desirable_weight": classes.desirable, "undesirable_weight": classes.undesirable,
            }  # fmt: skip
    assert writer.manifest is not None
    excluded = {**manifest.excluded, **writer.manifest.excluded}
    fixed = msgspec.structs.replace(
        writer.manifest, excluded=excluded, assumed=manifest.assumed, lineage=manifest.lineage, deleted=manifest.deleted
    )
    write_manifest(Path(output), fixed)
    return fixed


def _finding(
    dataset: PreferenceData,
    fault: Fault,
    rows: Sequence[int],
    notes: Mapping[int, str] | None = None,
    text: str = "",
    details: Mapping[str, Any] | None = None,
) -> Finding:
    ids = dataset.column("pair_id" if dataset.kind == "pairs" else "row_id")
    examples = [_example(dataset[row], (notes or {}).get(row, "")) for row in rows[:_EXAMPLES]]
    return Finding(fault, text or _TEXTS[fault], rows, [ids[row] for row in rows], examples, details or {})


def _example(row: PreferenceRow, note: str) -> Example:
    prompt = shown(row.prompt, end=True)
    if isinstance(row, PairRow):
        return Example(row.pair_id, prompt, shown(row.chosen), shown(row.rejected), note)
    texts = (shown(row.completion), "") if row.label else ("", shown(row.completion))
    return Example(row.row_id, prompt, *texts, note)


def _balance(
    dataset: PreferenceData, sizes: Numbers, weights: Numbers, config: AuditConfig
) -> tuple[dict[str, float], list[Finding]]:
    tasks = dataset.column("task_id")
    shares = task_shares(tasks, weights)
    limit = task_limit(len(shares), config.task_share, config.task_factor)
    measured: dict[str, float] = {
        "tasks": float(len(shares)),
        "largest_task_share": max(shares.values(), default=0.0),
        **_lengths_measured(dataset, sizes, weights),
    }
    found = []
    heavy = {task: share for task, share in shares.items() if share > limit}
    if heavy:
        rows = [row for row, task in enumerate(tasks) if task in heavy]
        named = ", ".join(f"{task} ({share:.0%})" for task, share in list(heavy.items())[:_EXAMPLES])
        text = f"{len(heavy)} of {len(shares)} tasks make up more than {limit:.0%} of the dataset each: {named}"
        found.append(_finding(dataset, "dominant_task", rows, text=text, details={"shares": heavy}))
    found += _length_finding(dataset, sizes, measured, config)
    if not isinstance(dataset, PairDataset):
        found += _imbalance(dataset, measured)
    return measured, found


def _lengths_measured(dataset: PreferenceData, sizes: Numbers, weights: Numbers) -> dict[str, float]:
    if not isinstance(dataset, PairDataset):
        labels = np.array(dataset.column("label"), dtype=np.float64)
        desirable = float(labels.sum())
        return {
            "length_correlation": correlation(sizes[:, 0], labels, weights),
            "desirable": desirable,
            "undesirable": len(labels) - desirable,
        }
    margins = dataset.column("margin")
    known = np.array([margin is not None for margin in margins], dtype=np.bool_)
    numbers = np.array([margin for margin in margins if margin is not None], dtype=np.float64)
    gaps = (sizes[:, 0] - sizes[:, 1])[known]
    return {
        "chosen_longer": chosen_longer(sizes[:, 0], sizes[:, 1], weights),
        "length_correlation": length_correlation(sizes[:, 0], sizes[:, 1], weights),
        "length_margin_correlation": correlation(ranks(gaps), ranks(numbers), weights[known]),
    }


def _length_finding(
    dataset: PreferenceData, sizes: Numbers, measured: Mapping[str, float], config: AuditConfig
) -> list[Finding]:
    related = measured["length_correlation"]
    longer = measured.get("chosen_longer", 0.5)
    lopsided = abs(longer - 0.5) > config.length_share - 0.5 and len(dataset) >= 20
    if not lopsided and not (abs(related) > config.length_correlation and len(dataset) >= 20):
        return []
    better = "chosen" if isinstance(dataset, PairDataset) else "desirable"
    text = f"correlation of length with being {better}: {related:+.2f}"
    if isinstance(dataset, PairDataset):
        text = f"the chosen side is the longer one in {longer:.0%} of the pairs; {text}"
        ahead = sizes[:, 0] > sizes[:, 1] if longer > 0.5 else sizes[:, 0] < sizes[:, 1]
        rows = np.flatnonzero(ahead).tolist()
    else:
        rows = list(range(len(dataset)))
    return [_finding(dataset, "length_bias", rows, text=text, details={"correlation": related})]


def _imbalance(dataset: PreferenceData, measured: Mapping[str, float]) -> list[Finding]:
    good, bad = int(measured["desirable"]), int(measured["undesirable"])
    if bad and BALANCE[0] <= good / bad <= BALANCE[1]:
        return []
    weights = recommended_weights(good, bad)
    text = f"{good} desirable and {bad} undesirable answers; " + (
        f"train with class weights {weights.desirable:.3g} and {weights.undesirable:.3g}"
        if good and bad
        else "KTO needs both"
    )
    rarer = good < bad
    rows = [row for row, label in enumerate(dataset.column("label")) if label is not rarer]
    return [_finding(dataset, "imbalance", rows, text=text, details=weights._asdict())]


def _new_weights(
    dataset: PreferenceData, kept: Sequence[int], report: AuditReport, keep: Sequence[Fault], config: AuditConfig
) -> dict[int, float]:
    """The weights of the rows that stay, by position."""
    weights = np.array(dataset.column("weight"), dtype=np.float64)[np.array(kept, dtype=np.int64)]
    if isinstance(dataset, PairDataset) and report.finding("length_bias") is not None and "length_bias" not in keep:
        pairs = [dataset[position] for position in kept]
        chosen_sizes = np.array([row.chosen_action_mask.sum() for row in pairs], dtype=np.float64)
        rejected_sizes = np.array([row.rejected_action_mask.sum() for row in pairs], dtype=np.float64)
        weights = without_length_bias(chosen_sizes, rejected_sizes, weights)
    if "dominant_task" not in keep:
        tasks = [dataset.column("task_id")[position] for position in kept]
        limit = task_limit(len(set(tasks) - {None}), config.task_share, config.task_factor)
        weights = without_dominant_tasks(tasks, weights, limit)
    return dict(zip(kept, weights.tolist(), strict=True))


def _fixed_config(manifest: DatasetManifest, report: AuditReport, keep: Sequence[Fault]) -> dict[str, Any]:
    found = {finding.fault: len(finding.rows) for finding in report.findings}
    return {**manifest.config, "audit": {"found": found, "kept": sorted(keep)}}
