"""No planted secret survives anywhere in a store, whatever the format and wherever it was planted."""

from __future__ import annotations

import gzip
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

pytest.importorskip("detect_secrets", reason="pip install 'offline_arl[redact]'")
pytest.importorskip("phonenumbers", reason="pip install 'offline_arl[redact]'")
luhn = pytest.importorskip("stdnum.luhn", reason="pip install 'offline_arl[redact]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from offline_arl.logs.redaction.config import RedactionConfig  # noqa: E402
from offline_arl.logs.redaction.redactor import Redactor  # noqa: E402
from offline_arl.workflows.ingest import ingest  # noqa: E402

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ALNUM = LETTERS + LETTERS.upper() + "0123456789"


def drawn(alphabet: str, size: int) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(alphabet), min_size=size, max_size=size).map("".join)


def mixed(size: int) -> st.SearchStrategy[str]:
    """Characters as a machine would draw them; smaller examples are other ones, not ones that are all alike."""

    def draw(seed: int) -> str:
        random = Random(seed)
        return "".join(random.choices(ALNUM, k=size - 2)) + random.choice(LETTERS) + random.choice("123456789")

    return st.integers(0, 2**32).map(draw)


EMAILS = st.tuples(drawn(LETTERS, 6), drawn(LETTERS, 5), st.sampled_from(["com", "org", "co.uk", "io"])).map(
    lambda parts: f"{parts[0]}@{parts[1]}.{parts[2]}"
)
PHONES = st.tuples(st.sampled_from(["415", "212", "312"]), drawn("0123456789", 4)).map(
    lambda parts: f"+1 {parts[0]}-555-{parts[1]}"
)
CARDS = drawn("0123456789", 14).map(lambda digits: "4" + digits + luhn.calc_check_digit("4" + digits))
KEYS = st.one_of(
    mixed(36).map("ghp_{}".format), mixed(95).map("sk-ant-api03-{}".format), mixed(35).map("AIza{}".format)
)
ADDRESSES = st.tuples(st.integers(11, 99), st.integers(1, 254), st.integers(1, 254)).map(
    lambda parts: f"52.{parts[0]}.{parts[1]}.{parts[2]}"
)
SECRETS = st.one_of(EMAILS, PHONES, CARDS, KEYS, ADDRESSES)
PASSWORDS = mixed(14)


def nested(text: str, depth: int) -> str:
    for _ in range(depth):
        text = json.dumps({"inner": text, "n": 1.50})
    return text


def chat(text: str, password: str, depth: int) -> list[str]:
    """Two OpenAI conversations, one that is refused, and a line that is cut off."""
    arguments = nested(json.dumps({"query": text, "password": password}), depth)
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": f"You are for {text}"},
        {"role": "user", "content": f"I am {text}, password is {password}"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": nested(f"line\n{text}\n", depth)},
        {"role": "assistant", "content": f"done:\n{text}", "seen": {text: [text]}},
    ]
    record = {"messages": messages, "user": text, "metadata": {"db": f"postgres://app:{password}@db.internal/x"}}
    refused = {"messages": [{"role": text, "content": text}], "env": f"DB_PASSWORD={password}"}
    whole = json.dumps(record)
    return [whole, json.dumps(refused), whole[: -len(json.dumps(record["metadata"])) - 30]]


def claude_code(text: str, password: str, depth: int) -> list[str]:
    """A session of Claude Code, which is kept in pieces; the last line is cut off."""
    use = {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "Bash",
        "input": {"command": f"login --password={password} {text}"},
    }
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": nested(f"out\n{text}", depth)}
    contents: list[tuple[str, Any]] = [
        ("user", f"I am {text}"),
        ("assistant", [{"type": "text", "text": f"hello {text}"}, use]),
        ("user", [result]),
        ("assistant", [{"type": "text", "text": f"password is {password}"}]),
    ]
    lines = []
    for number, (role, content) in enumerate(contents):
        message: dict[str, Any] = {"role": role, "content": content}
        if role == "assistant":
            message |= {"id": f"msg_{number}", "model": "m", "type": "message"}
        lines.append(
            json.dumps(
                {
                    "type": role,
                    "uuid": f"u-{number}",
                    "parentUuid": f"u-{number - 1}" if number else None,
                    "sessionId": "s-1",
                    "timestamp": f"2026-01-01T00:00:{number:02}Z",
                    "cwd": "/work",
                    "message": message,
                }
            )
        )
    return [*lines, lines[0][:-3]]


