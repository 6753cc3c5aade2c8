"""The readable account of a run, or of one stage that was done on its own: `summary.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offline_arl.workflows.config import Pipeline
from offline_arl.workflows.next_steps import pipeline_steps, stage_steps
from offline_arl.workflows.records import StageRecord
from offline_arl.workflows.stages import Stage

MetricDict = Mapping[str, float | None]

Table = tuple[list[str], list[list[str]]]  # header and rows

# The measures of the main table, in this order.
_OUTCOMES = {
    "success": "success, greedy",
    "success_sampled": "success, sampled",
    "optimality": "optimality, greedy",
    "optimality_sampled": "optimality, sampled",
    "return": "return, greedy",
    "return_sampled": "return, sampled",
}
# Paired differences are of two policies, so they have a table of their own.
_GAINS = {"success_gain": "greedy", "success_gain_sampled": "sampled"}
# What the rows of the table "How they act" mean; docs/cli.md says the same.
MEASURES = {
    "steps": "messages of the agent in an attempt, on average",
    "call rate": "share of these messages that call a tool",
    "tool call accuracy": "share of the calls that fit the tools and their schemas and were answered without an error",
    "invalid action rate": "share of the messages with a call that is malformed, unknown or against its schema, or "
    "that the environment rejected",
    "truncation rate": "share of the attempts that a limit cut off",
    "infrastructure errors": "attempts that failed for reasons of the harness and count nowhere else",
    "judged": "share of the attempts with a verdict; success is of these",
    "miss rate": "share of the calls that a replay environment has no recording of",
    "whole rate": "share of the attempts without such a call",
    "sync difference": "largest difference of a token's logprob between sampler and trainer, in nats",
}
# Followed by the share of the attempt in percent.
_EARLY, _EARLY_GAIN = "success_auc_", "success_auc_gain_"


def outcome_table(metrics: Mapping[str, MetricDict]) -> Table:
    """Success and return: one row a policy, in order of appearance."""
    return _table(metrics, "policy", _OUTCOMES)


def gain_table(metrics: Mapping[str, MetricDict]) -> Table:
    """Paired differences of success: one row a pair of policies."""
    return _table(metrics, "pair", _GAINS)


def process_table(metrics: Mapping[str, MetricDict]) -> Table:
    """All other measures of policies: one row a measure, one column a policy."""
    names = [name for name in _estimates(metrics) if name[0] not in _OUTCOMES and name[0] not in _GAINS]
    names = [name for name in names if not name[0].startswith((_EARLY, _EARLY_GAIN))]
    policies = list(dict.fromkeys(policy for _, policy in names))
    rows = [
        [measure.replace("_", " "), *(_cell(metrics.get(f"{measure}/{policy}")) for policy in policies)]
        for measure in dict.fromkeys(measure for measure, _ in names)
        if any((metrics.get(f"{measure}/{policy}") or {}).get("estimate") for policy in policies)  # not 0 for all
    ]
    return ["measure", *policies], rows


def early_table(metrics: Mapping[str, MetricDict], measure: str, first: str) -> Table:
    """How well success is predicted: one row a predictor, one column a share of the attempt."""
    marks = dict.fromkeys(name.removeprefix(measure) for name, _ in _estimates(metrics) if name.startswith(measure))
    titles = {f"{measure}{mark}": f"at {mark} %" for mark in marks if mark.replace(".", "").isdigit()}
    return _table(metrics, first, titles)


def _table(metrics: Mapping[str, MetricDict], first: str, titles: Mapping[str, str]) -> Table:
    names = _estimates(metrics)
    subjects = list(dict.fromkeys(subject for measure, subject in names if measure in titles))
    measures = [measure for measure in titles if any(measure == found for found, _ in names)]
    rows = [[subject, *(_cell(metrics.get(f"{measure}/{subject}")) for measure in measures)] for subject in subjects]
    return [first, *(titles[measure] for measure in measures)], rows


def _estimates(metrics: Mapping[str, MetricDict]) -> list[tuple[str, str]]:
    """The names of the form `measure/policy`, in two."""
    found = [name.split("/") for name, metric in metrics.items() if not _is_count(metric)]
    return [(parts[0], parts[1]) for parts in found if len(parts) == 2]


def all_tables(metrics: Mapping[str, MetricDict]) -> list[tuple[str, Table]]:
    """Every titled table of a run that has rows."""
    tables = {
        "Policies": outcome_table(metrics),
        "Gain in success over the policy before, paired over tasks": gain_table(metrics),
        "How early success can be told, area under the ROC curve": early_table(metrics, _EARLY, "predictor"),
        "Gain of that area, paired over tasks": early_table(metrics, _EARLY_GAIN, "pair"),
        "How they act": process_table(metrics),
        "Success by task type, greedy": task_type_table(metrics),
        "What is achieved under the returns that are asked for": calibration_table(metrics),
    }
    return [(title, table) for title, table in tables.items() if table[1]]


def task_type_table(metrics: Mapping[str, MetricDict]) -> Table:
    """The metrics named `success/policy/task_type`: (header, rows), one row a task type, one column a policy."""
    found = [name.split("/") for name in metrics if name.startswith("success/") and name.count("/") == 2]
    policies = list(dict.fromkeys(policy for _, policy, _ in found))
    types = list(dict.fromkeys(task_type for _, _, task_type in found))
    rows = [
        [task_type, *(_cell(metrics.get(f"success/{policy}/{task_type}")) for policy in policies)]
        for task_type in types
    ]
    return ["task type", *policies], rows


def calibration_table(metrics: Mapping[str, MetricDict]) -> Table:
    """The metrics named `achieved_return/policy/target`: one row a target, one column a policy and way of acting."""
    titles = {"achieved_return": "greedy", "achieved_return_sampled": "sampled"}
    found = [tuple(name.split("/")) for name in metrics if name.split("/")[0] in titles]
    columns = list(dict.fromkeys((measure, policy) for measure, policy, _ in found))
    targets = sorted({target for _, _, target in found}, key=float)
    rows = [
        [target, *(_cell(metrics.get(f"{measure}/{policy}/{target}")) for measure, policy in columns)]
        for target in targets
    ]
    return ["asked for", *(f"{policy}, {titles[measure]}" for measure, policy in columns)], rows


def counts(metrics: Mapping[str, MetricDict]) -> dict[str, float | None]:
    """The metrics that count instead of estimating."""
    return {name: metric["estimate"] for name, metric in metrics.items() if _is_count(metric)}


def _is_count(metric: MetricDict) -> bool:
    """Whether nothing is estimated: the three numbers and the number of cases are one number."""
    return metric["estimate"] is not None and len({metric[key] for key in ("estimate", "low", "high", "n")}) == 1


def summarize(pipeline: Pipeline, results: Mapping[str, Any], records: Sequence[StageRecord], output: Path) -> str:
    """The text of `summary.md`: what was done, what came out, and how to go on."""
    folders = {record.name: Path("stages", record.name) for record in records}
    lines = _account(pipeline.name, pipeline.description, results, records, folders)
    return "\n".join([*lines, *pipeline_steps(pipeline, records, output)]) + "\n"


def summarize_stage(stage: Stage, results: Mapping[str, Any], record: StageRecord, output: Path) -> str:
    """The text of `summary.md` of a stage that was done on its own."""
    lines = _account(record.name, "", results, [record], {record.name: Path()})
    return "\n".join([*lines, *stage_steps(stage, record, output)]) + "\n"


def _account(
    title: str,
    description: str,
    results: Mapping[str, Any],
    records: Sequence[StageRecord],
    folders: Mapping[str, Path],
) -> list[str]:
    """All but how to go on; `folders` are those of the stages, as seen from the output."""
    metrics = results["metrics"]
    lines = [f"# {title}", ""]
    if description:
        lines += [description.strip(), ""]
    rollouts = f"rollouts by {results['backend']}" if results["backend"] else "no rollouts"
    lines += [f"Seed {results['seed']}; {rollouts}.", ""]
    tables = all_tables(metrics)
    for name, (header, rows) in tables:
        lines += [f"## {name}", "", *_markdown(header, rows), "", *_explained(header, rows)]
    if tables:
        lines += ["In brackets: 95 % intervals.", ""]
    found = counts(metrics)
    if found:
        lines += [
            "## Counts",
            "",
            *_markdown(["what", "count"], [[name, number(value)] for name, value in found.items()]),
            "",
        ]
    done = [
        [record.name, record.kind, f"{record.seconds:.1f}", _where(record, folders[record.name])] for record in records
    ]
    lines += ["## What was done", "", *_markdown(["stage", "kind", "seconds", "made"], done), ""]
    notes = [f"- {record.name}: {note}" for record in records for note in record.outputs.notes]
    if notes:
        lines += [*notes, ""]
    return [*lines, "## How to go on", ""]


def _explained(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """What the measures of a table mean, where they are not plain."""
    told = [f"- {row[0]}: {MEASURES[row[0]]}" for row in rows if row[0] in MEASURES] if header[0] == "measure" else []
    return [*told, ""] if told else []


def _where(record: StageRecord, folder: Path) -> str:
    return ", ".join(f"{kind}: `{folder / path}`" for kind, path in record.outputs.artifacts.items())


def _cell(metric: MetricDict | None) -> str:
    if metric is None or any(metric[key] is None for key in ("estimate", "low", "high")):
        return "-"
    estimate, low, high = (_decimal(metric[key] or 0.0) for key in ("estimate", "low", "high"))
    return f"{estimate} [{low}, {high}]"


def _decimal(value: float) -> str:
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.0005 else f"{value:.1e}"


def number(value: float | None) -> str:
    """A count for people; "-" where there is none."""
    return "-" if value is None else f"{value:.12g}"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    line = "| " + " | ".join(header) + " |"
    return [line, "|" + " --- |" * len(header), *("| " + " | ".join(row) + " |" for row in rows)]
