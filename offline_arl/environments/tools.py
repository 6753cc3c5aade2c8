"""Tools that an agent can call: a JSON Schema, a Python function, and bounds on how long it may take.

A call never raises and never hangs an episode: whatever a tool does becomes a tool message that says what went wrong,
which the agent can read, as it will have to with real tools.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from threading import BoundedSemaphore, Thread
from typing import Any, Literal, NamedTuple

import msgspec

from offline_arl.errors import UsageError
from offline_arl.trajectories.calls import call_problem
from offline_arl.trajectories.schema import Message, MessageError, Producer, TextPart, ToolCall

logger = logging.getLogger(__name__)

ToolFunction = Callable[[dict[str, Any]], Any]
ToolUndo = Callable[[dict[str, Any], Any], None]
ToolFate = Literal["ok", "refused", "failed", "timeout"]
_CUT = "\n[... {} more characters]"


class ToolError(Exception):
    """What a tool raises to tell the agent that a call cannot be done ("no such order"); it is not tried again."""


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes:
        name: As the agent calls it.
        description: For the agent.
        parameters: JSON Schema of the arguments, an object.
        function: Called with the arguments; returns text or anything that JSON can carry. Runs in a thread, so it
            must not touch what other tools touch at the same time unless it locks it.
        writes: Whether a call changes anything. Calls that write run one after another, in order.
        timeout_s: Seconds that one try may take. A try that takes longer goes on in its thread, and what it returns is
            dropped; a tool that writes should keep bounds of its own.
        retries: How often a try that raised anything but `ToolError`, or timed out, is repeated. Only for tools
            whose call can be repeated safely.
        cost: Of one call, in units that the limits of `safety` count.
        undo: Takes a call back, for writes to what cannot be restored: called with the arguments and what the function
            returned, or with None where a try crashed, of which nobody knows how far it came. What it raises is told.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: ToolFunction
    writes: bool = False
    timeout_s: float = 30.0
    retries: int = 0
    cost: float = 0.0
    undo: ToolUndo | None = None

    def __post_init__(self) -> None:
        if not self.name or not self.timeout_s > 0 or self.retries < 0 or not self.cost >= 0:
            raise UsageError(
                f"tool {self.name!r}: needs a name, a positive timeout_s, and retries and cost that are not negative"
            )

    @property
    def definition(self) -> dict[str, Any]:
        """The tool in OpenAI form."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class ToolResult(NamedTuple):
    """What became of one call."""

    call: ToolCall
    fate: ToolFate  # "refused": not a call that the tools accept, nothing ran
    text: str
    error: MessageError | None
    tries: int
    seconds: float

    def message(self, producer: str) -> Message:
        """The tool message that answers the call."""
        return Message(
            role="tool",
            content=[TextPart(self.text)],
            tool_call_id=self.call.id,
            name=self.call.name or None,
            error=self.error,
            producer=Producer("environment", producer),
        )


class WrittenCall:
    """A try of a tool that writes, and its way back; satisfies `protocol.Compensation`."""

    def __init__(self, tool: Tool, call: ToolCall, future: Future[Any]) -> None:
        self.call = call
        self._tool = tool
        self._future = future

    def run(self) -> str | None:
        """Take it back; a try that has not come back yet is waited for once more, for as long as a try may take."""
        undo, timeout = self._tool.undo, self._tool.timeout_s
        if undo is None:
            return f"the tool {self._tool.name!r} has no undo"
        try:
            failure = self._future.exception(timeout)
        except FutureTimeoutError:
            return f"the call still runs after {timeout:g} s more"
        result = None if failure is not None else self._future.result()
        try:
            _in_thread(lambda: undo(dict(self.call.arguments or {}), result), self._tool.name).result(timeout)
        except FutureTimeoutError:
            return f"the undo has not ended within {timeout:g} s"
        except Exception as problem:
            return f"{type(problem).__name__}: {_told(problem)}"
        return None


