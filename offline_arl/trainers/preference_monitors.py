"""What preference training does to both sides, seen together, and warnings about the ways in which it goes wrong.

The loss of a pair falls just as well when both sides become unlikely, the rejected one faster. So the two are watched
apart, each against the reference, with the divergence and the length.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_logger = logging.getLogger(__name__)

CHOSEN_FALL = -1.0  # nats an answer, to the reference: chosen answers became e times less likely
DIVERGENCE = 0.5  # nats a token, to the reference
LENGTH_DRIFT = -0.5  # nats a message: the token that ends a message became 1.6 times less likely

_WARNINGS = {
    "chosen_falls": (
        "chosen answers become less likely than they were (mean log-ratio %.2f nats): what is learned is to avoid the "
        "rejected ones, whatever comes instead; set chosen_nll_weight, a larger beta or a smaller learning_rate"
    ),
    "divergence": (
        "the policy is far from the reference (%.2f nats a token of the data); set a larger beta, a smaller "
        "learning_rate or fewer epochs"
    ),
    "length_drift": (
        "messages end less readily than they did (mean log-ratio of the last token %.2f nats), so answers get longer; "
        "look at the length bias of the pairs (offline-arl build pairs reports it)"
    ),
}


class Scores(NamedTuple):
    """One kind of sequences in a batch (chosen ones, say): logprobs under policy and reference, and what to count."""

    logprobs: Float[Tensor, "N T"]  # 0 where not scored
    reference: Float[Tensor, "N T"] | None
    scored: Bool[Tensor, "N T"]


class PreferenceMonitor:
    """Adds up what a window of batches showed, over all processes, and warns once about each kind of trouble.

    Args:
        add_up: Sums a vector over the processes.
    """

    def __init__(self, add_up: Callable[[Tensor], Tensor] = lambda values: values) -> None:
        self._add_up = add_up
        self._sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(2, dtype=torch.float64))
        self.alarms: dict[str, int] = {}  # kind to the number of windows that showed it
        self.history: list[dict[str, float]] = []

    def add(self, name: str, values: Tensor, where: Tensor | None = None) -> None:
        """Add values to the mean called `name`; only those at `where`."""
        kept = values.detach() if where is None else values.detach()[where]
        self._sums[name] += torch.stack([kept.double().sum().cpu(), torch.tensor(float(kept.numel())).double()])

    def add_scores(self, kind: str, scores: Scores, counted: Bool[Tensor, " N"]) -> None:
        """Add the sequences of one kind that count.

        Log-ratios are sums over a sequence. The KL is half the mean squared log-ratio of the data's tokens, which is
        the divergence in either direction to second order (Schulman 2020, "Approximating KL Divergence", k2): no
        sampling is needed, and single tokens that became likely do not blow it up.
        """
        logprobs, scored = scores.logprobs.detach()[counted], scores.scored[counted]
        self.add(f"logprobs/{kind}", logprobs.sum(dim=1))
        self.add(f"tokens/{kind}", scored.sum(dim=1))
        if scores.reference is None:
            return
        log_ratios = logprobs - scores.reference[counted].to(logprobs.dtype)
        self.add(f"log_ratio/{kind}", log_ratios.sum(dim=1))
        self.add("kl_to_reference", log_ratios.square() / 2, scored)
        self.add("end_log_ratio", log_ratios, ends_of_runs(scored))

    def add_margins(self, margins: Float[Tensor, " N"], longer_by: Int[Tensor, " N"]) -> None:
        """Add the reward margins of pairs, and by how many tokens the chosen sides are longer."""
        self.add("reward/margin", margins)
        self.add("reward/accuracy", (margins > 0).double())
        lengths, margins = longer_by.double(), margins.detach().double()
        for name, values in (
            ("length", lengths),
            ("margin_squared", margins.square()),
            ("length_squared", lengths.square()),
            ("product", margins * lengths),
        ):
            self.add(f"_{name}", values)

    def window(self) -> dict[str, float]:
        """The means since the last call, and a warning where they tell of trouble. Empty where nothing was added."""
        names = sorted(self._sums)
        if not names:
            return {}
        sums = self._add_up(torch.stack([self._sums[name] for name in names]))
        means = {
            name: float(total / count) for name, (total, count) in zip(names, sums.tolist(), strict=True) if count > 0
        }
        self._sums.clear()
        found = {name: value for name, value in means.items() if not name.startswith("_")}
        if "_product" in means:
            found["margin_length_correlation"] = _correlation(means)
        self.history.append(found)
        self._watch(found)
        return found

    def at_the_end(self) -> dict[str, float]:
        """The means of the last quarter of the windows: a single one may hold few batches, or of one length alone."""
        late = self.history[-max(1, len(self.history) // 4) :]
        names = sorted({name for window in late for name in window})
        values = {name: [window[name] for window in late if name in window] for name in names}
        return {name: sum(found) / len(found) for name, found in values.items()}

    def _watch(self, found: Mapping[str, float]) -> None:
        chosen = found.get("log_ratio/chosen", found.get("log_ratio/desirable", math.nan))
        signs = {
            "chosen_falls": (chosen, chosen < CHOSEN_FALL),
            "divergence": (found.get("kl_to_reference", math.nan), found.get("kl_to_reference", 0.0) > DIVERGENCE),
            "length_drift": (found.get("end_log_ratio", math.nan), found.get("end_log_ratio", 0.0) < LENGTH_DRIFT),
        }
        for kind, (value, raised) in signs.items():
            if raised and kind not in self.alarms:
                _logger.warning(_WARNINGS[kind], value)
            if raised:
                self.alarms[kind] = self.alarms.get(kind, 0) + 1


def ends_of_runs(scored: Bool[Tensor, "N T"]) -> Bool[Tensor, "N T"]:
    """The last token of each run of scored tokens: what ends a message of the agent.

    >>> ends_of_runs(torch.tensor([[False, True, True, False, True]])).int().tolist()
    [[0, 0, 1, 0, 1]]
    """
    following = torch.nn.functional.pad(scored[:, 1:], (0, 1), value=False)
    return scored & ~following


def _correlation(means: Mapping[str, float]) -> float:
    """Pearson's, of margins and differences in length; 0 where one of them does not vary."""
    margin, length = means["reward/margin"], means["_length"]
    variances = (means["_margin_squared"] - margin**2) * (means["_length_squared"] - length**2)
    return (means["_product"] - margin * length) / math.sqrt(variances) if variances > 1e-12 else 0.0
