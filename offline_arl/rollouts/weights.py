"""Weights on their way to a sampler: from a checkpoint folder or a live model, with tied heads spelled out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from offline_arl.errors import DataError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from offline_arl.rollouts.sampler import Sampler

_INPUT_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
_HEAD = "lm_head.weight"


def with_tied_head(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Pass `weights` through and add the output head of a model with tied embeddings where it is left out.

    A checkpoint with tied embeddings stores the matrix once, under the name of the input embeddings. vLLM repacks
    the head at load time, so a reload that does not name the head leaves it stale: it then samples from a mixture
    of the new body and the old head, with no error.
    """
    embeddings: torch.Tensor | None = None
    has_head = False
    for name, tensor in weights:
        if name.endswith(_HEAD):
            has_head = True
        elif name.endswith(_INPUT_EMBEDDINGS):
            embeddings = tensor
        yield name, tensor
    if not has_head and embeddings is not None:
        yield _HEAD, embeddings


def model_weights(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """The (name, tensor) pairs of a live model, detached, adapters merged, the tied head included."""
    from offline_arl.models.adapters import merged_state

    state = ((name, tensor.detach()) for name, tensor in merged_state(model).items())
    return with_tied_head(state) if model.config.tie_word_embeddings else state


def checkpoint_weights(path: str | Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The (name, tensor) pairs of a checkpoint folder's safetensors files, those of values that guide it included.

    Raises:
        DataError: The folder holds no safetensors weights.
    """
    from offline_arl.models.guided_policy import is_value_guided, load_value_guidance

    files = _safetensors_files(Path(path))
    tied = _ties_embeddings(Path(path))
    pairs = _read_tensors(files)
    weights = with_tied_head(pairs) if tied else pairs
    return chain(weights, load_value_guidance(path).weights()) if is_value_guided(path) else weights


def load_checkpoint(sampler: Sampler, path: str | Path) -> None:
    """Put the weights of another checkpoint of the same architecture into a running sampler.

    Much faster than starting a second engine, which for vLLM takes seconds.
    """
    sampler.load_weights(checkpoint_weights(path))


def _safetensors_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return [path / name for name in names]
    single = path / "model.safetensors"
    if single.is_file():
        return [single]
    raise DataError(f"{path}: no model.safetensors; give a folder written by save_pretrained")


def _ties_embeddings(path: Path) -> bool:
    config = path / "config.json"
    return bool(config.is_file() and json.loads(config.read_text()).get("tie_word_embeddings", False))


def _read_tensors(files: Iterable[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    for file in files:
        with safe_open(file, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118 (safe_open is no mapping)
                yield name, handle.get_tensor(name)
