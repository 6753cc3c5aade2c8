"""Muon for the hidden matrices, AdamW for everything else, behind the interface of one torch optimizer.

Muon (Jordan et al. 2024; scaled as in Liu et al. 2025, arXiv:2502.16982, so that AdamW's learning rates carry over)
needs fewer updates than AdamW on small transformers trained from scratch. It is defined for the matrices inside the
network only: embeddings, output layer, norms and biases stay with AdamW.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class MuonWithAdamW(torch.optim.Optimizer):
    """One optimizer over two parts. Schedulers see the parameter groups of both."""

    def __init__(self, model: nn.Module, *, learning_rate: float, weight_decay: float, adam_beta2: float) -> None:
        matrices, others = split_parameters(model)
        self.parts: list[torch.optim.Optimizer] = []
        if matrices:
            muon = torch.optim.Muon(
                matrices, lr=learning_rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
            )
            self.parts.append(muon)
        if others:
            betas = (0.9, adam_beta2)
            self.parts.append(torch.optim.AdamW(others, lr=learning_rate, betas=betas, weight_decay=weight_decay))
        super().__init__([*matrices, *others], {"lr": learning_rate})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update both parts."""
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of both parts."""
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The states of both parts."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trainable (hidden matrices, others) of a language model; others hold embeddings and output layer."""
    outer = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    for name in ("get_input_embeddings", "get_output_embeddings"):
        get: Any = getattr(model, name, None)
        layer = None if get is None else get()
        if isinstance(layer, nn.Module):  # with the rows of new tokens, which PEFT keeps apart
            outer |= {id(parameter) for parameter in layer.parameters()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim == 2 and id(parameter) not in outer]
    chosen = {id(parameter) for parameter in matrices}
    return matrices, [parameter for parameter in trained if id(parameter) not in chosen]
