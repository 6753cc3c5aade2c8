"""Value heads with one decision a token: critics Q(s, token) over the vocabulary and V(s), on last hidden states.

The state in front of a token is the last hidden state (after the final norm) at the position that predicts it. Each
head is one linear layer (`hidden_layers` 0), which adds up with the output layer of the language model, or a
perceptron with one or two hidden layers, as in Snell et al. 2023, "Offline RL for Natural Language Generation with
Implicit Language Q Learning".

`q` holds a number for each state and each token of the vocabulary, so it is for few states: those in which a policy
decides. Losses read `q_at` and `q_and_logsumexp`, which need `chunk_tokens * V` numbers at most.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from offline_arl.models.head_files import read_heads, write_heads
from offline_arl.objectives import token_q_values

WEIGHTS_NAME = "token_value_heads.safetensors"
CONFIG_NAME = "token_value_heads.json"
_OUTPUT_SCALE = 0.1  # standard deviation of Q and V before training, of states of unit variance, in units of return


class TokenHeadShape(msgspec.Struct, frozen=True):
    """Sizes of the heads. `hidden_size` counts where there are hidden layers; ILQL takes twice the state's.

    Without `bias` the output layers of the critics keep a bias of 0, so that linear ones fold exactly into an output
    layer that has none (`folding`).
    """

    state_size: int
    vocabulary_size: int
    critics: int = 2
    hidden_layers: int = 0
    hidden_size: int = 0
    bias: bool = True


class CriticValues(NamedTuple):
    """Q of each given token by each critic, and the log-sum-exp of Q over the vocabulary in its state."""

    q_values: Float[Tensor, "critics N"]
    logsumexp: Float[Tensor, "critics N"]


class TokenHead(nn.Module):
    """A perceptron with ReLU in front of a linear output layer; with no hidden layer it is that layer alone."""

    def __init__(self, sizes: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self.hidden = nn.ModuleList()
        for fan_in, fan_out in itertools.pairwise(sizes[:-1]):
            layer = _linear(fan_in, fan_out)
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
            nn.init.zeros_(layer.bias)
            self.hidden.append(layer)
        self.output = _linear(sizes[-2], sizes[-1])
        nn.init.normal_(self.output.weight, std=_OUTPUT_SCALE / math.sqrt(sizes[-2]), generator=generator)
        nn.init.zeros_(self.output.bias)

    @property
    def first(self) -> nn.Linear:
        """The layer that reads the state."""
        layer = self.hidden[0] if len(self.hidden) else self.output
        assert isinstance(layer, nn.Linear)
        return layer

    def features(self, states: Float[Tensor, "*N H"]) -> Float[Tensor, "*N K"]:
        """Inputs of the output layer, in the dtype of the weights."""
        features = states.to(self.output.weight.dtype)
        for layer in self.hidden:
            features = F.relu(layer(features))
        return features

    def forward(self, states: Float[Tensor, "*N H"]) -> Float[Tensor, "*N outputs"]:
        """All outputs."""
        outputs: Tensor = self.output(self.features(states))
        return outputs

    def at(self, states: Float[Tensor, "*N H"], indices: Int[Tensor, "*N"]) -> Float[Tensor, "*N"]:
        """One output for each state: `K` products a state in place of `outputs * K`."""
        weights, biases = F.embedding(indices, self.output.weight), self.output.bias[indices]
        values: Tensor = (self.features(states) * weights).sum(dim=-1) + biases
        return values


class TokenValueHeads(nn.Module):
    """Critics over the vocabulary and a value function on last hidden states, all in units of return.

    Args:
        shape: Sizes.
        generator: Of the initial weights; the global random state is not touched.
    """

    def __init__(self, shape: TokenHeadShape, *, generator: torch.Generator) -> None:
        super().__init__()
        self.shape = shape
        inner = [shape.state_size, *[shape.hidden_size] * shape.hidden_layers]
        self.critics = nn.ModuleList(
            TokenHead([*inner, shape.vocabulary_size], generator) for _ in range(shape.critics)
        )
        for critic in self._heads():
            critic.output.bias.requires_grad_(shape.bias)
        self.value = TokenHead([*inner, 1], generator)

    def q(self, states: Float[Tensor, "*N H"]) -> Float[Tensor, "critics ... V"]:
        """Q(s, .) of each critic over the whole vocabulary; for few states only."""
        return torch.stack([critic(states) for critic in self.critics])

    def q_at(self, states: Float[Tensor, "*N H"], token_ids: Int[Tensor, "*N"]) -> Float[Tensor, "critics ..."]:
        """Q(s, token) of each critic for one token a state; nothing else of the vocabulary is computed."""
        return torch.stack([critic.at(states, token_ids) for critic in self._heads()])

    def q_and_logsumexp(
        self, states: Float[Tensor, "N H"], token_ids: Int[Tensor, " N"], *, temperature: float, chunk_tokens: int
    ) -> CriticValues:
        """`q_at` and the soft maximum over the vocabulary, which the conservative term compares.

        Args:
            states: One a decision.
            token_ids: The token of each decision.
            temperature: Of the soft maximum, `temperature * logsumexp(Q / temperature)`.
            chunk_tokens: States at a time; extra memory is about `2 * chunk_tokens * V` numbers, forward and backward.
        """
        # One row whose first token has no prediction: `token_q_values` reads rows of token ids.
        input_ids = F.pad(token_ids, (1, 0)).unsqueeze(0)
        mask = F.pad(torch.ones_like(token_ids, dtype=torch.bool), (1, 0)).unsqueeze(0)
        found = [
            token_q_values(
                critic.features(states), critic.output.weight, critic.output.bias, input_ids, mask,
                temperature=temperature, chunk_tokens=chunk_tokens,
            )
            for critic in self._heads()
        ]  # fmt: skip
        return CriticValues(
            q_values=torch.stack([one.q_values[0, 1:] for one in found]),
            logsumexp=torch.stack([one.logsumexp[0, 1:] for one in found]),
        )

    def v(self, states: Float[Tensor, "*N H"]) -> Float[Tensor, "*N"]:
        """V(s): one value a state."""
        values: Tensor = self.value(states)
        return values.squeeze(-1)

    def advantages(self, states: Float[Tensor, "*N H"], token_ids: Int[Tensor, "*N"]) -> Float[Tensor, "*N"]:
        """The smallest Q(s, token) of the critics minus V(s)."""
        return self.q_at(states, token_ids).amin(dim=0) - self.v(states)

    @torch.no_grad()
    def absorb(self, mean: Float[Tensor, " H"], matrix: Float[Tensor, "H H"]) -> None:
        """Turn heads that were trained on `(states - mean) @ matrix` into heads that read the states themselves.

        The first layer of each head changes, exactly: `W A' (s - m) + b = (W A') s + (b - (W A') m)`. Linear heads
        without a bias want a mean of 0.
        """
        mean, matrix = mean.double(), matrix.double()
        for head in (*self._heads(), self.value):
            layer = head.first
            weight = layer.weight.double() @ matrix.T
            layer.bias.sub_((weight @ mean).to(layer.bias))
            layer.weight.copy_(weight)

    def _heads(self) -> list[TokenHead]:
        """The critics, with their class."""
        return [critic for critic in self.critics if isinstance(critic, TokenHead)]


def _linear(fan_in: int, fan_out: int) -> nn.Linear:
    """A layer whose weights are not set yet: torch's own initialization would draw from the global random state."""
    return nn.Linear(fan_in, fan_out, device="meta").to_empty(device="cpu")


def save_token_heads(heads: TokenValueHeads, folder: str | Path) -> None:
    """Write the heads into the folder of the model whose states they read: weights as safetensors, sizes as JSON."""
    write_heads(heads, heads.shape, Path(folder), weights=WEIGHTS_NAME, sizes=CONFIG_NAME)


def load_token_heads(folder: str | Path) -> TokenValueHeads:
    """Read heads that `save_token_heads` wrote, ready for inference.

    Raises:
        DataError: A file is missing or damaged.
    """
    return read_heads(
        Path(folder),
        lambda shape: TokenValueHeads(shape, generator=torch.Generator()),
        TokenHeadShape,
        weights=WEIGHTS_NAME,
        sizes=CONFIG_NAME,
        what="token value heads",
    )
