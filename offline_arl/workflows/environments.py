"""Looking after environments: whether judges judge rightly, whether audit trails are whole, tasks made of logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offline_arl import environments
from offline_arl.environments.audit import verify
from offline_arl.environments.checking import CheckReport, check
from offline_arl.environments.demonstrations import training_cases
from offline_arl.environments.replay.family import ReplayFamily, write_tasks
from offline_arl.environments.replay.misses import MissCount
from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.lineage import remember_derived
from offline_arl.trajectories.store import Store
from offline_arl.workflows.single import new_folder
from offline_arl.workflows.stores import of_splits, reading


def check_environment(name: str, *, tasks: int = 100, seed: int = 0) -> CheckReport:
    """Play the examples of success and failure of an environment's tasks of all splits (see `environments.checking`).

    Args:
        name: Of the environment.
        tasks: How many of each split.
        seed: Of the tasks.

    Raises:
        UsageError: There is no such environment, or it has no examples.
    """
    family = environments.load(name)
    chosen = []
    for split in ("train", "validation", "test"):
        try:
            chosen += family.tasks(split, tasks, seed=seed)
        except UsageError:
            continue  # environments made of logs may have no task of a split
    return check(family, chosen)


def training_cases_of(name: str, episodes: str | Path, output: str | Path) -> dict[str, Any]:
    """Make a store of what policies failed at, each with the example of success (see `environments.demonstrations`).

    Args:
        name: Of the environment.
        episodes: A store of its episodes, as `evaluate` leaves one.
        output: Folder of the store to make.

    Returns:
        `output`, `failures` and `examples`.

    Raises:
        UsageError: There is no such environment or it has no examples, or `output` is not empty.
        DataError: No episode failed, or none has its task with it.
    """
    family = environments.load(name)
    counts = {"failures": 0, "examples": 0}
    with reading(episodes) as opened, new_folder(output) as work:
        with Store.create(work).writer() as writer:
            for trajectory in training_cases(family, opened.iter_trajectories()):
                counts["examples" if trajectory.agent == "example" else "failures"] += writer.add(trajectory)
        if not counts["failures"]:
            raise DataError(f"{episodes}: no failed episode whose task is in its metadata, as rollouts leave them")
    return {"output": str(output), **counts}


def replay_misses(name: str) -> dict[str, Any]:
    """How often a replay environment cannot answer agents that were not recorded (see `environments.replay.misses`).

    Args:
        name: `replay:FOLDER`.

    Returns:
        For `left_out` and `elsewhere`: `episodes`, `whole` (those without a miss), `exact` (those that stayed a
        recording), `calls`, `misses`, `miss_rate` and `by_tool`, which has the last three for each tool.

    Raises:
        UsageError: It is not a replay environment.
        DataError: There are no replay tasks, or they are damaged.
    """
    family = environments.load(name)
    if not isinstance(family, ReplayFamily):
        raise UsageError(f"{name}: is no replay environment; name one as replay:FOLDER")
    return {agent: _as_dict(count) for agent, count in family.misses().items()}


def _as_dict(count: MissCount) -> dict[str, Any]:
    by_tool = {
        tool: {"calls": calls, "misses": count.misses[tool], "miss_rate": count.misses[tool] / calls}
        for tool, calls in sorted(count.calls.items())
    }
    totals = {"calls": sum(count.calls.values()), "misses": sum(count.misses.values()), "miss_rate": count.rate}
    return {
        "episodes": count.episodes,
        "whole": count.whole,
        "exact": count.exact,
        **totals,
        "by_tool": by_tool,
    }


def verify_audit_trail(path: str | Path, *, last_hash: str | None = None) -> dict[str, Any]:
    """Check the chain of an audit trail.

    Returns:
        `entries` and `last_hash`.

    Raises:
        DataError: An entry was changed, removed, added or moved; the message names the line. Or there is none.
    """
    found = verify(path, last_hash=last_hash)
    if not found.entries:
        raise DataError(f"{path}: is empty; name the file that an audit trail was written to")
    return {"entries": found.entries, "last_hash": found.last_hash}


def build_replay_tasks(
    store: str | Path, output: str | Path, *, splits: Sequence[str] = (), writes: Sequence[str] = ()
) -> dict[str, Any]:
    """Make replay tasks of a store's trajectories: an environment that answers from logs (`environments.replay`).

    Args:
        store: Folder of the store. Its splits are kept; a store that is not split is split by the hash of the tasks.
        output: Folder to make.
        splits: Only the trajectories of these splits; all where none is named.
        writes: Tools that change something. Without them, all calls count when an episode that was never recorded is
            judged.

    Returns:
        `output`, `recordings`, `tasks` and `excluded`.

    Raises:
        DataError: The store is damaged, or holds nothing that can be replayed.
        UsageError: `output` is not empty, the store has no such split, or no recording a tool that `writes` names.
    """
    with reading(store) as opened, new_folder(output) as work:
        where = of_splits(opened, splits)
        split_of = dict(opened.trajectories.select("trajectory_id", "split").collect().iter_rows())
        lineage = remember_derived(Path(store), "export", Path(output))
        trajectories = ((item, split_of.get(item.trajectory_id)) for item in opened.iter_trajectories(where))
        manifest = write_tasks(trajectories, work, writes=writes or None, lineage=lineage)
    return {
        "output": str(output),
        "recordings": manifest.recordings,
        "tasks": manifest.tasks,
        "excluded": manifest.excluded,
    }
