"""The model calls of an Inspect transcript, each with the agent that made it; calls that are no step are told apart.

A transcript is a list of events. Spans (in older logs steps) nest them; a model event holds what the model got and
gave, in newer logs with references into pools of messages. Which calls are utility calls follows the rules by which
Inspect draws its own timelines: a call that primes a cache, and a helper with another system prompt beside an agent
that uses tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from offline_arl.logs.adapter import RecordRefusedError
from offline_arl.logs.benchmarks.inspect_messages import (
    convert_message,
    convert_messages,
    convert_tools,
    convert_usage,
    resolve,
)
from offline_arl.logs.primitives.values import as_count, as_list, as_object, as_text, json_type
from offline_arl.trajectories.schema import Message, Producer

LaneKind = Literal["main", "agent", "branch"]
_BILLING_LINE = "x-anthropic-billing-header:"


@dataclass
class Lane:
    """One agent, or one branch of its work: the span whose model calls belong together."""

    id: str
    kind: LaneKind
    name: str | None = None
    parent: Lane | None = None
    is_tool_invoked: bool = False
    calls: list[Call] = field(default_factory=list)
    n_tools: int = 0


@dataclass
class Call:
    """One model call: its prompt, and the answer where there is one."""

    id: str | None
    lane: Lane
    prompt: list[Message]
    answer: Message | None
    others: list[Message]  # further choices
    tools: str | None
    model: str | None
    started_at: str | None
    ended_at: str | None
    stop_reason: str | None
    error: str | None
    apart: str | None = None  # why it is no step of an agent
    is_after_compaction: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def uses_tools(self) -> bool:
        """Whether the model called a tool."""
        return self.answer is not None and bool(self.answer.tool_calls)


@dataclass
class Transcript:
    """What the events of a sample say.

    `model_scorers` are the names of the scorers that asked a model.
    """

    calls: list[Call] = field(default_factory=list)
    tool_events: dict[str, dict[str, Any]] = field(default_factory=dict)  # by the id of the call
    model_scorers: set[str] = field(default_factory=set)


def read_transcript(sample: dict[str, Any], attachments: dict[str, str]) -> Transcript:
    """The model calls of a sample, or of anything else with `events`.

    Raises:
        RecordRefusedError: A model event cannot be read.
    """
    reader = _Reader(sample, attachments)
    reader.read(as_list(sample.get("events")), "events")
    _tell_utility(reader.lanes())
    return reader.transcript


class _Reader:
    def __init__(self, sample: dict[str, Any], attachments: dict[str, str]) -> None:
        self.transcript = Transcript()
        self._attachments = attachments
        pools = as_object(sample.get("events_data"))
        # The pool was a key of the sample before it was given a place of its own.
        pool = as_list(pools.get("messages")) or as_list(sample.get("message_pool"))
        self._pool = convert_messages(resolve(pool, attachments), "the message pool")
        self._main = Lane("", "main")
        self._lanes: dict[str, Lane] = {"": self._main}  # of each span by its id: its own, or the one it is in
        self._own: list[Lane] = [self._main]
        self._scoring: dict[str, str | None] = {}  # the scorer's name by span
        self._started_by_tools: set[str] = set()
        self._tool_spans: set[str] = set()
        self._compacted: set[str] = set()  # lanes whose next call has a shorter history
        self._steps: list[tuple[bool, str | None]] = []  # open, innermost last: whether it scores, and its name

    def lanes(self) -> list[Lane]:
        """All lanes, a parent before its children."""
        return self._own

    def read(self, events: Sequence[Any], where: str) -> None:
        """Read events in order, those within tool events and subtasks of older logs too."""
        self._started_by_tools.update(
            span for event in events if isinstance(event, dict) and isinstance(span := event.get("agent_span_id"), str)
        )
        for index, event in enumerate(events):
            if not isinstance(event, dict):
                raise RecordRefusedError(f"{where}[{index}]: expected an object, got {json_type(event)}")
            kind = event.get("event")
            if kind == "span_begin":
                self._begin_span(event)
            elif kind == "step":
                self._step(event)
            elif kind == "model":
                self._model(event, f"{where}[{index}]")
            elif kind == "tool":
                self._tool(event)
            elif kind == "branch":
                self._end_replay(event)
            elif kind == "compaction":
                self._compact(event)
            if isinstance(nested := event.get("events"), list) and nested:
                self.read(nested, f"{where}[{index}].events")

    def _begin_span(self, event: dict[str, Any]) -> None:
        span, kind = as_text(event.get("id")), event.get("type")
        if span is None:
            return
        parent_span = as_text(event.get("parent_id")) or ""
        parent = self._lanes.get(parent_span, self._main)
        if kind in ("scorer", "scorers"):
            self._scoring[span] = as_text(event.get("name")) if kind == "scorer" else None
        elif parent_span in self._scoring:
            self._scoring[span] = self._scoring[parent_span]
        if kind == "agent" and parent is self._main and not parent.calls:
            # The first agent is the one whose attempt the sample is.
            parent.name = as_text(event.get("name"))
            self._lanes[span] = parent
        elif kind in ("agent", "branch"):
            by_tool = span in self._started_by_tools or parent_span in self._tool_spans
            lane = Lane(span, kind, as_text(event.get("name")), parent, by_tool)
            self._lanes[span] = lane
            self._own.append(lane)
        else:
            self._lanes[span] = parent
            if kind in ("tool", "handoff"):
                self._tool_spans.add(span)

    def _end_replay(self, event: dict[str, Any]) -> None:
        """What came in a branch before this event repeated the work that it branches from."""
        lane = self._lanes.get(as_text(event.get("span_id")) or "", self._main)
        if lane.kind == "branch":
            for call in lane.calls:
                call.apart = "replayed at the start of a branch"
            lane.calls.clear()

    def _compact(self, event: dict[str, Any]) -> None:
        """The call before a compaction by summary is the one that wrote the summary."""
        lane = self._lanes.get(as_text(event.get("span_id")) or "", self._main)
        self._compacted.add(lane.id)
        if event.get("type") == "summary" and lane.calls and not lane.calls[-1].uses_tools:
            lane.calls.pop().apart = "writes the summary of a compaction"

    def _step(self, event: dict[str, Any]) -> None:
        if event.get("action") == "begin":
            self._steps.append((event.get("type") == "scorer", as_text(event.get("name"))))
        elif self._steps:
            self._steps.pop()

    def _tool(self, event: dict[str, Any]) -> None:
        call_id = as_text(event.get("id"))
        if call_id is not None and event.get("pending") is not True:
            self.transcript.tool_events[call_id] = resolve(event, self._attachments)
        self._lanes.get(as_text(event.get("span_id")) or "", self._main).n_tools += 1

    def _model(self, event: dict[str, Any], where: str) -> None:
        if event.get("pending") is True:
            return
        span = as_text(event.get("span_id")) or ""
        lane = self._lanes.get(span, self._main)
        call = self._call(event, lane, where)
        scorers = [name for scores, name in self._steps if scores]
        if span in self._scoring:
            scorers.append(self._scoring[span])
        if scorers:
            call.apart = "made by a scorer"
            self.transcript.model_scorers.update(name for name in scorers if name is not None)
        elif _primes_cache(event, call):
            call.apart = "primes a cache"
        else:
            call.is_after_compaction = lane.id in self._compacted
            self._compacted.discard(lane.id)
            lane.calls.append(call)
        self.transcript.calls.append(call)

    def _call(self, event: dict[str, Any], lane: Lane, where: str) -> Call:
        output = as_object(resolve(event.get("output"), self._attachments))
        error = as_text(event.get("error"))
        answers = [] if error is not None else _answers(output, f"{where}.output")
        call_id = as_text(event.get("uuid"))
        model = as_text(output.get("model")) or as_text(event.get("model"))
        times = as_text(event.get("timestamp")), as_text(event.get("completed"))
        if answers:
            answers[0] = _as_sampled(answers[0], call_id, model, times[1] or times[0], output)
        choice = as_object(next(iter(as_list(output.get("choices"))), None))
        return Call(
            id=call_id,
            lane=lane,
            prompt=self._prompt(event, where),
            answer=answers[0] if answers else None,
            others=answers[1:],
            tools=convert_tools(event.get("tools"), where),
            model=model,
            started_at=times[0],
            ended_at=times[1],
            stop_reason=as_text(choice.get("stop_reason")),
            error=error,
        )

    def _prompt(self, event: dict[str, Any], where: str) -> list[Message]:
        refs = event.get("input_refs")
        if not refs:
            return convert_messages(resolve(event.get("input"), self._attachments), f"{where}.input")
        prompt: list[Message] = []
        for index, ref in enumerate(as_list(refs)):
            bounds = [as_count(bound) for bound in as_list(ref)]
            if len(bounds) != 2 or bounds[0] is None or bounds[1] is None or bounds[1] > len(self._pool):
                raise RecordRefusedError(f"{where}.input_refs[{index}]: {ref!r} is no range of the message pool")
            prompt.extend(self._pool[bounds[0] : bounds[1]])
        return prompt


def _answers(output: dict[str, Any], where: str) -> list[Message]:
    return [
        convert_message(as_object(choice).get("message"), f"{where}.choices[{index}].message")
        for index, choice in enumerate(as_list(output.get("choices")))
    ]


def _as_sampled(
    message: Message, call_id: str | None, model: str | None, timestamp: str | None, output: dict[str, Any]
) -> Message:
    metadata = dict(message.metadata)
    choice = as_object(as_list(output.get("choices"))[0])
    for key in ("stop_reason", "stop_details", "logprobs"):
        if choice.get(key) is not None:
            metadata[key] = choice[key]
    if call_id is not None:
        metadata["call_id"] = call_id
    return msgspec.structs.replace(
        message,
        producer=Producer("model", model or message.producer.name),
        timestamp=timestamp,
        usage=convert_usage(output.get("usage")),
        metadata=metadata,
    )


def _primes_cache(event: dict[str, Any], call: Call) -> bool:
    limit = as_object(event.get("config")).get("max_tokens")
    if not isinstance(limit, int) or limit > 1:
        return False
    last = next((message for message in reversed(call.prompt) if message.role == "user"), None)
    return last is not None and len(last.text.split()) <= 1


def _tell_utility(lanes: Sequence[Lane]) -> None:
    """Mark the calls of helpers: in a lane that uses tools, and single-turn agents below such a lane."""
    primary: dict[str, str | None] = {}
    for lane in lanes:
        primary[lane.id] = next((system_prompt(call) for call in lane.calls if call.uses_tools), None)
        for call in lane.calls:
            if _is_foreign(system_prompt(call), primary[lane.id]) and not call.uses_tools:
                call.apart = "a helper's call beside the agent"
    for lane in lanes:
        parent = lane.parent
        while parent is not None and not parent.calls:
            parent = parent.parent
        if lane.kind != "agent" or lane.is_tool_invoked or parent is None or not lane.calls:
            continue
        has_loop = any(call.uses_tools for call in parent.calls)
        single = len(lane.calls) == 1 or (len(lane.calls) == 2 and lane.n_tools > 0)
        if has_loop and single and _is_foreign(system_prompt(lane.calls[0]), system_prompt(parent.calls[0])):
            for call in lane.calls:
                call.apart = "a helper agent of one turn"
    for lane in lanes:
        lane.calls = [call for call in lane.calls if call.apart is None]


def _is_foreign(prompt: str | None, primary: str | None) -> bool:
    return prompt is not None and primary is not None and prompt != primary


def system_prompt(call: Call) -> str | None:
    """The system prompt of a call without the line by which a harness tells its bills apart; None where empty."""
    text = next((message.text for message in call.prompt if message.role == "system"), "")
    if text.startswith(_BILLING_LINE):
        text = text.partition("\n")[2]
    return text or None
