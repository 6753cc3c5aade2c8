"""Peak memory of an update of token-level values, all of it, in a process of its own (Linux).

"trainer": `TokenCritic` forward, backward, AdamW and the move of the targets. "naive": the same update with all Q of
the vocabulary at once, in float32, as [critics, tokens, V].
"""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

PROGRAM = """
import sys, time
import torch
from offline_arl import objectives
from offline_arl.models.token_heads import TokenHeadShape, TokenValueHeads
from offline_arl.trainers.config import TokenIQLConfig
from offline_arl.trainers.token_critic import TokenCritic, critics_of


def status(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(key))


way, tokens, vocabulary, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
config = TokenIQLConfig(conservative_weight=0.1, hidden_layers=1, chunk_tokens=64)
heads = TokenValueHeads(TokenHeadShape(width, vocabulary, 2, 1, 2 * width), generator=generator)
critic = TokenCritic(heads, config)
batch = {
    "states": torch.randn(2 * tokens, width, generator=generator),
    "state_index": torch.arange(tokens),
    "next_index": torch.arange(tokens) + tokens,
    "token_ids": torch.randint(vocabulary, (tokens,), generator=generator),
    "rewards": torch.randn(tokens, generator=generator),
    "discounts": torch.full((tokens,), 0.9),
    "terminated": torch.zeros(tokens, dtype=torch.bool),
    "has_target": torch.ones(tokens, dtype=torch.bool),
}


def naive(states, state_index, next_index, token_ids, rewards, discounts, terminated, has_target):
    here = states[state_index]
    q_values = heads.q(here)
    chosen = q_values.gather(2, token_ids.expand(2, -1).unsqueeze(2)).squeeze(2)
    with torch.no_grad():
        targets = torch.stack([head(here) for head in critics_of(critic.target)])
        target = targets.gather(2, token_ids.expand(2, -1).unsqueeze(2)).squeeze(2)
    losses = objectives.token_transition_losses(
        chosen, q_values.logsumexp(2), target, heads.v(here), heads.v(states[next_index]), rewards, terminated,
        torch.ones_like(has_target), has_target, discount=discounts, expectile=config.expectile,
    )
    return losses.critics.sum() + losses.value.sum() + config.conservative_weight * losses.conservative.sum()


optimizer = torch.optim.AdamW(heads.parameters(), lr=1e-3, fused=True)
warm = torch.ones(8, 8, requires_grad=True)  # libraries that load on first use
torch.logsumexp(warm @ warm, 1).sum().backward()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the high-water mark starts anew
before, start = status("VmRSS"), time.perf_counter()
loss = critic(**batch)["loss"] if way == "trainer" else naive(**batch)
loss.backward()
norms = [value.grad.norm().item() for value in heads.parameters()]
optimizer.step()
critic.update_targets()
seconds = time.perf_counter() - start
print((status("VmHWM") - before) / 1024, seconds, loss.item(), *norms)
"""


class StepMeasurement(NamedTuple):
    """Memory above batch, heads and targets, time, and numbers by which two ways can be compared."""

    mebibytes: float
    seconds: float
    results: list[float]  # the loss and the norm of each parameter's gradient


def measure_step(way: str, *, tokens: int, vocabulary: int, width: int) -> StepMeasurement:
    """`way` is "trainer" or "naive"; heads with a hidden layer of twice `width`."""
    arguments = [way, str(tokens), str(vocabulary), str(width)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    mebibytes, seconds, *results = (float(number) for number in done.stdout.split())
    return StepMeasurement(mebibytes, seconds, results)
