"""Results of Harbor's trials (`result.json`): rewards, errors, times, and whose attempt at what it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from offline_arl.logs.agents.atif_steps import token_record
from offline_arl.logs.primitives.scores import direction_of, finite_number, make_score
from offline_arl.logs.primitives.values import as_list, as_object, as_text
from offline_arl.trajectories.schema import Message, Outcome, TokenRecord, Trajectory

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
        messages = self._with_tokens(trajectory)
        values = self.values if messages is trajectory.messages else _without_tokens(self.values)
        return msgspec.structs.replace(
            trajectory,
            messages=messages,
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
            metadata={**trajectory.metadata, "trial": values},
        )

    def _outcome(self) -> Outcome:
        if not self._is_valid():
            return Outcome("infrastructure_error")
        if not self.rewards:
            return Outcome()
        name = "reward" if "reward" in self.rewards or len(self.rewards) > 1 else next(iter(self.rewards))
        if direction_of(name) == "lower_is_better":
            return Outcome(scorer="harbor_verifier")  # a number of errors, say; it is among the scores
        score = self.rewards.get(name)
        components = self.rewards if len(self.rewards) > 1 else {}
        success = None if score not in (0.0, 1.0) else score == 1.0
        return Outcome("scored", success, score, components, "harbor_verifier")

    def _is_valid(self) -> bool:
        """Whether the rewards count, as Harbor sees it; without rewards, whether what failed was the agent."""
        if not self.rewards:
            return all(name in _LIMITS or name in _AGENT_ERRORS for name in self.exceptions)
        told = self.values.get("reward_valid")
        if isinstance(told, bool):
            return told
        policy = as_object(as_object(self.values.get("exception_info")).get("policy"))
        return policy.get("has_valid_reward") is not False

    def _with_tokens(self, trajectory: Trajectory) -> list[Message]:
        """The messages with the token ids that the agent collected, where there are as many turns as answers."""
        details = as_list(as_object(self.values.get("agent_result")).get("rollout_details"))
        turns = _turns(as_object(details[0])) if details else []
        places = [index for index in trajectory.step_indices() if trajectory.messages[index].tokens is None]
        if not turns or len(turns) != len(places) or None in turns:
            return trajectory.messages
        messages = list(trajectory.messages)
        for place, turn in zip(places, turns, strict=True):
            messages[place] = msgspec.structs.replace(messages[place], tokens=turn)
        return messages


def _without_tokens(values: dict[str, Any]) -> dict[str, Any]:
    result = values.get("agent_result")
    if not isinstance(result, dict) or "rollout_details" not in result:
        return values
    return {**values, "agent_result": {key: item for key, item in result.items() if key != "rollout_details"}}


def _turns(detail: dict[str, Any]) -> list[TokenRecord | None]:
    """The token ids of each turn; None for a turn whose lists do not fit one another."""
    sampled = as_list(detail.get("completion_token_ids"))
    prompts, logprobs = (as_list(detail.get(key)) or [None] * len(sampled) for key in ("prompt_token_ids", "logprobs"))
    if not len(sampled) == len(prompts) == len(logprobs):
        return []
    return [
        token_record({"completion_token_ids": ids, "prompt_token_ids": prompt, "logprobs": values}, {})
        for ids, prompt, values in zip(sampled, prompts, logprobs, strict=True)
    ]
