"""Sharing work with other processes of this machine, while this one works too.

The standard library's pool leaves the talking to threads of this process. Where this process is busy with work of its
own, they wait for the interpreter again and again, and the others for them. Here this process talks when it is
between two pieces of work; the others read ahead.
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
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

from offline_arl.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")

# For each other process: one piece of work that it is at, and one that it has read ahead.
_AHEAD = 2
# Results that wait for an earlier one, for each process.
_WAITING = 4
_PIPE_BYTES = 2**20  # what Linux allows to everyone; most pieces of work fit, so that nobody waits for a reader


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

    def begin(self, function: Callable[[Any], Any], work: _Work[Any, Any]) -> None:
        self.work.append(work)
        try:
            self.requests.send_bytes(pickle.dumps((function, work.item), pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            raise self._died() from error

    def receive(self) -> None:
        work = self.work.popleft()
        try:
            work.result, work.error = pickle.loads(self.results.recv_bytes())  # noqa: S301 (of a process that we started)
        except (EOFError, OSError) as error:
            raise self._died() from error
        work.is_done = True

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
            if len(other.work) < _AHEAD:
                other.begin(function, work)
            else:
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
                for end in (requests, results_end):
                    _widen(end)
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
    """Work until the other side closes its ends."""
    gc.disable()
    sys.setswitchinterval(0.0005)  # the thread that reads ahead has little to do, and somebody waits for it
    ahead: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_read_ahead, args=(requests, ahead), daemon=True).start()
    while True:
        function, item = pickle.loads(ahead.get())  # noqa: S301 (of the process that started this one)
        results.send_bytes(pickle.dumps(_outcome(function, item), pickle.HIGHEST_PROTOCOL))


def _outcome(function: Callable[[Item], Result], item: Item) -> tuple[Result | None, Exception | None]:
    try:
        return function(item), None
    except Exception as error:  # raised when it is this item's turn
        return None, error


def _read_ahead(requests: Connection, ahead: SimpleQueue[bytes]) -> None:
    try:
        while True:
            ahead.put(requests.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)  # the process that wants the results is no more, or does not want them
