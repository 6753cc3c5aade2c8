"""Episodes that do not wait for one another: what is slow in one goes on while the others are sampled.

Environments run in threads; sampling, rendering and parsing stay in the calling one. With a `StreamingSampler` an
episode's next step is submitted the moment its tools have answered; with any other the episodes that are ready are
sampled together, and the tools of the rest run meanwhile.

Which episodes share a batch depends on how long tools take, so completions are those of `collect` in lockstep up to
float rounding alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from offline_arl.environments.protocol import Task
from offline_arl.rollouts.episode import Episode
from offline_arl.rollouts.play import Rollout, Settings
from offline_arl.rollouts.sampler import Sampler, StreamingSampler

_MOMENT = 0.02  # seconds


class Continuous:
    """One run of `play`.

    Args:
        sampler: Holds the policy.
        settings: Of all episodes.
        seed_of: The sampler's seed of an episode's next step.
        max_live: Episodes that are played at the same time.
        workers: Environments that act at the same time.
        finished: Called with each finished episode and its index.
    """

    def __init__(
        self,
        sampler: Sampler,
        settings: Settings,
        *,
        seed_of: Callable[[Rollout], int],
        max_live: int,
        workers: int,
        finished: Callable[[int, Episode], None],
    ) -> None:
        self._sampler = sampler
        self._streaming = sampler if isinstance(sampler, StreamingSampler) else None
        self._settings = settings
        self._seed_of = seed_of
        self._max_live = max_live
        self._workers = workers
        self._finished = finished
        self._acting: dict[Future[Any], tuple[Rollout, bool]] = {}  # whether it is being opened
        self._sampling: dict[int, Rollout] = {}
        self._ready: list[Rollout] = []
        self._seconds = 0.0  # that environments take to answer, a moving average

    def play(self, waiting: Iterator[tuple[int, Task]]) -> None:
        """Play episodes of (index, task) until all are finished."""
        with ThreadPoolExecutor(self._workers, thread_name_prefix="environment") as pool:
            more = True
            while more or self._live:
                while more and self._live < self._max_live:
                    index, task = next(waiting, (None, None))
                    more = task is not None
                    if index is not None and task is not None:
                        rollout = Rollout(index, task, self._settings, open_later=True)
                        self._acting[pool.submit(rollout.open)] = (rollout, True)
                self._take_answers(block=not self._ready and not self._sampling)
                self._sample(pool)

    @property
    def _live(self) -> int:
        return len(self._acting) + len(self._sampling) + len(self._ready)

    def _take_answers(self, *, block: bool) -> None:
        """Take what environments have answered; where nothing else is to do, wait for the first to.

        Quick environments are given a moment: a step of the engine costs more with few episodes than the moment does.
        """
        if not self._acting:
            return
        if self._are_quick:
            wait(self._acting, timeout=_MOMENT)
        done, _ = wait(self._acting, timeout=None if block else 0, return_when=FIRST_COMPLETED)
        for future in done:
            rollout, is_opening = self._acting.pop(future)
            if is_opening:
                rollout.opened(future.result())
            else:
                rollout.answered(future.result())
            if rollout.ended:
                self._finished(rollout.index, rollout.episode())
            else:
                self._ready.append(rollout)

    def _sample(self, pool: ThreadPoolExecutor) -> None:
        # By index, so that the order in which threads came home changes as little as can be.
        ready, self._ready = sorted(self._ready, key=lambda rollout: rollout.index), []
        config = self._settings.config
        if self._streaming is None:
            if ready:
                seeds = [self._seed_of(rollout) for rollout in ready]
                completions = self._sampler.generate([rollout.tokens for rollout in ready], config, seeds=seeds)
                for rollout, completion in zip(ready, completions, strict=True):
                    self._act(pool, rollout, completion)
            return
        for rollout in ready:
            self._sampling[self._streaming.submit(rollout.tokens, config, seed=self._seed_of(rollout))] = rollout
        for number, completion in self._streaming.advance():
            self._act(pool, self._sampling.pop(number), completion)

    def _act(self, pool: ThreadPoolExecutor, rollout: Rollout, completion: Any) -> None:
        message = rollout.said(completion)

        def act() -> Any:
            started = time.monotonic()
            result = rollout.act(message)
            self._seconds += 0.05 * (time.monotonic() - started - self._seconds)  # threads may lose one; no matter
            return result

        self._acting[pool.submit(act)] = (rollout, False)

    @property
    def _are_quick(self) -> bool:
        return self._seconds < _MOMENT
