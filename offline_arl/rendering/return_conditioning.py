"""Returns written into messages: the condition that a Decision Transformer reads before each step.

The condition of a step stands at the end of the last message before it that is not the assistant's, the same for logged
trajectories and for messages that arrive in a rollout; so a trajectory in training has the tokens of the rollout with
the same messages and returns.

Paper: Chen et al. 2021, "Decision Transformer", section 3.
Deviation: the paper embeds the return as a real number. Language models read tokens, so the return is written as text
or as one of a few classes, which hold about equal shares of the data (`objectives.return_conditioning`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from offline_arl.errors import DataError, UsageError
from offline_arl.rendering.conversation import ControlPart, visible_text
from offline_arl.trajectories.schema import Message, TextPart, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RETURN_DECIMALS = 6
MAX_LEVELS = 100


class ConditioningConfig(BaseModel):
    """How a return is written.

    `form`: "quantile_text" writes its class, `[return 3/4]`; "quantile_tokens" the same as one token, which the
    tokenizer must have (`return_tokens` of the stage `initial_policy`) and which no text of a message can spell;
    "number" writes it out, `[return 0.85]`.

    `scope`: "step" writes what is still to come before each step; "trajectory" the return of the whole attempt, once,
    before the first step.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    form: Literal["quantile_text", "quantile_tokens", "number"] = "quantile_text"
    scope: Literal["step", "trajectory"] = "step"
    bins: int = Field(10, ge=2, le=MAX_LEVELS, description="most classes; fewer where returns repeat")
    decimals: int = Field(2, ge=0, le=RETURN_DECIMALS, description="of a number")


def rounded_return(value: float) -> float:
    """A return without the rounding errors of the sum it comes from, so that 1.0 - 0.05 falls where 0.95 does.

    >>> rounded_return(0.1 + 0.2)
    0.3
    """
    return round(value, RETURN_DECIMALS) + 0.0  # the sum turns -0.0 into 0.0


def return_token(level: int) -> str:
    """The text of the token of a class; levels count from 1, the lowest returns.

    >>> return_token(1)
    '<|return_1|>'
    """
    return f"<|return_{level}|>"


def add_return_tokens(tokenizer: PreTrainedTokenizerBase, count: int) -> list[int]:
    """Add the tokens of `count` classes to a tokenizer, as control tokens: text in a message never becomes one.

    Returns:
        The ids of those that it did not have; a model needs rows for them (`models.embeddings.embed_new_tokens`).
    """
    known = tokenizer.get_vocab()
    new = [token for level in range(1, count + 1) if (token := return_token(level)) not in known]
    tokenizer.add_tokens(new, special_tokens=True)
    found: list[int] = tokenizer.convert_tokens_to_ids(new)
    return found


def return_token_ids(tokenizer: PreTrainedTokenizerBase, levels: int) -> list[int]:
    """The ids of the tokens of all classes, which the tokenizer must have."""
    found: list[int] = tokenizer.convert_tokens_to_ids([return_token(level) for level in range(1, levels + 1)])
    return found


def require_return_tokens(tokenizer: PreTrainedTokenizerBase, levels: int) -> None:
    """Make sure that a tokenizer has the tokens of all classes.

    Raises:
        UsageError: Some are missing; the message names the setting that adds them.
    """
    vocabulary = tokenizer.get_vocab()
    if any(return_token(level) not in vocabulary for level in range(1, levels + 1)):
        raise UsageError(
            f"the tokenizer lacks tokens for {levels} classes of returns; set return_tokens: {levels} in the "
            "stage initial_policy, or take another form of conditioning"
        )


@dataclass(frozen=True)
class ConditionWriter:
    """Writes returns into messages.

    Args:
        config: How.
        edges: Lower borders of all classes but the first, increasing; unused where numbers are written.
    """

    config: ConditioningConfig
    edges: tuple[float, ...] = ()

    @property
    def levels(self) -> int:
        """Number of classes."""
        return len(self.edges) + 1

    def level(self, value: float) -> int:
        """The class of a return, from 1: one more than `objectives.quantize_returns` counts.

        >>> ConditionWriter(ConditioningConfig(), (0.5,)).level(0.5)
        2
        """
        return bisect_right(self.edges, rounded_return(value)) + 1

    def text(self, value: float) -> str:
        """What a return is written as.

        >>> ConditionWriter(ConditioningConfig(), (0.5,)).text(0.7)
        '[return 2/2]'
        >>> ConditionWriter(ConditioningConfig(form="number")).text(-0.001)
        '[return 0.00]'
        """
        if self.config.form == "quantile_tokens":
            return return_token(self.level(value))
        if self.config.form == "quantile_text":
            return f"[return {self.level(value)}/{self.levels}]"
        shown = round(value, self.config.decimals) + 0.0
        return f"[return {shown:.{self.config.decimals}f}]"

    def write(self, messages: Sequence[Message], value: float) -> list[Message]:
        """The messages before a step with its condition in the last one that is not the assistant's.

        Without such a message they come back as they are: an action must not be changed, and the step then stands
        under the condition of the step before it.

        Args:
            messages: Those between the step before and this one; for the first step, all that precede it.
            value: The return that is asked for.

        Raises:
            DataError: The return is infinite or not a number.
        """
        if not -float("inf") < value < float("inf"):
            raise DataError(f"a return of {value} cannot be written into a message; give a finite one")
        written = list(messages)
        place = last_place(messages)
        if place is not None:
            written[place] = self._conditioned(written[place], self.text(value))
        return written

    def write_all(self, trajectory: Trajectory, returns: Sequence[float]) -> Trajectory:
        """A trajectory with the condition of each step, or of the first where the scope is the trajectory.

        Args:
            trajectory: Messages without conditions.
            returns: The return from each step on, in the order of `Trajectory.step_indices`.
        """
        messages: list[Message] = []
        steps = trajectory.step_indices()
        for number, (index, value) in enumerate(zip(steps, returns, strict=True)):
            between = trajectory.messages[len(messages) : index]
            messages += self.write(between, value) if number == 0 or self.config.scope == "step" else between
            messages.append(trajectory.messages[index])
        messages += trajectory.messages[len(messages) :]
        return msgspec.structs.replace(trajectory, messages=messages)

    def steps_without_own(self, trajectory: Trajectory) -> int:
        """Steps of a trajectory that have no message for a condition of their own."""
        missing, begin = 0, 0
        for number, index in enumerate(trajectory.step_indices()):
            if number == 0 or self.config.scope == "step":
                missing += last_place(trajectory.messages[begin:index]) is None
            begin = index + 1
        return missing

    def _conditioned(self, message: Message, text: str) -> Message:
        """The message with the condition at its end."""
        content = list(message.content or ())
        shown = visible_text(message)
        if not shown and message.error is not None:  # what stands for the text of a failed tool is kept
            shown = message.error.text
            content = [TextPart(shown)]
        if self.config.form == "quantile_tokens":
            content.append(ControlPart(text))
        else:
            content.append(TextPart(f"\n{text}" if shown else text))
        return msgspec.structs.replace(message, content=content)


def last_place(messages: Sequence[Message]) -> int | None:
    """Index of the last message that is not the assistant's; None where there is none."""
    places = (index for index in reversed(range(len(messages))) if messages[index].role != "assistant")
    return next(places, None)
