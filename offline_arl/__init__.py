"""offline_arl: from the interaction logs of LLM agents to better agents.

Importing the package imports nothing heavy; `open_store` loads what it needs on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offline_arl.trajectories.store import Store
    from offline_arl.trajectories.store import open_store as open_store

__version__ = "0.1.0"

__all__ = ["Store", "__version__", "open_store"]

_LAZY = ("Store", "open_store")


def __getattr__(name: str) -> object:
    """Import the store only when it is asked for, so that `import offline_arl` stays light."""
    if name in _LAZY:
        from offline_arl.trajectories import store

        return getattr(store, name)
    raise AttributeError(f"module 'offline_arl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
