"""The splits of an environment's tasks. No two of them share a task, which is what a hash of its content decides."""

from __future__ import annotations

import hashlib

from offline_arl.errors import UsageError

SPLITS = ("train", "validation", "test")


def require_split(split: str) -> None:
    """Raise a `UsageError` unless `split` is one of `SPLITS`."""
    if split not in SPLITS:
        raise UsageError(f"unknown split {split!r}; use one of {', '.join(SPLITS)}")


def split_of_content(content: bytes) -> str:
    """The split that a content belongs to: 60 % train, 20 % validation, 20 % test of all contents."""
    digest = hashlib.sha256(content).digest()[0] % 5
    return "train" if digest < 3 else SPLITS[digest - 2]
