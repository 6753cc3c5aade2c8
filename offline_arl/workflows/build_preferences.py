"""The stages that make preference datasets: pairs, and labeled answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import polars as pl

from offline_arl import environments
from offline_arl.datasets.manifest import DatasetManifest, write_manifest
from offline_arl.datasets.negatives import EnvironmentJudge, Judge, NegativeMaker, log_judge
from offline_arl.datasets.pairs.build import build_pairs, build_unpaired
from offline_arl.datasets.pairs.labels import ClassWeights
from offline_arl.datasets.pairs.outcomes import QValues
from offline_arl.datasets.pairs.rendering import Splits
from offline_arl.environments.protocol import task_of
from offline_arl.errors import DataError, UsageError
from offline_arl.models.policy import load_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.rewards.preferences import NegativesConfig, PairsConfig, UnpairedConfig
from offline_arl.trajectories.lineage import remember_derived
from offline_arl.trajectories.store import Store, open_store
from offline_arl.workflows.build import read_trajectories
from offline_arl.workflows.context import StageContext, StageOutputs, count
from offline_arl.workflows.stages import PairsDataset, UnpairedDataset, part_of
from offline_arl.workflows.store_families import judgements_by_trajectory, store_families, with_judgements
from offline_arl.workflows.stores import of_splits, told_damage


def build_pairs_dataset(config: PairsDataset, context: StageContext) -> StageOutputs:
    """Mine pairs from a store.

    Raises:
        DataError: The store holds no pair; the message gives the reasons.
        UsageError: The policy's tokenizer cannot be loaded, or the store has no such split.
    """
    renderer = Renderer(load_tokenizer(context.path(config.policy, "policy")))
    store, where = _opened(config, context)
    mining = part_of(config, PairsConfig)
    q_values = None if config.values is None else q_values_of(context.path(config.values, "values"))
    if "value" in mining.pair_kinds and q_values is None:
        raise UsageError("pairs of kind 'value' need value heads: name them with values")
    judgements = judgements_by_trajectory(
        store, pl.col("comparison_id").is_not_null() | pl.col("correction").is_not_null()
    )
    trajectories = read_trajectories(context, store, where)
    negatives = _negatives(mining.negatives) if "negative" in mining.pair_kinds else None
    with _told_limit(config.max_tokens):
        manifest = build_pairs(
            store_families(store, trajectories, judgements, mining, where),
            renderer,
            context.folder / "dataset",
            config=mining,
            splits=_splits(store),
            q_values=q_values,
            more=negatives,
        )
    _remember(store, context, manifest)
    counts = manifest.counts
    always = {f"pairs/{kind}" for kind in ("trajectory", "step") if kind in mining.pair_kinds}
    kinds = {name: number for name, number in counts.items() if name.startswith("pairs/")}
    metrics = {name: count(number) for name, number in kinds.items() if number or name in always}
    return StageOutputs(
        artifacts={"dataset": "dataset"},
        metrics={**metrics, f"rows/{context.name}": count(counts["rows"])},
        notes=(*pair_notes(manifest), *(() if negatives is None else negative_notes(negatives))),
    )


def build_unpaired_dataset(config: UnpairedDataset, context: StageContext) -> StageOutputs:
    """Label the answers of a store for KTO.

    Raises:
        DataError: The store holds no label; the message gives the reasons.
        UsageError: The policy's tokenizer cannot be loaded, the store has no such split, or labels by a score are
            asked for without its name, threshold or direction.
    """
    renderer = Renderer(load_tokenizer(context.path(config.policy, "policy")))
    store, where = _opened(config, context)
    judgements = judgements_by_trajectory(store, pl.lit(True))
    with _told_limit(config.max_tokens):
        manifest = build_unpaired(
            with_judgements(read_trajectories(context, store, where), judgements),
            renderer,
            context.folder / "dataset",
            config=part_of(config, UnpairedConfig),
            splits=_splits(store),
        )
    _remember(store, context, manifest)
    counts, recommended = manifest.counts, manifest.config["recommended"]
    weights = ClassWeights(recommended["desirable_weight"], recommended["undesirable_weight"])
    return StageOutputs(
        artifacts={"dataset": "dataset"},
        metrics={name: count(counts[name]) for name in ("desirable", "undesirable")},
        notes=(
            f"{counts['desirable']} desirable and {counts['undesirable']} undesirable answers, "
            f"{counts['action_tokens']} of {counts['tokens']} tokens are trained",
            f"class weights for KTO: desirable {weights.desirable:.3g}, undesirable {weights.undesirable:.3g}",
            *_left_out(manifest),
        ),
    )


def pair_notes(manifest: DatasetManifest) -> list[str]:
    """What a person wants to know about a dataset of pairs: how many of each kind, and why there are no others."""
    counts = manifest.counts
    kinds = {name.removeprefix("pairs/"): number for name, number in counts.items() if name.startswith("pairs/")}
    made = ", ".join(f"{number} {kind}" for kind, number in kinds.items() if number)
    notes = [
        f"{counts['rows']} pairs ({made}) from {counts['trajectories']} trajectories; "
        f"{counts['action_tokens']} of {counts['tokens']} tokens are trained",
        f"{counts['compared_groups']} tasks have several attempts, {counts['mixed_groups']} of them mixed outcomes",
    ]
    if kinds.get("step") == 0:
        notes.append(_why_no_steps(counts["shared_states"], counts["compared_groups"]))
    return [*notes, *_left_out(manifest)]


def _negatives(config: NegativesConfig) -> NegativeMaker:
    """What makes negatives, with the judges that the configuration asks for."""
    judges: list[Judge] = [log_judge]
    if config.environment is not None:
        judges.append(EnvironmentJudge(environments.load(config.environment), task_of))
    return NegativeMaker(config, judges)


def negative_notes(negatives: NegativeMaker) -> list[str]:
    """How many negatives of each kind, and what they teach about calling tools."""
    kinds = ", ".join(f"{number} {kind}" for kind, number in negatives.made.most_common())
    pressure = f"pairs that teach to call weigh {negatives.call_pressure:.1f} more than pairs that teach not to"
    return [f"negatives: {kinds or 'none'}; {pressure}"]


def q_values_of(folder: Path) -> QValues:
    """Q(s, a) of every step whose features are cached beside value heads: the smaller of the two critics.

    Raises:
        DataError: The heads or the features are missing or damaged.
    """
    import torch

    from offline_arl.models.feature_cache import load_features
    from offline_arl.models.value_heads import load_heads

    heads, features = load_heads(folder), load_features(folder / "features")
    steps = torch.nonzero(features.has_action).squeeze(-1)
    found: dict[tuple[str, int], float] = {}
    for chunk in torch.split(steps, 4096):
        q = heads.q(features.states[chunk], features.actions[chunk]).amin(dim=0)
        names = ((features.trajectory_ids[row], int(features.steps[row])) for row in chunk.tolist())
        found.update(zip(names, q.tolist(), strict=True))
    return found


def _why_no_steps(shared_states: int, compared: int) -> str:
    if not compared:
        return "0 step pairs: no task has several attempts"
    if not shared_states:
        return "0 step pairs: no two attempts at a task act differently after the same beginning"
    return f"0 step pairs: in {shared_states} states attempts took different steps, but none with another end"


def _left_out(manifest: DatasetManifest) -> list[str]:
    reasons = ", ".join(f"{reason} {number}" for reason, number in manifest.excluded.items())
    return [f"not made: {reasons}"] if reasons else []


@contextmanager
def _told_limit(max_tokens: int | None) -> Iterator[None]:
    """Name the setting where everything was too long."""
    try:
        yield
    except DataError as error:
        if "too_long" not in str(error):
            raise
        raise DataError(
            f"{error}; sides have more than {max_tokens} tokens: raise max_tokens, or set it to null for no bound"
        ) from error


def _opened(config: PairsDataset | UnpairedDataset, context: StageContext) -> tuple[Store, pl.Expr | None]:
    store = open_store(context.path(config.store, "store"))
    return store, of_splits(store, config.splits)


def _splits(store: Store) -> Splits:
    with told_damage(store):
        rows = store.trajectories.select("trajectory_id", "split").drop_nulls().collect()
    return dict(rows.iter_rows())


def _remember(store: Store, context: StageContext, manifest: DatasetManifest) -> None:
    lineage = remember_derived(store.path, "dataset", context.final("dataset"))
    write_manifest(context.folder / "dataset", msgspec.structs.replace(manifest, lineage=lineage))
