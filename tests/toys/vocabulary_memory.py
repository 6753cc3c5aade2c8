"""Peak memory of a token-level critic's conservative loss, forward and backward, in a process of its own (Linux)."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

PROGRAM = """
import sys, time
import torch
from offline_arl import objectives


def status(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(key))


way, tokens, vocabulary, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
features = torch.randn(tokens, width, generator=generator, requires_grad=True)
weight = (torch.randn(vocabulary, width, generator=generator) / 100).requires_grad_()
ids = torch.randint(vocabulary, (1, tokens + 1), generator=generator)
mask = torch.ones(1, tokens + 1, dtype=torch.bool)
warm = torch.ones(8, 8, requires_grad=True)  # libraries that load on first use
torch.logsumexp(warm @ warm, 1).sum().backward()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the high-water mark starts anew
before, start = status("VmRSS"), time.perf_counter()
if way == "chunked":
    out = objectives.token_q_values(features, weight, None, ids, mask, temperature=1.0, chunk_tokens=64)
    loss = (out.logsumexp - out.q_values).sum()
else:
    q_values = features @ weight.T
    loss = (q_values.logsumexp(1) - q_values.gather(1, ids[0, 1:, None]).squeeze(1)).sum()
loss.backward()
seconds = time.perf_counter() - start
print((status("VmHWM") - before) / 1024, seconds, loss.item(), weight.grad.norm().item(), features.grad.norm().item())
"""


class Measurement(NamedTuple):
    """Memory above inputs and weights, time, and numbers by which two ways can be compared."""

    mebibytes: float
    seconds: float
    results: list[float]  # the loss and the norms of the gradients of weight and features


def measure(way: str, *, tokens: int, vocabulary: int, width: int) -> Measurement:
    """`way` is "chunked" (64 tokens at a time) or "naive" (all logits at once)."""
    arguments = [way, str(tokens), str(vocabulary), str(width)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    mebibytes, seconds, *results = (float(number) for number in done.stdout.split())
    return Measurement(mebibytes, seconds, results)
