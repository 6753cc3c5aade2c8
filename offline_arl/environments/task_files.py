"""Environments written as a file: an MCP server or none, a prompt, tasks, and rules that say what success is.

    name: clock
    system_prompt: You tell people the time.
    mcp: {command: mcp-server-time}
    max_steps: 6
    tasks:
      - id: rome
        prompt: What time is it in Rome?
        success:
          calls: [{name: get_current_time, arguments: {timezone: Europe/Rome}}]
          answer_contains: [Rome]

Examples:
          success:
            - calls: [{name: get_current_time, arguments: {timezone: Europe/Rome}}]
            - text: I looked up the time in Rome.
          failure:
            - text: I do not know the time in Rome.

The environment `file:PATH` is that of such a file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from offline_arl.environments.mcp_world import McpServer, McpWorld
from offline_arl.environments.protocol import Examples, Task
from offline_arl.environments.replay.recording import answered
from offline_arl.environments.splits import require_split, split_of_content
from offline_arl.environments.tool_environment import FunctionJudge, ScriptedUser, ToolEnvironment, World
from offline_arl.errors import DataError, UsageError, alternatives, reason_of
from offline_arl.trajectories.schema import Message, Outcome, TextPart, ToolCall, tool_call
from offline_arl.trajectories.yaml_text import parse_yaml


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Call(_Part):
    """A tool call."""

    name: str
    arguments: dict[str, Any] = {}

    @field_validator("arguments", mode="after")
    @classmethod
    def _check_arguments(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """As a call has them: JSON. A date of YAML is the text that it was written as."""
        kept: dict[str, Any] = _as_json(arguments)
        return kept


class Rules(_Part):
    """What success is; all that is set must hold.

    `calls` were made and answered without an error (with at least these arguments, in any order), `no_calls` names
    tools that were not called, not even in vain; the last message contains every text of `answer_contains` (no matter
    the case), none of `answer_lacks`, and a match of `answer_matches`.
    """

    calls: tuple[Call, ...] = ()
    no_calls: tuple[str, ...] = ()
    answer_contains: tuple[str, ...] = ()
    answer_lacks: tuple[str, ...] = ()
    answer_matches: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Rules:
        if not any((self.calls, self.no_calls, self.answer_contains, self.answer_lacks, self.answer_matches)):
            raise ValueError("no rule says what success is")
        if self.answer_matches is not None:
            try:
                re.compile(self.answer_matches)
            except re.error as error:
                raise ValueError(f"answer_matches is no regular expression: {error}") from error
        return self


class Said(_Part):
    """An assistant message of an example."""

    text: str = ""
    calls: tuple[Call, ...] = ()

    def message(self) -> Message:
        """As the environment takes it."""
        made = [tool_call(call.name, call.arguments, id=f"call_{n}") for n, call in enumerate(self.calls)]
        return Message("assistant", [TextPart(self.text)] if self.text else None, tool_calls=made)


class ExampleTexts(_Part):
    """Assistant messages that succeed, and that fail."""

    success: tuple[Said, ...] | None = None
    failure: tuple[Said, ...] | None = None

    @property
    def calls(self) -> list[Call]:
        """All calls of both."""
        return [call for said in (self.success, self.failure) for item in said or () for call in item.calls]


class TaskEntry(_Part):
    """One task. `replies` are what the user says after the prompt, one after another."""

    id: str = Field(min_length=1)
    type: str = "task"
    prompt: str
    replies: tuple[str, ...] = ()
    split: Literal["train", "validation", "test"] | None = None  # None: by the hash of the id
    allowed_tools: tuple[str, ...] | None = None
    success: Rules
    examples: ExampleTexts = ExampleTexts()


class McpEntry(_Part):
    """How the MCP server is started; see `mcp_world.McpServer`."""

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    tools: tuple[str, ...] | None = None
    timeout_s: float = Field(30.0, gt=0)


class TaskFile(_Part):
    """The whole file."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    system_prompt: str = ""
    mcp: McpEntry | None = None
    max_steps: int = Field(20, ge=1)
    tasks: tuple[TaskEntry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> TaskFile:
        for number, task in enumerate(self.tasks):
            if self.mcp is None and (task.success.calls or task.examples.calls):
                raise ValueError(f"tasks.{number} has calls, and there is no mcp whose tools could be called")
        ids = [task.id for task in self.tasks]
        twice = next((name for name in ids if ids.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two tasks have the id {twice!r}")
        return self


class TaskFileFamily:
    """The environment of a file; satisfies `environments.protocol.EnvironmentFamily` and `HasExamples`.

    Args:
        path: YAML or JSON.

    Raises:
        DataError: The file cannot be read, or is none of these.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self.name = f"file:{path}"
        try:
            raw = parse_yaml(self._path.read_text(encoding="utf-8"))
            self.file = TaskFile.model_validate(raw)
        except ValidationError as error:
            raise DataError(f"{path}: {_first_problem(error)}") from error
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
            raise DataError(f"{path}: no file of tasks ({reason_of(error)})") from error
        self._entries = {entry.id: entry for entry in self.file.tasks}

    def make(self) -> ToolEnvironment:
        """A fresh environment; each episode starts a server of its own."""
        mcp = self.file.mcp

        def world(task: Task) -> World:
            assert mcp is not None
            tools = mcp.tools if task.allowed_tools is None else task.allowed_tools
            return McpWorld(McpServer(mcp.command, mcp.args, mcp.env, timeout_s=mcp.timeout_s, tools=tools))

        return ToolEnvironment(
            None if mcp is None else world,
            user=ScriptedUser,
            judge=FunctionJudge(self._judge),
            system_prompt=self.file.system_prompt,
            name=self.file.name,
            max_steps=self.file.max_steps,
        )

    def tasks(self, split: str, count: int, *, seed: int = 0) -> list[Task]:
        """The first `count` tasks of a split, fewer where there are no more, for any seed.

        Raises:
            UsageError: There is no such split, or no task of it.
        """
        require_split(split)
        found = [_task(entry) for entry in self.file.tasks if _split(entry) == split]
        if not found:
            raise UsageError(f"{self._path}: no task of the split {split!r}")
        return found[:count]

    def examples(self, task: Task) -> Examples:
        """The examples that the file has."""
        texts = self._entries[task.task_id].examples
        success, failure = (
            None if said is None else [item.message() for item in said] for said in (texts.success, texts.failure)
        )
        return Examples(success, failure)

    def named_tools(self, task: Task) -> set[str]:
        """See `protocol.NamesTools`."""
        entry = self._entries[task.task_id]
        return {*entry.success.no_calls, *(call.name for call in (*entry.success.calls, *entry.examples.calls))}

    def _judge(self, task: Task, messages: Sequence[Message], world: World | None) -> Outcome:
        verdict = verdicts(self._entries[task.task_id].success, messages)
        components = {name: float(value) for name, value in verdict.items()}
        success = all(verdict.values())
        return Outcome("scored", success, float(success), components, scorer=self.file.name)


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        name = str(first["loc"][-1])
        return f"{where}: unknown key {name!r}; {alternatives(name, _keys_beside(first['loc']))}"
    text = first["msg"].removeprefix("Value error, ")
    return f"{f'{where}: ' if where else ''}{text[:1].lower()}{text[1:]}"


def _keys_beside(place: tuple[int | str, ...]) -> list[str]:
    """The keys that are known where one is not."""
    models: list[type[BaseModel]] = [TaskFile]
    for part in place[:-1]:
        if isinstance(part, str) and part in models[-1].model_fields:
            annotation = models[-1].model_fields[part].annotation
            models += [item for item in _parts_of(annotation) if issubclass(item, _Part)]
    return list(models[-1].model_fields)


def _parts_of(annotation: Any) -> list[type[Any]]:
    """The classes in an annotation, however deep."""
    inner = get_args(annotation)
    if inner:
        return [found for item in inner for found in _parts_of(item)]
    return [annotation] if isinstance(annotation, type) else []


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _as_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, date):  # and date and time
        return value.isoformat()
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"{value!r} is nothing that JSON can say")


def verdicts(rules: Rules, messages: Sequence[Message]) -> dict[str, bool]:
    """Which of the rules that are set hold for a conversation."""
    made = [call for message in messages if message.role == "assistant" for call in message.tool_calls]
    done = [call for call, answer in _answered(messages) if answer is not None and answer.error is None]
    said = [message.text for message in messages if message.role == "assistant" and message.text]
    answer = said[-1] if said else ""
    found: dict[str, bool] = {}
    if rules.calls:
        found["calls"] = all(
            any(call.name == wanted.name and _includes(call.arguments or {}, wanted.arguments) for call in done)
            for wanted in rules.calls
        )
    if rules.no_calls:
        found["no_calls"] = not any(call.name in rules.no_calls for call in made)
    if rules.answer_contains:
        found["answer_contains"] = all(text.lower() in answer.lower() for text in rules.answer_contains)
    if rules.answer_lacks:
        found["answer_lacks"] = not any(text.lower() in answer.lower() for text in rules.answer_lacks)
    if rules.answer_matches is not None:
        found["answer_matches"] = re.search(rules.answer_matches, answer) is not None
    return found


def _answered(messages: Sequence[Message]) -> Iterator[tuple[ToolCall, Message | None]]:
    """Each call of the assistant, with the tool message that answers it."""
    for place, message in enumerate(messages):
        if message.role == "assistant":
            replies = takewhile(lambda reply: reply.role != "assistant", messages[place + 1 :])
            yield from answered(message.tool_calls, list(replies))


def _includes(arguments: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(name in arguments and arguments[name] == value for name, value in wanted.items())


def _task(entry: TaskEntry) -> Task:
    payload = {"prompt": entry.prompt, "replies": list(entry.replies), "success": entry.success.model_dump()}
    kept: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(payload))
    return Task(entry.id, entry.type, kept, entry.allowed_tools)


def _split(entry: TaskEntry) -> str:
    if entry.split is not None:
        return entry.split
    return split_of_content(entry.id.encode())
