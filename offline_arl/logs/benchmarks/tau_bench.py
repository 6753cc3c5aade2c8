"""Result files of tau-bench: a JSON array of `{task_id, trial, reward, info, traj}`.

`traj` holds OpenAI chat messages; the tools are not recorded. The user is simulated by a script's model. An
episode ends when the simulated user says `###STOP###` or the agent hands over to a person; one that ends
otherwise was cut by the step limit.
"""

from __future__ import annotations

from typing import Any

import msgspec

from offline_arl.logs.adapter import RawRecord, RecordRefusedError
from offline_arl.logs.primitives.values import json_type
from offline_arl.logs.providers.openai_messages import convert_messages
from offline_arl.logs.records import explain
from offline_arl.trajectories.schema import Message, Outcome, Producer, Trajectory

STOP_TEXT = "###STOP###"
HANDOVER_TOOL = "transfer_to_human_agents"

_PRODUCERS = {
    "assistant": Producer("model"),
    "user": Producer("script", "user_simulator"),
    "tool": Producer("environment"),
    "system": Producer("script"),
    "developer": Producer("script"),
}


class TauBenchAdapter:
    """Reads tau-bench results."""

    name = "tau_bench"
    title = "tau-bench results"
    keeps = "reward as outcome, task and trial, how the episode ended"
    lacks = "tool schemas, timestamps"

    def recognizes(self, record: Any) -> bool:
        """Whether the record has a task, a trial, a reward and a list of messages under `traj`."""
        return (
            isinstance(record, dict)
            and isinstance(record.get("traj"), list)
            and {"task_id", "trial", "reward"} <= record.keys()
        )

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The one trajectory of a result."""
        try:
            values = msgspec.json.decode(record.raw)
        except msgspec.DecodeError as error:
            raise RecordRefusedError(explain(record.raw, error)) from error
        if not isinstance(values, dict) or "traj" not in values:
            raise RecordRefusedError(f"expected an object with traj, got {json_type(values)}")
        messages = [
            msgspec.structs.replace(message, producer=_PRODUCERS[message.role])
            for message in convert_messages(values.pop("traj"), "traj")
        ]
        task_id, reward = values.pop("task_id", None), values.pop("reward", None)
        if task_id is None:
            raise RecordRefusedError("task_id: is missing")
        terminated, stop_reason = _ending(messages)
        return [
            Trajectory(
                trajectory_id=record.trajectory_id(),
                messages=messages,
                source=record.source(self.name),
                task_id=str(task_id),
                group_id=str(task_id),
                terminated=terminated,
                truncated=not terminated,
                stop_reason=stop_reason,
                outcome=_outcome(reward),
                metadata=values,
            )
        ]


def _ending(messages: list[Message]) -> tuple[bool, str]:
    last = messages[-1]
    if last.role == "user" and STOP_TEXT in last.text:
        return True, "user_stop"
    if last.role == "tool" and last.name == HANDOVER_TOOL:
        return True, "handover"
    return False, "max_steps"


def _outcome(reward: object) -> Outcome:
    if reward is None:
        return Outcome()
    if not isinstance(reward, (int, float)):
        raise RecordRefusedError(f"reward: expected a number, got {json_type(reward)}")
    return Outcome("scored", success=reward == 1, score=float(reward), scorer="tau_bench")
