"""Where the work of ingestion is done: in this process, in several on this machine, or on a Ray cluster.

All three run the same functions on the same pieces of work and give the results in order, so that the outcome
does not depend on the choice.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from threading import Thread
from typing import Any, Literal, Protocol, TypeVar

from offline_arl import optional
from offline_arl.errors import DataError, UsageError

Engine = Literal["local", "ray"]
Item = TypeVar("Item")
Result = TypeVar("Result")


class Executor(Protocol):
    """Runs one function on many items."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield each item with its result, in order; few items are under way at once, so `items` may be endless."""
        ...


@contextmanager
def executor(engine: Engine, workers: int) -> Iterator[Executor]:
    """Open an executor.

    Args:
        engine: "local", or "ray": the cluster that Ray finds (its usual settings apply), or a new one on this
            machine.
        workers: Processes that work at once; with "local", this process is one of them.

    Raises:
        UsageError: `workers` is not positive, or the engine is unknown.
        MissingDependencyError: Ray is not installed.
    """
    if workers < 1:
        raise UsageError(f"workers: must be at least 1, not {workers}")
    if engine == "ray":
        with _ray(workers) as ray:
            yield ray
    elif engine != "local":
        raise UsageError(f"engine: expected local or ray, not {engine!r}")
    elif workers == 1:
        yield _Here()
    else:
        with _processes(workers) as pool:
            yield pool


class _Here:
    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        for item in items:
            yield item, function(item)


class _Ordered:
    """Starts work with `submit`, which returns a function that waits for the result."""

    def __init__(self, submit: Callable[[Callable[..., Any], Any], Callable[[], Any]], *, in_flight: int) -> None:
        self._submit = submit
        self._in_flight = in_flight

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        waiting: deque[tuple[Item, Callable[[], Result]]] = deque()
        for item in items:
            waiting.append((item, self._submit(function, item)))
            if len(waiting) >= self._in_flight:
                first, result_of = waiting.popleft()
                yield first, result_of()
        for item, result_of in waiting:
            yield item, result_of()


class _Shared:
    """This process works too, on what the others have no hands for: what it does itself need not be sent around.

    Args:
        submit: Starts work in another process.
        others: How many other processes there are.
    """

    def __init__(self, submit: Callable[[Callable[..., Any], Any], Future[Any]], *, others: int) -> None:
        self._submit = submit
        self._others = others

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        waiting: deque[tuple[Item, Future[Result]]] = deque()
        for item in items:
            under_way = sum(1 for _, result in waiting if not result.done())
            # One to work on, and one more, so that a process that is done finds the next.
            if under_way < 2 * self._others:
                waiting.append((item, self._submit(function, item)))
            else:
                here: Future[Result] = Future()
                here.set_result(function(item))
                waiting.append((item, here))
            while waiting and (waiting[0][1].done() or len(waiting) > 4 * (self._others + 1)):
                first, result = waiting.popleft()
                yield first, result.result()
        for item, result in waiting:
            yield item, result.result()


@contextmanager
def _processes(workers: int) -> Iterator[Executor]:
    # Not fork: polars runs threads, and a forked child could wait for their locks forever.
    context = multiprocessing.get_context("spawn")

    def submit(function: Callable[[Any], Any], item: Any) -> Future[Any]:
        # This may start a process, which inherits the mask: Ctrl-C goes to all processes of a terminal, and is for
        # this one to deal with.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return pool.submit(function, item)
        except OSError as error:  # the pool is being closed because a process was killed at this very moment
            raise BrokenProcessPool(str(error)) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        with ProcessPoolExecutor(workers - 1, mp_context=context, initializer=_begin_work) as pool:
            yield _Shared(submit, others=workers - 1)
    except BrokenProcessPool as error:
        raise DataError(
            "a process that converts records was killed, perhaps for want of memory; run it again with fewer workers"
        ) from error


def _begin_work() -> None:
    """Prepare a process: it ends with the one that started it, which may be killed."""
    gc.disable()
    parent = multiprocessing.parent_process()
    if parent is not None:

        def follow() -> None:
            wait([parent.sentinel])
            os._exit(1)

        Thread(target=follow, daemon=True).start()


@contextmanager
def _ray(workers: int) -> Iterator[Executor]:
    ray = optional.require("ray", extra="ray")
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
    try:

        @ray.remote(num_cpus=1)  # type: ignore[untyped-decorator]
        def run(function: Callable[[Any], Any], item: Any) -> Any:
            return function(item)

        def submit(function: Callable[[Any], Any], item: Any) -> Callable[[], Any]:
            return partial(ray.get, run.remote(function, item))

        yield _Ordered(submit, in_flight=2 * workers)
    finally:
        if started_here:
            ray.shutdown()
