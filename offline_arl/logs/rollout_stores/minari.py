"""Episodes of Minari whose observations are text: what the agent saw is the user's message, what it did the answer.

`logs.containers` makes records of its HDF5, Arrow and Parquet files. An episode has one more observation than actions.
"""

from __future__ import annotations

import math
from typing import Any

from offline_arl.logs.adapter import RawRecord, RecordRefusedError, RecordSetApartError
from offline_arl.logs.containers.minari import EPISODE_COLUMNS
from offline_arl.logs.primitives.scores import finite_number
from offline_arl.logs.primitives.values import as_list, as_object, as_text, decode_object, json_text, json_type
from offline_arl.trajectories.schema import Message, Outcome, Producer, Score, TextPart, Trajectory

_DATASET_KEYS = frozenset({"total_episodes", "total_steps", "data_format"})
_EPISODE_HEADER_KEYS = frozenset({"id", "total_steps"})
_ENVIRONMENT = Producer("environment")


class MinariAdapter:
    """Reads text episodes of Minari."""

    name = "minari"
    title = "Minari episodes of text"
    keeps = "reward of each step, terminated and truncated apart, infos, seed and options, dataset"
    lacks = "episodes whose observations are numbers or images are set apart"

    def recognizes(self, record: Any) -> bool:
        """Whether the record is an episode, or one of Minari's metadata files."""
        if not isinstance(record, dict):
            return False
        keys = record.keys()
        return keys >= EPISODE_COLUMNS or keys >= _DATASET_KEYS or _is_episode_header(record)

    def convert(self, record: RawRecord) -> list[Trajectory]:
        """The one trajectory of an episode."""
        values = decode_object(record.raw)
        if not values.keys() >= EPISODE_COLUMNS:
            if values.keys() >= _DATASET_KEYS or _is_episode_header(values):
                raise RecordSetApartError("Minari's metadata of a dataset or episode")
            raise RecordRefusedError(f"has no {', '.join(sorted(EPISODE_COLUMNS - values.keys()))}")
        observations, extras = _texts(values.pop("observations"), "observations")
        actions, _ = _texts(values.pop("actions"), "actions")
        rewards = as_list(values.pop("rewards"))
        if len(observations) != len(actions) + 1 or len(rewards) != len(actions):
            raise RecordRefusedError(
                f"{len(observations)} observations, {len(actions)} actions and {len(rewards)} rewards do not fit"
            )
        dataset = as_object(values.pop("dataset", None))
        policy = Producer("unknown", as_text(dataset.get("algorithm_name")))
        infos = _steps_of(values.pop("infos", None), len(observations))
        messages = []
        for step, observation in enumerate(observations):
            metadata = {**({"info": infos[step]} if infos[step] else {}), **extras[step]}
            messages.append(Message("user", [TextPart(observation)], producer=_ENVIRONMENT, metadata=metadata))
            if step < len(actions):
                messages.append(Message("assistant", [TextPart(actions[step])], producer=policy))
        terminated = as_list(values.pop("terminations"))[-1:] == [True]
        truncated = as_list(values.pop("truncations"))[-1:] == [True]
        dataset_id = as_text(dataset.get("dataset_id"))
        task_id = _task_id(values, dataset_id)
        return [
            Trajectory(
                trajectory_id=record.trajectory_id(),
                messages=messages,
                source=record.source(self.name),
                task_id=task_id,
                group_id=task_id,
                episode_id=f"{dataset_id}/{values.get('id')}" if dataset_id is not None else None,
                task_type=dataset_id,
                terminated=terminated,
                truncated=truncated and not terminated,
                outcome=_outcome(rewards),
                metadata={**values, **({"dataset": dataset} if dataset else {})},
                scores=_scores(rewards),
            )
        ]


def _is_episode_header(record: dict[str, Any]) -> bool:
    keys = record.keys()
    return keys >= _EPISODE_HEADER_KEYS and all(
        key in ("id", "total_steps", "seed", "options") or key.startswith("rewards_") for key in keys
    )


def _texts(logged: Any, where: str) -> tuple[list[str], list[dict[str, Any]]]:
    """The text of each step, and what else it had: other fields of a dictionary with one text in it.

    Actions may be numbers, of which the text is taken.
    """
    if isinstance(logged, dict):
        steps = _steps_of(logged, max((len(item) for item in logged.values() if isinstance(item, list)), default=0))
    elif isinstance(logged, list):
        steps = logged
    else:
        raise RecordRefusedError(f"{where}: expected a list, got {json_type(logged)}")
    texts: list[str] = []
    extras: list[dict[str, Any]] = []
    for step in steps:
        text, extra = _text(step, where)
        texts.append(text)
        extras.append(extra)
    return texts, extras


def _text(step: Any, where: str) -> tuple[str, dict[str, Any]]:
    if isinstance(step, str):
        return step, {}
    if where == "actions" and isinstance(step, (int, float)):
        return str(step), {}
    if isinstance(step, dict):
        texts = {key: value for key, value in step.items() if isinstance(value, str)}
        rest = {key: value for key, value in step.items() if key not in texts}
        if len(texts) == 1:
            return next(iter(texts.values())), {where: rest} if rest else {}
        if texts:
            return json_text(texts), {where: rest} if rest else {}
    raise RecordSetApartError(f"the {where} are not text")


def _steps_of(logged: Any, count: int) -> list[Any]:
    """A value for each step from a list of them, or from lists by name (which may be nested)."""
    if isinstance(logged, list):
        return [*logged, *[None] * (count - len(logged))][:count]
    if not isinstance(logged, dict):
        return [None] * count
    columns = {key: _steps_of(column, count) for key, column in logged.items()}
    return [{key: column[step] for key, column in columns.items()} for step in range(count)]


def _task_id(values: dict[str, Any], dataset_id: str | None) -> str | None:
    """Episodes with the same seed and options start alike, so they are attempts at the same task."""
    if values.get("seed") is None:
        return None
    options = values.get("options")
    parts = [dataset_id or "minari", f"seed {values['seed']}", *([json_text(options)] if options else [])]
    return "/".join(parts)


def _outcome(rewards: list[Any]) -> Outcome:
    numbers = [finite_number(reward) for reward in rewards]
    known = [number for number in numbers if number is not None]
    if not known or len(known) < len(numbers):
        return Outcome()
    return Outcome("scored", score=math.fsum(known), scorer="environment")


def _scores(rewards: list[Any]) -> list[Score]:
    return [
        Score(
            "reward",
            number,
            scorer="environment",
            scorer_kind="environment",
            direction="higher_is_better",
            message_index=2 * step + 1,
        )
        for step, reward in enumerate(rewards)
        if (number := finite_number(reward)) is not None
    ]
