"""Environments: where agents act. `load` finds one by name, also those of other packages' entry points."""

from __future__ import annotations

from importlib.metadata import entry_points

from offline_arl.environments.protocol import Environment, EnvironmentFamily, EpisodeStart, StepResult, Task
from offline_arl.errors import UsageError

ENTRY_POINT_GROUP = "offline_arl.environments"

__all__ = ["Environment", "EnvironmentFamily", "EpisodeStart", "StepResult", "Task", "load"]


def load(name: str) -> EnvironmentFamily:
    """The environment family called `name`.

    Raises:
        UsageError: There is none; the message lists those there are.
    """
    if name == "support_desk":
        from offline_arl.environments.support_desk import family

        return family
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        known = ", ".join(sorted({"support_desk", *found}))
        raise UsageError(f"unknown environment {name!r}; available: {known}")
    loaded: EnvironmentFamily = found[name].load()
    return loaded
