"""Reading a store family by family: what has to be looked at together comes together, with all its judgements."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec
import polars as pl

from offline_arl.datasets.pairs.mining import Links, task_key
from offline_arl.rewards.preferences import PairsConfig
from offline_arl.trajectories.schema import Score, Trajectory
from offline_arl.trajectories.store import Store
from offline_arl.workflows.stores import told_damage

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Trajectory)


def judgements_by_trajectory(store: Store, where: pl.Expr) -> dict[str, list[Score]]:
    """The judgements that satisfy a condition on the columns of `Store.feedback`, by the trajectory they are about.

    Those that came apart from the trajectories are among them.
    """
    found: dict[str, list[Score]] = defaultdict(list)
    fields = [field for field in Score.__struct_fields__ if field != "metadata"]
    with told_damage(store):
        rows = store.feedback.filter(where & pl.col("trajectory_id").is_not_null()).collect()
    for row in rows.select("trajectory_id", *fields).iter_rows(named=True):
        found[row.pop("trajectory_id")].append(Score(**row))
    return dict(found)


def with_judgements(trajectories: Iterable[Trajectory], judgements: Mapping[str, list[Score]]) -> Iterator[Trajectory]:
    """The trajectories with exactly these judgements."""
    for trajectory in trajectories:
        yield msgspec.structs.replace(trajectory, scores=judgements.get(trajectory.trajectory_id, []))


def store_families(
    store: Store,
    trajectories: Iterable[Trajectory],
    judgements: Mapping[str, list[Score]],
    config: PairsConfig,
    where: pl.Expr | None,
) -> Iterator[list[Trajectory]]:
    """The trajectories of a store by families (see `datasets.pairs.mining.families_of`), each when it is complete.

    Attempts at a task usually lie together in logs, so few families are open at a time; those are held encoded.

    Args:
        store: The store.
        trajectories: Its trajectories, or some of them; read once.
        judgements: See `judgements_by_trajectory`.
        config: What attempts share that are compared.
        where: The condition by which `trajectories` were chosen.
    """
    family_of = _families(store, judgements, config, where)
    sizes = Counter(family_of.values())
    waiting: dict[int, list[bytes]] = defaultdict(list)
    for trajectory in with_judgements(trajectories, judgements):
        family = family_of[trajectory.trajectory_id]
        if sizes[family] == 1:
            yield [trajectory]
            continue
        waiting[family].append(_encoder.encode(trajectory))
        if len(waiting[family]) == sizes[family]:
            yield [_decoder.decode(encoded) for encoded in waiting.pop(family)]


def _families(
    store: Store, judgements: Mapping[str, list[Score]], config: PairsConfig, where: pl.Expr | None
) -> dict[str, int]:
    columns = ("trajectory_id", "task_id", "group_id", "branch_trajectory_id")
    with told_damage(store):
        frame = store.trajectories if where is None else store.trajectories.filter(where)
        rows = frame.select(*columns).collect()
    links = Links()
    for trajectory_id, task_id, group_id, origin in rows.iter_rows():
        comparisons = {score.comparison_id for score in judgements.get(trajectory_id, ())} - {None}
        names = [f"comparison {name}" for name in comparisons]
        key = task_key(task_id, group_id, config)
        names += [] if key is None else [key]
        names += [] if origin is None else [f"trajectory {origin}"]
        links.add(trajectory_id, names)
    return dict(zip(rows["trajectory_id"], links.families(), strict=True))
