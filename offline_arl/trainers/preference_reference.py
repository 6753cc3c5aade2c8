"""Log-probabilities under the frozen reference, computed once and kept beside the data.

DPO, IPO and KTO compare the policy with the one it started from. Its values never change, so they are computed before
training, in one pass over the data, and the reference need not be in memory afterwards. The sidecar

    reference-<key>.safetensors    logprobs (float32, of all scored tokens, sequence by sequence) and offsets

is named after all that the values depend on: token ids and masks of the data, mismatched answers included, and the
reference's weights. Equal names mean that there is nothing to compute.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from offline_arl.datasets.collate import length_sorted_batches
from offline_arl.datasets.preference_batches import (
    AnswerLike,
    PairLike,
    SequenceBatch,
    Side,
    answer_side,
    collate_pairs,
    collate_sides,
    mismatched_side,
    pair_costs,
    pair_sides,
)
from offline_arl.models.policy import policy_fingerprint
from offline_arl.objectives.logprobs import scored_mask
from offline_arl.trainers.preference_forward import batch_logprobs

_logger = logging.getLogger(__name__)

Batches = Callable[[], Iterator[tuple[list[int], SequenceBatch]]]  # with the numbers of their sequences

FORMAT = "1"  # raise it when the values of equal inputs change


@dataclass(frozen=True, eq=False)
class ReferenceLogprobs:
    """Log-probabilities of the scored tokens of many sequences, one after the other."""

    logprobs: Float[Tensor, " tokens"]
    offsets: Int[Tensor, " sequences_and_one"]

    def of(self, sequence: int) -> Float[Tensor, " scored"]:
        """Of one sequence, in the order of its scored tokens."""
        return self.logprobs[int(self.offsets[sequence]) : int(self.offsets[sequence + 1])]

    def padded(self, sequences: Sequence[int], action_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """The values of some sequences at the places of their tokens, 0 elsewhere.

        Args:
            sequences: Their numbers, in the order of the batch.
            action_mask: Of the batch that holds them.
        """
        values = torch.cat([self.of(sequence) for sequence in sequences])
        return torch.zeros(action_mask.shape).masked_scatter(scored_mask(action_mask), values)

    def sums(self) -> Float[Tensor, " sequences"]:
        """The log-probability of each sequence, added up in float64."""
        running = torch.cat([torch.zeros(1, dtype=torch.float64), self.logprobs.double().cumsum(0)])
        return (running[self.offsets[1:]] - running[self.offsets[:-1]]).float()


def pair_reference(
    model: Any,
    rows: Sequence[PairLike],
    *,
    pad_token_id: int,
    tokens_per_batch: int,
    folder: Path | None,
    precision: str = "float32",
) -> ReferenceLogprobs:
    """Of both sides of every pair: sequence 2 i is the chosen side of row i, 2 i + 1 the rejected one.

    Args:
        model: The reference.
        rows: The pairs.
        pad_token_id: For padding.
        tokens_per_batch: About this many tokens a forward pass.
        folder: Where the sidecar lies, or will; None keeps the values in memory alone.
        precision: Of the computation, that of training, so that policy and reference agree at the start.
    """

    def batches() -> Iterator[tuple[list[int], SequenceBatch]]:
        for members in length_sorted_batches(pair_costs(rows, share_prefix=True), max_tokens=tokens_per_batch):
            batch = collate_pairs([rows[index] for index in members], pad_token_id=pad_token_id)
            yield [2 * index for index in members] + [2 * index + 1 for index in members], batch

    sides = [side for row in rows for side in pair_sides(row)]
    return _cached(model, sides, batches, folder, precision)


def answer_reference(
    model: Any,
    rows: Sequence[AnswerLike],
    partners: Sequence[int],
    *,
    pad_token_id: int,
    tokens_per_batch: int,
    folder: Path | None,
    precision: str = "float32",
) -> ReferenceLogprobs:
    """Of every labeled answer (sequence i) and of its mismatched counterpart (sequence `len(rows)` + i).

    Args:
        model: The reference.
        rows: The answers.
        partners: The row whose answer stands behind each row's prompt.
        pad_token_id: For padding.
        tokens_per_batch: About this many tokens a forward pass.
        folder: As in `pair_reference`.
        precision: As there.
    """
    sides = [answer_side(row) for row in rows]
    sides += [mismatched_side(row, rows[partner]) for row, partner in zip(rows, partners, strict=True)]
    lengths = np.array([len(side) for side in sides])

    def batches() -> Iterator[tuple[list[int], SequenceBatch]]:
        for members in length_sorted_batches(lengths, max_tokens=tokens_per_batch):
            yield members, collate_sides([sides[index] for index in members], pad_token_id=pad_token_id)

    return _cached(model, sides, batches, folder, precision)


def reference_key(model: Any, sides: Sequence[Side], precision: str) -> str:
    """SHA-256 of all that reference values depend on."""
    digest = hashlib.sha256(f"{FORMAT}:{policy_fingerprint(model)}:{precision}:{len(sides)}".encode())
    for side in sides:
        digest.update(len(side).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(side.token_ids, dtype=np.int32).tobytes())
        digest.update(np.packbits(side.action_mask).tobytes())
    return digest.hexdigest()


def _cached(
    model: Any, sides: Sequence[Side], batches: Batches, folder: Path | None, precision: str
) -> ReferenceLogprobs:
    """The values from the sidecar where it is there, computed and written where it is not."""
    counts = [int(side.action_mask[1:].sum()) for side in sides]
    offsets = torch.tensor([0, *np.cumsum(counts)])
    if folder is None:
        return ReferenceLogprobs(_compute(model, counts, offsets, batches, precision), offsets)
    from accelerate import PartialState

    with PartialState().main_process_first():  # the other processes find what it has written
        key = reference_key(model, sides, precision)
        path = folder / f"reference-{key[:24]}.safetensors"
        logprobs = _read(path, key)
        if logprobs is None:
            logprobs = _compute(model, counts, offsets, batches, precision)
            _write(path, key, logprobs, offsets)
        else:
            _logger.info("reference log-probabilities of %d sequences are taken from %s", len(sides), path)
    return ReferenceLogprobs(logprobs, offsets)


def _compute(model: Any, counts: Sequence[int], offsets: Tensor, batches: Batches, precision: str) -> Tensor:
    values = torch.zeros(int(offsets[-1]))
    was_training = model.training
    model.eval()
    half = torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")
    with torch.inference_mode(), half:
        for members, batch in batches():
            logprobs = batch_logprobs(model, batch.to(model.device), share_prefix=True).float().cpu()
            pieces = torch.split(logprobs[scored_mask(batch.action_mask)], [counts[index] for index in members])
            for index, piece in zip(members, pieces, strict=True):
                values[int(offsets[index]) : int(offsets[index + 1])] = piece
    model.train(was_training)
    return values


def _read(path: Path, key: str) -> Tensor | None:
    """The values of a sidecar with this key; None where there is none, or it is damaged."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            logprobs: Tensor = file.get_tensor("logprobs")
            return logprobs if (file.metadata() or {}).get("key") == key else None
    except (OSError, SafetensorError) as error:
        _logger.warning("%s is unreadable (%s); the reference log-probabilities are computed again", path, error)
        return None


def _write(path: Path, key: str, logprobs: Tensor, offsets: Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"
    try:
        save_file({"logprobs": logprobs, "offsets": offsets}, temporary, metadata={"key": key})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
