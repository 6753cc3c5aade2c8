"""Returns in messages: where they stand, what they say, and that no text of a log can pass for one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from offline_arl.errors import DataError, UsageError
from offline_arl.objectives.return_conditioning import quantize_returns
from offline_arl.rendering import Renderer
from offline_arl.rendering.conversation import ControlPart
from offline_arl.rendering.return_conditioning import (
    ConditioningConfig,
    ConditionWriter,
    add_return_tokens,
    require_return_tokens,
)
from offline_arl.trajectories.schema import Message, MessageError, Source, TextPart, Trajectory, text_message

FAMILIES = ("tiny", "qwen2.5", "llama3.1", "mistral", "smollm2", "hermes")
TEXT = ConditionWriter(ConditioningConfig(), (0.5,))
TOKENS = ConditionWriter(ConditioningConfig(form="quantile_tokens"), (0.5,))


def chat() -> Trajectory:
    messages = [
        text_message("system", "Be brief."),
        text_message("user", "One?"),
        text_message("assistant", "1"),
        text_message("user", "Two?"),
        text_message("assistant", "2"),
        text_message("user", "Bye."),
    ]
    return Trajectory("chat", messages, Source("test"))


def with_tokens(tokenizer: Any, count: int = 2) -> tuple[Renderer, list[int]]:
    extended = copy.deepcopy(tokenizer)
    added = add_return_tokens(extended, count)
    return Renderer(extended), added


def test_each_step_has_its_return_in_the_message_before_it_and_no_action_changes() -> None:
    written = TEXT.write_all(chat(), [0.2, 1.0])
    assert [message.text for message in written.messages] == [
        "Be brief.",
        "One?\n[return 1/2]",
        "1",
        "Two?\n[return 2/2]",
        "2",
        "Bye.",
    ]
    assert written.step_indices() == chat().step_indices()


def test_the_return_of_the_whole_stands_before_the_first_step_alone() -> None:
    writer = ConditionWriter(ConditioningConfig(form="number", scope="trajectory"))
    texts = [message.text for message in writer.write_all(chat(), [0.25, 1.0]).messages]
    assert texts[1:4] == ["One?\n[return 0.25]", "1", "Two?"]


def test_a_step_behind_nothing_but_actions_stands_under_the_return_before() -> None:
    """Two assistant messages in a row: writing into the first would change what is trained."""
    messages = [text_message("user", "Go."), text_message("assistant", "a"), text_message("assistant", "b")]
    written = TEXT.write_all(Trajectory("t", messages, Source("test")), [1.0, 0.0])
    assert [message.text for message in written.messages] == ["Go.\n[return 2/2]", "a", "b"]
    assert TEXT.steps_without_own(Trajectory("t", messages, Source("test"))) == 1
    assert TEXT.steps_without_own(Trajectory("t", messages[1:], Source("test"))) == 2
    assert TEXT.steps_without_own(chat()) == 0


def test_a_failed_tool_keeps_the_text_of_its_error(renderer_of: Callable[[str], Renderer]) -> None:
    """A result without content shows its error; the condition must not take its place."""
    failed = Message("tool", None, tool_call_id="a", error=MessageError("lookup_failed", "no such user"))
    for writer, shown in ((TEXT, "no such user\n[return 2/2]"), (TOKENS, "no such user<|return_2|>")):
        (written,) = writer.write([failed], 1.0)
        assert written.text == shown
    renderer = renderer_of("tiny")
    prompt = renderer.tokenizer.decode(renderer.prompt(TEXT.write([text_message("user", "?"), failed], 1.0), None))
    assert "no such user\n[return 2/2]<|end|>" in prompt


def test_classes_are_those_of_the_objective() -> None:
    edges = (-0.35, 0.0, 0.15, 1.0)
    values = np.round(np.random.default_rng(0).uniform(-1, 2, size=500), 2).tolist() + list(edges)
    expected = quantize_returns(torch.tensor(values, dtype=torch.float64), torch.tensor(edges, dtype=torch.float64))
    writer = ConditionWriter(ConditioningConfig(), edges)
    assert [writer.level(value) - 1 for value in values] == expected.tolist()


def test_rounding_errors_of_a_sum_do_not_change_the_class() -> None:
    """1.0 - 0.05 - 0.05 - 0.05 is 0.8499999999999999, one class below 0.85 if taken as it is."""
    remaining = 1.0 - 0.05 - 0.05 - 0.05
    assert remaining < 0.85
    assert ConditionWriter(ConditioningConfig(), (0.85,)).level(remaining) == 2


def test_a_return_that_is_no_number_is_refused() -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(DataError, match="finite"):
            TEXT.write([text_message("user", "?")], value)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_return_token_is_one_token_and_only_the_writer_can_write_it(
    family: str, tokenizer_of: Callable[[str], Any]
) -> None:
    """A user who types the token's text gets letters; the condition behind it is the token."""
    renderer, (low, high) = with_tokens(tokenizer_of(family))
    typed = [text_message("system", "Be brief."), text_message("user", "give me <|return_2|>")]
    assert not {low, high} & set(renderer.prompt(typed, None))
    ids = renderer.prompt(TOKENS.write(typed, 0.0), None)
    assert ids.count(low) == 1
    assert high not in ids
    decoded = renderer.tokenizer.decode(ids)
    assert "give me <|return_2|>" + "<|return_1|>" in decoded


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("writer", [TEXT, TOKENS], ids=["text", "tokens"])
def test_conditions_change_the_context_and_nothing_that_is_trained(
    family: str, writer: ConditionWriter, tokenizer_of: Callable[[str], Any]
) -> None:
    renderer, _ = with_tokens(tokenizer_of(family))
    plain, conditioned = renderer.render(chat()), renderer.render(writer.write_all(chat(), [1.0, 0.0]))

    def actions(segments: Any) -> list[list[int]]:
        return [segment.token_ids[segment.action_mask].tolist() for segment in segments]

    assert actions(plain) == actions(conditioned)
    assert sum(map(len, conditioned)) > sum(map(len, plain))


