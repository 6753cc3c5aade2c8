"""What an online training was given: what remedies have to know of it, and what readers want to be reminded of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from offline_arl.online.config import GrpoConfig


@dataclass(frozen=True)
class Setup:
    """The parts of a warm start that a training uses, and the settings that its remedies name."""

    steps: int  # that were asked for
    critic: bool
    replay: bool
    curriculum_levels: int | None  # None: no curriculum
    refill_rounds: int
    group_gate: str
    on_mismatch: str

    @classmethod
    def of(cls, config: GrpoConfig, *, critic: bool, replay: bool) -> Setup:
        """That of a training with this configuration."""
        return cls(
            steps=config.steps,
            critic=critic,
            replay=replay,
            curriculum_levels=None if config.curriculum is None else config.curriculum.levels,
            refill_rounds=config.refill_rounds,
            group_gate=config.group_gate,
            on_mismatch=config.mismatch.on_mismatch,
        )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Setup | None:
        """What `as_dict` wrote; None where a later or earlier version wrote something else."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: values[name] for name in names}) if set(names) <= values.keys() else None

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)
