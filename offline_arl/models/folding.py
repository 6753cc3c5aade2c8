"""A linear Q head folded into the output layer: value-guided decoding that any server can serve.

Guided logits are `log behavior + inverse_temperature * (Q - V)`. V is the same for all tokens, so it moves no
probability; Q of a linear head is linear in the state that the output layer reads. Adding `inverse_temperature` times
its weights to those of the output layer gives the same distribution, exactly, in a plain model folder.

Two things a plain model lacks. It has no support mask, so the heads must come from training with a conservative
weight, and the probability that the folded policy gives to tokens outside the support is to be measured (`FoldReport`).
And many output layers have no bias to take the head's: its place is then taken by a direction in which all states have
the same component as nearly as they do, found by least squares; how far the policy is off by that is measured too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from offline_arl.errors import UsageError
from offline_arl.models.policy import logits_and_states, unwrapped_model
from offline_arl.models.token_heads import TokenHead, TokenValueHeads

_RIDGE = 1e-6  # of the mean square of the states, so that directions in which they do not vary stay at 0
_SAME_LOGITS = 1e-4  # relative; a soft cap is off by far more
_PROBED_TOKENS = 16


class Fold(NamedTuple):
    """What is added to the output layer. `bias` is None where that layer has none."""

    weight: Float[Tensor, "V H"]
    bias: Float[Tensor, " V"] | None
    scale: float  # of the logits behind the output layer

    def logits(self, states: Float[Tensor, "N H"]) -> Float[Tensor, "N V"]:
        """What the fold adds to the logits."""
        return self.scale * F.linear(states.to(self.weight.dtype), self.weight, self.bias)


class FoldReport(NamedTuple):
    """A folded policy on states of data, means and largest values over N decisions."""

    outside_support: Float[Tensor, " N"]  # probability of tokens that the behavior policy does not support
    behavior_outside_support: Float[Tensor, " N"]  # the same of the behavior policy
    error: Float[Tensor, " N"]  # total variation distance to the exactly guided policy without a mask

    @classmethod
    def concatenate(cls, pieces: list[FoldReport]) -> FoldReport:
        """Several pieces as one."""
        return cls(*(torch.cat(column) for column in zip(*pieces, strict=True)))


class ConstantDirection:
    """Finds u with `states @ u` as close to 1 as linear least squares gets it; states come in pieces."""

    def __init__(self, state_size: int) -> None:
        self._products = torch.zeros(state_size, state_size, dtype=torch.float64)
        self._sums = torch.zeros(state_size, dtype=torch.float64)
        self._rows = 0

    def add(self, states: Float[Tensor, "N H"]) -> None:
        """Count some states in."""
        rows = states.detach().double().cpu()
        self._products += rows.T @ rows
        self._sums += rows.sum(dim=0)
        self._rows += len(rows)

    def solve(self) -> Float[Tensor, " H"]:
        """The direction.

        Raises:
            UsageError: No state was added.
        """
        if self._rows == 0:
            raise UsageError("no states to find a constant direction in; give a dataset with action tokens")
        ridge = _RIDGE * self._products.diagonal().mean()
        regularized = self._products + ridge * torch.eye(len(self._sums), dtype=torch.float64)
        direction: Tensor = torch.linalg.solve(regularized, self._sums)
        return direction.float()


def needs_constant_direction(model: Any, heads: TokenValueHeads) -> bool:
    """Whether the heads have a bias and the output layer has none."""
    _, bias = _mean_critic(heads)
    return unwrapped_model(model).get_output_embeddings().bias is None and bool(bias.abs().max() > 0)


@torch.no_grad()
def make_fold(
    model: Any,
    heads: TokenValueHeads,
    *,
    inverse_temperature: float,
    constant: Float[Tensor, " H"] | None = None,
) -> Fold:
    """`inverse_temperature` times the mean of the critics, as a change of the model's output layer.

    The mean of twin critics is linear, their minimum is not.

    Args:
        model: Whose output layer is meant; it is left as it is.
        heads: Of no hidden layers.
        inverse_temperature: In units of 1 / return.
        constant: A direction in which all states have the component 1, where `needs_constant_direction` asks for it.

    Raises:
        UsageError: The heads have hidden layers, a constant direction is missing, or the model does more to its
            logits than to scale them.
    """
    weight, bias = _mean_critic(heads)
    scale = _logit_scale(model)
    head = unwrapped_model(model).get_output_embeddings()
    weight, bias = ((inverse_temperature / scale) * part.to(head.weight.device) for part in (weight, bias))
    if head.bias is not None:
        return Fold(weight, bias, scale)
    if needs_constant_direction(model, heads):
        if constant is None:
            raise UsageError("the heads have a bias and the output layer has none; give a constant direction")
        weight = weight + torch.outer(bias, constant.to(weight))
    return Fold(weight, None, scale)


@torch.no_grad()
def apply_fold(model: Any, fold: Fold) -> None:
    """Add a fold to the model's output layer, in place; tied embeddings are untied."""
    head = unwrapped_model(model).get_output_embeddings()
    # A new parameter: the old one may be that of the input embeddings, which stay as they are.
    head.weight = nn.Parameter((head.weight.float() + fold.weight).to(head.weight.dtype))
    if fold.bias is not None:
        head.bias = nn.Parameter((head.bias.float() + fold.bias).to(head.bias.dtype))
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False


