"""Implicit Q-learning with one decision a token (ILQL). One decision a message, the default, is `iql` with `td`.

Paper: Snell et al. 2023, "Offline RL for Natural Language Generation with Implicit Language Q Learning", section 4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from offline_arl.objectives.cql import conservative_loss
from offline_arl.objectives.iql import expectile_loss
from offline_arl.objectives.returns import next_step_values
from offline_arl.objectives.td import td_loss


class TokenIQLLosses(NamedTuple):
    """Unreduced losses of every action token, 0 elsewhere, and the advantages that extraction weights come from."""

    value: Float[Tensor, "*shape"]
    critics: Float[Tensor, "*shape"]  # summed over the critics
    conservative: Float[Tensor, "*shape"]  # summed over the critics, not yet weighted
    advantages: Float[Tensor, "*shape"]  # smallest target Q minus V, detached


def token_iql_losses(
    twin_q_values: Float[Tensor, "critics B T"],
    twin_logsumexp: Float[Tensor, "critics B T"],
    target_q_values: Float[Tensor, "critics B T"],
    values: Float[Tensor, "B T"],
    bootstrap_values: Float[Tensor, "B T"],
    rewards: Float[Tensor, "B T"],
    terminated: Bool[Tensor, "B T"],
    truncated: Bool[Tensor, "B T"],
    action_mask: Bool[Tensor, "B T"],
    has_target: Bool[Tensor, "B T"],
    *,
    discount: float | Float[Tensor, "B T"],
    expectile: float,
) -> TokenIQLLosses:
    """Losses of V, the critics and their conservative term, for the tokens that the policy sampled.

    The next state of an action token is the state before the next action token: observation tokens are skipped. The
    whole loss is `value + critics + conservative_weight * conservative`. The AWAC option, which trains the language
    model in the same pass, adds `awr.weighted_nll(logprobs, awr.advantage_weights(advantages, ...), action_mask)`.

    Deviation: `discount` may be a tensor (`returns.step_discounts`) that discounts once a step; the paper discounts
    every token. Squared errors have no factor one half.

    Args:
        twin_q_values: Q of each token by each critic, of `vocabulary.token_q_values`.
        twin_logsumexp: The log-sum-exp over the vocabulary, from there too.
        target_q_values: Q of each token by the target critics; a constant (no gradient flows to it).
        values: V of the state before each token.
        bootstrap_values: V of the state after the token, read where an attempt was cut off alone: at truncated tokens
            and at the last action token of a row. A constant.
        rewards: What arrived after the token; a step's reward stands at its last token.
        terminated: The task came to its own end with this token.
        truncated: The attempt was cut off after this token.
        action_mask: Tokens the policy sampled.
        has_target: Of these, the tokens whose next state is known or that ended the task; the others are left out of
            the critics' error alone.
        discount: Between 0 and 1, per token.
        expectile: Between 0 and 1, exclusive; the paper uses 0.7 to 0.9.

    Returns:
        [B, T] losses, aligned as the inputs; `value` has the dtype of `values`, `critics` and `conservative` that of
        `twin_q_values`. 0 behind `action_mask`, where all inputs may be NaN.

    >>> yes, no = torch.tensor([[True]]), torch.tensor([[False]])
    >>> q, lse, target, v = (torch.full((2, 1, 1), x) for x in (1.0, 1.5, 3.0, 9.0))
    >>> losses = token_iql_losses(q, lse, target, torch.ones(1, 1), v[0], torch.full((1, 1), 2.0), yes, no, yes, yes,
    ...                           discount=0.9, expectile=0.75)
    >>> [x.item() for x in losses]  # 0.75 * (3 - 1) ** 2, twice (2 - 1) ** 2, twice 1.5 - 1, 3 - 1
    [3.0, 2.0, 1.0, 2.0]
    """
    next_values = next_step_values(values, bootstrap_values, truncated, action_mask)
    return token_transition_losses(
        twin_q_values, twin_logsumexp, target_q_values, values, next_values, rewards, terminated, action_mask,
        has_target, discount=discount, expectile=expectile,
    )  # fmt: skip


def token_transition_losses(
    twin_q_values: Float[Tensor, "critics ..."],
    twin_logsumexp: Float[Tensor, "critics ..."],
    target_q_values: Float[Tensor, "critics ..."],
    values: Float[Tensor, "*shape"],
    next_values: Float[Tensor, "*shape"],
    rewards: Float[Tensor, "*shape"],
    terminated: Bool[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    has_target: Bool[Tensor, "*shape"],
    *,
    discount: float | Float[Tensor, "*shape"],
    expectile: float,
) -> TokenIQLLosses:
    """`token_iql_losses` of tokens that do not stand in rows: the value of the state after each is given.

    With `vocabulary.vocabulary_double_q_values` as `next_values` these are the losses of conservative Q-learning over
    tokens, and `value` fits a V to its critics that no other loss reads.

    Args:
        twin_q_values: Q of each token by each critic.
        twin_logsumexp: The log-sum-exp over the vocabulary.
        target_q_values: Q of each token by the target critics; a constant.
        values: V of the state before each token.
        next_values: Value of the state after it; NaN is allowed where there is none. A constant.
        rewards: What arrived after the token.
        terminated: The task came to its own end with this token.
        mask: Tokens that count.
        has_target: Of these, the tokens whose next state is known or that ended the task.
        discount: Between 0 and 1, per token.
        expectile: Between 0 and 1, exclusive.

    Returns:
        As `token_iql_losses`, of the shape of `values`.

    >>> yes, no = torch.tensor([True]), torch.tensor([False])
    >>> q, lse, target = (torch.full((1, 1), x) for x in (1.0, 1.5, 3.0))
    >>> v, next_v = torch.ones(1), torch.full((1,), 4.0)  # the critic's target is 2 + 0.5 * 4 = 4
    >>> losses = token_transition_losses(q, lse, target, v, next_v, torch.full((1,), 2.0), no, yes, yes,
    ...                                  discount=0.5, expectile=0.75)
    >>> [x.item() for x in losses]  # 0.75 * (3 - 1) ** 2, (4 - 1) ** 2, 1.5 - 1, 3 - 1
    [3.0, 9.0, 0.5, 2.0]
    """
    lowest_target = target_q_values.detach().amin(dim=0)
    zero = torch.zeros((), dtype=values.dtype, device=values.device)
    return TokenIQLLosses(
        value=expectile_loss(lowest_target, values, mask, expectile=expectile),
        critics=td_loss(twin_q_values, rewards, next_values, terminated, mask & has_target, discount=discount),
        conservative=conservative_loss(twin_logsumexp, twin_q_values, mask),
        advantages=torch.where(mask, lowest_target.to(values.dtype) - values.detach(), zero),
    )
