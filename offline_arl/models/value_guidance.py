"""Value-guided decoding: a behavior policy's next-token distribution tilted by token-level values.

The guided logits are `log behavior + inverse_temperature * (Q - V)` on the tokens that the behavior policy supports
and minus infinity elsewhere. Their softmax maximizes expected advantage under a KL penalty to the behavior policy.
The support matters: Q of a token that no log ever took is whatever initialization and generalization made of it, and
without the mask the best of a whole vocabulary of such numbers wins.

Papers: Snell et al. 2023, "Offline RL for Natural Language Generation with Implicit Language Q Learning" (the
tilt); Fujimoto et al. 2019, "Benchmarking Batch Deep Reinforcement Learning Algorithms" (discrete BCQ: the support as a
share of the most probable action's probability).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from offline_arl.errors import DataError, UsageError
from offline_arl.models.token_heads import TokenValueHeads

WEIGHTS_PREFIX = "value_guidance."  # of the names under which heads travel with a policy's weights
_SETTINGS = "settings"
_NUMBERS_PER_CHUNK = 2**26  # of Q at a time, 256 MiB in float32


class GuidanceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How values steer.

    `critics` says what stands for Q: the minimum of the critics, or their mean, which a linear head can be folded by.
    A token is in the support where the behavior policy gives it at least `support_threshold` times the probability of
    the best token; 0 asks nothing, 1 leaves the best token alone. With `support_tokens` only these can be sampled at
    all, for example the tokens that occur in actions of the data; the best token is then the best of these.

    Raises:
        UsageError: A number is out of range, or `support_tokens` is empty.
    """

    inverse_temperature: float
    support_threshold: float
    support_tokens: list[int] | None = None
    critics: Literal["minimum", "mean"] = "minimum"

    def __post_init__(self) -> None:
        if not 0 <= self.inverse_temperature < math.inf:
            raise UsageError(f"inverse_temperature is {self.inverse_temperature}; use 0 or a positive number")
        if not 0 <= self.support_threshold <= 1:
            raise UsageError(f"support_threshold is {self.support_threshold}; it is a share, from 0 to 1")
        if self.support_tokens is not None and not self.support_tokens:
            raise UsageError("support_tokens is empty, so nothing could be sampled; leave it out to allow all tokens")


def behavior_support(
    logits: Float[Tensor, "N V"], *, threshold: float, tokens: Bool[Tensor, " V"] | None = None
) -> Bool[Tensor, "N V"]:
    """The tokens that a behavior policy supports; at least one a row.

    Args:
        logits: Of the behavior policy.
        threshold: Smallest probability, as a share of the most probable token's; from 0 (all) to 1.
        tokens: Tokens that may be in the support at all; the most probable one is then the best of these.

    >>> probabilities = torch.tensor([[0.6, 0.3, 0.08, 0.02]])
    >>> behavior_support(probabilities.log(), threshold=0.1).tolist()  # at least 0.06
    [[True, True, True, False]]
    >>> allowed = torch.tensor([False, True, True, True])
    >>> behavior_support(probabilities.log(), threshold=0.1, tokens=allowed).tolist()  # at least 0.03
    [[False, True, True, False]]
    """
    candidates = logits.float()
    if tokens is not None:
        candidates = candidates.masked_fill(~tokens, -math.inf)
    if threshold == 0:
        return torch.ones_like(candidates, dtype=torch.bool) if tokens is None else tokens.expand_as(candidates)
    return candidates >= candidates.amax(dim=-1, keepdim=True) + math.log(threshold)


def guided_logits(
    logits: Float[Tensor, "N V"],
    q_values: Float[Tensor, "N V"],
    values: Float[Tensor, " N"],
    support: Bool[Tensor, "N V"],
    *,
    inverse_temperature: float,
) -> Float[Tensor, "N V"]:
    """`log behavior + inverse_temperature * (Q - V)` on the support, minus infinity elsewhere; float32.

    V is the same for all tokens of a row, so it moves no probability; with it the logits keep their size whatever the
    returns are. At inverse temperature 0 this is the behavior policy on its support, whatever Q is.

    Args:
        logits: Of the behavior policy.
        q_values: Q(s, token), in units of return.
        values: V(s).
        support: Of `behavior_support`; at least one token a row.
        inverse_temperature: In units of 1 / return.

    >>> one, other = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[1.0, 3.0]])
    >>> both, first = torch.tensor([[True, True]]), torch.tensor([[True, False]])
    >>> tilted = guided_logits(one, other, torch.tensor([2.0]), both, inverse_temperature=1.0)
    >>> [round(x, 4) for x in tilted.softmax(-1)[0].tolist()]  # 1 to e ** 2
    [0.1192, 0.8808]
    >>> guided_logits(one, other, torch.tensor([2.0]), first, inverse_temperature=1.0).softmax(-1).tolist()
    [[1.0, 0.0]]
    """
    guided = logits.float().log_softmax(dim=-1)
    if inverse_temperature > 0:
        guided = guided + inverse_temperature * (q_values.float() - values.float().unsqueeze(-1))
    return guided.masked_fill(~support, -math.inf)


