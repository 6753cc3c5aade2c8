"""Sharing work with other processes of this machine, while this one works too.

The standard library's pool leaves the talking to threads of this process. Where this process is busy with work of its
own, they wait for the interpreter again and again, and the others for them. Here this process talks when it is
between two pieces of work. It leaves the work in shared memory, since a pipe is full before a piece of work is in it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Generic, TypeVar

from offline_arl.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")

# For each other process: one piece of work that it is at, and one that waits for it.
_AHEAD = 2
# Results that wait for an earlier one, for each process.
_WAITING = 4
_PIPE_BYTES = 2**20  # what Linux allows to everyone; most results fit, so that their makers need not wait


@contextmanager
def other_processes(count: int) -> Iterator[Processes]:
    """Processes that work for this one; they start with the first piece of work, and end with the block."""
    processes = Processes(count)
    try:
        yield processes
    finally:
        processes.close()


@dataclass
class _Work(Generic[Item, Result]):
    item: Item
    memory: SharedMemory | None = None  # holds the item on its way
    is_done: bool = False
    result: Result | None = None
    error: Exception | None = None


class _Other:
    """One other process, and the work that it has."""

    def __init__(self, process: multiprocessing.process.BaseProcess, requests: Connection, results: Connection) -> None:
        self.process = process
        self.requests = requests
        self.results = results
        self.work: deque[_Work[Any, Any]] = deque()

    def begin(self, function: Callable[[Any], Any], work: _Work[Any, Any]) -> bool:
        """Give it work; returns False where there is no memory for that."""
        request = pickle.dumps((function, work.item), pickle.HIGHEST_PROTOCOL)
        if not _has_room(len(request)):
            return False
        try:
            work.memory = SharedMemory(create=True, size=len(request))
        except OSError:
            return False
        self.work.append(work)
        _content(work.memory, len(request))[:] = request
        try:
            self.requests.send((work.memory.name, len(request)))
        except OSError as error:
            raise self._died() from error
        return True

    def receive(self) -> None:
        work = self.work[0]
        try:
            work.result, work.error = pickle.loads(self.results.recv_bytes())  # noqa: S301 (of a process that we started)
        except (EOFError, OSError) as error:
            raise self._died() from error
        work.is_done = True
        self.forget_first()

    def forget_first(self) -> None:
        """Let go of the first piece of work, and of the memory that it takes."""
        memory = self.work.popleft().memory
        if memory is not None:
            memory.close()
            memory.unlink()

    def _died(self) -> DataError:
        self.process.join(10)
        code = self.process.exitcode
        if code is not None and code > 0:
            return DataError(
                "a process that converts records could not start; a script that uses several needs "
                '`if __name__ == "__main__":` around what it does'
            )
        return DataError(
            "a process that converts records was killed, perhaps for want of memory; run it again with fewer workers"
        )


class Processes:
    """Other processes; `map` may be used several times, one after another."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._others: list[_Other] = []

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for other in self._others:
            other.requests.close()
            other.results.close()
            other.process.terminate()
        for other in self._others:
            other.process.join()
            other.process.close()
            while other.work:
                other.forget_first()
        self._others = []

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield each item with its result, in order; few items are under way at once.

        Raises:
            DataError: A process was killed.
        """
        waiting: deque[_Work[Item, Result]] = deque()
        for item in items:
            if not self._others:
                self._start()
            work: _Work[Item, Result] = _Work(item)
            waiting.append(work)
            self._collect(timeout=0)
            other = min(self._others, key=lambda other: len(other.work))
            if len(other.work) >= _AHEAD or not other.begin(function, work):
                work.result, work.error = _outcome(function, item)
                work.is_done = True
            yield from _finished(waiting)
            while len(waiting) > _WAITING * (len(self._others) + 1):
                self._collect(timeout=None)
                yield from _finished(waiting)
        while waiting:
            self._collect(timeout=None)
            yield from _finished(waiting)

    def _start(self) -> None:
        # Not fork: polars runs threads, and a forked child could wait for their locks forever.
        context = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # which unblocks the signal, so it must not happen below
        # They inherit the mask: Ctrl-C goes to all processes of a terminal, and is for this one to deal with.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            while len(self._others) < self._count:
                requests_end, requests = context.Pipe(duplex=False)
                results, results_end = context.Pipe(duplex=False)
                _widen(results_end)
                process = context.Process(target=_serve, args=(requests_end, results_end), daemon=True)
                process.start()
                requests_end.close()  # so that the other side sees it when this process is no more, and we when it is
                results_end.close()
                self._others.append(_Other(process, requests, results))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _collect(self, timeout: float | None) -> None:
        """Take the results that are there; where none is, wait for one as long as `timeout` says."""
        busy = {other.results: other for other in self._others if other.work}
        for ready in wait(list(busy), timeout) if busy else ():
            busy[ready].receive()  # type: ignore[index]


def _finished(waiting: deque[_Work[Item, Result]]) -> Iterator[tuple[Item, Result]]:
    while waiting and waiting[0].is_done:
        work = waiting.popleft()
        if work.error is not None:
            raise work.error
        yield work.item, work.result  # type: ignore[misc]


def _widen(pipe: Connection) -> None:
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _serve(requests: Connection, results: Connection) -> None:
    """Work until the process that wants the results is no more, or does not want them."""
    gc.disable()
    with suppress(EOFError, OSError):
        while True:
            name, size = requests.recv()
            memory = SharedMemory(name)
            with _content(memory, size) as request:
                function, item = pickle.loads(request)  # noqa: S301 (of the process that started this one)
            memory.close()
            results.send_bytes(pickle.dumps(_outcome(function, item), pickle.HIGHEST_PROTOCOL))


def _has_room(size: int) -> bool:
    """Whether shared memory has room: a process that writes where there is none is killed. Containers have little."""
    try:
        free = os.statvfs("/dev/shm")
    except OSError:  # a system that has it elsewhere
        return True
    return size < free.f_bavail * free.f_frsize // 2


def _content(memory: SharedMemory, size: int) -> memoryview:
    assert memory.buf is not None  # it is open
    return memory.buf[:size]


def _outcome(function: Callable[[Item], Result], item: Item) -> tuple[Result | None, Exception | None]:
    try:
        return function(item), None
    except Exception as error:  # raised when it is this item's turn
        return None, error
