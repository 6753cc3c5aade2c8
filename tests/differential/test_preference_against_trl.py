"""Preference losses against TRL: equal on single-turn data; what its trainers train on with several turns."""

from __future__ import annotations

import copy
import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import VOCABULARY, ToyTokenizer, toy_model
from toys.preferences import answer_dataset, pair_dataset, toy_answers, toy_pairs

from offline_arl.datasets.pairs import PairRow, UnpairedRow
from offline_arl.datasets.preference_batches import collate_pairs, steady_batches
from offline_arl.models.tiny import build_tiny_policy, train_tiny_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.trainers.preference import train_preferences
from offline_arl.trainers.preference_config import AnyPreferenceConfig, DPOConfig, IPOConfig, KTOConfig, SimPOConfig
from offline_arl.trainers.preference_forward import batch_logprobs
from offline_arl.trajectories.schema import Context, Message, Source, TextPart, Trajectory, tool_call

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")

END = 1
SETTINGS: dict[str, Any] = {"warmup_fraction": 0, "logging_steps": 1, "tokens_per_batch": 100_000}
REFERENCE_SEED, POLICY_SEED = 1, 0


def word_tokenizer() -> Any:
    """Each token is a word: `<7>` is token 7, so that TRL's own tokenization gives the ids that a row has."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({f"<{index}>": index for index in range(VOCABULARY)}, unk_token="<2>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<0>", eos_token="<1>", unk_token="<2>")


def words(token_ids: Any) -> str:
    return " ".join(f"<{int(token)}>" for token in token_ids)


def single_turn_pairs() -> list[PairRow]:
    """Prompt and one turn a side, ended by the end-of-sequence token; all weights 1."""
    rows = []
    for row in toy_pairs(10, turns=1):
        sides = {}
        for side in ("chosen", "rejected"):
            ids = np.append(getattr(row, f"{side}_token_ids"), np.int32(END))
            sides[f"{side}_token_ids"] = ids
            sides[f"{side}_action_mask"] = np.arange(len(ids)) >= row.prompt_length
        rows.append(dataclasses.replace(row, weight=1.0, **sides))
    return rows


def single_turn_answers() -> list[UnpairedRow]:
    """In the order of our batch, so that TRL moves the answers on as we do."""
    rows = []
    for row in toy_answers(10, turns=1):
        ids = np.append(row.token_ids, np.int32(END))
        mask = np.arange(len(ids)) >= row.prompt_length
        rows.append(dataclasses.replace(row, weight=1.0, token_ids=ids, action_mask=mask))
    lengths = np.array([len(row) for row in rows])
    (batch,) = steady_batches(lengths, max_tokens=SETTINGS["tokens_per_batch"], epochs=1, seed=0).batches
    return [rows[index] for index in batch]


def trl_loss(trainer_class: Any, config: Any, dataset: Any, folder: Path) -> float:
    """The loss of TRL's trainer on one batch of all rows, with a policy that is not the reference."""
    reference, tokenizer = toy_model(seed=REFERENCE_SEED), word_tokenizer()
    reference.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        extra = {"model": str(folder)} if trainer_class.__name__ != "CPOTrainer" else {"model": reference}
        trainer = trainer_class(args=config, train_dataset=dataset, processing_class=tokenizer, **extra)
    trainer.model.load_state_dict(toy_model(seed=POLICY_SEED).state_dict())
    trainer.model.eval()
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        return float(trainer.compute_loss(trainer.model, batch))


def trl_config(config_class: Any, folder: Path, rows: int, **fields: Any) -> Any:
    return config_class(
        output_dir=str(folder / "out"), per_device_train_batch_size=rows, report_to="none", use_cpu=True, bf16=False,
        gradient_checkpointing=False, disable_tqdm=True, **fields,
    )  # fmt: skip


