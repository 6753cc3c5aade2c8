"""An environment of parts: a world with tools, a user, a judge. Most environments need no class of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from offline_arl.environments.protocol import Compensation, EpisodeStart, StepResult, StopReason, Task
from offline_arl.environments.tools import Tool, ToolBox
from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.schema import Message, Outcome, text_message


class World(Protocol):
    """What tools act on, for one episode.

    A world that can break down, for example with the server behind it, has an attribute `failure` that says why; None
    while it can go on.
    """

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools, bound to this world."""
        ...

    def close(self) -> None:
        """Let go of whatever the world holds; called once, when the episode is over or abandoned."""
        ...


class User(Protocol):
    """The other side of the conversation, for one episode."""

    def open(self, task: Task) -> list[Message]:
        """The first messages, after the system prompt."""
        ...

    def reply(self, messages: Sequence[Message]) -> list[Message] | None:
        """What the user says to the conversation so far; None: nothing, the episode is over."""
        ...


class Judge(Protocol):
    """Says how an episode went."""

    def judge(self, task: Task, messages: Sequence[Message], world: World | None) -> Outcome:
        """The verdict on the conversation and the world as they stand."""
        ...


class ScriptedUser:
    """Says what the task's payload has: `prompt`, then the texts of `replies` in order.

    Args:
        name: For the messages' producer.
    """

    def __init__(self, name: str = "user") -> None:
        self._name = name
        self._left: list[str] = []

    def open(self, task: Task) -> list[Message]:
        """The prompt.

        Raises:
            UsageError: The payload has none.
        """
        prompt = task.payload.get("prompt")
        if not isinstance(prompt, str):
            raise UsageError(f"task {task.task_id}: its payload has no text 'prompt' for the user to say")
        self._left = [str(text) for text in task.payload.get("replies", [])]
        return [text_message("user", prompt, kind="script", name=self._name)]

    def reply(self, messages: Sequence[Message]) -> list[Message] | None:
        """The next text of the script, or the end."""
        if not self._left:
            return None
        return [text_message("user", self._left.pop(0), kind="script", name=self._name)]


class FunctionJudge:
    """A rule as a judge.

    Args:
        function: From task, conversation and world to a verdict.
    """

    def __init__(self, function: Callable[[Task, Sequence[Message], World | None], Outcome]) -> None:
        self._function = function

    def judge(self, task: Task, messages: Sequence[Message], world: World | None) -> Outcome:
        """The function's verdict."""
        return self._function(task, messages, world)


class ToolEnvironment:
    """World, user and judge as one; satisfies `environments.protocol.Environment`.

    Each tool call is answered by the world's tools (`tools.ToolBox`, so that none raises or hangs). A message of text
    alone goes to the user, whose silence ends the episode. An empty message costs as an invalid action does, and is
    asked about.

    A world whose tools have an `undo` stays open until `close` or the next episode, so that an episode that failed can
    still be taken back; satisfies `protocol.Compensating`.

    Args:
        make_world: A fresh world for a task; None: there are no tools.
        user: Makes a fresh user.
        judge: Of the end.
        system_prompt: Of every episode; "": none.
        name: Of the environment, for the messages' producer.
        max_steps: The episode is truncated after this many assistant messages.
        invalid_action_penalty: Subtracted at each step with a malformed call or an empty message.
        max_characters: Of a tool's result.
    """

    def __init__(
        self,
        make_world: Callable[[Task], World] | None,
        *,
        user: Callable[[], User],
        judge: Judge,
        system_prompt: str = "",
        name: str = "tools",
        max_steps: int = 20,
        invalid_action_penalty: float = 0.05,
        max_characters: int = 20_000,
    ) -> None:
        if max_steps < 1:
            raise UsageError(f"max_steps must be at least 1, not {max_steps}")
        self.max_steps = max_steps
        self._make_world = make_world
        self._make_user = user
        self._judge = judge
        self._system_prompt = system_prompt
        self._name = name
        self._penalty = invalid_action_penalty
        self._max_characters = max_characters
        self._world: World | None = None
        self._task: Task | None = None
        self._verdict: Outcome | None = None

    def reset(self, task: Task) -> EpisodeStart:
        """Start an episode."""
        self.close()
        self._task = task
        self._verdict = None
        self._steps = 0
        self._world = None if self._make_world is None else self._make_world(task)
        self._tools = ToolBox([] if self._world is None else self._world.tools, max_characters=self._max_characters)
        self._user = self._make_user()
        system = [text_message("system", self._system_prompt, kind="script")] if self._system_prompt else []
        self._messages = [*system, *self._user.open(task)]
        return EpisodeStart(list(self._messages), self._tools.definitions)

    def step(self, message: Message) -> StepResult:
        """Take the assistant's message. Never raises on what it says.

        Raises:
            UsageError: The episode has ended or was never started.
            DataError: The world broke down, which is not the agent's doing.
        """
        if self._task is None or self._verdict is not None:
            raise UsageError("the episode has ended: call reset before step")
        self._steps += 1
        self._messages.append(message)
        invalid = 0
        replies: list[Message] | None
        if message.tool_calls:
            results = self._tools.call(message.tool_calls)
            failure = getattr(self._world, "failure", None)
            if failure is not None:
                raise DataError(str(failure))
            invalid = sum(result.fate == "refused" for result in results)
            replies = [result.message(self._name) for result in results]
        elif not message.text.strip():
            invalid, replies = 1, [text_message("user", "Your message was empty.", kind="environment", name=self._name)]
        else:
            replies = self._user.reply(self._messages)
        terminated = replies is None
        truncated = not terminated and self._steps >= self.max_steps
        self._messages += replies or []
        reward = -self._penalty if invalid else 0.0
        stop_reason = None
        if terminated or truncated:
            stop_reason = StopReason.ANSWERED if terminated else StopReason.MAX_STEPS
            verdict = self._judged()
            if verdict.status == "scored":
                reward += float(verdict.success) if verdict.success is not None else verdict.score or 0.0
            self._verdict = verdict
            if not any(tool.undo is not None for tool in self._tools.tools):
                self.close()
        return StepResult(replies or [], reward, terminated, truncated, stop_reason, {"invalid_actions": invalid})

    def outcome(self) -> Outcome:
        """The judge's verdict; unscored before the first episode."""
        if self._task is None:
            return Outcome()
        return self._judged() if self._verdict is None else self._verdict

    def write_tools(self) -> dict[str, bool]:
        """See `environments.protocol.Compensating`."""
        return {tool.name: tool.undo is not None for tool in self._tools.tools if tool.writes}

    def tool_costs(self) -> dict[str, float]:
        """See `environments.protocol.HasCosts`."""
        return {tool.name: tool.cost for tool in self._tools.tools}

    def written(self) -> int:
        """See `environments.protocol.Compensating`."""
        return self._tools.written()

    def compensations(self, since: int) -> Sequence[Compensation]:
        """See `environments.protocol.Compensating`."""
        return self._tools.compensations(since)

    def close(self) -> None:
        """Let go of the world of an episode."""
        world, self._world = self._world, None
        if world is not None:
            world.close()

    def _judged(self) -> Outcome:
        assert self._task is not None
        return self._judge.judge(self._task, self._messages, self._world)
