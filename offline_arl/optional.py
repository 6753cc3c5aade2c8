"""Guarded imports of optional packages."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from offline_arl.errors import MissingDependencyError


def available(package: str) -> bool:
    """Say whether `package` can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def require(package: str, *, extra: str) -> ModuleType:
    """Import an optional package or say how to install it.

    Args:
        package: Module name, for example `"vllm"`.
        extra: The extra of offline_arl that installs it.

    Raises:
        MissingDependencyError: The package is not installed; the message names the pip command.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] != package.split(".")[0]:
            raise
        raise MissingDependencyError(
            f"{package} is not installed; install it with: pip install 'offline_arl[{extra}]'"
        ) from error
