"""How fast call logs are stitched, parsing left out; and that a long session is not slower than short ones."""

from __future__ import annotations

import random
import time

import msgspec
import pytest

from offline_arl.logs.adapter import Group, Piece
from offline_arl.logs.stitching.stitch import ModelCall, stitch
from offline_arl.trajectories.schema import Message, ReasoningPart, TextPart, text_message, tool_call

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[Message])
WORDS = [f"word{number}" for number in range(10_000)]


def text(size: int, source: random.Random) -> str:
    return " ".join(source.choices(WORDS, k=size // 9))


def session(n_calls: int, size: int, *, has_clock: bool = False, rewrites: float = 0.0) -> tuple[list[ModelCall], int]:
    """A session whose every call repeats the history, each time in strings of its own, and its bytes as JSON."""
    source = random.Random(0)
    system, history = text(3000, source), [text_message("user", text(size, source))]
    calls, n_bytes = [], 0
    for number in range(n_calls):
        clock = f" It is 10:{number // 60 % 60:02}:{number % 60:02}." if has_clock else ""
        command = {"command": text(size // 2, source), "n": number}
        sampled = Message(
            "assistant",
            [ReasoningPart(text(size // 2, source)), TextPart(text(size // 4, source))],
            [tool_call("run", command, id=f"call-{number}")],
        )
        prompt = _encoder.encode([text_message("system", system + clock), *history])
        answer = _encoder.encode([sampled])
        n_bytes += len(prompt) + len(answer)
        at = f"2025-03-03T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"
        calls.append(
            ModelCall(_decoder.decode(prompt), _decoder.decode(answer), (number,), call_id=str(number), started_at=at)
        )
        history.append(Message("assistant", [TextPart(sampled.text)], sampled.tool_calls))
        if source.random() < rewrites:
            history[source.randrange(len(history))] = text_message("user", text(size, source))
        history.append(Message("tool", [TextPart(text(size, source))], tool_call_id=f"call-{number}"))
    return calls, n_bytes


def group(n_calls: int) -> Group:
    return Group("log", "session", [Piece(b"", "log", "log", index, f"{index:064}") for index in range(n_calls)])


def speed(calls: list[ModelCall], n_bytes: int) -> float:
    started = time.process_time()
    stitch(calls, group(len(calls)))
    return n_bytes / 1e6 / (time.process_time() - started)


@pytest.mark.parametrize(
    ("name", "n_calls", "size", "options"),
    [
        ("short messages", 500, 60, {}),
        ("long messages", 400, 1000, {}),
        ("a clock in the system prompt", 400, 500, {"has_clock": True}),
        ("half of the calls rewrite their history", 300, 500, {"rewrites": 0.5}),
    ],
)
def test_stitching_speed(name: str, n_calls: int, size: int, options: dict[str, float]) -> None:
    calls, n_bytes = session(n_calls, size, **options)  # type: ignore[arg-type]
    measured = speed(calls, n_bytes)
    print(f"{name}: {n_calls} calls, {n_bytes / 1e6:.0f} MB, {measured:.0f} MB per CPU second")
    assert measured > 20


def test_short_sessions() -> None:
    sessions = [session(6, 400) for _ in range(300)]
    started = time.process_time()
    for calls, _ in sessions:
        stitch(calls, group(len(calls)))
    measured = sum(n_bytes for _, n_bytes in sessions) / 1e6 / (time.process_time() - started)
    print(f"300 sessions of 6 calls: {measured:.0f} MB per CPU second")
    assert measured > 20


def test_time_grows_with_the_input() -> None:
    """Twice the calls are four times the input; what is slower than the input by far more than caches explain fails."""
    shorter, longer = (session(n_calls, 60) for n_calls in (300, 1200))
    slow, fast = speed(*longer), speed(*shorter)
    print(f"300 calls: {fast:.0f} MB per CPU second; 1200 calls: {slow:.0f}")
    assert slow > fast / 6
