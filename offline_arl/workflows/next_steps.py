"""How to go on from a run or a stage: commands that use what it made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from offline_arl.workflows.config import Pipeline
from offline_arl.workflows.records import StageRecord
from offline_arl.workflows.stages import (
    Artifact,
    Evaluate,
    InitialPolicy,
    Online,
    Reranked,
    Stage,
    TrainValues,
    ValueGuided,
)

_NOT_TRAINED_ON = (InitialPolicy, ValueGuided, Reranked)  # nothing learned yet, or choices that are not in the weights


def pipeline_steps(pipeline: Pipeline, records: Sequence[StageRecord], output: Path) -> list[str]:
    """Lines of Markdown about a whole run."""
    made = {
        (kind, record.name): output / "stages" / record.name / path
        for record in records
        for kind, path in record.outputs.artifacts.items()
    }
    stages = pipeline.stages
    has_environment = any(hasattr(stage, "environment") for stage in stages.values())
    stores = [path for (kind, _), path in made.items() if kind == "store"]
    policies = [(name, path) for (kind, name), path in made.items() if kind == "policy"]
    lines = ["- The same command again does only what changed; `--set seed=1` runs another seed."]
    if stores:
        lines.append(f"- Look at the trajectories: `offline-arl show {stores[0]}`")
    if policies:
        name, path = policies[-1]
        evaluate = f"`offline-arl evaluate --policy {name}={path} --output DIR"
        if has_environment:
            lines.append(f"- Evaluate a policy: {evaluate}`")
        else:  # logs from elsewhere: the tasks of the support desk would say nothing about them
            lines.append(f"- Evaluate a policy in an environment of your own: {evaluate} --environment NAME`")
    if has_environment:
        lines += _online(stages, made, output)
    if any(isinstance(stage, Online) for stage in stages.values()):
        lines.append(f"- See whether the online training was healthy: `offline-arl diagnose {output}`")
    if policies:
        lines.append("- Each policy is a Hugging Face folder; any tool that reads those can serve or train it.")
    return lines


def stage_steps(stage: Stage, record: StageRecord, output: Path) -> list[str]:
    """Lines of Markdown about a stage that was done on its own."""
    made = {kind: output / path for kind, path in record.outputs.artifacts.items()}
    lines = []
    if isinstance(stage, Evaluate):
        lines = [
            f"- Differences of all pairs, paired over tasks: `offline-arl compare {output}`; with the outputs of other "
            "seeds beside it, over all of them",
            f"- Look at the episodes: `offline-arl show {output / 'store'}`",
        ]
    elif "policy" in made:
        lines.append(
            f"- Evaluate the policy: `offline-arl evaluate --policy {record.name}={made['policy']} --output DIR`"
        )
    if isinstance(stage, Online):
        lines += [
            f"- See whether the training was healthy: `offline-arl diagnose {output}`",
            f"- Train further: `offline-arl online --policy {made['policy']} --output DIR` (docs/online.md)",
            f"- Look at the episodes: `offline-arl show {made['store']}`",
        ]
    return lines or ["- docs/cli.md says which commands take what was made."]


def _online(stages: Mapping[str, Stage], made: Mapping[tuple[Artifact, str], Path], output: Path) -> list[str]:
    """The command that trains a policy of the run online, with what the run has for a warm start."""
    trained = [
        path
        for (kind, name), path in made.items()
        if kind == "policy" and not isinstance(stages[name], _NOT_TRAINED_ON)
    ]
    if not trained:
        return []
    critics = [
        path for (kind, name), path in made.items() if kind == "values" and isinstance(stages[name], TrainValues)
    ]
    forms = {name: getattr(stage, "form", None) for name, stage in stages.items()}
    successes = [
        path for form in ("bc", "filtered_bc") for name, made_form in forms.items() if made_form == form
        and (path := made.get(("dataset", name))) is not None
    ]  # fmt: skip
    further = output.with_name(f"{output.name}-online")
    parts = [f"--policy {trained[-1]}"]
    parts += [f"--critic {critics[-1]}"] if critics else []
    parts += [f"--replay {successes[-1]}"] if successes else []
    command = f"offline-arl online {' '.join(parts)} --set curriculum={{}} --output {further}"
    return [f"- Train a policy online: `{command}`, and look at it: `offline-arl diagnose {further}`"]