def test_a_conditioned_chat_is_extended_as_it_is_rendered(tokenizer_of: Callable[[str], Any]) -> None:
    renderer, _ = with_tokens(tokenizer_of("qwen2.5"))
    written = TOKENS.write_all(chat(), [1.0, 0.0]).messages
    (segment,) = renderer.render(Trajectory("chat", written, Source("test")))
    (first, _), (_, end) = ((begin, end) for _, begin, end in segment.step_spans())
    ids = renderer.prompt(written[:2], None)
    assert ids == segment.token_ids[:first].tolist()
    said = segment.token_ids[first : segment.step_spans()[0][2]].tolist()
    extended = renderer.extend([*ids, *said], written[3:4], None)
    assert extended == segment.token_ids[: segment.step_spans()[1][1]].tolist()
    assert end == len(segment)


def test_control_parts_cannot_come_from_a_file() -> None:
    stored = msgspec.json.encode(Message("user", [TextPart("?"), ControlPart("<|return_2|>")]))
    with pytest.raises(msgspec.ValidationError, match="control"):
        msgspec.json.decode(stored, type=Message)


def test_a_tokenizer_without_the_tokens_is_told_what_adds_them(tokenizer_of: Callable[[str], Any]) -> None:
    tokenizer = copy.deepcopy(tokenizer_of("tiny"))
    assert len(add_return_tokens(tokenizer, 2)) == 2
    assert add_return_tokens(tokenizer, 3) == [len(tokenizer) - 1]  # the two are there already
    require_return_tokens(tokenizer, 3)
    with pytest.raises(UsageError, match="return_tokens: 4 in the stage initial_policy"):
        require_return_tokens(tokenizer, 4)


def test_return_tokens_survive_saving(tokenizer_of: Callable[[str], Any], tmp_path: Any) -> None:
    from transformers import AutoTokenizer

    renderer, _ = with_tokens(tokenizer_of("tiny"))
    renderer.tokenizer.save_pretrained(tmp_path)
    loaded = Renderer(AutoTokenizer.from_pretrained(tmp_path))
    assert loaded.fingerprint == renderer.fingerprint
    conditioned = TOKENS.write_all(chat(), [1.0, 0.0])
    assert loaded.render(conditioned)[0].token_ids.tolist() == renderer.render(conditioned)[0].token_ids.tolist()
