"""The tiny policy: its tokenizer keeps every text, its template knows tools, its weights depend on the seed alone."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from offline_arl.environments.support_desk import family
from offline_arl.environments.support_desk.desk import TOOLS
from offline_arl.errors import DataError
from offline_arl.models.tiny import build_tiny_policy, tokenizer_texts, train_tiny_tokenizer
from offline_arl.trajectories.schema import Context, Message, Source, Trajectory, text_message, tool_call

TEXTS = ["Where is my order B48?", '{"name": "get_order", "arguments": {"order_id": "B48"}}', "It is shipped."] * 10


@cache
def trained() -> PreTrainedTokenizerFast:
    return train_tiny_tokenizer(TEXTS, vocabulary_size=400)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return trained()


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=60))
def test_every_text_survives_the_round_trip(text: str) -> None:
    ids = trained()(text, split_special_tokens=True)["input_ids"]
    assert trained().decode(ids) == text


def test_identifiers_become_a_letter_and_pairs_of_digits(tokenizer: PreTrainedTokenizerFast) -> None:
    def pieces(text: str) -> list[str]:
        return [tokenizer.decode([token]) for token in tokenizer(text)["input_ids"]]

    assert pieces('"B48"}}')[-4:] == ['"', "B", "48", '"}}']
    assert [piece for piece in pieces("order B48") if piece.strip() in ("B", "48")] == ["B", "48"]


def test_the_template_writes_tools_calls_and_results(tokenizer: PreTrainedTokenizerFast) -> None:
    call = {"type": "function", "function": {"name": "get_order", "arguments": {"order_id": "B48"}}}
    text = tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "Help."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "{}"},
        ],
        tools=TOOLS[:2],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text == (
        "<|system|>Help.\nget_order(order_id)\nupdate_address(order_id, address)<|end|><|user|>Hi<|end|>"
        '<|assistant|><tool_call>{"name": "get_order", "arguments": {"order_id": "B48"}}</tool_call><|end|>'
        "<|tool|>{}<|end|><|assistant|>"
    )


def test_the_texts_of_a_trajectory_are_what_the_template_writes() -> None:
    trajectory = Trajectory(
        "t",
        [
            text_message("user", "Hi"),
            Message(role="assistant", tool_calls=[tool_call("get_order", '{"order_id": "B48')]),
        ],
        Source("test"),
        contexts=[
            Context(
                0, tools='[{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {}}}}}]'
            )
        ],
    )
    assert list(tokenizer_texts(trajectory)) == [
        "Hi",
        '{"name": "get_order", "arguments": {"order_id": "B48}',
        "\nf(x)",
    ]


def test_the_weights_depend_on_the_seed_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    before = torch.random.get_rng_state()
    first, second, other = (build_tiny_policy(tokenizer, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_queries_and_keys_of_a_qwen3_are_normalized(tokenizer: PreTrainedTokenizerFast) -> None:
    plain = build_tiny_policy(tokenizer, seed=1)
    normalized = build_tiny_policy(tokenizer, seed=1, architecture="qwen3")
    added = set(normalized.state_dict()) - set(plain.state_dict())
    assert {name.split(".")[-2] for name in added} == {"q_norm", "k_norm"}
    attention = normalized.model.layers[0].self_attn
    queries = attention.q_norm(100 * torch.randn(3, attention.head_dim))
    assert torch.allclose(queries.pow(2).mean(-1), torch.ones(3), atol=1e-4)


def test_no_text_is_an_error() -> None:
    with pytest.raises(DataError, match="no text"):
        train_tiny_tokenizer([])


def test_the_desk_prompt_is_short(tokenizer: PreTrainedTokenizerFast) -> None:
    # What makes the quickstart fit its time: a thousand tokens of vocabulary write the desk's prompt in under 100.
    task = family.tasks("train", 1, seed=0)[0]
    start = family.make().reset(task)
    texts = [message.text for message in start.messages] * 5 + [
        f"\n{tool['function']['name']}(order_id)" for tool in TOOLS
    ] * 5
    own = train_tiny_tokenizer(texts, vocabulary_size=1024)
    messages = [{"role": message.role, "content": message.text} for message in start.messages]
    ids = own.apply_chat_template(messages, tools=start.tools, tokenize=True, return_dict=True)["input_ids"]
    assert len(ids) < 100
