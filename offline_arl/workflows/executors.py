"""Where the work of ingestion is done: in this process, in several on this machine, or on a Ray cluster.

All three run the same functions on the same pieces of work and give the results in order, so that the outcome
does not depend on the choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from offline_arl import optional
from offline_arl.errors import UsageError
from offline_arl.workflows.processes import other_processes

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
        with other_processes(workers - 1) as processes:
            yield processes


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
