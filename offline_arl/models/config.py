"""Configuration of step features. This module imports no torch, so that pipeline files can be checked without it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt


class FeatureConfig(BaseModel):
    """Which hidden states are features and how they are stored.

    `layers`: 0 is the embeddings, -1 the last layer after the final norm; several are concatenated.

    `state_window`: the state before an action also has the mean over so many tokens before it. A policy gathers in its
    last token what it needs to predict its own next tokens; what it ignores (a number in a tool's result that logged
    agents seldom looked at) is not there, and values of `layers: [-1, 0]` with a window of the end of a result see it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: tuple[int, ...] = Field(default=(-1,), min_length=1)
    state_window: NonNegativeInt = 0
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    tokens_per_batch: PositiveInt = 8_192
