"""Faults on purpose: tools that fail, hang, babble or return nonsense, so that agents and rollouts meet it early."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from offline_arl.environments.tools import Tool
from offline_arl.errors import UsageError


class Faults(NamedTuple):
    """Shares of calls that go wrong, each between 0 and 1, together at most 1."""

    errors: float = 0.0  # raises before the tool does anything
    delays: float = 0.0  # takes `delay_s` longer
    malformed: float = 0.0  # half of the result, as from a cut connection
    huge: float = 0.0  # the result and `huge_characters` more
    delay_s: float = 1.0
    huge_characters: int = 1_000_000


class InjectedError(Exception):
    """A fault that was injected."""


def with_faults(tools: Sequence[Tool], faults: Faults, *, seed: int) -> list[Tool]:
    """The tools, of whose calls some go wrong.

    Which ones depends on the seed, the tool and how often it was called: the n-th call of a tool meets the same
    fault in every run.

    Raises:
        UsageError: A share is negative, or they exceed 1 together.
    """
    shares = np.array(faults[:4])
    if (shares < 0).any() or shares.sum() > 1:
        raise UsageError(f"shares of faults must be at least 0 and together at most 1, not {faults[:4]}")
    return [dataclasses.replace(tool, function=_Faulty(tool, faults, seed)) for tool in tools]


class _Faulty:
    def __init__(self, tool: Tool, faults: Faults, seed: int) -> None:
        self._function = tool.function
        self._faults = faults
        digest = hashlib.sha256(tool.name.encode()).digest()
        self._generator = np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
        self._bounds = np.cumsum(faults[:4])

    def __call__(self, arguments: dict[str, Any]) -> Any:
        kind = int(np.searchsorted(self._bounds, self._generator.random(), side="right"))
        if kind == 0:
            raise InjectedError("injected fault")
        if kind == 1:
            time.sleep(self._faults.delay_s)
        result = self._function(arguments)
        if kind == 2:
            text = str(result)
            return text[: len(text) // 2]
        if kind == 3:
            return str(result) + "x" * self._faults.huge_characters
        return result
