"""Configuration of step features. This module imports no torch, so that pipeline files can be checked without it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt


class FeatureConfig(BaseModel):
    """Which hidden states are features and how they are stored.

    `layers`: 0 is the embeddings, -1 the last layer after the final norm; several are concatenated.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: tuple[int, ...] = Field(default=(-1,), min_length=1)
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    tokens_per_batch: PositiveInt = 8_192
