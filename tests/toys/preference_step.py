"""A DPO step of TRL's trainer and of ours on the same pairs, with precomputed reference values: seconds and memory.

As a program (`python -m toys.preference_step WAY LENGTH PAIRS`) it prints the peak memory of one way, above what model,
data and optimizer take (Linux).
"""

from __future__ import annotations

import ctypes
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

VOCABULARY, PROMPT_SHARE = 1_024, 0.8
STEPS = 5
LEARNING_RATE = 1e-6


def seconds_of_steps(length: int, pairs: int, folder: Path) -> tuple[float, float]:
    """(TRL's, ours): the median of five steps each, taken in turns after one to warm up."""
    steps = {way: _step(way, length, pairs, folder / way) for way in ("trl", "ours")}
    times: dict[str, list[float]] = {way: [] for way in steps}
    losses: dict[str, list[float]] = {way: [] for way in steps}
    for _ in range(STEPS + 1):
        for way, step in steps.items():
            began = time.perf_counter()
            losses[way].append(step())
            times[way].append(time.perf_counter() - began)
    np.testing.assert_allclose(losses["ours"], losses["trl"], rtol=1e-3)  # they do the same work
    return median(times["trl"][1:]), median(times["ours"][1:])


def _step(way: str, length: int, pairs: int, folder: Path) -> Callable[[], float]:
    """A function that makes one update and returns its loss."""
    trainer = (_trl if way == "trl" else _ours)(_texts(length, pairs), folder)
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.create_optimizer_and_scheduler(num_training_steps=100)
    trainer.current_gradient_accumulation_steps = 1

    def step() -> float:
        loss = trainer.training_step(trainer.model, batch, torch.tensor(float(pairs)))
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return float(loss)

    return step


def _model() -> Any:
    """A Llama of the tiny policy's width with four layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=4_096, bos_token_id=None, eos_token_id=1, pad_token_id=0,
        tie_word_embeddings=True,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config)


def _texts(length: int, pairs: int) -> dict[str, list[list[int]]]:
    """Prompts of 80 % of the tokens and two continuations; lengths differ a little from pair to pair."""
    generator = np.random.default_rng(0)
    prompt = int(PROMPT_SHARE * length)

    def tokens(count: int, spread: int) -> list[int]:
        return generator.integers(3, VOCABULARY, size=count - int(generator.integers(spread))).tolist()

    return {
        "prompt": [tokens(prompt, prompt // 20) for _ in range(pairs)],
        "chosen": [tokens(length - prompt - 1, length // 50) for _ in range(pairs)],
        "rejected": [tokens(length - prompt - 1, length // 50) for _ in range(pairs)],
    }


def _trl(texts: dict[str, list[list[int]]], folder: Path) -> Any:
    import trl
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({f"<{index}>": index for index in range(VOCABULARY)}, unk_token="<2>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<0>", eos_token="<1>", unk_token="<2>")
    words = {
        name: [" " * (name != "prompt") + " ".join(f"<{token}>" for token in row) for row in rows]
        for name, rows in texts.items()
    }
    _model().save_pretrained(folder)
    arguments = trl.DPOConfig(
        output_dir=str(folder / "out"), per_device_train_batch_size=len(texts["prompt"]), report_to="none",
        use_cpu=True, bf16=False, gradient_checkpointing=False, precompute_ref_log_probs=True, max_length=None,
        disable_tqdm=True, learning_rate=LEARNING_RATE,
    )  # fmt: skip
    return trl.DPOTrainer(
        model=str(folder), args=arguments, train_dataset=Dataset.from_dict(words), processing_class=tokenizer
    )


def _ours(texts: dict[str, list[list[int]]], folder: Path) -> Any:
    from transformers import TrainingArguments

    from offline_arl.datasets.updates import MicroBatchSampler
    from offline_arl.trainers.preference_config import DPOConfig
    from offline_arl.trainers.preference_reference import pair_reference
    from offline_arl.trainers.preference_trainers import PairTrainer

    rows = []
    for prompt, *sides in zip(texts["prompt"], texts["chosen"], texts["rejected"], strict=True):
        ids = [np.array([*prompt, *side, 1], dtype=np.int32) for side in sides]
        masks = [np.arange(len(side)) >= len(prompt) for side in ids]
        rows.append(
            SimpleNamespace(
                prompt_length=len(prompt), weight=1.0, chosen_token_ids=ids[0], chosen_action_mask=masks[0],
                rejected_token_ids=ids[1], rejected_action_mask=masks[1],
            )
        )  # fmt: skip
    model = _model()
    return PairTrainer(
        config=DPOConfig(),
        rows=rows,
        reference=pair_reference(model, rows, pad_token_id=0, tokens_per_batch=4_096, folder=None),
        sampler=MicroBatchSampler([list(range(len(rows)))], batches_per_update=1),
        pad_token_id=0,
        share_prefix=True,
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            report_to="none",
            use_cpu=True,
            remove_unused_columns=False,
            learning_rate=LEARNING_RATE,
        ),
    )


def _status(key: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(key))


if __name__ == "__main__":
    torch.set_num_threads(1)
    update = _step(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(tempfile.mkdtemp()))
    update()  # the optimizer's state, and libraries that load on first use
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free but kept would hide what a step takes
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = _status("VmRSS")
    update()
    sys.stdout.write(f"{(_status('VmHWM') - before) / 1024}\n")
