"""Sampling with vLLM in this process, on a CPU or a GPU."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_arl import optional
from offline_arl.errors import UsageError
from offline_arl.rollouts.isolation import kept_random_states
from offline_arl.rollouts.sampler import Completion, SamplingConfig, check_request
from offline_arl.rollouts.weights import with_tied_head

if TYPE_CHECKING:
    import torch
    import vllm

logger = logging.getLogger(__name__)

_BATCHED_TOKENS = 8192


class VllmSampler:
    """A vLLM engine that lives in this process and takes new weights between two calls.

    Prompts and completions are token ids; the engine has no tokenizer. `logprobs_mode` is "processed_logprobs", so
    logprobs are those of the tempered distribution that was sampled from. Chunked prefill is off: vLLM's CPU
    backend cannot rewind the seeded generator of a request whose prompt is cut at a batch boundary.

    A value-guided policy is sampled as such (`vllm_guidance`): draws and logprobs are those of the guided distribution.
    """

    backend = "vllm"

    def __init__(
        self,
        model_path: str | Path,
        *,
        stop_token_ids: Sequence[int],
        max_model_len: int = 1024,
        max_num_seqs: int = 256,
        dtype: str = "float32",
        kv_cache_gib: float = 1.0,
        gpu_memory_utilization: float = 0.3,
        enable_prefix_caching: bool = True,
    ) -> None:
        """Start the engine (seconds).

        Args:
            model_path: Checkpoint folder or model name.
            stop_token_ids: Tokens that end a step (`Renderer.stop_token_ids`); nothing else does, the model's own
                end-of-sequence token included.
            max_model_len: Longest prompt and completion together, in tokens.
            max_num_seqs: Sequences decoded at the same time.
            dtype: float32 where logprobs have to equal the trainer's.
            kv_cache_gib: Memory for keys and values on a CPU.
            gpu_memory_utilization: Share of the GPU's memory that the engine may take; the trainer needs the rest.
            enable_prefix_caching: Keep the keys and values of earlier turns; they are dropped with each new weights.

        Raises:
            MissingDependencyError: vLLM is not installed.
            UsageError: The model cannot be found or loaded.
        """
        self.max_model_len = max_model_len
        self._stop_token_ids = list(stop_token_ids)
        self._tied = False
        self._submitted = 0
        engine_args = {
            "model": str(model_path),
            "skip_tokenizer_init": True,
            "distributed_executor_backend": "external_launcher",
            "enforce_eager": True,
            "dtype": dtype,
            "logprobs_mode": "processed_logprobs",
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(max_model_len, _BATCHED_TOKENS),
            "enable_prefix_caching": enable_prefix_caching,
            "generation_config": "vllm",
            "trust_remote_code": False,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
        }
        with _quiet_single_process():
            self._vllm: Any = optional.require("vllm", extra="vllm")
            from vllm.platforms import current_platform

            if current_platform.is_cpu():
                engine_args["kv_cache_memory_bytes"] = int(kv_cache_gib * 2**30)
                engine_args["block_size"] = 32
            else:
                engine_args["gpu_memory_utilization"] = gpu_memory_utilization
            _register_guided(model_path)
            try:
                self._engine: vllm.LLM | None = self._vllm.LLM(**engine_args)
            except (OSError, ValueError) as error:
                first_line = str(error).strip().splitlines()[0]
                raise UsageError(f"{model_path}: vLLM cannot load this model: {first_line}") from error
        config = self._engine.llm_engine.model_config.hf_config
        self._tied = bool(getattr(config, "tie_word_embeddings", False))

    def generate(
        self, prompts: Sequence[Sequence[int]], config: SamplingConfig, *, seeds: Sequence[int]
    ) -> list[Completion]:
        """See `Sampler.generate`."""
        engine = self._running()
        check_request(prompts, config, seeds, self.max_model_len)
        if not prompts:
            return []
        parameters = [self._parameters(config, seed) for seed in seeds]
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = engine.generate(requests, parameters, use_tqdm=False)
        return [_completion(output.outputs[0]) for output in outputs]

    def submit(self, prompt: Sequence[int], config: SamplingConfig, *, seed: int) -> int:
        """See `StreamingSampler.submit`."""
        engine = self._running()
        check_request([prompt], config, [seed], self.max_model_len)
        self._submitted += 1
        name = f"streamed-{self._submitted}"
        engine.llm_engine.add_request(name, {"prompt_token_ids": list(prompt)}, self._parameters(config, seed))
        return self._submitted

    def advance(self) -> list[tuple[int, Completion]]:
        """See `StreamingSampler.advance`: one step of the engine, a token for each request under way."""
        engine = self._running().llm_engine
        if not engine.has_unfinished_requests():
            return []
        # vLLM puts a suffix of its own behind the names of requests.
        return [
            (int(output.request_id.split("-")[1]), _completion(output.outputs[0]))
            for output in engine.step()
            if output.finished
        ]

    def _parameters(self, config: SamplingConfig, seed: int) -> Any:
        return self._vllm.SamplingParams(
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            seed=seed,
            stop_token_ids=self._stop_token_ids,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `Sampler.load_weights`. Keys and values cached under the old weights are dropped.

        Raises:
            UsageError: Requests are still running.
        """
        pairs = with_tied_head(weights) if self._tied else iter(weights)
        engine = self._running()
        engine.collective_rpc("reload_weights", kwargs={"weights_iterator": pairs})
        # Without this a prompt that shares a prefix with an earlier one continues from keys of the old weights.
        if not engine.reset_prefix_cache():
            raise UsageError("vLLM still has running requests; load weights between two calls of generate")

    def close(self) -> None:
        """Free the engine; a later `generate` raises. Closing twice is allowed."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        engine.llm_engine.engine_core.shutdown()
        del engine

    def _running(self) -> vllm.LLM:
        if self._engine is None:
            raise UsageError("this VllmSampler is closed; make a new one")
        return self._engine


def _register_guided(model_path: str | Path) -> None:
    """Make the architecture of a value-guided policy known to vLLM in this process."""
    from offline_arl.models.guided_policy import architecture, is_value_guided

    if is_value_guided(model_path):
        from offline_arl.rollouts.vllm_guidance import register_architecture

        register_architecture(architecture(model_path))


def _completion(output: Any) -> Completion:
    """Read one vLLM completion. Its flat logprobs hold one entry a position: that of the sampled token."""
    token_ids = list(output.token_ids)
    flat = output.logprobs
    logprobs = [flat.logprobs[start] for start in flat.start_indices]
    return Completion(token_ids, logprobs, "stop" if output.finish_reason == "stop" else "length")


@contextmanager
def _quiet_single_process() -> Iterator[None]:
    """The surroundings in which an engine starts: a world of one process, little log noise, no lasting traces.

    vLLM reads its rendezvous from the environment, seeds the global random states and, on a CPU, replaces
    `torch.set_num_threads`; all of them are put back.
    """
    import torch

    settings = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(_free_port()),
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "VLLM_NO_USAGE_STATS": "1",
    }
    before = {name: os.environ.get(name) for name in settings}
    set_num_threads = torch.set_num_threads
    os.environ.update(settings)
    try:
        with kept_random_states(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        torch.set_num_threads = set_num_threads


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])
