"""Whatever trajectory is stored, reading gives back an equal one."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_arl.trajectories import encoding, schema
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.tables import table
from offline_arl.trajectories.validate import errors_of

# Lone surrogates are not text: UTF-8, and so Parquet, cannot hold them.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
maybe_text = st.none() | texts
numbers = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**53), 2**53)
json_values = st.recursive(
    st.none() | st.booleans() | integers | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, json_values, max_size=3)
parts = st.one_of(
    st.builds(schema.TextPart, texts),
    st.builds(schema.ReasoningPart, texts, maybe_text, st.booleans()),
    st.builds(schema.ImagePart, texts, maybe_text),
    st.builds(schema.FilePart, texts, maybe_text),
)
calls = st.builds(schema.tool_call, texts, texts | objects, id=maybe_text)
producers = st.builds(
    schema.Producer, st.sampled_from(["model", "human", "environment", "copy", "unknown"]), maybe_text
)
token_records = st.lists(st.tuples(st.integers(0, 2**31 - 1), numbers), max_size=4).flatmap(
    lambda pairs: st.builds(
        schema.TokenRecord,
        token_ids=st.just([pair[0] for pair in pairs]),
        fingerprint=texts,
        logprobs=st.none() | st.just([pair[1] for pair in pairs]),
        prompt_token_ids=st.none() | st.lists(st.integers(0, 9), max_size=3),
    )
)
messages = st.builds(
    schema.Message,
    role=st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    content=st.none() | st.lists(parts, max_size=3),
    tool_calls=st.lists(calls, max_size=2),
    tool_call_id=maybe_text,
    name=maybe_text,
    error=st.none() | st.builds(schema.MessageError, texts, texts),
    producer=producers,
    tokens=st.none() | token_records,
    timestamp=maybe_text,
    usage=st.none() | st.builds(schema.Usage, st.none() | integers, st.none() | integers, st.none() | numbers),
    trainable=st.none() | st.booleans(),
    metadata=objects,
    id=maybe_text,
)
tools = st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": texts, "parameters": objects})}), max_size=2
).map(lambda value: msgspec.json.encode(value).decode())
outcomes = st.builds(
    schema.Outcome,
    status=st.sampled_from(["scored", "unscored", "infrastructure_error"]),
    success=st.none() | st.booleans(),
    score=st.none() | numbers,
    components=st.dictionaries(texts, numbers, max_size=2),
    scorer=maybe_text,
)
scores = st.builds(
    schema.Score,
    name=texts,
    value=st.none() | numbers,
    label=maybe_text,
    scorer=maybe_text,
    scorer_kind=st.sampled_from(["human", "model", "code", "environment", "unknown"]),
    direction=st.sampled_from(["higher_is_better", "lower_is_better", "unknown"]),
    message_index=st.none() | st.just(0),
    comment=maybe_text,
    correction=maybe_text,
    comparison_id=maybe_text,
    timestamp=maybe_text,
    metadata=objects,
)


@st.composite
def trajectories(draw: st.DrawFn, name: str) -> schema.Trajectory:
    chat = draw(st.lists(messages, min_size=1, max_size=4))
    starts = draw(st.lists(st.integers(0, len(chat)), unique=True, max_size=3))
    contexts = [schema.Context(start, draw(st.none() | tools), draw(maybe_text), draw(maybe_text)) for start in starts]
    ending: tuple[bool, bool] = draw(st.sampled_from([(False, False), (True, False), (False, True)]))
    return schema.Trajectory(
        trajectory_id=name,
        messages=chat,
        source=schema.Source(draw(texts), draw(maybe_text), draw(st.none() | st.integers(0, 9)), draw(maybe_text)),
        task_id=draw(maybe_text),
        group_id=draw(maybe_text),
        episode_id=draw(maybe_text),
        parent_trajectory_id=draw(maybe_text),
        branch=draw(st.none() | st.builds(schema.Branch, texts, st.integers(0, len(chat)))),
        task_type=draw(maybe_text),
        agent=draw(maybe_text),
        model=draw(maybe_text),
        started_at=draw(maybe_text),
        ended_at=draw(maybe_text),
        contexts=sorted(contexts, key=lambda context: context.start),
        terminated=ending[0],
        truncated=ending[1],
        stop_reason=draw(maybe_text),
        outcome=draw(outcomes),
        metadata=draw(objects),
        session_id=draw(maybe_text),
        user_id=draw(maybe_text),
        identifiers=draw(st.dictionaries(texts, texts, max_size=2)),
        scores=draw(st.lists(scores, max_size=2)),
    )


def same(left: Any, right: Any) -> bool:
    """Equal, and also -0.0 is not 0.0 and True is not 1."""
    return bool(left == right) and repr(left) == repr(right)


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
@given(trajectories("any"))
def test_a_row_decodes_to_what_was_encoded(trajectory: schema.Trajectory) -> None:
    encoded = encoding.encode_trajectory(trajectory)
    frame = table([(*encoded.values, None, encoded.content_key)], encoding.TRAJECTORY_COLUMNS)
    (row,) = frame.to_dicts()
    texts_by_id = {name: text for name, (_, text) in encoded.blobs.items()}
    assert same(encoding.decode_trajectory(row, texts_by_id), trajectory)
    assert _system_texts(row["messages"]) == []


def _system_texts(messages: str) -> list[str]:
    """Texts of system messages that are still in the row."""
    return [
        part["text"]
        for message in msgspec.json.decode(messages)
        if message["role"] in ("system", "developer")
        for part in message.get("content") or ()
        if part["type"] == "text" and part["text"]
    ]


@settings(max_examples=10, deadline=None, suppress_health_check=SLOW)
@given(first=trajectories("first"), second=trajectories("second"))
def test_a_store_gives_back_what_was_written(first: schema.Trajectory, second: schema.Trajectory) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "store")
        with store.writer() as writer:
            writer.add(first)
            writer.add(second)
        read = list(store.iter_trajectories())
        assert same(read, [first, second])
        assert store.steps.collect().height == len(first.step_indices()) + len(second.step_indices())
        assert store.trajectories.collect()["n_steps"].to_list() == [len(t.step_indices()) for t in read]


@given(st.floats())
def test_only_finite_scores_are_stored(score: float) -> None:
    outcome = schema.Outcome("scored", score=score)
    record = schema.Trajectory("t", [schema.Message("assistant")], schema.Source("test"), outcome=outcome)
    assert (errors_of(record) == []) == math.isfinite(score)
