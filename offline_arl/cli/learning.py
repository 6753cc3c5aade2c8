"""Commands that make datasets, train, and evaluate, one stage at a time: build, train, evaluate, online."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from offline_arl.cli.launched import launched
from offline_arl.cli.options import (
    Backend,
    EnvironmentName,
    Json,
    Out,
    Processes,
    Seed,
    Settings,
    Store,
    example,
    path,
)
from offline_arl.cli.output import Output, table
from offline_arl.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from offline_arl.workflows.context import StageOutputs


class DatasetKind(StrEnum):
    """What `build` makes."""

    BC = "bc"
    TRANSITIONS = "transitions"
    RETURN_CONDITIONED = "return-conditioned"
    PAIRS = "pairs"
    UNPAIRED = "unpaired"


class Algorithm(StrEnum):
    """What `train` trains: the algorithms of the pipelines' stages of kind `train` (a contract test compares)."""

    BC = "bc"
    FILTERED_BC = "filtered_bc"
    DT = "dt"
    IQL_VALUES = "iql_values"
    CQL_VALUES = "cql_values"
    BEHAVIOR_VALUES = "behavior_values"
    TOKEN_IQL_VALUES = "token_iql_values"
    TOKEN_CQL_VALUES = "token_cql_values"
    IQL = "iql"
    CQL = "cql"
    AWR = "awr"
    DPO = "dpo"
    IPO = "ipo"
    SIMPO = "simpo"
    KTO = "kto"
    VALUE_GUIDED = "value_guided"
    VALUE_FOLDED = "value_folded"
    RERANKED = "reranked"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog=example("offline-arl build bc --store runs/store --split train --output runs/bc-data"),
    )(build)
    app.command(
        epilog=example("offline-arl train bc --dataset runs/bc-data --policy runs/bc-data/policy --output runs/bc"),
    )(train)
    app.command(
        epilog=example("offline-arl evaluate --policy bc=runs/bc/policy --tasks 300 --output runs/bc-evaluation"),
    )(evaluate)
    app.command(
        epilog=example("offline-arl online --policy runs/iql/policy --output runs/grpo"),
    )(online)


def build(
    kind: Annotated[DatasetKind, typer.Argument(help="The kind of dataset.")],
    store: Store,
    output: Out,
    model: Annotated[
        str, typer.Option(help="Whose tokenizer and template: 'tiny' (made from the store), a folder or a hub name.")
    ] = "tiny",
    only_successes: Annotated[
        bool, typer.Option("--only-successes", help="Keep successful trajectories only (a score of 1 or more counts).")
    ] = False,
    split: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only trajectories of this split; all without it. Repeat for several."),
    ] = None,
    values: Annotated[
        Path | None, typer.Option(help="Value heads that tell further pairs (kind pairs alone).", parser=path)
    ] = None,
    settings: Settings = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Turn a store into a dataset of token segments, pairs or labeled answers, with exact action masks.

    With the tiny model, the policy that fits the dataset is written to OUTPUT/policy.
    """
    from offline_arl.workflows.single import build_from_store

    form = kind.value.replace("-", "_")
    if only_successes:
        if kind is not DatasetKind.BC:
            raise UsageError("--only-successes goes with the kind bc alone")
        form = "filtered_bc"
    if values is not None and kind is not DatasetKind.PAIRS:
        raise UsageError("--values goes with the kind pairs alone")
    with Output(as_json=json) as out, out.progress() as progress:
        outputs = build_from_store(
            store,
            output,
            form=form,
            model=model,
            splits=split or (),
            values=values,
            overrides=settings or (),
            seed=seed,
            progress=progress,
        )
        _finish(out, output, outputs)


def train(
    algorithm: Annotated[Algorithm, typer.Argument(help="What to train.")],
    policy: Annotated[Path, typer.Option(help="The policy to start from.", parser=path)],
    output: Out,
    dataset: Annotated[
        Path | None, typer.Option(help="Folder that build made; all algorithms but reranked need it.", parser=path)
    ] = None,
    values: Annotated[
        Path | None, typer.Option(help="Value heads that another train made; some algorithms need them.", parser=path)
    ] = None,
    rehearsal: Annotated[
        Path | None,
        typer.Option(help="A dataset of which rows are cloned in between, against forgetting.", parser=path),
    ] = None,
    settings: Settings = None,
    seed: Seed = 0,
    processes: Processes = 1,
    json: Json = False,
) -> None:
    """Train a policy, or value heads, on a dataset; or make a policy that decodes by value heads."""
    from offline_arl.workflows.stages import stage_type

    raw: dict[str, Any] = {"kind": "train", "algorithm": algorithm.value}
    stage = stage_type(raw)
    assert stage is not None
    for name, given, maker in (
        ("dataset", dataset, "build bc"), ("values", values, "train iql_values"), ("rehearsal", rehearsal, "build bc"),
    ):  # fmt: skip
        field = stage.model_fields.get(name)
        if field is not None and field.is_required() and given is None:
            raise UsageError(f"train {algorithm} needs --{name}, for example of: offline-arl {maker}")
        if field is None and given is not None:
            raise UsageError(f"train {algorithm} reads no {name}; leave --{name} out")
    inputs = {"dataset": dataset, "policy": policy, "values": values, "rehearsal": rehearsal}
    _run_stage(
        f"train {algorithm.value}",
        algorithm.value,
        raw,
        inputs,
        output,
        settings,
        seed=seed,
        processes=processes,
        as_json=json,
    )


def evaluate(
    policy: Annotated[list[str], typer.Option(metavar="NAME=DIR", help="A policy and its name. Repeat for several.")],
    output: Out,
    environment: EnvironmentName = "support_desk",
    tasks: Annotated[int, typer.Option(help="Number of tasks.", min=1)] = 300,
    split: Annotated[Literal["validation", "test"], typer.Option(help="Which tasks.")] = "test",
    store: Annotated[Path | None, typer.Option(help="Logs to compare with (the row 'behavior').", parser=path)] = None,
    backend: Backend = "auto",
    settings: Settings = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Run policies on tasks that no training saw, greedily and at temperature 1.

    Writes OUTPUT/results.json, OUTPUT/summary.md and the episodes; compare reads them.
    """
    raw: dict[str, Any] = {
        "kind": "evaluate", "environment": environment, "tasks": tasks, "split": split, "backend": backend,
    }  # fmt: skip
    policies = {}
    for item in policy:
        name, separator, folder = item.partition("=")
        if not separator or not name or not folder:
            raise UsageError(f"--policy {item}: expected NAME=DIR, for example --policy bc=runs/bc/policy")
        if name in policies:
            raise UsageError(f"--policy {item}: the name {name!r} stands twice; choose another")
        policies[name] = Path(folder)
    _run_stage(
        "evaluate", "evaluate", raw, {"store": store}, output, settings, policies=policies, seed=seed, as_json=json
    )


