"""Building preference datasets: from families of trajectories to a folder of pairs or of labeled answers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from offline_arl.datasets.manifest import DatasetManifest
from offline_arl.datasets.pairs.folder import PreferenceWriter
from offline_arl.datasets.pairs.labels import Labeled, labels_of, recommended_weights
from offline_arl.datasets.pairs.mining import mine
from offline_arl.datasets.pairs.outcomes import QValues
from offline_arl.datasets.pairs.pair import Pair
from offline_arl.datasets.pairs.rendering import (
    NoRowError,
    Splits,
    messages_text,
    pair_row,
    side_tokens,
    source_of,
    tools_text,
)
from offline_arl.datasets.pairs.rows import UnpairedRow
from offline_arl.datasets.segments import SegmentRenderer
from offline_arl.rewards.preferences import PairsConfig, UnpairedConfig
from offline_arl.trajectories.schema import Trajectory

MorePairs = Callable[[Sequence[Trajectory], Counter[str]], Iterable[Pair]]
# What `mine` counts beside the pairs that it does not make.
_LOOKED_AT = ("compared_groups", "mixed_groups", "shared_states")


def build_pairs(
    families: Iterable[Sequence[Trajectory]],
    renderer: SegmentRenderer,
    output: str | Path,
    *,
    config: PairsConfig,
    splits: Splits | None = None,
    q_values: QValues | None = None,
    more: MorePairs | None = None,
) -> DatasetManifest:
    """Write a dataset of pairs, family by family.

    The manifest's `counts` has of each kind how many pairs there are (`pairs/step`), and what was looked at:
    `compared_groups` (tasks with several attempts), `mixed_groups` (whose attempts ended differently) and
    `shared_states` (states in which two attempts took different steps). `excluded` counts the pairs that were not
    made, by reason.

    Args:
        families: See `mining.families_of`; read once.
        renderer: Makes token ids and action masks.
        output: Folder to create or replace.
        config: Which pairs.
        splits: The split of each trajectory that has one.
        q_values: Q of steps, for pairs of kind "value".
        more: Makes further pairs of a family, negatives for example.

    Raises:
        DataError: There is no pair at all; the message gives the reasons.
    """
    looked_at = Counter(dict.fromkeys(_LOOKED_AT, 0))
    made: Counter[str] = Counter({f"pairs/{kind}": 0 for kind in config.pair_kinds})
    writer = PreferenceWriter(
        Path(output), kind="pairs", fingerprint=renderer.fingerprint, config=config.model_dump(mode="json")
    )
    with writer:
        writer.counts.update(made)
        for family in families:
            counts: Counter[str] = Counter()
            pairs = mine(family, config, counts, q_values=q_values)
            pairs += more(family, counts) if more is not None else []
            for name in _LOOKED_AT:
                looked_at[name] += counts.pop(name, 0)
            for reason, number in counts.items():
                writer.exclude(reason, number)
            known: set[tuple[bytes, bytes]] = set()
            for pair in pairs:
                try:
                    row = pair_row(pair, renderer, max_tokens=config.max_tokens, splits=splits or {})
                except NoRowError as error:
                    writer.exclude(str(error))
                    continue
                sides = row.chosen_token_ids.tobytes(), row.rejected_token_ids.tobytes()
                if sides in known:  # attempts that do the same, or a trajectory pair of one step on either side
                    writer.exclude("duplicate")
                else:
                    known.add(sides)
                    writer.add(row)
        writer.counts.update(looked_at)
    assert writer.manifest is not None
    return writer.manifest


def build_unpaired(
    trajectories: Iterable[Trajectory],
    renderer: SegmentRenderer,
    output: str | Path,
    *,
    config: UnpairedConfig,
    splits: Splits | None = None,
) -> DatasetManifest:
    """Write a dataset of labeled answers, in the order of `trajectories`, with bounded memory.

    The manifest's `counts` has `desirable` and `undesirable`, and its configuration under "recommended" the class
    weights that bring the two into the balance that KTO needs (see `labels.recommended_weights`).

    Raises:
        DataError: There is no label at all; the message gives the reasons.
        UsageError: See `labels.labels_of`.
    """
    values = config.model_dump(mode="json")
    writer = PreferenceWriter(Path(output), kind="unpaired", fingerprint=renderer.fingerprint, config=values)
    with writer:
        writer.counts.update({"desirable": 0, "undesirable": 0})
        for trajectory in trajectories:
            counts: Counter[str] = Counter()
            for labeled in labels_of(trajectory, config, counts):
                try:
                    writer.add(_unpaired_row(labeled, renderer, config.max_tokens, splits or {}))
                except NoRowError as error:
                    writer.exclude(str(error))
            for reason, number in counts.items():
                writer.exclude(reason, number)
        weights = recommended_weights(writer.counts["desirable"], writer.counts["undesirable"])
        writer.config["recommended"] = {
            "desirable_weight": weights.desirable, "undesirable_weight": weights.undesirable,
        }  # fmt: skip
    assert writer.manifest is not None
    return writer.manifest


def _unpaired_row(labeled: Labeled, renderer: SegmentRenderer, max_tokens: int | None, splits: Splits) -> UnpairedRow:
    side, trajectory = labeled.side, labeled.side.trajectory
    token_ids, action_mask = side_tokens(side, renderer, max_tokens)
    identity = f"{trajectory.trajectory_id}\0{side.position}\0{labeled.source}\0{labeled.scorer}".encode()
    evidence: dict[str, Any] = {**source_of(trajectory.source), **labeled.evidence}
    return UnpairedRow(
        row_id=hashlib.sha256(identity + token_ids.tobytes()).hexdigest()[:20],
        source=labeled.source,
        task_id=trajectory.task_id if trajectory.task_id is not None else trajectory.group_id,
        task_type=trajectory.task_type,
        split=splits.get(trajectory.trajectory_id),
        label=labeled.label,
        weight=1.0,
        scorer=labeled.scorer,
        score=labeled.score,
        trajectory_id=trajectory.trajectory_id,
        message=side.position,
        prompt_length=int(np.argmax(action_mask)),
        token_ids=token_ids,
        action_mask=action_mask,
        prompt=messages_text(side.messages[: side.start]),
        completion=messages_text(side.messages[side.start :]),
        tools=tools_text(side),
        evidence=msgspec.json.encode(evidence).decode(),
    )
