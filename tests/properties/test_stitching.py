"""Calls emitted from a conversation tree, in any order and with the noise of real logs, give back that tree."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_arl.logs.adapter import Group, Piece
from offline_arl.logs.stitching.stitch import ModelCall, Stitched, assembly_of, stitch
from offline_arl.trajectories.schema import (
    ImagePart,
    Message,
    MessageError,
    ReasoningPart,
    TextPart,
    ToolCall,
    Trajectory,
    text_message,
    tool_call,
)
from offline_arl.trajectories.validate import errors_of

replace = msgspec.structs.replace
Shape = tuple[str, str, tuple[str, ...]]  # role, text, queries of the tool calls


@dataclass
class Conversation:
    """A thread as it happened. `owner` is the thread that first had each message."""

    number: int
    system: str
    messages: list[Message]
    owners: list[Conversation]
    own: list[int] = field(default_factory=list)  # indices of the answers that are its own
    fork: int = 0
    origin: Conversation | None = None
    relation: str | None = None
    answered: list[int] = field(default_factory=list)  # lengths of prompts that were answered


@dataclass
class World:
    """What happened in a session, and the calls that a log without noise has of it."""

    random: random.Random
    threads: list[Conversation] = field(default_factory=list)
    calls: list[ModelCall] = field(default_factory=list)
    utilities: set[int] = field(default_factory=set)
    failures: set[int] = field(default_factory=set)
    n_texts: int = 0

    def text(self, kind: str) -> str:
        self.n_texts += 1
        return f"{kind} number {self.n_texts} says {self.random.choice(['yes', 'no', 'perhaps'])}"

    def answer(self) -> Message:
        parts: list[TextPart | ReasoningPart] = []
        if self.random.random() < 0.4:
            parts.append(ReasoningPart(self.text("thought"), signature="seal"))
        calls = []
        for position in range(self.random.choice([0, 0, 1, 2])):
            arguments = {"query": self.text("query"), "é": self.random.choice([1.0, 2.5, None, True]), "n": position}
            calls.append(tool_call("search", arguments, id=f"call-{self.n_texts}"))
        if not calls or self.random.random() < 0.5:
            parts.append(TextPart(self.text("answer")))
        return Message("assistant", parts or None, calls)

    def additions(self, answer: Message | None) -> list[Message]:
        calls = [] if answer is None else list(answer.tool_calls)
        self.random.shuffle(calls)
        added = [replace(text_message("tool", self.text("result")), tool_call_id=call.id) for call in calls]
        if not added or self.random.random() < 0.3:
            added.append(text_message("user", self.text("user")))
        return added

    def emit(self, thread: Conversation, length: int, choices: list[Message]) -> None:
        number = len(self.calls)
        self.calls.append(
            ModelCall(
                messages=[text_message("system", thread.system), *thread.messages[:length]],
                choices=choices,
                pieces=(number,),
                call_id=f"call {number}",
                started_at=f"2025-03-0{1 + number // 3600}T00:{number // 60 % 60:02}:{number % 60:02}Z",
                model="model-1",
                tools="[]",
                error=None if choices else MessageError("rate_limit", "try again"),
            )
        )

    def start(self) -> None:
        first = text_message("user", self.text("task"))
        system = f"You are agent {len(self.threads)}. It is 10:15."
        thread = Conversation(len(self.threads), system, [first], [])
        thread.owners = [thread]
        self.threads.append(thread)
        self.reply(thread, 1)

    def reply(self, thread: Conversation, n_choices: int) -> None:
        """Answer what the thread holds; every choice but the first is a thread of its own."""
        length = len(thread.messages)
        choices = [self.answer() for _ in range(n_choices)]
        self.emit(thread, length, choices)
        for choice in choices[1:]:
            self.branch(thread, length, "choice", thread, choice)
        thread.answered.append(length)
        thread.own.append(length)
        thread.messages.append(choices[0])
        thread.owners.append(thread)

    def branch(
        self, thread: Conversation, length: int, relation: str, origin: Conversation, answer: Message
    ) -> Conversation:
        new = Conversation(len(self.threads), thread.system, thread.messages[:length], thread.owners[:length])
        new.fork, new.origin, new.relation = length, origin, relation
        new.own.append(length)
        new.answered.append(length)
        new.messages.append(answer)
        new.owners.append(new)
        self.threads.append(new)
        return new

    def extend(self, n_choices: int = 1, *, fails_first: bool = False) -> None:
        thread = self.random.choice(self.threads)
        for message in self.additions(thread.messages[-1]):
            thread.messages.append(message)
            thread.owners.append(thread)
        if fails_first:
            self.failures.add(len(self.calls))
            self.emit(thread, len(thread.messages), [])
        self.reply(thread, n_choices)

    def regenerate(self) -> None:
        thread = self.random.choice(self.threads)
        length = self.random.choice(thread.answered)
        answer = self.answer()
        self.emit(thread, length, [answer])
        self.branch(thread, length, "regenerated", thread.owners[length - 1], answer)

    def rewrite(self) -> None:
        thread = self.random.choice(self.threads)
        length = self.random.randrange(1, len(thread.messages))
        new = Conversation(len(self.threads), thread.system, thread.messages[:length], thread.owners[:length])
        new.fork, new.origin, new.relation = length, thread.owners[length - 1], "rewritten"
        new.messages.append(text_message("user", self.text("instead")))
        new.owners.append(new)
        self.threads.append(new)
        self.reply(new, 1)

    def title(self) -> None:
        number = len(self.calls)
        self.utilities.add(number)
        prompt = [text_message("user", f"Generate a title for this conversation: {self.text('task')}")]
        call = ModelCall(prompt, [text_message("assistant", self.text("title"))], (number,), call_id=f"call {number}")
        time = f"2025-03-0{1 + number // 3600}T00:{number // 60 % 60:02}:{number % 60:02}Z"
        self.calls.append(replace_call(call, started_at=time))


def replace_call(call: ModelCall, **changes: object) -> ModelCall:
    return ModelCall(**{**vars(call), **changes})  # type: ignore[arg-type]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World(random.Random(draw(st.integers(0, 2**32))))
    world.start()
    actions = {
        "start": world.start,
        "extend": world.extend,
        "choices": lambda: world.extend(world.random.choice([2, 3])),
        "retry": lambda: world.extend(fails_first=True),
        "regenerate": world.regenerate,
        "rewrite": world.rewrite,
        "title": world.title,
    }
    names = st.sampled_from(["extend", "extend", "extend", *actions])
    for name in draw(st.lists(names, max_size=14)):
        actions[name]()
    return world


def noisy(call: ModelCall, noise: random.Random) -> ModelCall:
    """The call as a careless logger has it; its answers stay as they were sampled."""
    ids: dict[str, str] = {}
    if noise.random() < 0.5:
        ids = {item.id: f"other-{item.id}" for message in call.messages for item in message.tool_calls if item.id}
    messages = [_noisy_message(message, ids, noise) for message in call.messages]
    return replace_call(call, messages=messages)


def _noisy_message(message: Message, ids: dict[str, str], noise: random.Random) -> Message:
    if message.role == "system":
        text = message.text.replace("10:15", f"{noise.randrange(24)}:{noise.randrange(10, 60)}")
        role = noise.choice(["system", "developer"])
        return replace(text_message(role, text), metadata={"cache_control": {"type": "ephemeral"}})
    text = message.text + noise.choice(["", "", "\n", "  "])
    parts: list[TextPart | ReasoningPart] | None = [TextPart(text)]
    if text.strip() == "":
        parts = noise.choice([None, [], [TextPart("")]])
    elif noise.random() < 0.3:
        middle = noise.randrange(len(text))
        parts = [TextPart(text[:middle]), TextPart(text[middle:])]
    if message.role == "assistant" and message.reasoning and noise.random() < 0.3:
        parts = [ReasoningPart(message.reasoning), *(parts or ())]
    calls = [_noisy_call(call, ids, noise) for call in message.tool_calls]
    answered = message.tool_call_id
    return replace(
        message,
        content=parts,
        tool_calls=calls,
        tool_call_id=None if answered is None else ids.get(answered, answered),
        metadata={"cache_control": {"type": "ephemeral"}} if noise.random() < 0.2 else {},
    )


def _noisy_call(call: ToolCall, ids: dict[str, str], noise: random.Random) -> ToolCall:
    arguments = dict(call.arguments or {})
    if noise.random() < 0.5:
        arguments = dict(reversed(arguments.items()))
    if arguments.get("é") == 1.0 and arguments["é"] is not True:
        arguments["é"] = noise.choice([1, 1.0])
    raw = msgspec.json.format(msgspec.json.encode(arguments), indent=noise.choice([0, 2])).decode()
    if noise.random() < 0.5:
        raw = raw.replace("é", "\\u00e9")
    return tool_call(call.name, raw, id=ids.get(call.id or "", call.id))


def group_of(n: int) -> Group:
    return Group("log", "session", [Piece(b"", "log.jsonl", "log.jsonl", i, f"{i:064}", i + 1) for i in range(n)])


def shape(message: Message) -> Shape:
    queries = tuple(str((call.arguments or {}).get("query")) for call in message.tool_calls)
    return message.role, message.text.strip(), queries


def own_indices(trajectory: Trajectory) -> list[int]:
    return [index for index, message in enumerate(trajectory.messages) if message.producer.kind == "model"]


def check(world: World, stitched: Stitched, log: list[ModelCall]) -> None:
    """The trajectories are the threads: messages, own answers, branch points and relations."""
    assert Counter(log[index].call_id for index in stitched.set_apart) == Counter(
        f"call {number}" for number in world.utilities
    )
    by_answer = {
        (*shape(trajectory.messages[index]), trajectory.messages[index].id): trajectory
        for trajectory in stitched.trajectories
        for index in own_indices(trajectory)
    }
    assert len(stitched.trajectories) == len(world.threads)
    found: dict[int, Trajectory] = {}
    for thread in world.threads:
        first = shape(thread.messages[thread.own[0]])
        found[thread.number] = next(trajectory for key, trajectory in by_answer.items() if key[:3] == first)
    for thread in world.threads:
        trajectory = found[thread.number]
        assert [shape(message) for message in trajectory.messages[1:]] == [shape(item) for item in thread.messages]
        assert [index - 1 for index in own_indices(trajectory)] == thread.own
        for index in thread.own:  # answers as they were sampled, whatever the history made of them
            message = trajectory.messages[index + 1]
            assert message.content == thread.messages[index].content
            assert message.tool_calls == thread.messages[index].tool_calls
        if thread.origin is None:  # one that starts while another waits for its tools may be its sub-agent
            assert trajectory.metadata.get("relation") in (None, "sub_agent")
            assert trajectory.branch is None
        else:
            assert trajectory.metadata.get("relation") == thread.relation
            assert trajectory.branch is not None
            assert trajectory.branch.trajectory_id == found[thread.origin.number].trajectory_id
            assert trajectory.branch.message_index == thread.fork + 1
        known = {call.id for message in trajectory.messages for call in message.tool_calls}
        for message in trajectory.messages:  # results still answer the calls of the trajectory
            assert message.role != "tool" or message.tool_call_id in known
        assert errors_of(trajectory) == []


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.integers(0, 2**32))
def test_any_order_of_the_log_gives_the_tree(world: World, seed: int) -> None:
    noise = random.Random(seed)
    log = [noisy(call, noise) for call in world.calls]
    noise.shuffle(log)
    stitched = stitch(log, group_of(len(log)))
    check(world, stitched, log)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.integers(0, 2**32))
def test_without_times_the_order_of_the_log_counts(world: World, seed: int) -> None:
    noise = random.Random(seed)
    log = [replace_call(noisy(call, noise), started_at=None) for call in world.calls]
    check(world, stitch(log, group_of(len(log))), log)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.integers(0, 2**32), st.booleans())
def test_ids_stay_when_a_session_grows(world: World, seed: int, has_ids: bool) -> None:
    noise = random.Random(seed)
    log = [noisy(call, noise) for call in world.calls]
    if not has_ids:
        log = [replace_call(call, call_id=None) for call in log]
    cut = noise.randrange(1, len(log) + 1)
    before = stitch(log[:cut], group_of(cut))
    after = stitch(log, group_of(len(log)))
    known = {trajectory.trajectory_id: trajectory for trajectory in after.trajectories}
    assert len(known) == len(after.trajectories)
    for trajectory in before.trajectories:
        grown = known[trajectory.trajectory_id]
        answered = [shape(message) for message in trajectory.messages]
        assert [shape(message) for message in grown.messages][: len(answered)] == answered
        assert set(own_indices(trajectory)) <= set(own_indices(grown))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.integers(0, 2**32))
def test_every_call_is_in_one_place(world: World, seed: int) -> None:
    noise = random.Random(seed)
    log = [noisy(call, noise) for call in world.calls]
    noise.shuffle(log)
    stitched = stitch(log, group_of(len(log)))
    places: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    for trajectory in stitched.trajectories:
        answers.update(trajectory.messages[index].id or "" for index in own_indices(trajectory))
        places.update(item["call_id"] for item in trajectory.metadata.get("failed_calls", ()))
    for call in log:
        if call.choices:
            places[call.call_id or ""] += answers[call.call_id or ""] == len(call.choices)
    places.update(log[index].call_id or "" for index in {*stitched.set_apart, *stitched.duplicates})
    assert places == Counter(call.call_id for call in log)

    assembly = assembly_of(log, group_of(len(log)))
    pieces = {piece for index in stitched.set_apart for piece in log[index].pieces}
    assert set(assembly.set_apart) == pieces
    assert {f"call {index}" for index in world.failures} <= set(places)


ROLES = ["user", "assistant", "assistant", "tool"]
TEXTS = [
    "",
    "a",
    "b",
    "ab",
    "\nb",
    "a ",
    "<think>a</think>b",
    "\ud800",
    "title of this conversation",
    "summary of the chat",
]
ARGUMENTS = ["", "{}", '{"x":1}', '{"x": 1.0}', "[", '{"x": 123456789012345678901}', '{"x": {"y": ["a"]}}']
IDS = [None, None, "1", "2", "\udfff"]
TIMES = [None, "soon", "", "2025-03-03", "2025-03-03T10:00:00+01:00", "2025-03-03T09:00:00.5Z", "2025-03-03T09:00:02Z"]
SYSTEMS = ["It is 10:15", "It is 11:12", "You are another one"]


def any_message(source: random.Random, role: str | None = None) -> Message:
    """A message of few possible texts, so that messages are equal, are parts of one another and are merged."""
    role = role or source.choice(ROLES)
    parts: list[Any] = [
        TextPart(source.choice(TEXTS)),
        source.choice([TextPart("b"), ImagePart("a"), ReasoningPart("a")]),
    ]
    calls = [
        tool_call("f", source.choice(ARGUMENTS), id=source.choice(IDS)) for _ in range(source.choice([0, 0, 1, 2]))
    ]
    return Message(
        role,  # type: ignore[arg-type]
        source.choice([None, [], parts[:1], parts[:1], parts]),
        calls if role == "assistant" else [],
        tool_call_id=source.choice(IDS) if role == "tool" else None,
        metadata=source.choice([{}, {}, {"other_parts": [{"x": float("nan")}]}]),
    )


def any_call(source: random.Random, number: int, earlier: list[ModelCall]) -> ModelCall:
    """A call that mostly goes on from an earlier one, perhaps with a message left out."""
    messages = [any_message(source) for _ in range(source.randrange(3))]
    if earlier and source.random() < 0.8:
        before = source.choice(earlier)
        answers = [source.choice(before.choices)] if before.choices and source.random() < 0.9 else []
        messages = [*before.messages, *answers, *messages]
        if messages and source.random() < 0.2:
            messages.pop(source.randrange(len(messages)))
    if source.random() < 0.5:
        messages = [
            text_message("system", source.choice(SYSTEMS)),
            *(item for item in messages if item.role != "system"),
        ]
    return ModelCall(
        messages=messages,
        choices=[any_message(source, "assistant") for _ in range(source.choice([0, 1, 1, 1, 2]))],
        pieces=(number,),
        call_id=source.choice([None, str(number), "same", "\udfff"]),
        tools=source.choice([None, "[]", '[{"type":"function","function":{"name":"f"}}]']),
        started_at=source.choice([*TIMES, f"2025-03-03T09:01:{number:02}Z"]),
        parent_id=source.choice([None, "0", "same"]),
        parent_tool_call_id=source.choice(IDS),
        name=source.choice([None, "agent", "title", "\ud800"]),
        session_id=source.choice([None, "s"]),
        trace_id=source.choice([None, "t1", "t2"]),
        truncated=source.random() < 0.1,
        error=source.choice([None, None, None, MessageError("timeout")]),
        is_utility=source.choice([None, None, None, True, False]),
        metadata=source.choice([{}, {}, {"cache_hit": True}]),
    )


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**64), st.integers(1, 12))
def test_whatever_the_calls_hold_each_answer_is_sampled_once(seed: int, n_calls: int) -> None:
    source = random.Random(seed)
    calls: list[ModelCall] = []
    for number in range(n_calls):
        calls.append(any_call(source, number, calls))
    stitched = stitch(calls, group_of(n_calls))

    ids = [trajectory.trajectory_id for trajectory in stitched.trajectories]
    assert len(set(ids)) == len(ids)
    for trajectory in stitched.trajectories:
        assert errors_of(trajectory) == []
        assert trajectory.parent_trajectory_id is None or trajectory.parent_trajectory_id in ids
        assert trajectory.branch is None or trajectory.branch.trajectory_id in ids
    assert stitched.set_apart.keys().isdisjoint(stitched.duplicates)
    steps = [call for index, call in enumerate(calls) if index not in {*stitched.set_apart, *stitched.duplicates}]
    failures = [item for each in stitched.trajectories for item in each.metadata.get("failed_calls", ())]
    n_sampled = sum(len(own_indices(trajectory)) for trajectory in stitched.trajectories)
    assert n_sampled + sum(len(item.get("choices", ())) for item in failures) == sum(
        len(call.choices) for call in steps
    )
    assert sum(not call.choices for call in steps) == sum("choices" not in item for item in failures)