def report_fold(
    fold: Fold,
    logits: Float[Tensor, "N V"],
    states: Float[Tensor, "N H"],
    exact: Float[Tensor, "N V"],
    support: Bool[Tensor, "N V"],
) -> FoldReport:
    """Compare a folded policy with what it stands for, state by state.

    Args:
        fold: What is added.
        logits: Of the behavior policy.
        states: What its output layer read.
        exact: Guided logits without a support mask, of the mean of the critics.
        support: What the behavior policy supports.
    """
    behavior = logits.float().softmax(dim=-1)
    folded = (logits.float() + fold.logits(states)).softmax(dim=-1)
    return FoldReport(
        outside_support=folded.masked_fill(support, 0.0).sum(dim=-1),
        behavior_outside_support=behavior.masked_fill(support, 0.0).sum(dim=-1),
        error=0.5 * (folded - exact.softmax(dim=-1)).abs().sum(dim=-1),
    )


def _mean_critic(heads: TokenValueHeads) -> tuple[Tensor, Tensor]:
    """Weight and bias of the mean of linear critics; the bias about its mean, since a constant moves nothing."""
    if heads.shape.hidden_layers:
        raise UsageError(
            f"the value heads have {heads.shape.hidden_layers} hidden layers, and only linear ones can be folded; "
            "train them with hidden_layers 0, or decode with value_guided"
        )
    layers = [critic.output for critic in heads.critics if isinstance(critic, TokenHead)]
    weight = torch.stack([layer.weight for layer in layers]).float().mean(dim=0)
    bias = torch.stack([layer.bias for layer in layers]).float().mean(dim=0)
    return weight, bias - bias.mean()


def _logit_scale(model: Any) -> float:
    """The factor between the output layer and the logits, 1 for most models.

    Raises:
        UsageError: It is no factor: the logits are capped or otherwise bent.
    """
    head = unwrapped_model(model).get_output_embeddings()
    tokens = torch.arange(min(_PROBED_TOKENS, head.weight.shape[0]), device=head.weight.device)
    logits, states = logits_and_states(model, input_ids=tokens.unsqueeze(0), use_cache=False)
    raw = F.linear(states, head.weight, head.bias).double()
    scale = float((logits.double() * raw).sum() / raw.square().sum())
    rounding = max(_SAME_LOGITS, 2 * torch.finfo(logits.dtype).eps)
    if float((logits.double() - scale * raw).abs().max()) > rounding * float(logits.abs().max()):
        raise UsageError(
            f"{type(unwrapped_model(model)).__name__} does more to its logits than to scale them (a soft cap?), "
            "so Q cannot be folded in; decode with value_guided"
        )
    return 1.0 if abs(scale - 1.0) < rounding else scale
