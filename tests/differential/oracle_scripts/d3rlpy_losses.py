"""Write the losses that d3rlpy computes for one batch, with what its networks said about it, as JSON.

d3rlpy imports gym, which nothing else here needs, so its numbers are stored and the tests read them. To make them
again, in an environment of its own (Python 3.11, torch for the CPU):

    pip install --no-deps d3rlpy==2.8.1 gym==0.26.2 gymnasium structlog dataclasses_json marshmallow typing_inspect
    pip install --no-deps farama-notifications gym-notices cloudpickle
    pip install torch numpy scikit-learn h5py tqdm click colorama typing-extensions mypy-extensions
    python tests/differential/oracle_scripts/d3rlpy_losses.py tests/differential/d3rlpy_losses.json

`tests/differential/test_against_d3rlpy.py` also runs this script where d3rlpy is importable.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import d3rlpy
import torch
from d3rlpy.torch_utility import TorchMiniBatch

OBSERVATION_SIZE, ACTION_SIZE, BATCH = 3, 4, 24


def batch(generator: torch.Generator, *, discrete: bool) -> TorchMiniBatch:
    """Random transitions, a quarter of them terminal."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    actions = normal(BATCH, ACTION_SIZE).tanh()
    if discrete:
        actions = torch.randint(ACTION_SIZE, (BATCH, 1), generator=generator).float()
    return TorchMiniBatch(
        observations=normal(BATCH, OBSERVATION_SIZE),
        actions=actions,
        rewards=2 * normal(BATCH, 1),
        next_observations=normal(BATCH, OBSERVATION_SIZE),
        next_actions=torch.zeros_like(actions),
        returns_to_go=torch.zeros(BATCH, 1),
        terminals=(torch.rand(BATCH, 1, generator=generator) < 0.25).float(),
        intervals=torch.ones(BATCH, 1),
        device="cpu:0",
    )


def spread(module: torch.nn.Module, generator: torch.Generator) -> None:
    """Weights of a size at which errors differ in sign and scale; target networks get their own."""
    with torch.no_grad():
        for parameter in module.parameters():
            fan_in = parameter.shape[-1] if parameter.ndim > 1 else 4
            parameter.copy_(1.5 * torch.randn(parameter.shape, generator=generator) / fan_in**0.5)


def numbers(values: torch.Tensor) -> Any:
    return values.detach().squeeze(-1).tolist()


def common(transitions: TorchMiniBatch) -> dict[str, Any]:
    return {"rewards": numbers(transitions.rewards), "terminated": numbers(transitions.terminals.bool())}


def iql(seed: int) -> dict[str, Any]:
    """`IQLImpl.compute_critic_loss`, its gradients, and `_compute_weight`."""
    generator = torch.Generator().manual_seed(seed)
    encoder = d3rlpy.models.VectorEncoderFactory([8])
    settings = {"gamma": 0.97, "expectile": 0.8, "weight_temp": 2.0, "max_weight": 5.0}
    algorithm = d3rlpy.algos.IQLConfig(
        **settings, actor_encoder_factory=encoder, critic_encoder_factory=encoder, value_encoder_factory=encoder
    ).create(device=False)
    algorithm.create_impl((OBSERVATION_SIZE,), ACTION_SIZE)
    impl = algorithm.impl
    for module in (impl.modules.q_funcs, impl.modules.targ_q_funcs, impl.modules.value_func):
        spread(module, generator)
    transitions = batch(generator, discrete=False)
    loss = impl.compute_critic_loss(transitions, impl.compute_target(transitions))
    loss.critic_loss.backward()
    here = transitions.observations, transitions.actions
    return {
        "settings": settings,
        **common(transitions),
        "q_values": [numbers(q(*here).q_value) for q in impl.modules.q_funcs],
        "target_q_values": [numbers(q(*here).q_value) for q in impl.modules.targ_q_funcs],
        "values": numbers(impl.modules.value_func(transitions.observations)),
        "next_values": numbers(impl.modules.value_func(transitions.next_observations)),
        "value_loss": loss.v_loss.item(),
        "q_loss": loss.q_loss.item(),
        # Of the bias of the last layer: the sum of the gradients of the outputs.
        "value_gradient": impl.modules.value_func._fc.bias.grad.item(),
        "q_gradients": [q._fc.bias.grad.item() for q in impl.modules.q_funcs],
        "weights": numbers(impl._compute_weight(transitions)),
    }


def discrete_cql(seed: int, n_critics: int) -> dict[str, Any]:
    """`DiscreteCQLImpl.compute_loss` and its gradients."""
    generator = torch.Generator().manual_seed(seed)
    settings = {"gamma": 0.97, "alpha": 0.7, "n_critics": n_critics}
    encoder = d3rlpy.models.VectorEncoderFactory([8])
    algorithm = d3rlpy.algos.DiscreteCQLConfig(**settings, encoder_factory=encoder).create(device=False)
    algorithm.create_impl((OBSERVATION_SIZE,), ACTION_SIZE)
    impl = algorithm.impl
    for module in (impl.modules.q_funcs, impl.modules.targ_q_funcs):
        spread(module, generator)
    transitions = batch(generator, discrete=True)
    loss = impl.compute_loss(transitions, impl.compute_target(transitions))
    loss.loss.backward()
    return {
        "settings": settings,
        **common(transitions),
        "actions": numbers(transitions.actions.long()),
        "q_values": [numbers(q(transitions.observations).q_value) for q in impl.modules.q_funcs],
        "next_q_values": [numbers(q(transitions.next_observations).q_value) for q in impl.modules.q_funcs],
        "next_target_q_values": [numbers(q(transitions.next_observations).q_value) for q in impl.modules.targ_q_funcs],
        "td_loss": loss.td_loss.item(),
        "conservative_loss": loss.conservative_loss.item(),
        "loss": loss.loss.item(),
        "q_gradients": [q._fc.bias.grad.tolist() for q in impl.modules.q_funcs],
    }


def losses() -> dict[str, Any]:
    return {
        "d3rlpy": d3rlpy.__version__,
        "iql": iql(0),
        "discrete_cql_one_critic": discrete_cql(1, n_critics=1),
        "discrete_cql_two_critics": discrete_cql(2, n_critics=2),
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(losses()) + "\n")