def our_loss(dataset: Any, config: AnyPreferenceConfig, folder: Path) -> float:
    record = train_preferences(
        toy_model(seed=POLICY_SEED), ToyTokenizer(), dataset, config, folder,
        seed=0, reference_model=toy_model(seed=REFERENCE_SEED),
    )  # fmt: skip
    assert record.metrics["updates"] == 1
    return record.metrics["loss"]


def as_text(rows: list[PairRow]) -> Any:
    return datasets.Dataset.from_dict(
        {
            "prompt": [words(row.chosen_token_ids[: row.prompt_length]) for row in rows],
            "chosen": [" " + words(row.chosen_token_ids[row.prompt_length :]) for row in rows],
            "rejected": [" " + words(row.rejected_token_ids[row.prompt_length :]) for row in rows],
        }
    )


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (DPOConfig(dpo_beta=0.3, **SETTINGS), {"loss_type": ["sigmoid"], "beta": 0.3}),
        (IPOConfig(dpo_beta=0.3, length_average=True, **SETTINGS), {"loss_type": ["ipo"], "beta": 0.3}),
    ],
    ids=["dpo", "ipo"],
)
@pytest.mark.parametrize("precomputed", [False, True])
def test_dpo_and_ipo_equal_trls(
    config: AnyPreferenceConfig, fields: dict[str, Any], precomputed: bool, tmp_path: Path
) -> None:
    rows = single_turn_pairs()
    arguments = trl_config(
        trl.DPOConfig, tmp_path, len(rows), precompute_ref_log_probs=precomputed, max_length=None, **fields
    )
    expected = trl_loss(trl.DPOTrainer, arguments, as_text(rows), tmp_path / "trl")
    got = our_loss(pair_dataset(tmp_path / "pairs", rows), config, tmp_path / "ours")
    assert got == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_simpo_equals_trls_without_its_cloning_term(tmp_path: Path) -> None:
    cpo = pytest.importorskip("trl.experimental.cpo")
    rows = single_turn_pairs()
    fields = {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.5, "cpo_alpha": 0.0, "max_length": 512}
    arguments = trl_config(cpo.CPOConfig, tmp_path, len(rows), **fields)
    expected = trl_loss(cpo.CPOTrainer, arguments, as_text(rows), tmp_path / "trl")
    got = our_loss(pair_dataset(tmp_path / "pairs", rows), SimPOConfig(**SETTINGS), tmp_path / "ours")
    assert got == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_kto_equals_trls_with_its_reference_point(tmp_path: Path) -> None:
    rows = single_turn_answers()
    text = datasets.Dataset.from_dict(
        {
            "prompt": [words(row.token_ids[: row.prompt_length]) for row in rows],
            "completion": [" " + words(row.token_ids[row.prompt_length :]) for row in rows],
            "label": [row.label for row in rows],
        }
    )
    arguments = trl_config(trl.KTOConfig, tmp_path, len(rows), undesirable_weight=1.3, max_length=None)
    expected = trl_loss(trl.KTOTrainer, arguments, text, tmp_path / "trl")
    config = KTOConfig(undesirable_weight=1.3, **SETTINGS)
    # Put back in the order in which the sampler finds the batch that `rows` is in.
    lengths = np.array([len(row) for row in toy_answers(10, turns=1)])
    (batch,) = steady_batches(lengths, max_tokens=SETTINGS["tokens_per_batch"], epochs=1, seed=0).batches
    unsorted = [rows[batch.index(index)] for index in range(len(rows))]
    got = our_loss(answer_dataset(tmp_path / "answers", unsorted), config, tmp_path / "ours")
    assert got == pytest.approx(expected, rel=1e-6, abs=1e-6)
    # The reference point matters here: without it the loss is another one.
    without = trl_config(trl.KTOConfig, tmp_path, len(rows), undesirable_weight=1.3, max_length=None)
    without.loss_type = "apo_zero_unpaired"
    assert abs(trl_loss(trl.KTOTrainer, without, text, tmp_path / "trl2") - expected) > 1e-3


