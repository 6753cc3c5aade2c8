"""Environments: where agents act. `load` finds one by name, also those of other packages' entry points."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from offline_arl.environments.protocol import Environment, EnvironmentFamily, EpisodeStart, StepResult, Task
from offline_arl.errors import UsageError

ENTRY_POINT_GROUP = "offline_arl.environments"
_REPLAY = "replay:"
_GYMNASIUM = "gym:"
_FILE = "file:"
_OWN = {  # found without an installation's metadata, which may be older than the code
    "support_desk": "offline_arl.environments.support_desk",
    "support_desk_red_team": "offline_arl.environments.support_desk.red_team",
    "random_walks": "offline_arl.environments.probes.random_walks",
    "double_t_maze": "offline_arl.environments.probes.double_t_maze",
    "key_to_door": "offline_arl.environments.probes.key_to_door",
    "stitching": "offline_arl.environments.probes.stitching",
}

__all__ = ["Environment", "EnvironmentFamily", "EpisodeStart", "StepResult", "Task", "load"]


def load(name: str) -> EnvironmentFamily:
    """The environment family called `name`; prefixes make one of something else.

    `replay:FOLDER` is that of replay tasks (see `environments.replay`), `gym:ID` one of Gymnasium's, `file:PATH` that
    of a file of tasks, for example about an MCP server's tools (see `environments.task_files`).

    Raises:
        UsageError: There is none; the message lists those there are.
        DataError: The folder holds no replay tasks, or the file no tasks.
    """
    if name.startswith(_REPLAY):
        from offline_arl.environments.replay.family import ReplayFamily

        return ReplayFamily(name.removeprefix(_REPLAY))
    if name.startswith(_FILE):
        from offline_arl.environments.task_files import TaskFileFamily

        return TaskFileFamily(name.removeprefix(_FILE))
    if name.startswith(_GYMNASIUM):
        from offline_arl.environments.gymnasium_text import GymnasiumFamily

        return GymnasiumFamily(name.removeprefix(_GYMNASIUM))
    if name in _OWN:
        own: EnvironmentFamily = import_module(_OWN[name]).family
        return own
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        known = ", ".join([*sorted({*_OWN, *found}), f"{_REPLAY}FOLDER", f"{_GYMNASIUM}ID", f"{_FILE}PATH"])
        raise UsageError(f"unknown environment {name!r}; available: {known}")
    loaded: EnvironmentFamily = found[name].load()
    return loaded