def online(
    policy: Annotated[Path, typer.Option(help="The warm start; it is the KL reference too.", parser=path)],
    output: Out,
    environment: EnvironmentName = "support_desk",
    critic: Annotated[
        Path | None, typer.Option(help="Value heads that train made, for turn-level advantages.", parser=path)
    ] = None,
    feature_policy: Annotated[
        Path | None, typer.Option(help="The policy that the critic reads; it names its own.", parser=path)
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            help="Dataset whose successes are cloned beside: of the kind bc, filtered_bc or return_conditioned.",
            parser=path,
        ),
    ] = None,
    backend: Backend = "auto",
    settings: Settings = None,
    seed: Seed = 0,
    processes: Processes = 1,
    json: Json = False,
) -> None:
    """Improve a policy by GRPO on its own rollouts in an environment; an interrupted training goes on.

    Policy, critic and replay may be folders that a command or a stage of a pipeline made. docs/online.md lists the
    settings, and says how to train further from a result.
    """
    raw: dict[str, Any] = {"kind": "online", "algorithm": "grpo", "environment": environment, "backend": backend}
    inputs = {"policy": policy, "critic": critic, "feature_policy": feature_policy, "replay": replay}
    _run_stage("online", "grpo", raw, inputs, output, settings, seed=seed, processes=processes, as_json=json)


def _run_stage(
    command: str,
    name: str,
    raw: dict[str, Any],
    inputs: Mapping[str, Path | None],
    output: Path,
    settings: Sequence[str] | None,
    *,
    policies: Mapping[str, Path] | None = None,
    seed: int,
    processes: int = 1,
    as_json: bool,
) -> None:
    from offline_arl.workflows.single import resumable, run_stage

    place = launched()
    with Output(as_json=as_json) as out, out.progress(shown=place.process == 0) as progress:
        try:
            outputs = run_stage(
                raw,
                inputs,
                output,
                name=name,
                where=command,
                policies=policies,
                overrides=settings or (),
                seed=seed,
                progress=progress,
                tell=out.note,
                processes=processes,
                launched=place,
            )
        except KeyboardInterrupt:
            if place.process == 0 and (begun := resumable(output)) is not None:
                out.note(f"{begun} has what was done; the same command goes on from there")
            raise
        if place.process == 0:  # one of several processes that do this together speaks
            _finish(out, output, outputs)


def _finish(out: Output, output: Path, outputs: StageOutputs) -> None:
    from offline_arl.workflows.summary import all_tables, counts, number

    metrics = {name: metric.as_dict() for name, metric in outputs.metrics.items()}
    result = {
        "output": output,
        "artifacts": {kind: output / path for kind, path in outputs.artifacts.items()},
        "metrics": metrics,
        "notes": list(outputs.notes),
        "backend": outputs.backend,
    }

    def render(console: Console) -> None:
        for title, (header, rows) in all_tables(metrics):
            table(console, header, rows, title=title)
        for name, value in counts(metrics).items():
            console.print(f"{name}: {number(value)}")
        for note in outputs.notes:
            console.print(note, markup=False)
        for kind, place in outputs.artifacts.items():
            console.print(f"{kind}: {output / place}", markup=False)

    out.finish(result, render)
