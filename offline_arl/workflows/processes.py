"""Sharing work with other processes of this machine, while this one works too.

The standard library's pool leaves the talking to threads of this process. Where this process is busy with work of its
own, they wait for the interpreter again and again, and the others for them. Here this process talks when it is
between two pieces of work. Work and results lie in shared memory that is used again and again: a pipe is full before
a piece of work is in it, and a page of memory that was never touched costs more than what is written to it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
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
_LEAST_BYTES = 2**20  # of a piece of shared memory


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
    memory: SharedMemory | None = None  # holds the item on its way there, and the result on its way back
    is_done: bool = False
    result: Result | None = None
    error: Exception | None = None


class _Memory:
    """Pieces of shared memory, those that are not in use."""

    def __init__(self) -> None:
        self._free: list[SharedMemory] = []

    def take(self, size: int) -> SharedMemory | None:
        """A piece of at least `size` bytes, or None where there is no memory for that."""
        self._free.sort(key=lambda memory: memory.size)
        for number, memory in enumerate(self._free):
            if memory.size >= size:
                return self._free.pop(number)
        if self._free:  # all are too small
            _forget(self._free.pop())
        wanted = max(_LEAST_BYTES, 1 << (size - 1).bit_length())  # what comes back may be somewhat larger
        try:
            return SharedMemory(create=True, size=wanted) if _has_room(wanted) else None
        except OSError:
            return None

    def give_back(self, memory: SharedMemory) -> None:
        """Let others have it."""
        self._free.append(memory)

    def close(self) -> None:
        """Let go of what is not in use."""
        while self._free:
            _forget(self._free.pop())


class _Other:
    """One other process, and the work that it has."""

    def __init__(
        self, process: multiprocessing.process.BaseProcess, requests: Connection, results: Connection, memory: _Memory
    ) -> None:
        self.process = process
        self.requests = requests
        self.results = results
        self.work: deque[_Work[Any, Any]] = deque()
        self._memory = memory

    def begin(self, function: Callable[[Any], Any], work: _Work[Any, Any]) -> bool:
        """Give it work; returns False where there is no memory for that."""
        request = _pickled((function, work.item))
        work.memory = self._memory.take(sum(map(len, request)))
        if work.memory is None:
            return False
        self.work.append(work)
        sizes = _put(work.memory, request)
        try:
            self.requests.send((work.memory.name, sizes))
        except OSError as error:
            raise self._died() from error
        return True

    def receive(self) -> None:
        work = self.work[0]
        assert work.memory is not None
        try:
            sizes = self.results.recv()
            outcome = _unpickled([self.results.recv_bytes()]) if sizes is None else _taken(work.memory, sizes)
        except (EOFError, OSError) as error:
            raise self._died() from error
        work.result, work.error = outcome
        work.is_done = True
        self.forget_first()

    def forget_first(self) -> None:
        """Let go of the first piece of work; the memory that it took is free."""
        work = self.work.popleft()
        if work.memory is not None:
            self._memory.give_back(work.memory)
            work.memory = None

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
        self._memory = _Memory()

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
        self._memory.close()

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
                process = context.Process(target=_serve, args=(requests_end, results_end), daemon=True)
                process.start()
                requests_end.close()  # so that the other side sees it when this process is no more, and we when it is
                results_end.close()
                self._others.append(_Other(process, requests, results, self._memory))
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


def _serve(requests: Connection, results: Connection) -> None:
    """Work until the process that wants the results is no more, or does not want them."""
    gc.disable()
    attached: dict[str, SharedMemory] = {}
    with suppress(EOFError, OSError):
        while True:
            name, sizes = requests.recv()
            memory = attached.pop(name, None) or SharedMemory(name)
            attached[name] = memory
            while len(attached) > _AHEAD:  # the longest unused first; the others may have gone
                attached.pop(next(iter(attached))).close()
            function, item = _taken(memory, sizes)
            outcome = _outcome(function, item)
            result = _pickled(outcome)
            if sum(map(len, result)) <= memory.size:
                results.send(_put(memory, result))
            else:
                results.send(None)
                results.send_bytes(pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL))


def _pickled(value: object) -> list[memoryview]:
    """A value as bytes: the pickle, then what it refers to."""
    apart: list[pickle.PickleBuffer] = []
    text = pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=apart.append)
    return [memoryview(text), *(buffer.raw() for buffer in apart)]


def _unpickled(pieces: list[bytes]) -> Any:
    return pickle.loads(pieces[0], buffers=pieces[1:])  # noqa: S301 (of a process that we started, or that started us)


def _put(memory: SharedMemory, pieces: list[memoryview]) -> list[int]:
    """Write bytes to shared memory; returns the sizes of the pieces."""
    assert memory.buf is not None  # it is open
    start = 0
    for piece in pieces:
        memory.buf[start : start + len(piece)] = piece
        start += len(piece)
    return [len(piece) for piece in pieces]


def _taken(memory: SharedMemory, sizes: list[int]) -> Any:
    """The value whose bytes were put to shared memory; it refers to copies, so that the memory can be used again."""
    assert memory.buf is not None  # it is open
    ends = list(accumulate(sizes))
    return _unpickled([bytes(memory.buf[end - size : end]) for size, end in zip(sizes, ends, strict=True)])


def _forget(memory: SharedMemory) -> None:
    memory.close()
    memory.unlink()


def _has_room(size: int) -> bool:
    """Whether shared memory has room: a process that writes where there is none is killed. Containers have little."""
    try:
        free = os.statvfs("/dev/shm")
    except OSError:  # a system that has it elsewhere
        return True
    return size < free.f_bavail * free.f_frsize // 2


def _outcome(function: Callable[[Item], Result], item: Item) -> tuple[Result | None, Exception | None]:
    try:
        return function(item), None
    except Exception as error:  # raised when it is this item's turn
        return None, error
