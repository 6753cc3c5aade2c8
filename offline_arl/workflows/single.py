"""One stage on its own, outside a pipeline: what `build`, `train`, `evaluate` and `online` call.

The result appears under its final name when it is complete; a failure leaves nothing behind.
"""

from __future__ import annotations

import glob
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from offline_arl.datasets.manifest import load_manifest
from offline_arl.errors import GateError, UsageError, either
from offline_arl.online import config as online_config
from offline_arl.trainers import config as training_config
from offline_arl.trajectories.places import object_in, seen_from
from offline_arl.workflows.config import parse_stage
from offline_arl.workflows.context import (
    CHECKPOINTS_NAME,
    Progress,
    StageContext,
    StageOutputs,
    Tell,
    no_progress,
    no_tell,
)
from offline_arl.workflows.dispatch import check_model, check_ready, stage_function
from offline_arl.workflows.files import artifact_in, artifacts_below, run_of, told_refusals, write_json, write_text
from offline_arl.workflows.launch import ALONE, Launched, check_processes, follow, perform
from offline_arl.workflows.records import StageRecord, results_of
from offline_arl.workflows.stages import Artifact, InitialPolicy, Stage
from offline_arl.workflows.summary import summarize_stage

_A: dict[Artifact, str] = {
    "logs": "logs", "store": "a store", "policy": "a policy", "dataset": "a dataset", "values": "value heads",
    "history": "a history",
}  # fmt: skip
_RECOGNIZED = ("store", "policy", "dataset", "values")  # by `artifact_in`
_KIND_OF = {"filtered_bc": "bc", "copying": "bc"}  # of a dataset of this form, where it is not called alike
_REQUEST_NAME = "request.json"  # beside checkpoints: what they are of


def run_stage(
    raw: Mapping[str, Any],
    inputs: Mapping[str, str | Path | None],
    output: str | Path,
    *,
    name: str,
    where: str | None = None,
    policies: Mapping[str, str | Path] | None = None,
    overrides: Sequence[str] = (),
    seed: int = 0,
    progress: Progress = no_progress,
    tell: Tell = no_tell,
    processes: int = 1,
    launched: Launched = ALONE,
) -> StageOutputs:
    """Run one stage into a new folder, with `results.json` and `summary.md` as a pipeline's run has them.

    A stage that was interrupted after a checkpoint goes on from it when the same is asked for again; until then the
    checkpoints lie in `OUTPUT.training`. The same with other settings is refused as long as they do.

    Args:
        raw: Its configuration without the fields that refer to other stages.
        inputs: For each field that does (`store`, `policy`, `critic`, ...): the artifact's folder, or the folder that a
            command or stage made and that holds it, or None to leave it out.
        output: Folder to make. It may exist if it is empty.
        name: What the stage is called, for example in metric names.
        where: What errors call it; None: by its name.
        policies: For a stage that evaluates: the policies by name.
        overrides: `key=value` texts that change the configuration.
        seed: Seed of all randomness.
        progress: Called with the progress.
        tell: Called with lines for the person who waits, such as where an interrupted training goes on.
        processes: How many processes to start for a stage that can be shared.
        launched: This process's place where it was started with others, which do the same; only the first one
            leaves results.

    Raises:
        UsageError: A setting is unknown, an input is missing, `output` is not empty, the stage cannot be shared, or
            what was interrupted has other settings.
        OfflineArlError: What the stage raises.
    """
    where = where or name
    given = {field: path for field, path in inputs.items() if path is not None}
    config = {**raw, **{field: field for field in given}, **({"policies": list(policies)} if policies else {})}
    stage = parse_stage(config, overrides, where=where)
    artifacts: dict[str, dict[Artifact, Path]] = {}
    for field, reference, artifact in stage.references():
        if field in given and reference == field:  # else a setting names something else, which is refused
            option = f"--{field.replace('_', '-')}"
            artifacts[reference] = {artifact: _artifact(given[field], artifact, option, stage.forms(field))}
    for policy, path in (policies or {}).items():
        artifacts.setdefault(policy, {})["policy"] = _artifact(path, "policy", f"--policy {policy}")
    _check_inputs(stage, artifacts, where=where)
    check_processes(stage, max(processes, launched.processes), where=where)
    check_ready(stage, where=where)
    output = Path(output)
    lasting = lasting_folder(output)
    context = StageContext(name, output, seed, artifacts, progress, tell, output, lasting)
    if launched.process > 0:
        follow(stage, context)
        return StageOutputs()
    new = not lasting.exists()
    with new_folder(output) as work:
        if stage.shared:
            _claim(lasting, stage, context)
        began = time.perf_counter()
        try:
            outputs = perform(stage, replace(context, folder=work), processes=processes)
        except BaseException as error:
            refused = new and isinstance(error, GateError | UsageError)
            if refused or (lasting.is_dir() and os.listdir(lasting) == [_REQUEST_NAME]):  # nothing has begun
                shutil.rmtree(lasting, ignore_errors=True)
            raise
        kind = stage.model_dump()["kind"]
        record = StageRecord(name, kind, "", outputs, round(time.perf_counter() - began, 3))
        results = results_of(name, seed, [record])
        write_json(work / "results.json", results)
        write_text(work / "summary.md", summarize_stage(stage, results, record, output))
        (lasting / _REQUEST_NAME).unlink(missing_ok=True)
        context.forget_checkpoints()
        if lasting.is_dir():
            lasting.rename(work / "training")
    return outputs


