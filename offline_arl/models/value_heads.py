"""Value heads on step features: twin critics Q(s, a) and a value function V(s), small perceptrons."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from pathlib import Path

import msgspec
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from offline_arl.models.head_files import read_heads, write_heads

N_CRITICS = 2
WEIGHTS_NAME = "value_heads.safetensors"
CONFIG_NAME = "value_heads.json"


class HeadShape(msgspec.Struct, frozen=True):
    """Sizes of the heads. `layer_norm` normalizes each feature vector before the first layer.

    `ensemble`: so many pairs of critics, each with its own value function.
    """

    state_size: int
    action_size: int
    hidden_size: int = 128
    hidden_layers: int = 2
    layer_norm: bool = True
    ensemble: int = 1


class Ensemble(nn.Module):
    """`members` perceptrons of one shape side by side, with ReLU between the layers and a scalar output."""

    def __init__(self, members: int, sizes: list[int], generator: torch.Generator) -> None:
        super().__init__()
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in itertools.pairwise(sizes):
            bound = 1.0 / math.sqrt(fan_in)
            weight = torch.empty(members, fan_in, fan_out).uniform_(-bound, bound, generator=generator)
            self.weights.append(nn.Parameter(weight * math.sqrt(3.0) if fan_out > 1 else weight))
            self.biases.append(nn.Parameter(torch.zeros(members, 1, fan_out)))

    def forward(self, inputs: Float[Tensor, "N F"]) -> Float[Tensor, "members N"]:
        """One value for each member and input."""
        members, fan_in, fan_out = self.weights[0].shape
        # All members read the same inputs: one product serves the first layer of all of them.
        first = torch.addmm(self.biases[0].flatten(), inputs, self.weights[0].permute(1, 0, 2).reshape(fan_in, -1))
        values = first.view(-1, members, fan_out).transpose(0, 1)
        for weight, bias in zip(self.weights[1:], self.biases[1:], strict=True):
            values = torch.baddbmm(bias, F.relu(values), weight)
        return values.squeeze(-1)


class _Moments:
    """Mean and standard deviation of rows that come in pieces, by the parallel update of Chan et al. 1979."""

    def __init__(self) -> None:
        self._rows = 0
        self._mean = self._squares = torch.zeros((), dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        rows = rows.double()
        mean = rows.mean(dim=0)
        total = self._rows + len(rows)
        difference = mean - self._mean
        self._squares = (
            self._squares + (rows - mean).square().sum(dim=0) + difference.square() * (self._rows * len(rows) / total)
        )
        self._mean = self._mean + difference * (len(rows) / total)
        self._rows = total

    def mean_and_scale(self) -> tuple[Tensor, Tensor]:
        return self._mean, (self._squares / self._rows).sqrt()


class ValueHeads(nn.Module):
    """Twin critics and a value function on features of steps, or several of them, of which the means are taken.

    Features are standardized with the mean and scale of the training data (buffers, saved with the weights).

    Args:
        shape: Sizes.
        generator: Of the initial weights; the global random state is not touched.
    """

    state_mean: Tensor
    state_scale: Tensor
    action_mean: Tensor
    action_scale: Tensor

    def __init__(self, shape: HeadShape, *, generator: torch.Generator) -> None:
        super().__init__()
        self.shape = shape
        hidden = [shape.hidden_size] * shape.hidden_layers
        self.critics = Ensemble(
            shape.ensemble * N_CRITICS, [shape.state_size + shape.action_size, *hidden, 1], generator
        )
        self.value = Ensemble(shape.ensemble, [shape.state_size, *hidden, 1], generator)
        for name, size in (("state", shape.state_size), ("action", shape.action_size)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_scale", torch.ones(size))

    def set_normalization(self, pieces: Iterable[tuple[Float[Tensor, "n S"], Float[Tensor, "n A"]]]) -> None:
        """Take mean and scale of the features from training data.

        Args:
            pieces: (states, actions) of some rows each, gone through once; at least one row.
        """
        moments = [_Moments(), _Moments()]
        for piece in pieces:
            for part, features in zip(moments, piece, strict=True):
                part.add(features)
        for name, part in zip(("state", "action"), moments, strict=True):
            mean, scale = part.mean_and_scale()
            getattr(self, f"{name}_mean").copy_(mean)
            getattr(self, f"{name}_scale").copy_(scale.clamp_min(1e-3))

    def q(self, states: Float[Tensor, "N S"], actions: Float[Tensor, "N A"]) -> Float[Tensor, "2 N"]:
        """Q(s, a) of each of the two critics, the mean over an ensemble, in units of return."""
        return self.by_member(self.critics(self.q_inputs(states, actions))).mean(dim=0)

    def by_member(self, q_values: Float[Tensor, "pairs N"]) -> Float[Tensor, "E 2 N"]:
        """The output of `critics`, pair by pair."""
        return q_values.reshape(self.shape.ensemble, N_CRITICS, -1)

    def q_inputs(self, states: Float[Tensor, "N S"], actions: Float[Tensor, "N A"]) -> Float[Tensor, "N SA"]:
        """What the critics read: normalized features of state and action, side by side."""
        normalized = self._normalized((actions.float() - self.action_mean) / self.action_scale)
        return torch.cat([self.v_inputs(states), normalized], dim=-1)

    def v(self, states: Float[Tensor, "N S"]) -> Float[Tensor, " N"]:
        """V(s), the mean over an ensemble, in units of return."""
        return self.v_by_member(states).mean(dim=0)

    def v_by_member(self, states: Float[Tensor, "N S"]) -> Float[Tensor, "E N"]:
        """V(s) of each value function."""
        values: Tensor = self.value(self.v_inputs(states))
        return values

    def v_inputs(self, states: Float[Tensor, "N S"]) -> Float[Tensor, "N S"]:
        """What the value function reads: normalized features of the state."""
        return self._normalized((states.float() - self.state_mean) / self.state_scale)

    def advantages(self, states: Float[Tensor, "N S"], actions: Float[Tensor, "N A"]) -> Float[Tensor, " N"]:
        """The smaller of the two Q(s, a) of a pair minus its V(s), the mean over an ensemble."""
        q_values = self.by_member(self.critics(self.q_inputs(states, actions)))
        return (q_values.amin(dim=1) - self.v_by_member(states)).mean(dim=0)

    def _normalized(self, features: Tensor) -> Tensor:
        return F.layer_norm(features, features.shape[-1:]) if self.shape.layer_norm else features


def save_heads(heads: ValueHeads, folder: str | Path) -> None:
    """Write the weights as safetensors and the sizes as JSON into a folder."""
    write_heads(heads, heads.shape, Path(folder), weights=WEIGHTS_NAME, sizes=CONFIG_NAME)


def load_heads(folder: str | Path) -> ValueHeads:
    """Read heads that `save_heads` wrote, ready for inference.

    Raises:
        DataError: A file is missing or damaged.
    """
    return read_heads(
        Path(folder),
        lambda shape: ValueHeads(shape, generator=torch.Generator()),
        HeadShape,
        weights=WEIGHTS_NAME,
        sizes=CONFIG_NAME,
        what="value heads",
    )
