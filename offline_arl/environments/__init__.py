"""Environments: where agents act. `load` finds one by name, also those of other packages' entry points."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from offline_arl.environments.protocol import Environment, EnvironmentFamily, EpisodeStart, StepResult, Task
from offline_arl.errors import UsageError

ENTRY_POINT_GROUP = "offline_arl.environments"
# Prefixes of names that make an environment of something: `module:class`, called with the rest of the name.
_MADE = {
    "replay:": "offline_arl.environments.replay.family:ReplayFamily",
    "file:": "offline_arl.environments.task_files:TaskFileFamily",
    "gym:": "offline_arl.environments.gymnasium_text:GymnasiumFamily",
    "openenv:": "offline_arl.environments.openenv:OpenEnvFamily",
    "verifiers:": "offline_arl.environments.verifiers_env:VerifiersFamily",
}
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
    of a file of tasks, for example about an MCP server's tools (see `environments.task_files`), `openenv:URL` that of
    an OpenEnv server, `verifiers:ID` one of the verifiers library's.

    Raises:
        UsageError: There is none; the message lists those there are. Or it is another package's and cannot be loaded.
        DataError: The folder holds no replay tasks, or the file no tasks.
    """
    for prefix, place in _MADE.items():
        if name.startswith(prefix):
            module, _, kind = place.partition(":")
            made: EnvironmentFamily = getattr(import_module(module), kind)(name.removeprefix(prefix))
            return made
    if name in _OWN:
        own: EnvironmentFamily = import_module(_OWN[name]).family
        return own
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        prefixed = ["replay:FOLDER", "file:PATH", "gym:ID", "openenv:URL", "verifiers:ID"]
        known = ", ".join([*sorted({*_OWN, *found}), *prefixed])
        raise UsageError(f"unknown environment {name!r}; available: {known}")
    try:
        loaded: EnvironmentFamily = found[name].load()
    except Exception as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"the environment {name!r}, of {found[name].value}, cannot be loaded ({told})") from error
    return loaded