def lasting_folder(output: str | Path) -> Path:
    """Where what an interrupted stage needs to go on lies until it is done."""
    output = Path(output).absolute()
    return output.with_name(f"{output.name}.training")


def resumable(output: str | Path) -> Path | None:
    """The folder that a stage that was to make `output` would go on from; None where it left no checkpoint."""
    lasting = lasting_folder(output)
    return lasting if any(lasting.glob(f"{CHECKPOINTS_NAME}/checkpoint-*")) else None


def _claim(lasting: Path, stage: Stage, context: StageContext) -> None:
    """Write down what is asked for. Checkpoints of something else would be lost without a word: they are in the way.

    Raises:
        UsageError: There are such.
    """
    path = lasting / _REQUEST_NAME
    free = training_config.OF_NO_CONSEQUENCE | online_config.OF_NO_CONSEQUENCE
    inputs = context.input_paths()
    seen = {name: {kind: seen_from(lasting, path) for kind, path in found.items()} for name, found in inputs.items()}
    asked = {**stage.model_dump(mode="json", exclude=set(free)), "seed": context.seed, "inputs": inputs, "seen": seen}
    before = object_in(path) or asked
    moved_together = {"seen", "inputs"} if before.get("seen") == seen else {"seen"}
    changed = sorted(
        key for key in asked.keys() | before.keys() if asked.get(key) != before.get(key) and key not in moved_together
    )
    if changed and resumable(context.final("")) is not None:
        raise UsageError(
            f"{lasting}: holds an interrupted training that differs in {', '.join(changed)}; give what it had to go on "
            "with it, choose another --output, or remove that folder to start anew"
        )
    lasting.mkdir(parents=True, exist_ok=True)
    write_json(path, asked)


def build_from_store(
    store: str | Path,
    output: str | Path,
    *,
    form: str,
    model: str = "tiny",
    values: str | Path | None = None,
    splits: Sequence[str] = (),
    overrides: Sequence[str] = (),
    seed: int = 0,
    progress: Progress = no_progress,
) -> StageOutputs:
    """Build a dataset from a store for the tokenizer of `model`.

    Where `model` is no local folder ("tiny", or a hub name), the policy is written to `OUTPUT/policy` as well.

    Args:
        store: Folder of the store.
        output: Folder of the dataset to make. It may exist if it is empty.
        form: The `form` of the `dataset` stage.
        model: "tiny", a Hugging Face model folder or a hub name.
        values: Value heads, for pairs that a critic tells.
        splits: Only the trajectories of these splits; all where none is named.
        overrides: `key=value` texts that change the `dataset` stage's configuration.
        seed: Seed of the tiny policy's weights.
        progress: Called with the progress.

    Raises:
        UsageError: A setting is unknown, an input is missing, or `output` is not empty.
        DataError: The store holds nothing to build from.
    """
    check_model(model, where="--model")
    raw = {"kind": "dataset", "form": form, "store": "store", "policy": "policy", "splits": list(splits)}
    if values is not None:
        raw["values"] = "values"
    stage = parse_stage(raw, overrides, where="build")
    artifacts: dict[str, dict[Artifact, Path]] = {"store": {"store": _artifact(Path(store), "store", "--store")}}
    if values is not None:
        artifacts["values"] = {"values": _artifact(values, "values", "--values")}
    _check_inputs(stage, {**artifacts, "policy": {"policy": Path(model)}}, where="build")
    check_ready(stage, where="build")
    with new_folder(output) as work:
        folder = Path(model).expanduser()
        made: dict[Artifact, str] = {}
        if folder.is_dir():
            artifacts["policy"] = {"policy": folder}
        else:
            initial = InitialPolicy(kind="initial_policy", store="store", model=model)
            context = StageContext("build", work, seed, artifacts, progress, destination=Path(output))
            made["policy"] = stage_function(InitialPolicy)(initial, context).artifacts["policy"]
            artifacts["policy"] = {"policy": work / made["policy"]}
        context = StageContext("build", work, seed, artifacts, progress, destination=Path(output))
        outputs = stage_function(type(stage))(stage, context)
    return replace(outputs, artifacts={**outputs.artifacts, **made})


