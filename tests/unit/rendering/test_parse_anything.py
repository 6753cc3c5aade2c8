"""`Renderer.parse` takes anything that a policy may sample."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_arl.trajectories.schema import (
    Message,
    ReasoningPart,
    Source,
    TextPart,
    Trajectory,
    text_message,
    tool_call,
)

FAMILIES = ["qwen2.5", "qwen3", "qwen3.5", "llama3.1", "mistral", "smollm2", "tiny"]
WORDS = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]", '{"name": "f", ',
     '"arguments": ', '"parameters": ', "{", "}", "[", '"', "\\", "\n", "<function=", "<parameter=", ">", ";", "17",
     "<|im_end|>", "</s>", "\x00", "é", "\u2028"]
)  # fmt: skip
TEXTS = st.lists(WORDS | st.text(max_size=4), max_size=25).map("".join)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("family", FAMILIES)
@relaxed
@given(ids=st.lists(st.integers(-5, 600), max_size=60))
def test_any_token_ids(family, renderer_of, ids):
    message = renderer_of(family).parse(ids)
    assert message.role == "assistant"
    assert message.producer.kind == "model"
    for call in message.tool_calls:
        assert (call.arguments is None) == (call.parse_error is not None)


@pytest.mark.parametrize("family", FAMILIES)
@relaxed
@given(text=TEXTS)
def test_any_text_can_be_parsed_and_rendered_again(family, renderer_of, text):
    renderer = renderer_of(family)
    message = renderer.parse(renderer.tokenizer.encode(text, add_special_tokens=False))
    for call in message.tool_calls:
        assert (call.arguments is None) == (call.parse_error is not None)
    (segment,) = renderer.render(Trajectory("t", [text_message("user", "Hi"), message], Source("test")))
    assert segment.token_ids[-1] in renderer.stop_token_ids
    assert sum(int(token in renderer.stop_token_ids) for token in segment.token_ids[segment.action_mask]) == 1


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "llama3.1", "smollm2", "tiny"])
@relaxed
@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda text: "{" not in text),
    thought=st.sampled_from(["", "Let me see.\nYes."]),
    calls=st.lists(
        st.tuples(
            st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=3)
        ),
        max_size=2,
    ),
)
def test_rendered_turns_parse_back(family, renderer_of, text, thought, calls):
    renderer = renderer_of(family)
    content = ([ReasoningPart(thought)] if thought else []) + ([TextPart(text)] if text else [])
    made = [tool_call(name, arguments) for name, arguments in calls]
    message = Message(role="assistant", content=content, tool_calls=made)
    (segment,) = renderer.render(Trajectory("t", [text_message("user", "Hi"), message], Source("test")))
    _, start, end = segment.step_spans()[0]
    parsed = renderer.parse(segment.token_ids[start:end].tolist())
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == calls
    assert parsed.reasoning == thought
    assert parsed.text.strip() == text.strip()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_completion_parses_with_and_without_its_stop_token(family, renderer_of):
    renderer = renderer_of(family)
    message = Message(role="assistant", tool_calls=[tool_call("cancel", {"id": "17"})])
    (segment,) = renderer.render(Trajectory("t", [text_message("user", "Hi"), message], Source("test")))
    _, start, end = segment.step_spans()[0]
    ids = segment.token_ids[start:end].tolist()
    assert renderer.parse(ids) == renderer.parse(ids[:-1]) == renderer.parse([*ids, *ids])
    assert renderer.parse(ids).content is None
    assert renderer.parse([]).content is None
