"""Results of Harbor's trials (`result.json`): rewards, errors, times, and whose attempt at what it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from offline_arl.logs.scores import finite_number, make_score
from offline_arl.logs.values import as_list, as_object, as_text
from offline_arl.trajectories.schema import Outcome, Trajectory

# The attempt was cut by a limit of the run; its reward is valid.
_LIMITS = frozenset(
    {
        "AgentTimeoutError",
        "ContextLengthExceededError",
        "ContextWindowExceededError",
        "OutputLengthExceededError",
        "OutputTokenExceededError",
    }
)
# Other failures after which Harbor itself takes a reward for valid.
_AGENT_ERRORS = frozenset({"NonZeroAgentExitCodeError", "AgentSafetyRefusalError", "ContentPolicyViolationError"})


def is_trial_result(record: dict[str, Any]) -> bool:
    """Whether a record is the result of one trial."""
    return {"task_name", "trial_name", "task_id", "agent_info"} <= record.keys()


@dataclass(frozen=True)
class TrialResult:
    """What a result says of the trial's trajectories."""

    values: dict[str, Any]
    rewards: dict[str, float]
    exceptions: list[str]  # names, those of the trial first

    @classmethod
    def of(cls, values: dict[str, Any]) -> TrialResult:
        """The result of a parsed `result.json`."""
        logged = as_object(as_object(values.get("verifier_result")).get("rewards"))
        numbers = {name: finite_number(value) for name, value in logged.items()}
        errors = [as_object(values.get("exception_info"))]
        errors.extend(as_object(as_object(step).get("exception_info")) for step in as_list(values.get("step_results")))
        names = [as_text(error.get("exception_type")) for error in errors]
        return cls(
            values,
            {name: number for name, number in numbers.items() if number is not None},
            [name for name in names if name is not None],
        )

    def identify(self, trajectory: Trajectory) -> Trajectory:
        """A trajectory of the trial with what names the trial: task, attempt, agent, model."""
        values = self.values
        task = as_text(values.get("task_name"))
        agent = as_object(values.get("agent_info"))
        model = as_text(as_object(agent.get("model_info")).get("name"))
        trial = as_text(values.get("id")) or as_text(values.get("trial_name"))
        return msgspec.structs.replace(
            trajectory,
            task_id=task,
            group_id=task,
            task_type=as_text(values.get("source")),
            episode_id=trial or trajectory.episode_id,
            identifiers=trajectory.identifiers if trial is None else {**trajectory.identifiers, "trial": trial},
            agent=trajectory.agent or as_text(agent.get("name")),
            model=trajectory.model or model,
        )

    def judge(self, trajectory: Trajectory) -> Trajectory:
        """The agent's own trajectory with the verdict and how the trial ended."""
        truncated = any(name in _LIMITS for name in self.exceptions)
        return msgspec.structs.replace(
            trajectory,
            outcome=self._outcome(),
            scores=[
                *trajectory.scores,
                *(
                    make_score(name, value, scorer="harbor_verifier", kind="environment")
                    for name, value in self.rewards.items()
                ),
            ],
            terminated=not self.exceptions and as_text(self.values.get("finished_at")) is not None,
            truncated=truncated,
            stop_reason=self.exceptions[0] if self.exceptions else trajectory.stop_reason,
            started_at=trajectory.started_at or as_text(self.values.get("started_at")),
            ended_at=trajectory.ended_at or as_text(self.values.get("finished_at")),
            metadata={**trajectory.metadata, "trial": self.values},
        )

    def _outcome(self) -> Outcome:
        if not self._is_valid():
            return Outcome("infrastructure_error")
        if not self.rewards:
            return Outcome()
        score = self.rewards.get("reward", next(iter(self.rewards.values())) if len(self.rewards) == 1 else None)
        components = self.rewards if len(self.rewards) > 1 else {}
        success = None if score not in (0.0, 1.0) else score == 1.0
        return Outcome("scored", success, score, components, "harbor_verifier")

    def _is_valid(self) -> bool:
        """Whether what failed, if anything, was the agent; the result's own word counts where it has one."""
        if self.rewards and self.values.get("reward_valid") is False:
            return False
        return all(name in _LIMITS or name in _AGENT_ERRORS for name in self.exceptions)
