"""What `online/trl_trainer.py` relies on in TRL, checked against the installed version with a real trainer."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from packaging.version import Version
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOTrainer

from offline_arl.objectives import group_advantages
from offline_arl.online.compact import compact_layout
from offline_arl.online.config import GrpoConfig, MismatchConfig
from offline_arl.online.trl_trainer import OnlineTrainer, trl_arguments

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*rollout_func.*:UserWarning", "ignore:TRL currently supports vLLM:UserWarning"
)

PAD = 0
PREFIX = list(range(20, 32))
VOCABULARY = 96


def tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models

    vocabulary = {f"<{index}>": index for index in range(VOCABULARY)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<2>"))
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<0>", eos_token="<1>", padding_side="left")


def save_llama(folder: Path, *, tied: bool = True) -> None:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=PAD,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def rollout(rows: list[dict[str, Any]]) -> Any:
    """A `rollout_func` that returns prepared rows."""

    def run(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        assert len(prompts) == len(rows)
        return {key: [row[key] for row in rows] for key in rows[0]}

    return run


def episode_return(*, episode_return: list[float | None], **_: Any) -> list[float | None]:
    return episode_return


def make_trainer(folder: Path, rows: list[dict[str, Any]], trainer_class: type = OnlineTrainer, **fields: Any) -> Any:
    config = GrpoConfig(steps=1, group_size=4, prompts_per_step=len(rows) // 4, rows_per_batch=4, **fields)
    save_llama(folder)
    return trainer_class(
        model=str(folder),
        reward_funcs=episode_return,
        args=trl_arguments(config, folder / "out", seed=0),
        train_dataset=Dataset.from_dict({"prompt": [str(index) for index in range(len(rows) // 4)]}),
        processing_class=tokenizer(),
        rollout_func=rollout(rows),
    )


def row(
    seed: int, *, prompt: int, completion: int, reward: float | None, masked: slice | None = None
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    mask = [1] * completion
    if masked is not None:
        mask[masked] = [0] * len(mask[masked])
    return {
        "prompt_ids": PREFIX + torch.randint(3, VOCABULARY, (prompt,), generator=generator).tolist(),
        "completion_ids": torch.randint(3, VOCABULARY, (completion,), generator=generator).tolist(),
        "logprobs": [-5.0] * completion,
        "env_mask": mask,
        "episode_return": reward,
    }


ROWS = [
    row(0, prompt=3, completion=9, reward=1.0, masked=slice(4, 6)),
    row(1, prompt=3, completion=5, reward=0.0),
    row(2, prompt=3, completion=17, reward=0.5, masked=slice(1, 9)),
    row(3, prompt=3, completion=1, reward=0.0),
    row(4, prompt=8, completion=6, reward=0.2),
    row(5, prompt=8, completion=7, reward=None),
    row(6, prompt=8, completion=12, reward=1.0, masked=slice(5, 7)),
    row(7, prompt=8, completion=2, reward=0.0),
]


def padded(rows: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor, int]:
    longest_prompt = max(len(item["prompt_ids"]) for item in rows)
    longest = max(len(item["completion_ids"]) for item in rows)
    ids, masks = [], []
    for item in rows:
        front, back = longest_prompt - len(item["prompt_ids"]), longest - len(item["completion_ids"])
        ids.append([PAD] * front + item["prompt_ids"] + item["completion_ids"] + [PAD] * back)
        masks.append([0] * front + [1] * (len(ids[-1]) - front - back) + [0] * back)
    return torch.tensor(ids), torch.tensor(masks), longest


def test_the_pinned_version_is_installed() -> None:
    assert Version("1.16") <= Version(trl.__version__) < Version("1.17")


def test_wrapped_methods_keep_their_signature() -> None:
    original = inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters
    known = ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"]
    assert list(original)[:8] == [*known, "compute_aux_loss"]
    assert list(inspect.signature(GRPOTrainer._generate_and_score_completions).parameters) == ["self", "inputs"]


def test_the_compact_layout_by_hand() -> None:
    prefix = list(range(10, 20))
    ids = torch.tensor([[0, *prefix, 5, 6, 7, 0], [*prefix, 8, 9, 4, 0, 0]])
    mask = torch.tensor([[0] + [1] * 13 + [0], [1] * 13 + [0, 0]])
    layout = compact_layout(ids, mask, 3)
    assert layout.token_ids[0].tolist() == [*prefix, 5, 6, 7]
    assert layout.token_ids[1].tolist() == [*prefix, 8, 9, 4]
    assert layout.lengths.tolist() == [13, 13]
    assert layout.prompt_lengths.tolist() == [11, 12]
    assert layout.is_completion.sum(dim=1).tolist() == [2, 1]
    # Eleven and twelve prompt tokens; the last one predicts the first completion token and is never shared.
    assert layout.shared_prefix == 10


@pytest.mark.parametrize("batch_size", [None, 3])
def test_compact_logprobs_and_entropies_equal_trls(tmp_path: Path, batch_size: int | None) -> None:
    trainer = make_trainer(tmp_path, ROWS)
    ids, mask, longest = padded(ROWS)
    on_tokens = mask[:, -longest:].bool()
    assert compact_layout(ids, mask, longest).shared_prefix == len(PREFIX)
    with torch.no_grad():
        expected = GRPOTrainer._get_per_token_logps_and_entropies(
            trainer, trainer.model, ids, mask, longest, compute_entropy=True
        )
        found = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, longest, batch_size=batch_size, compute_entropy=True
        )
    assert torch.allclose(found[0][on_tokens], expected[0][on_tokens], atol=2e-5)
    assert torch.allclose(found[1][on_tokens], expected[1][on_tokens], atol=2e-5)
    assert (found[0][~on_tokens] == 0).all()


def trained_weights(trainer: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    trainer.train()
    logs = next(entry for entry in trainer.state.log_history if "loss" in entry)
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}, logs


@pytest.mark.parametrize("loss_type", ["dapo", "dr_grpo"])
def test_one_update_equals_trls_own(tmp_path: Path, loss_type: str) -> None:
    """The same rows through TRL's class and ours: loss, gradient norm and new weights agree."""
    fields = {"loss_type": loss_type, "kl_coefficient": 0.1, "learning_rate": 1e-3, "max_total_tokens": 64}
    ours, our_logs = trained_weights(make_trainer(tmp_path / "ours", ROWS, **fields))
    trls, trl_logs = trained_weights(make_trainer(tmp_path / "trl", ROWS, GRPOTrainer, **fields))
    assert our_logs["loss"] == pytest.approx(trl_logs["loss"], abs=1e-5)
    assert our_logs["grad_norm"] == pytest.approx(trl_logs["grad_norm"], rel=1e-3)
    assert our_logs["entropy"] == pytest.approx(trl_logs["entropy"], rel=1e-4)
    assert our_logs["kl"] == 0.0
    for name, value in ours.items():
        # Adam's first update is the sign of the gradient: where that is near 0 it may flip, by twice the rate.
        assert (value - trls[name]).abs().mean() < 2e-5, name