@contextmanager
def new_folder(output: str | Path) -> Iterator[Path]:
    """A work folder beside `output` that takes its name when the block ends without an error.

    Raises:
        UsageError: `output` is not empty, or cannot be made.
        DataError: The system refused to read or write something in the block.
    """
    output = Path(output)
    work = output.absolute().with_name(f".{output.absolute().name}.unfinished-{os.getpid()}")
    try:
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise UsageError(f"--output {output} exists and is not empty; choose another folder or remove it")
        _remove_leftovers(work.parent, f".{output.absolute().name}.unfinished-")
        work.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"--output {output}: cannot write there ({error.strerror})") from error
    try:
        with told_refusals(f"--output {output}"):
            yield work
        if output.exists():
            output.rmdir()
        work.rename(output)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _remove_leftovers(folder: Path, prefix: str) -> None:
    """Remove the work folders of processes that were killed; a process number of ours is that of an earlier one."""
    for left in folder.glob(f"{glob.escape(prefix)}*"):
        number = left.name.removeprefix(prefix)
        if number.isdigit() and (int(number) == os.getpid() or not _is_alive(int(number))):
            shutil.rmtree(left, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _check_inputs(stage: Stage, given: Mapping[str, Mapping[Artifact, Path]], *, where: str) -> None:
    """Refuse a setting that changed what a stage reads: the options name that."""
    for field, reference, artifact in stage.references():
        if artifact not in given.get(reference, {}):
            raise UsageError(f"{where}: {field} cannot be set to {reference!r}; name the folder with its own option")


def _artifact(path: str | Path, artifact: Artifact, option: str, forms: Sequence[str] = ()) -> Path:
    """The folder of an artifact: `path` itself, or the artifact in it where `path` is what a command or stage made.

    Args:
        path: As it was given.
        artifact: What it has to hold.
        option: The option that named it.
        forms: Of the datasets that it takes; empty: any.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{option}: {path} does not exist")
    found = path / artifact if (path / artifact).is_dir() else path
    kind = artifact_in(found)
    if kind != artifact and artifact in _RECOGNIZED:
        others = _others(path, artifact)
        if artifact == "store" and kind is None and not others:
            return found  # opening it says what is missing or damaged
        remedy = f"name one of {', '.join(map(str, others))}" if others else "name another folder"
        raise UsageError(f"{option} needs {_A[artifact]}, and {_content(path, found)}; {remedy}")
    if forms:
        made = load_manifest(found).kind
        if made not in {_KIND_OF.get(form, form) for form in forms}:
            raise UsageError(
                f"{option} takes a dataset of the kind {either(forms)}, and {found} is of the kind {made}; build "
                f"one with: offline-arl build {forms[0].replace('_', '-')}"
            )
    return found


def _content(path: Path, found: Path) -> str:
    """What a folder holds, or is."""
    kind = artifact_in(found) or next((name for name in _RECOGNIZED if artifact_in(path / name) == name), None)
    if kind is None and run_of(path) == path:
        return f"{path} is the run of a whole pipeline"
    return f"{found} holds {'nothing of the kind' if kind is None else _A[kind]}"


def _others(path: Path, artifact: Artifact) -> list[Path]:
    """Where such an artifact is, below a path or in the run that it lies in."""
    found = artifacts_below(path, artifact) if path.is_dir() else []
    run = run_of(path)
    return found if found or run is None else artifacts_below(run, artifact)
