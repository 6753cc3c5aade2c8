"""Heads on disk: weights as safetensors beside their sizes as JSON. What kinds of heads share of saving and loading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from offline_arl.errors import DataError

Heads = TypeVar("Heads", bound=nn.Module)


def write_heads(heads: nn.Module, shape: Any, folder: Path, *, weights: str, sizes: str) -> None:
    """Write two files of these names into a folder, which is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in heads.state_dict().items()}, folder / weights)
    (folder / sizes).write_bytes(msgspec.json.encode(shape) + b"\n")


def read_heads(
    folder: Path, make: Callable[[Any], Heads], shape_type: type[Any], *, weights: str, sizes: str, what: str
) -> Heads:
    """Read what `write_heads` wrote, ready for inference.

    Args:
        folder: Where they lie.
        make: Heads of a shape, whose weights are then replaced.
        shape_type: Of their sizes.
        weights: Name of the file.
        sizes: Name of the file.
        what: They are, for messages.

    Raises:
        DataError: A file is missing or damaged.
    """
    try:
        shape = msgspec.json.decode((folder / sizes).read_bytes(), type=shape_type)
        heads = make(shape)
        heads.load_state_dict(load_file(folder / weights))
    except (OSError, msgspec.DecodeError, SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{folder}: cannot read the {what} ({reason}); train them again") from error
    return heads.eval().requires_grad_(False)