def test_an_unscorable_row_moves_neither_the_mean_nor_the_weights(tmp_path: Path) -> None:
    """Row 5 has no return: its group's advantages are those of the other three alone."""
    trainer = make_trainer(tmp_path, ROWS)
    output = trainer._generate_and_score_completions([{"prompt": str(index)} for index in range(len(ROWS))])
    rewards = torch.tensor([0.2, 1.0, 0.0])
    assert output["advantages"][[4, 6, 7]].tolist() == pytest.approx((rewards - rewards.mean()).tolist(), abs=1e-5)
    assert output["advantages"][5] == 0.0
    assert output["num_items_in_batch"] == sum(sum(item["env_mask"]) for item in ROWS)


@pytest.mark.parametrize(("scale", "deviation"), [("group", "sample"), ("none", "none")])
def test_our_advantages_of_groups_are_trls(tmp_path: Path, scale: str, deviation: Any) -> None:
    trainer = make_trainer(tmp_path, ROWS, GRPOTrainer)
    trainer.scale_rewards = scale
    output = trainer._generate_and_score_completions([{"prompt": str(index)} for index in range(len(ROWS))])
    returns = torch.tensor([math.nan if item["episode_return"] is None else item["episode_return"] for item in ROWS])
    found = group_advantages(returns, group_size=4, deviation=deviation)
    assert output["advantages"].tolist() == pytest.approx(found.tolist(), abs=1e-5)


def test_advantages_of_tokens_take_the_place_of_trls(tmp_path: Path) -> None:
    """[B, T], behind each row's own tokens zeros; the gradient of a token scales with its advantage."""
    trainer = make_trainer(tmp_path, ROWS)
    trainer.row_advantages = [np.linspace(-1.0, 1.0, len(item["completion_ids"])) for item in ROWS]
    output = trainer._generate_and_score_completions([{"prompt": str(index)} for index in range(len(ROWS))])
    advantages = output["advantages"]
    assert advantages.shape == output["completion_ids"].shape
    for row, item in zip(advantages, ROWS, strict=True):
        length = len(item["completion_ids"])
        assert row[:length].tolist() == pytest.approx(np.linspace(-1.0, 1.0, length).tolist())
        assert (row[length:] == 0).all()
    mask = (output["completion_mask"] * output["tool_mask"]).float()
    loss = trainer._compute_loss(trainer.model, output)
    # Before the update all ratios are 1: the loss is minus the mean advantage of the trained tokens.
    assert float(loss) == pytest.approx(-float((advantages * mask).sum() / mask.sum()), abs=1e-5)


def test_ratio_weights_are_those_of_the_definition(tmp_path: Path) -> None:
    """With correction on, an advantage becomes advantage * min(exp(trainer - sampler), cap), token by token."""
    inputs = [{"prompt": str(index)} for index in range(len(ROWS))]
    plain = make_trainer(tmp_path / "plain", ROWS)._generate_and_score_completions(inputs)["advantages"]
    trainer = make_trainer(tmp_path / "corrected", ROWS)
    trainer.correct_ratios, trainer.mismatch = True, MismatchConfig(cap=1.5)
    output = trainer._generate_and_score_completions(inputs)
    corrected = output["advantages"]
    ids, mask, longest = padded(ROWS)
    with torch.no_grad():
        logits = trainer.model(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    logprobs = logits.gather(-1, ids[:, 1:, None])[..., 0][:, -longest:]
    weights = (logprobs + 5.0).exp().clamp(max=1.5)  # the rows claim logprobs of -5
    on_tokens = (mask[:, -longest:] * output["tool_mask"]).bool()  # what the environment said has no weight
    expected = (plain[:, None] * weights)[on_tokens]
    assert torch.allclose(corrected[on_tokens], expected, atol=1e-4)
    assert 0 < (weights[on_tokens] == 1.5).sum() < on_tokens.sum()
