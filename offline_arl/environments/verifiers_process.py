"""The other process that runs verifiers, from this side: lines of JSON in and out (see `verifiers_worker.worker`)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import weakref
from collections import deque
from pathlib import Path
from queue import Empty, Queue
from threading import Lock, Thread
from typing import IO, Any

from offline_arl.errors import DataError

_PROGRAM = Path(__file__).parent / "verifiers_worker" / "worker.py"
_LINES = 20  # of what the process says beside the protocol, kept to explain its end
_QUIT_S = 20.0


class WorkerProcess:
    """A worker and the episodes that it plays; safe to share between threads. It ends with this object.

    Args:
        python: The interpreter, of an installation that has verifiers.
        settings: For the worker: `env` (verifiers' own configuration) and `max_turns`.
        timeout_s: That one answer of the environment may take, its start and the rubric's verdict included.

    Raises:
        DataError: It does not start, or there is no such environment.
    """

    def __init__(self, python: str, settings: dict[str, Any], *, timeout_s: float) -> None:
        self.python = python
        self._timeout_s = timeout_s
        self._said: deque[str] = deque(maxlen=_LINES)
        self._queues: dict[str, Queue[dict[str, Any]]] = {}
        self._other: Queue[dict[str, Any]] = Queue()
        self._lock = Lock()
        self._asking = Lock()
        self._ended = False
        self._count = 0
        try:
            process = subprocess.Popen(
                [python, str(_PROGRAM), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            raise DataError(
                f"{python}: cannot be started ({error.strerror}); it runs the verifiers environment"
            ) from error
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdin = process.stdin
        self._quit = weakref.finalize(self, _quit, process)
        # Threads that know this object only weakly, so that it can go while they wait.
        Thread(target=_read, args=(weakref.ref(self), process.stdout), daemon=True, name="verifiers").start()
        Thread(target=_remember, args=(self._said, process.stderr), daemon=True, name="verifiers log").start()
        first = self._answer(self._other)
        if first["event"] == "failed":
            self.close()
            raise DataError(f"verifiers: {first['text']}")

    def tasks(self, start: int, count: int) -> list[dict[str, Any]]:
        """The environment's tasks from number `start` on, fewer where there are no more.

        Raises:
            DataError: They cannot be loaded.
        """
        with self._asking:
            self._send({"op": "tasks", "start": start, "count": count})
            answer = self._answer(self._other)
        if "error" in answer:
            raise DataError(f"verifiers: the tasks cannot be loaded ({answer['error']})")
        found: list[dict[str, Any]] = answer["tasks"]
        return found

    def start(self, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Begin an episode of a task; returns its name and the first event: a turn, or the end."""
        with self._lock:
            self._count += 1
            name = str(self._count)
            self._queues[name] = Queue()
        self._send({"op": "start", "episode": name, "data": data})
        return name, self.event(name)

    def say(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        """Say the policy's message; returns what follows: the next turn, or the end."""
        self._send({"op": "say", "episode": name, "message": message})
        return self.event(name)

    def stop(self, name: str, reason: str) -> dict[str, Any]:
        """Say that the policy will say nothing more; returns the end, with the verdict on what there is."""
        self._send({"op": "stop", "episode": name, "reason": reason})
        return self.event(name)

    def abandon(self, name: str) -> None:
        """Forget an episode; one that is not over is ended."""
        if self._queues.pop(name, None) is not None and not self._ended:
            with contextlib.suppress(DataError):
                self._send({"op": "abandon", "episode": name})

    def event(self, name: str) -> dict[str, Any]:
        """The next event of an episode."""
        queue = self._queues.get(name)
        if queue is None:
            raise DataError("verifiers: the episode was abandoned")
        return self._answer(queue)

    def close(self) -> None:
        """End the process."""
        self._quit()

    def took(self, message: dict[str, Any]) -> None:
        """Give a message of the worker to whoever waits for it; that it has ended, to all."""
        if message["event"] == "gone":
            self._ended = True
            for waiting in [self._other, *self._queues.values()]:
                waiting.put(message)
            return
        queue = self._queues.get(message["episode"]) if "episode" in message else self._other
        if queue is not None:  # else of an episode that was abandoned
            queue.put(message)

    def _answer(self, queue: Queue[dict[str, Any]]) -> dict[str, Any]:
        try:
            # One that is gone answers nobody who asks from now on.
            message = {"event": "gone"} if self._ended and queue.empty() else queue.get(timeout=self._timeout_s)
        except Empty:
            raise DataError(f"verifiers: no answer of the environment within {self._timeout_s:g} s") from None
        if message["event"] == "gone":
            told = " ".join(" ".join(self._said).split())[-500:] or "it said nothing"
            raise DataError(f"verifiers: {self.python} has ended ({told})")
        return message

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                self._stdin.write(line)
                self._stdin.flush()
        except (OSError, ValueError) as error:
            told = " ".join(" ".join(self._said).split())[-500:]
            raise DataError(f"verifiers: {self.python} has ended ({told or error})") from error


def _read(owner: weakref.ref[WorkerProcess], stream: IO[bytes]) -> None:
    for line in stream:
        worker = owner()
        if worker is None:
            return
        worker.took(json.loads(line))
        del worker
    worker = owner()
    if worker is not None:
        worker.took({"event": "gone"})


def _remember(said: deque[str], stream: IO[bytes]) -> None:
    for line in stream:
        said.append(line.decode(errors="replace"))


def _quit(process: subprocess.Popen[bytes]) -> None:
    """Let the worker end its episodes and servers; end it where it does not."""
    with contextlib.suppress(OSError, ValueError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(_QUIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
