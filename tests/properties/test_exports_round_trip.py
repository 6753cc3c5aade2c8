"""Whatever is exported, reading the file gives the same trajectories: every format, every container."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_arl.logs.exports.catalog import exporters
from offline_arl.logs.exports.exporter import (
    Container,
    Exporter,
    NoRecordError,
    ToolAwareExporter,
    ToolShapes,
    record_of,
)
from offline_arl.logs.exports.sinks import open_sink
from offline_arl.logs.reading import read_logs
from offline_arl.logs.slots.contexts import all_tools
from offline_arl.trajectories import schema
from offline_arl.trajectories.validate import errors_of

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
maybe_text = st.none() | texts
words = st.sampled_from(
    ["", "hello", "<image>", "<think>\na\n</think>\n\nb", '{"name": "f", "arguments": {}}', "Ärger"]
)
numbers = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**53), 2**53)
json_values = st.recursive(
    st.none() | st.booleans() | integers | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, json_values, max_size=3)
parts = st.one_of(
    st.builds(schema.TextPart, texts | words),
    st.builds(schema.ReasoningPart, texts | words, maybe_text, st.booleans()),
    st.builds(schema.ImagePart, texts | st.sampled_from(["data:image/png;base64,AA==", "a.jpg"]), maybe_text),
    st.builds(schema.FilePart, texts, maybe_text),
)
raw_arguments = st.sampled_from(
    ['{"a": 1}', '{"a":1}', '{"a": "Ä"}', '{"a": "\\u00c4"}', "", "null", "[1]", "{", '{"a": 1.0, "b": 1e3}', '"text"']
)
calls = st.builds(schema.tool_call, texts, raw_arguments | texts | objects, id=maybe_text | st.sampled_from("abc"))
kinds = ["model", "human", "script", "environment", "summary", "demonstration", "copy", "unknown"]
producers = st.builds(schema.Producer, st.sampled_from(kinds), maybe_text | st.just("tiny"))
token_records = st.lists(st.tuples(st.integers(0, 2**31 - 1), numbers), max_size=4).flatmap(
    lambda pairs: st.builds(
        schema.TokenRecord,
        token_ids=st.just([pair[0] for pair in pairs]),
        fingerprint=texts,
        logprobs=st.none() | st.just([pair[1] for pair in pairs]),
        prompt_token_ids=st.none() | st.lists(st.integers(0, 9), max_size=3),
    )
)
counts = st.none() | st.integers(0, 2**53)
times = st.none() | st.sampled_from(["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.678901+02:00", "yesterday", ""])
messages = st.builds(
    schema.Message,
    role=st.sampled_from(["system", "developer", "user", "assistant", "assistant", "tool", "tool"]),
    content=st.none() | st.lists(parts, max_size=3) | st.builds(lambda text: [schema.TextPart(text)], texts | words),
    tool_calls=st.lists(calls, max_size=2),
    tool_call_id=maybe_text | st.sampled_from("abc"),
    name=maybe_text,
    error=st.none() | st.builds(schema.MessageError, texts, texts),
    producer=producers,
    tokens=st.none() | token_records,
    timestamp=times,
    usage=st.none() | st.builds(schema.Usage, counts, counts, st.none() | numbers),
    trainable=st.none() | st.booleans(),
    metadata=objects,
    id=maybe_text,
)
tool = st.fixed_dictionaries(
    {"type": st.just("function"), "function": st.fixed_dictionaries(
        {"name": st.sampled_from(["f", "g", "h"])},
        optional={"description": texts, "parameters": objects | st.just({"type": "object"}), "strict": st.booleans()},
    )},
    optional={"more": json_values},
)  # fmt: skip
tool_lists = st.lists(tool, max_size=3).flatmap(
    lambda value: st.sampled_from([msgspec.json.encode(value).decode(), msgspec.json.format(value_text(value))])
)
outcomes = st.builds(
    schema.Outcome,
    status=st.sampled_from(["scored", "scored", "unscored", "infrastructure_error"]),
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
    timestamp=times,
    metadata=objects,
)


def value_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


@st.composite
def trajectories(draw: st.DrawFn, name: str, first: Sequence[schema.Message] = ()) -> schema.Trajectory:
    chat = [*first, *draw(st.lists(messages, min_size=1, max_size=5))]
    starts = draw(st.lists(st.integers(0, len(chat)), unique=True, max_size=3))
    ending = draw(st.sampled_from([(False, False), (True, False), (False, True)]))
    branch = st.none() | st.builds(schema.Branch, texts, st.integers(0, len(chat)))
    return schema.Trajectory(
        trajectory_id=name,
        messages=chat,
        source=schema.Source("test"),
        task_id=draw(maybe_text),
        group_id=draw(maybe_text),
        episode_id=draw(maybe_text),
        parent_trajectory_id=draw(maybe_text),
        branch=draw(branch),
        task_type=draw(maybe_text),
        agent=draw(maybe_text),
        model=draw(maybe_text | st.just("tiny")),
        started_at=draw(times),
        ended_at=draw(times),
        contexts=[
            schema.Context(start, draw(st.none() | tool_lists), draw(maybe_text), draw(maybe_text))
            for start in sorted(starts)
        ],
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


@st.composite
def compared(draw: st.DrawFn) -> tuple[schema.Trajectory, schema.Trajectory]:
    """Two trajectories that share a beginning, after which the model decides."""
    shared = draw(st.lists(messages, min_size=1, max_size=3))
    answer = schema.Message("assistant", [schema.TextPart("yes")], producer=schema.Producer("model"))
    other = msgspec.structs.replace(answer, content=[schema.TextPart("no")])
    return (
        draw(trajectories("chosen", [*shared, answer])),
        draw(trajectories("rejected", [*shared, other])),
    )


def as_json(value: Any) -> bytes:
    """All of a trajectory but where it was read from; 1 is not 1.0, the order of keys does not count."""

    def plain(item: Any) -> Any:
        if isinstance(item, msgspec.Struct):
            fields = {name: plain(getattr(item, name)) for name in item.__struct_fields__ if name != "source"}
            return {"kind": type(item).__name__, **fields}
        if isinstance(item, list):
            return [plain(element) for element in item]
        return {key: plain(element) for key, element in item.items()} if isinstance(item, dict) else item

    return msgspec.json.encode(plain(value), order="deterministic")


def assert_comes_back(exporter: Exporter, container: Container, unit: Sequence[schema.Trajectory]) -> None:
    if isinstance(exporter, ToolAwareExporter):
        lists = [tools for trajectory in unit if (tools := all_tools(trajectory.contexts))]
        exporter = exporter.with_tools(ToolShapes(lists))
    reason = None
    try:
        record = record_of(exporter, unit)
    except NoRecordError as error:
        reason = str(error)
    if reason is not None:
        assert reason in WITHOUT_RECORD
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / {"json_lines": "out.jsonl", "parquet": "out.parquet", "folder": "out"}[container]
        with open_sink(exporter, container, path) as sink:
            sink.write(record, unit[0].trajectory_id)
        contents = read_logs(sorted(path.iterdir()) if path.is_dir() else path)
    assert list(contents.formats.values()) == [exporter.adapter]
    assert [fate.fate for fate in contents.fates] == ["used"]
    assert [as_json(trajectory) for trajectory in contents.trajectories] == [as_json(wanted) for wanted in unit]


WITHOUT_RECORD = {
    "no verdict on its outcome",
    "no answer of the agent to a user or a tool",
    "no prompt before the answer",
    "the two that were compared share no prompt",
    "the two that were compared are the same",
}
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
SINGLE = [
    (name, container)
    for name, exporter in exporters().items()
    for container in exporter.containers
    if exporter.per_record == 1
]


@pytest.mark.parametrize(("name", "container"), SINGLE)
@settings(max_examples=120, deadline=None, suppress_health_check=SLOW)
@given(trajectory=trajectories("any"))
def test_every_format_gives_back_what_was_exported(
    name: str, container: Container, trajectory: schema.Trajectory
) -> None:
    assert errors_of(trajectory) == []
    assert_comes_back(exporters()[name], container, [trajectory])


@pytest.mark.parametrize("container", ["json_lines", "parquet"])
@settings(max_examples=80, deadline=None, suppress_health_check=SLOW)
@given(pair=compared())
def test_pairs_come_back_as_two(container: Container, pair: tuple[schema.Trajectory, schema.Trajectory]) -> None:
    assert_comes_back(exporters()["trl_preference"], container, pair)