class ToolBox:
    """Tools side by side.

    Args:
        tools: Of different names.
        max_characters: A longer result is cut, and says so: one huge result must not fill a policy's context.
        parallel: Calls of one message that run at the same time.

    Raises:
        UsageError: Two tools have the same name.
    """

    def __init__(self, tools: Sequence[Tool], *, max_characters: int = 20_000, parallel: int = 8) -> None:
        self._by_name = {tool.name: tool for tool in tools}
        if len(self._by_name) < len(tools):
            raise UsageError("two tools have the same name; each needs its own")
        self.definitions = [tool.definition for tool in tools]  # in OpenAI form
        self.tools = tuple(tools)
        self._max_characters = max_characters
        self._parallel = parallel
        self._written: list[WrittenCall] = []

    def tool(self, name: str) -> Tool | None:
        """The tool of a name."""
        return self._by_name.get(name)

    def written(self) -> int:
        """How many tries of tools that write may have changed something and were not taken back."""
        return len(self._written)

    def compensations(self, since: int) -> list[WrittenCall]:
        """The tries after the first `since`, newest first; they no longer count then."""
        self._written, taken = self._written[:since], self._written[since:]
        return taken[::-1]

    def call(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run the calls of one message; results in their order. Never raises.

        Calls that only read run side by side; one that writes waits for those before it, and those after it for it.
        """
        results: dict[int, ToolResult] = {}
        reading: list[tuple[int, Tool, ToolCall]] = []
        for place, call in enumerate(calls):
            tool = self._by_name.get(call.name)
            problem = call_problem(call, self.definitions)
            if problem is not None or tool is None:
                kind, text = ("unknown_tool", call.name) if problem is None else problem
                error = MessageError(kind, text)
                results[place] = ToolResult(call, "refused", _as_text({"error": text}), error, 0, 0.0)
            elif tool.writes:
                self._side_by_side(reading, results)
                results[place] = self._run(tool, call)
            else:
                reading.append((place, tool, call))
        self._side_by_side(reading, results)
        return [results[place] for place in range(len(calls))]

    def _side_by_side(self, reading: list[tuple[int, Tool, ToolCall]], results: dict[int, ToolResult]) -> None:
        """Run calls that only read, and forget them."""
        slots = BoundedSemaphore(self._parallel)

        def run(place: int, tool: Tool, call: ToolCall) -> None:
            with slots:
                results[place] = self._run(tool, call)

        if len(reading) == 1:
            run(*reading[0])
        else:
            threads = [Thread(target=run, args=item, daemon=True) for item in reading]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        reading.clear()

    def _run(self, tool: Tool, call: ToolCall) -> ToolResult:
        started = time.monotonic()
        error = MessageError("tool_error", "was not tried")
        fate: ToolFate = "failed"
        tries = 0
        while tries <= tool.retries:
            tries += 1
            future = _try(tool, dict(call.arguments or {}))
            if tool.writes:
                self._written.append(WrittenCall(tool, call, future))
            try:
                text = self._cut(_as_text(future.result(tool.timeout_s)))
                return ToolResult(call, "ok", text, None, tries, time.monotonic() - started)
            except ToolError as problem:
                if tool.writes:  # it says that it did nothing
                    self._written.pop()
                fate, error = "failed", MessageError("tool_error", self._cut(_told(problem)))
                break
            except FutureTimeoutError:
                fate, error = "timeout", MessageError("timeout", f"no result within {tool.timeout_s:g} s")
            except Exception as problem:  # whatever a tool raises is an answer to the agent
                logger.debug("tool %s failed", tool.name, exc_info=problem)
                text = self._cut(f"{type(problem).__name__}: {_told(problem)}")
                fate, error = "failed", MessageError("tool_crash", text)
        text = self._cut(_as_text({"error": error.text}))
        return ToolResult(call, fate, text, error, tries, time.monotonic() - started)

    def _cut(self, text: str) -> str:
        over = len(text) - self._max_characters
        return text if over <= 0 else text[: self._max_characters] + _CUT.format(over)


def _try(tool: Tool, arguments: dict[str, Any]) -> Future[Any]:
    return _in_thread(lambda: tool.function(arguments), tool.name)


def _in_thread(function: Callable[[], Any], name: str) -> Future[Any]:
    """Run in a thread of its own, which nothing waits for: a tool that hangs must not take others' places."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    Thread(target=run, daemon=True, name=f"tool {name}").start()
    return future


def _told(problem: Exception) -> str:
    """What an exception says, also if saying it fails."""
    try:
        return _clean(str(problem))
    except Exception:
        return "(it does not say what)"


def _clean(text: str) -> str:
    """Without halves of surrogate pairs, which neither a file nor a tokenizer takes."""
    return text.encode(errors="replace").decode()


def _as_text(value: Any) -> str:
    """A result as the agent reads it: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return _clean(value)
    return msgspec.json.encode(value, enc_hook=str).decode()
