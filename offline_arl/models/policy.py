"""Policies: loading, saving and running Hugging Face causal language models, only as far as a loss needs.

Two savings that change no value: logits are computed only where an action token is predicted, and a prefix that all
rows of a batch share (system prompt and tools) is encoded once, with gradients.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from offline_arl.errors import DataError, UsageError
from offline_arl.models.adapters import adapter_base, is_adapter, load_merged

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MIN_SHARED_PREFIX = 8  # shorter ones save less than a second forward call costs


def load_policy(name_or_path: str | Path, dtype: str = "float32") -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer; safetensors only, no remote code.

    Args:
        name_or_path: A folder or a model name. A folder of LoRA adapters gives their model with them merged into it.
        dtype: "float32", "bfloat16" or "float16".

    Returns:
        (model, tokenizer). The tokenizer has a pad token: its own, else its end-of-sequence token.

    Raises:
        UsageError: The dtype is unknown or the model cannot be found or loaded.
    """
    model, tokenizer = load_model(name_or_path, dtype), load_tokenizer(name_or_path)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def load_model(name_or_path: str | Path, dtype: str = "float32") -> Any:
    """Load a causal language model alone, as `load_policy` does.

    Raises:
        UsageError: The dtype is unknown, or the model cannot be found or loaded, or lacks weights.
    """
    from transformers import AutoModelForCausalLM

    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}")
    if is_adapter(name_or_path):
        return load_merged(name_or_path, dtype)
    with _told_loading(f"the model {str(name_or_path)!r}"), without_progress_bars():
        model, loading = AutoModelForCausalLM.from_pretrained(
            name_or_path,
            dtype=DTYPES[dtype],
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    if loading["missing_keys"]:  # transformers only warns, and fills them with random numbers
        absent = sorted(loading["missing_keys"])
        raise UsageError(
            f"the model {str(name_or_path)!r} lacks {len(absent)} of its weights, the first {absent[0]!r}; "
            "copy model.safetensors again, or give another folder"
        )
    return model


def load_tokenizer(name_or_path: str | Path) -> Any:
    """Load the tokenizer of a policy as it is; no remote code.

    Raises:
        UsageError: It cannot be found or loaded.
    """
    from transformers import AutoTokenizer

    if is_adapter(name_or_path) and not (Path(name_or_path) / "tokenizer_config.json").is_file():
        name_or_path = adapter_base(name_or_path)
    with _told_loading(f"the tokenizer of {str(name_or_path)!r}"):
        return AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False)