class ValueGuidance:
    """Heads and settings of a value-guided policy: behavior logits and last hidden states in, guided logits out.

    No torch module, so that a model that holds one does not count the heads among its own layers: a reload of vLLM
    takes all layers apart, and leaves those it is given no weights for to chance.
    """

    def __init__(self, heads: TokenValueHeads, config: GuidanceConfig) -> None:
        """Hold heads, which are read, never trained.

        Raises:
            DataError: A token of the support is not in the vocabulary of the heads.
        """
        self.heads = heads
        self.config = config
        self._tokens = _token_mask(config.support_tokens, heads.shape.vocabulary_size)

    def __call__(self, logits: Float[Tensor, "N V"], states: Float[Tensor, "N H"]) -> Float[Tensor, "N V"]:
        """The guided logits, float32; no gradient.

        Args:
            logits: Of the behavior policy.
            states: What its output layer read: last hidden states, after the final norm.

        Raises:
            DataError: The heads are for another vocabulary.
        """
        shape = self.heads.shape
        if logits.shape[-1] != shape.vocabulary_size:
            raise DataError(
                f"the value heads have {shape.vocabulary_size} tokens and the policy has {logits.shape[-1]}; "
                "train the heads on the hidden states of this policy"
            )
        rows = max(1, _NUMBERS_PER_CHUNK // (shape.critics * shape.vocabulary_size))
        with torch.no_grad():
            chunks = zip(torch.split(logits, rows), torch.split(states, rows), strict=True)
            return torch.cat([self._guided(*chunk) for chunk in chunks])

    def q(self, states: Float[Tensor, "N H"]) -> Float[Tensor, "N V"]:
        """Q of every token, the critics combined as configured."""
        q_values = self.heads.q(states)
        return q_values.amin(dim=0) if self.config.critics == "minimum" else q_values.mean(dim=0)

    def support(self, logits: Float[Tensor, "N V"]) -> Bool[Tensor, "N V"]:
        """The tokens that can be sampled."""
        return behavior_support(logits, threshold=self.config.support_threshold, tokens=self._tokens)

    def to(self, device: torch.device | str) -> ValueGuidance:
        """Move the tensors to a device, in place."""
        self.heads.to(device)
        self._tokens = None if self._tokens is None else self._tokens.to(device)
        return self

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """All that a sampler needs to guide like this one, as (name, tensor) pairs beside the policy's own weights.

        The settings travel with the heads, so that a sampler cannot go on with those of an earlier policy.
        """
        settings = msgspec.json.encode(self.config)
        yield f"{WEIGHTS_PREFIX}{_SETTINGS}", torch.frombuffer(bytearray(settings), dtype=torch.uint8)
        for name, tensor in self.heads.state_dict().items():
            yield f"{WEIGHTS_PREFIX}{name}", tensor.detach()

    def take_weights(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Pass the policy's weights through and take over what another guidance's `weights` put among them.

        Where there is nothing of the kind, heads and settings stay as they are.

        Raises:
            DataError: A tensor of the heads is unknown or missing, or of another shape.
        """
        given: dict[str, Tensor] = {}
        for name, tensor in weights:
            if name.startswith(WEIGHTS_PREFIX):
                given[name.removeprefix(WEIGHTS_PREFIX)] = tensor
            else:
                yield name, tensor
        if given:
            self._replace(given)

    def _replace(self, given: dict[str, Tensor]) -> None:
        own = self.heads.state_dict()
        settings = given.pop(_SETTINGS, None)
        wrong = sorted(
            name
            for name in own.keys() | given.keys()
            if name not in own or name not in given or own[name].shape != given[name].shape
        )
        if settings is None or wrong:
            raise DataError(
                f"these value heads do not fit those of the running policy (for example {[*wrong, _SETTINGS][0]}); "
                "start a sampler of its own for this policy"
            )
        self.heads.load_state_dict(given)
        self.config = msgspec.json.decode(bytes(settings.tolist()), type=GuidanceConfig)
        tokens = _token_mask(self.config.support_tokens, self.heads.shape.vocabulary_size)
        self._tokens = None if tokens is None else tokens.to(next(iter(own.values())).device)

    def _guided(self, logits: Tensor, states: Tensor) -> Tensor:
        return guided_logits(
            logits,
            self.q(states),
            self.heads.v(states),
            self.support(logits),
            inverse_temperature=self.config.inverse_temperature,
        )


def _token_mask(tokens: Sequence[int] | None, vocabulary: int) -> Tensor | None:
    """[V] True on the given tokens."""
    if tokens is None:
        return None
    if not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise DataError(
            f"support_tokens holds {min(tokens)} to {max(tokens)}, the value heads have tokens 0 to {vocabulary - 1}; "
            "take the tokens from a dataset of this policy's tokenizer"
        )
    mask = torch.zeros(vocabulary, dtype=torch.bool)
    mask[torch.tensor(tokens)] = True
    return mask
