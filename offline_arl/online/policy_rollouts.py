"""Episodes of the policy that is trained: its weights in the sampler, verified, and a sampler that may fail."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_arl.datasets.return_conditioning import load_conditioning
from offline_arl.environments.protocol import EnvironmentFamily, Task
from offline_arl.errors import DataError, OfflineArlError, UsageError
from offline_arl.online.config import GrpoConfig
from offline_arl.online.episode_store import training_policy
from offline_arl.online.rows import usable
from offline_arl.rollouts.backends import make_sampler
from offline_arl.rollouts.collect import collect, step_seed
from offline_arl.rollouts.episode import Episode
from offline_arl.rollouts.server_sampler import ServerSampler
from offline_arl.rollouts.sync import SyncReport, check_report, compare_logprobs
from offline_arl.rollouts.weights import model_weights

if TYPE_CHECKING:
    from offline_arl.rendering.renderer import Renderer
    from offline_arl.rollouts.sampler import Sampler

logger = logging.getLogger(__name__)


class PolicyRollouts:
    """A sampler that follows the weights of `model`.

    Args:
        policy_path: The warm start; the sampler begins with its weights.
        model: The policy as the trainer holds it, possibly with adapters.
        family: The environment.
        renderer: Of the policy's tokenizer.
        config: Budgets, backend, what is verified.
        seed: Of all episodes.

    Raises:
        UsageError: The sampler cannot be started, or this backend not in several processes.
    """

    def __init__(
        self,
        policy_path: Path,
        model: Any,
        family: EnvironmentFamily,
        renderer: Renderer,
        config: GrpoConfig,
        *,
        seed: int,
    ) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._policy_path = policy_path
        self._model = model
        self._family = family
        self._renderer = renderer
        self._config = config
        self._seed = seed
        self.conditioning = load_conditioning(policy_path)  # of a policy that reads returns: asked for the best
        self._restarts = 0
        self._synced_step: int | None = 0  # the sampler starts with the weights of the warm start
        self.sampler: Sampler = self._start()

    @property
    def backend(self) -> str:
        """Of the sampler."""
        return self.sampler.backend

    def sync(self, step: int) -> None:
        """Give the sampler the weights after `step` steps of training, unless it has them."""
        if step == self._synced_step:
            return
        started = time.perf_counter()
        self._synced_step = None  # until it is through: a load that breaks off leaves a mixture
        self.sampler.load_weights(model_weights(self._model))
        self._synced_step = step
        self.seconds["sync"] += time.perf_counter() - started

    def collect(
        self, tasks: Sequence[Task], *, purpose: str, step: int, temperature: float, group_size: int = 1
    ) -> list[Episode]:
        """Episodes of the policy after `step` steps; a sampler that fails is started again, and the episodes too.

        Seeds are keyed by run, purpose, step, task, attempt and turn, so what is played again is the same.

        Raises:
            DataError: The sampler failed more often than `restarts`.
        """
        while True:
            try:
                self.sync(step)
                return self._collect(tasks, purpose, step, temperature, group_size)
            except OfflineArlError:
                raise
            except Exception as error:
                self._restart(error)

    def check(self, step: int, episodes: Sequence[Episode]) -> SyncReport | None:
        """Compare logprobs of some of the episodes with the trainer's; None where this step is not checked.

        Raises:
            GateError: They differ by more than the tolerance, and `on_mismatch` is "refuse".
        """
        mismatch = self._config.mismatch
        if step >= mismatch.check_first and step % mismatch.check_every != 0:
            return None
        started = time.perf_counter()
        checked = [episode for episode in episodes if usable(episode)][:: self._config.group_size]
        checked = checked[: mismatch.check_episodes]
        if not checked:
            return None
        report = compare_logprobs(
            self._model,
            [episode.token_ids.tolist() for episode in checked],
            [episode.logprobs for episode in checked],
            temperature=self._config.temperature,
        )
        if mismatch.on_mismatch == "refuse":
            check_report(report, mismatch.tolerance, backend=self.backend)
        self.seconds["sync"] += time.perf_counter() - started
        return report

    def close(self) -> None:
        """Free the engine."""
        self.sampler.close()

    def _collect(
        self, tasks: Sequence[Task], purpose: str, step: int, temperature: float, group_size: int
    ) -> list[Episode]:
        return collect(
            self._family,
            tasks,
            self.sampler,
            self._renderer,
            temperature=temperature,
            max_tokens_per_step=self._config.max_tokens_per_step,
            max_total_tokens=self._config.max_total_tokens,
            seed=step_seed(self._seed, purpose, 0, step if purpose == "training" else 0),
            group_size=group_size,
            policy=training_policy(step) if purpose == "training" else None,
            conditioning=self.conditioning,
            schedule=self._config.rollout_schedule,
        )

    def _restart(self, error: Exception) -> None:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        if self._restarts >= self._config.restarts:
            raise DataError(
                f"the {self.backend} sampler failed {self._restarts + 1} times, at last with {reason}; the last state "
                "that was saved is kept, and the same command goes on from there"
            ) from error
        self._restarts += 1
        logger.warning("the %s sampler failed (%s) and is started again", self.backend, reason)
        try:
            self.sampler.close()
        except Exception as closing:
            logger.info("the failed sampler could not be closed: %s", closing)
        self.sampler = self._start()
        self._synced_step = None

    def _start(self) -> Sampler:
        from accelerate import PartialState

        config = self._config
        if config.servers:
            return ServerSampler(
                config.servers,
                model=config.served_model,
                stop_token_ids=self._renderer.stop_token_ids,
                max_model_len=config.max_total_tokens,
            )
        backend = config.backend
        if PartialState().num_processes > 1 and backend != "transformers":
            # An engine in this process would take the processes of the training for its own tensor parallelism.
            if backend == "vllm":
                raise UsageError(
                    "a vLLM engine cannot share a process with one of several that train; name vLLM servers in "
                    "`servers`, or sample with backend: transformers"
                )
            backend = "transformers"
        return make_sampler(
            self._policy_path,
            stop_token_ids=self._renderer.stop_token_ids,
            backend=backend,
            max_model_len=config.max_total_tokens,
            dtype=config.dtype,
        )
