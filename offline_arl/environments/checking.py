"""Finding bugs of environments and judges before a policy learns them: `check` plays each task's examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from offline_arl.environments.protocol import (
    Environment,
    EnvironmentFamily,
    HasExamples,
    NamesTools,
    Reversible,
    Task,
    closing,
    tool_names,
)
from offline_arl.errors import UsageError, alternatives
from offline_arl.trajectories.schema import Message, Outcome


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with a task, its environment or its judge."""

    task_id: str
    example: str  # "success", "failure", or "" where it concerns neither
    text: str


@dataclass
class CheckReport:
    """What a check found.

    `tasks` were checked; `examples` counts the examples that were played, `without` the tasks that have none of success
    or of failure: their judge was checked from one side only.
    """

    environment: str
    tasks: int = 0
    examples: int = 0
    problems: list[Problem] = field(default_factory=list)
    without: dict[str, int] = field(default_factory=lambda: {"success": 0, "failure": 0})


def check(family: EnvironmentFamily, tasks: Sequence[Task]) -> CheckReport:
    """Play the examples of tasks and say what is not as it should be.

    The example of success must succeed and that of failure must fail, each twice with the same rewards and verdict
    (an environment that remembers the last episode, or judges by chance, shows so); an episode must end when its
    example does, and where the environment can be restored, a restored episode must go on as the first one did. The
    tools that a task's rules and examples name must be among its tools.

    Args:
        family: The environment; its tasks need examples.
        tasks: Which tasks.

    Raises:
        UsageError: The family has no examples.
    """
    if not isinstance(family, HasExamples):
        raise UsageError(
            f"the environment {family.name!r} has no examples to check its judge with; give its family a method "
            "examples(task) (see environments.protocol.HasExamples)"
        )
    report = CheckReport(family.name)
    seen: set[str] = set()
    for task in tasks:
        report.tasks += 1
        if task.task_id in seen:
            report.problems.append(Problem(task.task_id, "", "two tasks have this id"))
        seen.add(task.task_id)
        report.problems += [Problem(task.task_id, "", text) for text in _unknown_tools(family, task)]
        try:
            examples = family.examples(task)
        except Exception as error:
            report.problems.append(Problem(task.task_id, "", f"examples fail with {_told(error)}"))
            continue
        for name, messages, wanted in (("success", examples.success, True), ("failure", examples.failure, False)):
            if messages is None:
                report.without[name] += 1
                continue
            report.examples += 1
            text = _problem_of(family, task, messages, wanted)
            if text is not None:
                report.problems.append(Problem(task.task_id, name, text))
    return report


def _unknown_tools(family: EnvironmentFamily, task: Task) -> list[str]:
    """Tools that the task speaks of and does not have."""
    named = family.named_tools(task) if isinstance(family, NamesTools) else set()
    if not named:
        return []
    try:
        with closing(family.make()) as environment:
            known = tool_names(environment.reset(task))
    except Exception as error:
        return [f"the environment does not start: {_told(error)}"]
    return [f"names the tool {name!r}; {alternatives(name, known)}" for name in sorted(named - set(known))]


def _problem_of(family: EnvironmentFamily, task: Task, messages: Sequence[Message], wanted: bool) -> str | None:
    try:
        with closing(family.make()) as environment:
            rewards, outcome, ended = _play(environment, task, messages)
            again = _play(environment, task, messages)
        with closing(family.make()) as environment:
            fresh = _play(environment, task, messages)
        with closing(family.make()) as environment:
            restored = _restored(environment, task, messages)
    except Exception as error:  # of the environment, which must not raise on what an agent says
        return f"the environment fails with {_told(error)}"
    if not ended:
        return f"the episode is not over after the {len(messages)} messages of the example"
    if outcome.status != "scored":
        return f"the judge gives no verdict (status {outcome.status})"
    if outcome.success is not wanted:
        parts = ", ".join(f"{name} {value:g}" for name, value in outcome.components.items())
        return f"the judge says success={outcome.success}" + (f" ({parts})" if parts else "")
    if again != (rewards, outcome, ended):
        return "a second episode in the same environment ends otherwise: something is left of the first"
    if fresh != (rewards, outcome, ended):
        return "the same messages in a fresh environment end otherwise: the result is not determined by the task"
    if restored is not None and restored != (rewards, outcome, ended):
        return "an episode that goes on from a restored snapshot ends otherwise"
    return None


def _play(
    environment: Environment, task: Task, messages: Sequence[Message], *, start: int = 0, reset: bool = True
) -> tuple[list[float], Outcome, bool]:
    """(rewards, verdict, whether the episode ended) of playing the messages from `start` on."""
    if reset:
        environment.reset(task)
    rewards: list[float] = []
    for message in messages[start:]:
        result = environment.step(message)
        rewards.append(result.reward)
        if result.terminated or result.truncated:
            return rewards, environment.outcome(), True
    return rewards, environment.outcome(), False


def _restored(
    environment: Environment, task: Task, messages: Sequence[Message]
) -> tuple[list[float], Outcome, bool] | None:
    """Play to the middle, keep the state, play to the end, take the state back, and play the second half again."""
    if not isinstance(environment, Reversible):
        return None
    middle = len(messages) // 2
    before, _, ended = _play(environment, task, messages[:middle])
    if ended:
        return None
    state = environment.snapshot()
    _play(environment, task, messages, start=middle, reset=False)
    environment.restore(state)
    after, outcome, ended = _play(environment, task, messages, start=middle, reset=False)
    return before + after, outcome, ended


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