TOOL = {"type": "function", "function": {"name": "get_order", "parameters": {"type": "object", "properties": {}}}}


def _messages(answer: str) -> list[Message]:
    return [
        Message("user", [TextPart("where is my order")]),
        Message("assistant", None, [tool_call("get_order", {"order_id": "A12"}, id="c")]),
        Message("tool", [TextPart("status shipped")], tool_call_id="c"),
        Message("assistant", [TextPart(answer)]),
    ]


def _chat(messages: list[Message]) -> list[dict[str, Any]]:
    rows = []
    for message in messages:
        calls = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
        rows.append({"role": message.role, "content": message.text or "", **({"tool_calls": calls} if calls else {})})
    return rows


def test_trl_trains_on_what_a_tool_said_and_we_do_not(tmp_path: Path) -> None:
    """One pair whose sides are a call, the tool's answer and a reply. The gradient is taken at the states that the
    output layer reads, where it is non-zero exactly for the tokens that are trained on."""
    answers = {"chosen": "it is on its way", "rejected": "no idea"}
    tokenizer = train_tiny_tokenizer([*answers.values(), "where is my order", "status shipped"] * 3)
    model = build_tiny_policy(tokenizer, seed=0, hidden_size=32, layers=2, heads=1)
    sides = {}
    for side, answer in answers.items():
        trajectory = Trajectory(side, _messages(answer), Source("test"), contexts=[Context(0, json.dumps([TOOL]))])
        (sides[side],) = Renderer(tokenizer).render(trajectory)
    start = int(np.argmax(sides["chosen"].action_mask))
    row = dataclasses.replace(
        toy_pairs(1)[0], prompt_length=start,
        **{f"{side}_token_ids": segment.token_ids for side, segment in sides.items()},
        **{f"{side}_action_mask": segment.action_mask for side, segment in sides.items()},
    )  # fmt: skip
    batch = collate_pairs([row], pad_token_id=tokenizer.pad_token_id)

    ours = _trained_places(copy.deepcopy(model), lambda m: batch_logprobs(m, batch, share_prefix=False).sum())
    assert ours == batch.action_mask[:, 1:].tolist()

    rows = {side: [_chat(_messages(answer))[1:]] for side, answer in answers.items()}
    dataset = datasets.Dataset.from_dict({"prompt": [_chat(_messages(""))[:1]], **rows, "tools": [[TOOL]]})
    arguments = trl_config(trl.DPOConfig, tmp_path, 1, max_length=None, precompute_ref_log_probs=True)
    model.save_pretrained(tmp_path / "model")
    trainer = trl.DPOTrainer(
        model=str(tmp_path / "model"), args=arguments, train_dataset=dataset, processing_class=tokenizer
    )
    trl_batch = next(iter(trainer.get_train_dataloader()))
    width = batch.input_ids.shape[1]
    assert torch.equal(trl_batch["input_ids"][:, :width], batch.input_ids)  # the same tokens on both sides
    theirs = _trained_places(trainer.model, lambda m: trainer.compute_loss(m, trl_batch))
    for side, segment in enumerate(sides.values()):
        tool_words = ~segment.action_mask
        tool_words[:start] = False
        assert tool_words.sum() > 3
        assert np.array(theirs[side])[: len(segment) - 1][tool_words[1:]].all()
        assert not np.array(ours[side])[: len(segment) - 1][tool_words[1:]].any()


def _trained_places(model: Any, loss: Any) -> list[list[bool]]:
    """For each token but the first of each row: whether the state that predicts it gets any gradient."""
    gradients: list[torch.Tensor] = []

    def watch(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        output.register_hook(gradients.append)

    model.base_model.norm.register_forward_hook(watch)
    loss(model).backward()
    (gradient,) = gradients
    return (gradient != 0).any(dim=-1)[:, :-1].tolist()