def exchange(text: str, password: str, depth: int) -> list[str]:
    """A request with a streamed response; the second is cut off in the stream."""

    def event(content: str) -> str:
        choice = {"index": 0, "delta": {"role": "assistant", "content": content}, "finish_reason": None}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        return f"data: {json.dumps(chunk)}\n\n"

    request = {"model": "m", "stream": True, "messages": [{"role": "user", "content": nested(text, depth)}]}
    headers = {"Authorization": f"Bearer {password}", "Content-Type": "application/json"}
    body = event(f"hello {text}") + event(f", {text}") + "data: [DONE]\n\n"
    record = json.dumps({"request": request, "headers": headers, "response": body})
    return [record, record[: -len(body) // 3]]


def unknown(text: str, password: str, depth: int) -> list[str]:
    """Records of no known format."""
    return [json.dumps({"what": nested(text, depth), "password": password}), f"plain {text} password={password}"]


FORMATS: list[Callable[[str, str, int], list[str]]] = [chat, claude_code, exchange, unknown]


def everything_in(folder: Path) -> Iterator[tuple[Path, str]]:
    """All files of a store as text, whatever packs them."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        yield path, data.decode(errors="replace")
        if path.suffix == ".parquet":
            for row in pl.read_parquet(path).iter_rows():
                for value in row:
                    yield path, value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        elif path.suffix == ".gz":
            yield path, gzip.decompress(data).decode(errors="replace")
        elif path.suffix == ".sqlite":
            with sqlite3.connect(path) as database:
                yield path, "\n".join(database.iterdump())


@settings(max_examples=10, deadline=None)
@given(st.lists(SECRETS, min_size=1, max_size=3), PASSWORDS, st.integers(0, 3))
@pytest.mark.parametrize("records_of", FORMATS)
def test_no_planted_secret_survives_in_a_store(
    records_of: Callable[[str, str, int], list[str]], secrets: list[str], password: str, depth: int
) -> None:
    text = " and ".join(secrets)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.jsonl")
        log.write_text("".join(line + "\n" for line in records_of(text, password, depth)))
        report = ingest(log, Path(folder, "store"), redact=True)
        assert report.records == len(log.read_text().splitlines())
        kinds = {path.parent.name for path, _ in everything_in(Path(folder, "store"))}
        assert "quarantine" in kinds
        assert ("pieces" in kinds) == (records_of in (claude_code, exchange))
        for path, content in everything_in(Path(folder, "store")):
            for secret in {*secrets, password}:
                assert secret not in content, f"{secret} is in {path.name}"


@given(
    st.recursive(
        st.text() | st.integers() | st.booleans() | st.none() | SECRETS,
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner),
        max_leaves=12,
    ),
    st.booleans(),
)
def test_json_stays_json_of_the_same_shape(value: Any, ascii_only: bool) -> None:
    def shape(item: Any) -> Any:
        if isinstance(item, dict):
            return [shape(entry) for entry in item.values()]
        return [shape(entry) for entry in item] if isinstance(item, list) else (None if isinstance(item, str) else item)

    document = json.dumps({"v": value}, ensure_ascii=ascii_only).encode(errors="replace")
    redactor = Redactor(RedactionConfig(), b"k" * 32)
    (once,) = redactor.documents([document])
    assert shape(json.loads(once)) == shape(json.loads(document))
    assert redactor.documents([once]) == [once]
    assert redactor.documents([document, document]) == [once, once]
