"""What tools are called, and what came of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec
import polars as pl

from offline_arl.analysis.store_report import Tool, Tools
from offline_arl.trajectories.store import Store
from offline_arl.workflows.store_report.frames import collected

_TOOLS = 30
_REFUSED_CALL = r"^messages\[(\d+)\]\.tool_calls\[(\d+)\]$"
_REFUSAL_CODES = ("invalid_json", "unknown_tool", "invalid_arguments")


class _Error(msgspec.Struct):
    """That there is one is enough."""


class _Call(msgspec.Struct):
    name: str
    id: str | None = None


class _Message(msgspec.Struct):
    role: str
    name: str | None = None
    tool_calls: list[_Call] = []
    tool_call_id: str | None = None
    error: _Error | None = None


@dataclass
class MessageFacts:
    """What only the messages tell: their size, and what the log marks as errors."""

    bytes: pl.Series  # of the JSON of each trajectory's messages
    error_results: Counter[str] = field(default_factory=Counter)  # by tool, "" where it is not known
    failed_turns: int = 0


def message_facts(store: Store) -> MessageFacts:
    """Read the messages of the store once, a part at a time; only those with an error are decoded."""
    decoder = msgspec.json.Decoder(list[_Message])
    facts = MessageFacts(pl.Series("bytes", [], pl.Int64()))
    for frame in store.iter_frames(["messages"]):
        texts = frame["messages"]
        facts.bytes.append(texts.str.len_bytes().cast(pl.Int64()).alias("bytes"))
        # In the JSON of a text, these quotes would be escaped.
        for text in texts.filter(texts.str.contains('"error":{', literal=True)):
            _count_errors(decoder.decode(text), facts)
    return facts


def _count_errors(messages: list[_Message], facts: MessageFacts) -> None:
    names: dict[str, str] = {}
    for message in messages:
        for call in message.tool_calls:
            if call.id is not None:
                names[call.id] = call.name
        if message.error is None:
            continue
        if message.role == "tool":
            facts.error_results[names.get(message.tool_call_id or "") or message.name or ""] += 1
        elif message.role == "assistant":
            facts.failed_turns += 1


def tools(store: Store, facts: MessageFacts) -> Tools:
    """The tools that the agent calls most."""
    calls = store.steps.filter(pl.col("n_tool_calls") > 0).select("trajectory_id", pl.col("tool_names").alias("tool"))
    counts = collected(
        calls.explode("tool")
        .group_by("tool")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("trajectory_id").n_unique().cast(pl.Int64).alias("trajectories"),
        )
        .sort("calls", "tool", descending=[True, False])
    )
    invalid = _invalid_calls(store)
    rows = tuple(
        Tool(name, count, trajectories, invalid.get(name, 0), facts.error_results[name])
        for name, count, trajectories in counts.head(_TOOLS).iter_rows()
    )
    return Tools(
        rows=rows,
        distinct=counts.height,
        calls=int(counts["calls"].sum()),
        invalid=int(collected(store.steps.select(pl.col("n_invalid_calls").sum())).item()),
        error_results=facts.error_results.total(),
        failed_turns=facts.failed_turns,
    )


def _invalid_calls(store: Store) -> dict[str, int]:
    """By tool; the step table says which tools a step calls, the findings which of these calls are not acceptable."""
    place = pl.col("where").str.extract_groups(_REFUSED_CALL)
    refused = store.findings.filter(pl.col("code").is_in(_REFUSAL_CODES)).select(
        "trajectory_id",
        place.struct.field("1").cast(pl.Int64).alias("message_index"),
        place.struct.field("2").cast(pl.Int64).alias("call"),
    )
    steps = store.steps.filter(pl.col("n_invalid_calls") > 0).select("trajectory_id", "message_index", "tool_names")
    named = refused.join(steps, on=["trajectory_id", "message_index"]).select(
        pl.col("tool_names").list.get(pl.col("call"), null_on_oob=True).alias("tool")
    )
    return dict(collected(named.group_by("tool").agg(pl.len())).iter_rows())