@contextmanager
def _told_loading(what: str) -> Iterator[None]:
    """Turn whatever the loaders raise on a folder into one line: damaged files give errors of many classes."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise UsageError(
            f"cannot load {what}: {type(error).__name__}: {reason}; give a folder with config.json, tokenizer.json "
            "and model.safetensors, or the name of a model that is available on this machine"
        ) from error


def save_policy(model: Any, tokenizer: Any, folder: str | Path) -> None:
    """Save a model and its tokenizer as safetensors, adapters merged; the folder appears complete or not at all."""
    from offline_arl.models.adapters import merged_state

    folder = Path(folder)
    temporary = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        with without_progress_bars():
            if hasattr(model, "peft_config"):
                model.get_base_model().save_pretrained(temporary, state_dict=merged_state(model))
            else:
                model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def policy_fingerprint(model: nn.Module) -> str:
    """SHA-256 of a model's parameters and buffers, their names and types; tied weights count once for each name.

    Adapters count as merged: those that were just made, and change nothing, leave the fingerprint as it is.
    """
    from offline_arl.models.adapters import merged_state

    digest = hashlib.sha256()
    for name, value in sorted(merged_state(model).items()):
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()


def selected_logits(
    model: Any,
    input_ids: Int[Tensor, "B T"],
    attention_mask: Int[Tensor, "B T"],
    selected: Bool[Tensor, "B T"],
    *,
    shared_prefix: int = 0,
) -> Float[Tensor, "N V"]:
    """Logits at the positions of `selected` alone, in row-major order.

    The rows are chosen in front of the output layer by a hook, so whatever a model does to its logits afterwards
    (scaling, soft capping) still happens, and wrappers of the model see an ordinary forward call.

    Args:
        model: A Hugging Face causal language model, possibly wrapped.
        input_ids: Right-padded tokens.
        attention_mask: 1 on tokens, 0 on padding.
        selected: Where logits are wanted; never inside the shared prefix.
        shared_prefix: First tokens that all rows share; encoded once for the batch. 0: not used.

    Returns:
        [N, V], N the number of True in `selected`. Gradients flow, through the shared prefix too.
    """
    return selected_states_and_logits(model, input_ids, attention_mask, selected, shared_prefix=shared_prefix)[1]


def selected_states_and_logits(
    model: Any,
    input_ids: Int[Tensor, "B T"],
    attention_mask: Int[Tensor, "B T"],
    selected: Bool[Tensor, "B T"],
    *,
    shared_prefix: int = 0,
) -> tuple[Float[Tensor, "N H"], Float[Tensor, "N V"]]:
    """`selected_logits` with the hidden states that they were made from, those of the last layer after the norm."""
    arguments: dict[str, Any] = {"use_cache": False}
    if _shares_prefix(model, input_ids, shared_prefix):
        cache = _encode_prefix(base_model(model), input_ids[:1, :shared_prefix], len(input_ids))
        input_ids, selected = input_ids[:, shared_prefix:], selected[:, shared_prefix:]
        arguments = {"past_key_values": cache, "use_cache": True}
    return _states_and_logits_at(model, selected, input_ids=input_ids, attention_mask=attention_mask, **arguments)


def logits_at(model: Any, selected: Bool[Tensor, "B T"], **arguments: Any) -> Float[Tensor, "N V"]:
    """One forward call whose output layer sees the positions of `selected` alone, in row-major order."""
    return _states_and_logits_at(model, selected, **arguments)[1]


def _states_and_logits_at(
    model: Any, selected: Bool[Tensor, "B T"], **arguments: Any
) -> tuple[Float[Tensor, "N H"], Float[Tensor, "N V"]]:
    """`logits_at`, with the rows that the output layer saw."""
    rows: list[Tensor] = []

    def choose(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        rows.append(inputs[0][selected])
        return (rows[0].unsqueeze(0),)

    hook = unwrapped_model(model).get_output_embeddings().register_forward_pre_hook(choose)
    try:
        logits: Tensor = model(**arguments).logits
    finally:
        hook.remove()
    return rows[0], logits.squeeze(0)


def logits_and_states(model: Any, **inputs: Any) -> tuple[Float[Tensor, "B T V"], Float[Tensor, "B T H"]]:
    """Logits and what the output layer read for them: hidden states of the last layer, after the final norm.

    Args:
        model: A Hugging Face causal language model, possibly wrapped.
        **inputs: Of its forward call; with `logits_to_keep` both results have that many positions.
    """
    read: list[Tensor] = []
    head = unwrapped_model(model).get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    try:
        logits: Tensor = model(**inputs).logits
    finally:
        hook.remove()
    (states,) = read
    return logits, states


def hidden_states(
    model: Any,
    input_ids: Int[Tensor, "B T"],
    attention_mask: Int[Tensor, "B T"],
    *,
    layers: tuple[int, ...],
    shared_prefix: int = 0,
) -> tuple[Float[Tensor, "B R H"], int]:
    """Hidden states of the chosen layers, concatenated on the last axis; logits are never computed.

    Args:
        model: A Hugging Face causal language model.
        input_ids: Right-padded tokens.
        attention_mask: 1 on tokens, 0 on padding.
        layers: 0 is the embeddings, 1 the output of the first layer, -1 the last one after the final norm.
        shared_prefix: First tokens that all rows share, encoded once and left out of the result. 0: not used.

    Returns:
        (states, offset): the states of the positions from `offset` on; `offset` is `shared_prefix` or 0.

    Raises:
        UsageError: A layer does not exist.
    """
    base = base_model(model)
    arguments: dict[str, Any] = {"use_cache": False}
    offset = 0
    if _shares_prefix(model, input_ids, shared_prefix):
        offset = shared_prefix
        arguments = {"past_key_values": _encode_prefix(base, input_ids[:1, :offset], len(input_ids)), "use_cache": True}
    outputs = base(
        input_ids=input_ids[:, offset:],
        attention_mask=attention_mask,
        output_hidden_states=set(layers) != {-1},
        **arguments,
    )
    if set(layers) == {-1}:
        return torch.cat([outputs.last_hidden_state] * len(layers), dim=-1), offset
    states = (*outputs.hidden_states[:-1], outputs.last_hidden_state)
    for layer in layers:
        if not -len(states) <= layer < len(states):
            raise UsageError(f"the model has hidden states 0 to {len(states) - 1}, there is no layer {layer}")
    return torch.cat([states[layer] for layer in layers], dim=-1), offset


def supports_shared_prefix(model: Any) -> bool:
    """Whether a prefix can be encoded once: full attention in every layer, and nothing that forbids a cache."""
    model = unwrapped_model(model)
    config = model.config.get_text_config()
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    windowed = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    return (
        set(layer_types) == {"full_attention"}
        and not windowed
        and not getattr(model, "_is_stateful", False)
        and not getattr(model, "is_gradient_checkpointing", False)
    )


def _shares_prefix(model: Any, input_ids: Tensor, shared_prefix: int) -> bool:
    return shared_prefix >= MIN_SHARED_PREFIX and len(input_ids) > 1 and supports_shared_prefix(model)


def _encode_prefix(base: Any, prefix: Tensor, rows: int) -> Any:
    """The key-value cache of one prefix, repeated for `rows` rows; gradients flow through it."""
    cache = base(input_ids=prefix, use_cache=True).past_key_values
    cache.batch_repeat_interleave(rows)
    return cache


def unwrapped_model(model: Any) -> Any:
    """The model inside a data-parallel wrapper."""
    return model.module if hasattr(model, "module") and not hasattr(model, "get_output_embeddings") else model


def base_model(model: Any) -> Any:
    """The transformer below the output layer."""
    model = unwrapped_model(model)
    if hasattr(model, "get_base_model"):  # a PEFT wrapper: its own base_model is the adapter layer
        model = model.get_base_model()
    base = model.base_model
    if base is model:
        raise DataError(f"{type(model).__name__} has no base model below its output layer")
    return base


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide the bar that transformers shows for every file of weights; progress is the caller's to show."""
    from transformers.utils import logging

    if not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
