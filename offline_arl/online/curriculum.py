"""Which tasks the next step attempts."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_arl.environments.protocol import Task
from offline_arl.errors import UsageError
from offline_arl.online.config import CurriculumConfig
from offline_arl.online.difficulty import Difficulty
from offline_arl.rollouts.episode import Episode


class TaskSchedule:
    """Draws tasks evenly: in proportion to their weights, each as far from its last time as they allow.

    Without a curriculum all weights are equal: every task comes up once before any comes up twice, in a fresh random
    order each time. With one, the weight of a task is p (1 - p) + floor, p its estimated success (`Difficulty`): a
    group of attempts teaches only where some succeed and some fail.

    Every draw takes the task that is due first (stride scheduling, Waldspurger & Weihl 1995): a task of weight w is due
    once in each span of 1 / w, at a random time within it.

    With levels, tasks are sorted by their estimated success when the schedule is calibrated and cut into equal parts,
    the easiest first; only those of open levels are drawn. Before, all levels are open: nothing tells easy from hard.

    Args:
        tasks: To draw from.
        curriculum: None: all tasks alike.
        generator: Of the draws.
        predictions: V of the first state of each task (`task_id`) under a critic; read with a curriculum.

    Raises:
        UsageError: Two tasks have the same id, or there are more levels than tasks.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        curriculum: CurriculumConfig | None,
        generator: np.random.Generator,
        predictions: Mapping[str, float] | None = None,
    ) -> None:
        self._tasks = list(tasks)
        self._places = {task.task_id: place for place, task in enumerate(tasks)}
        if len(self._places) != len(tasks):
            raise UsageError("two training tasks share a task_id; groups are told apart by it")
        self._curriculum = curriculum
        self._generator = generator
        self._n_levels = 1 if curriculum is None else curriculum.levels
        if self._n_levels > max(len(tasks), 1):
            raise UsageError(f"{self._n_levels} levels for {len(tasks)} tasks; lower levels or pass more tasks")
        memory = 0.0 if curriculum is None else curriculum.memory
        self._difficulty = Difficulty(predictions or {}, memory=memory)
        self._start = copy.deepcopy(self._difficulty)  # as it was when levels were made
        self._levels = np.zeros(len(tasks), dtype=np.int64)  # of each task
        self._cuts: list[float] = []  # the lowest estimate of each level
        self._open = self._n_levels
        self._waited = 0  # validations since a level was opened
        self._offsets: NDArray[np.float64] = generator.random(len(tasks))  # when in its span each task is due
        self._due = self._offsets.copy()  # of its span, what is left until then

    @property
    def level(self) -> int:
        """How many levels are open."""
        return self._open

    def check(self, count: int) -> None:
        """Make sure that a step can draw `count` tasks, also while only the first level is open.

        Raises:
            UsageError: There are fewer tasks.
        """
        size = math.ceil(len(self._tasks) / self._n_levels)
        if count > size:
            where = "" if self._n_levels == 1 else f" in each of {self._n_levels} levels"
            raise UsageError(f"a step attempts {count} tasks and there are {size}{where}; pass more training tasks")

    def draw(self, count: int, *, exclude: Collection[str] = ()) -> list[Task]:
        """The tasks of the next step, or some more for it; none twice.

        Args:
            count: How many.
            exclude: Ids of tasks that must not come, such as those that the step has already.

        Raises:
            UsageError: Fewer tasks than `count` are open and not excluded.
        """
        is_open = self._levels < self._open
        free = is_open.copy()
        free[[self._places[name] for name in exclude if name in self._places]] = False
        if count > int(free.sum()):
            raise UsageError(
                f"a step attempts {count} tasks and there are {int(free.sum())} "
                "that are open and not in it yet; pass more training tasks, or lower levels or refill_rounds"
                if exclude or self._n_levels > 1
                else f"a step attempts {count} tasks and there are {len(self._tasks)}; pass more training tasks"
            )
        weights = self._weights()
        drawn = []
        for _ in range(count):
            times = np.where(free, self._due / weights, np.inf)
            place = int(times.argmin())
            left = self._due - times[place] * weights
            self._due = np.where(is_open, np.maximum(left, 0.0), self._due)
            self._next_span(place)
            free[place] = False
            drawn.append(self._tasks[place])
        self._difficulty.attempted(drawn)
        return drawn

    def update(self, success: Mapping[str, Sequence[float]]) -> None:
        """Tell the schedule how the groups went: task type to the mean success of each of its groups."""
        self._difficulty.update(success)

    def calibrate(self, episodes: Sequence[Episode], values: Mapping[str, float] | None = None) -> None:
        """Take estimates from sampled validation episodes, sort the tasks by them and close all levels but the first.

        Args:
            episodes: Of the policy that training starts from.
            values: V of the first state of their tasks under the critic, as in `predictions`.
        """
        if self._curriculum is None:
            return
        self._difficulty.calibrate(episodes, values, self._tasks)
        self._start = copy.deepcopy(self._difficulty)
        estimates = self._estimates()
        self._cuts = []
        for level, places in enumerate(np.array_split(np.argsort(-estimates, kind="stable"), self._n_levels)):
            self._levels[places] = level
            self._cuts.append(float(estimates[places].min(initial=np.inf)))
        self._open, self._waited = 1, 0

    def promote(self, success: float) -> bool:
        """After a validation: open the next level where this is time, and say whether it was.

        Args:
            success: Sampled success on the validation tasks of the open levels (`is_open`); NaN where there are none.
        """
        if self._curriculum is None or self._open == self._n_levels:
            return False
        self._waited += 1
        if not success >= self._curriculum.promote_at and self._waited < self._curriculum.patience:
            return False
        self._open, self._waited = self._open + 1, 0
        return True

    def is_open(self, task: Task) -> bool:
        """Whether a task, of training or held out, belongs to the open levels: is as easy as those in them."""
        if self._open == self._n_levels:
            return True
        place = self._places.get(task.task_id)
        if place is not None:
            return bool(self._levels[place] < self._open)
        return self._start.success(task) >= self._cuts[self._open - 1]

    def success(self, task: Task) -> float:
        """The present estimate for a task."""
        return self._difficulty.success(task)

    def state(self) -> dict[str, Any]:
        """All that `restore` needs to draw on as this schedule would, as JSON."""
        generator = self._generator.bit_generator.state
        return {
            "tasks": self._identity(),
            # JSON readers differ in how large an integer may be.
            "generator": {**generator, "state": {name: str(value) for name, value in generator["state"].items()}},
            "due": self._due.tolist(),
            "offsets": self._offsets.tolist(),
            "levels": self._levels.tolist(),
            "cuts": self._cuts,
            "open": self._open,
            "waited": self._waited,
            "difficulty": self._difficulty.state(),
            "start": self._start.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on as the schedule whose `state` this is.

        Raises:
            UsageError: It is that of other tasks.
        """
        if state["tasks"] != self._identity():
            raise UsageError(
                "the saved state is of other training tasks or levels; resume with the same, or begin anew"
            )
        generator = state["generator"]
        self._generator.bit_generator.state = {
            **generator,
            "state": {name: int(value) for name, value in generator["state"].items()},
        }
        self._due, self._offsets = np.array(state["due"]), np.array(state["offsets"])
        self._levels, self._cuts = np.array(state["levels"], dtype=np.int64), list(state["cuts"])
        self._open, self._waited = state["open"], state["waited"]
        self._difficulty.restore(state["difficulty"])
        self._start.restore(state["start"])

    def _weights(self) -> NDArray[np.float64]:
        if self._curriculum is None:
            return np.ones(len(self._tasks))
        p = self._estimates()
        return p * (1 - p) + self._curriculum.floor

    def _estimates(self) -> NDArray[np.float64]:
        return np.array([self._difficulty.success(task) for task in self._tasks])

    def _next_span(self, place: int) -> None:
        """A task was drawn: it is due again at a random time of its next span."""
        offset = self._generator.random()
        self._due[place] = 1.0 - self._offsets[place] + offset
        self._offsets[place] = offset

    def _identity(self) -> str:
        text = "\n".join([str(self._n_levels), *(task.task_id for task in self._tasks)])
        return hashlib.sha256(text.encode()).hexdigest()
