"""What redaction does to records: values go, everything else stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("detect_secrets", reason="pip install 'offline_arl[redact]'")
pytest.importorskip("phonenumbers", reason="pip install 'offline_arl[redact]'")
pytest.importorskip("stdnum", reason="pip install 'offline_arl[redact]'")

from offline_arl.logs.adapter import RawRecord
from offline_arl.logs.reading import read_logs
from offline_arl.logs.redaction.config import RedactionConfig
from offline_arl.logs.redaction.placeholders import placeholder
from offline_arl.logs.redaction.redactor import Redactor

KEY = b"k" * 32
ANN = "ann@example.com"
ANN_GONE = placeholder(KEY, "EMAIL", ANN)


def redact(document: bytes, **settings: Any) -> bytes:
    return Redactor(RedactionConfig(**settings), KEY).documents([document])[0]


def redact_value(value: Any, **settings: Any) -> Any:
    return json.loads(redact(json.dumps(value).encode(), **settings))


def test_a_placeholder_depends_on_the_value_and_the_key_alone() -> None:
    # HMAC-SHA256 with the key, of "EMAIL\\0ann@example.com", first ten hexadecimal digits; computed with OpenSSL:
    # printf 'EMAIL\0ann@example.com' | openssl dgst -sha256 -hmac kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk
    assert ANN_GONE == "<EMAIL_27e37b4e0b>"
    assert placeholder(b"j" * 32, "EMAIL", ANN) != ANN_GONE


@pytest.mark.parametrize(
    "variants",
    [
        [ANN, "Ann@Example.COM"],
        ["+1 415-555-0132", "(415) 555-0132", "415-555-0132", "+14155550132"],
        ["4111 1111 1111 1111", "4111-1111-1111-1111", "4111111111111111"],
        ["DE89 3704 0044 0532 0130 00", "DE89370400440532013000"],
        ["2606:4700:4700::64", "2606:4700:4700:0:0:0:0:64"],
    ],
)
def test_ways_to_write_a_value_share_a_placeholder(variants: list[str]) -> None:
    results = {redact_value({"text": f"it is {variant}, yes"})["text"] for variant in variants}
    assert len(results) == 1
    assert not any(variant in result for variant in variants for result in results)


def test_the_same_value_in_a_text_and_in_a_tool_call_stays_the_same() -> None:
    arguments = json.dumps({"email": ANN, "note": 'line\nfrom "Ann"'})
    call = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": arguments}}
    record = {"messages": [{"role": "user", "content": f"I am {ANN}"}, {"role": "assistant", "tool_calls": [call]}]}
    messages = redact_value(record)["messages"]
    assert messages[0]["content"] == f"I am {ANN_GONE}"
    redacted = json.loads(messages[1]["tool_calls"][0]["function"]["arguments"])
    assert redacted == {"email": ANN_GONE, "note": 'line\nfrom "Ann"'}


def test_json_in_strings_is_reached_at_any_depth_and_stays_json() -> None:
    value: Any = {"email": ANN, "phone": "+14155550132", "n": 1.50, "id": 4111111111111111}
    for _ in range(5):
        value = {"inner": json.dumps(value)}
    result = redact_value(value)
    for _ in range(5):
        result = json.loads(result["inner"])
    assert result["email"] == ANN_GONE
    assert result["phone"].startswith("<PHONE_")
    assert (result["n"], result["id"]) == (1.5, 4111111111111111)


def test_events_of_a_stream_are_reached_in_a_string() -> None:
    event = json.dumps({"choices": [{"delta": {"content": f"to {ANN}"}, "index": 0}], "created": 1715784000})
    body = redact_value({"body": f"event: message\ndata: {event}\n\ndata: [DONE]\n\n"})["body"]
    lines = body.splitlines()
    assert json.loads(lines[1].removeprefix("data: "))["choices"][0]["delta"]["content"] == f"to {ANN_GONE}"
    assert (lines[0], lines[3]) == ("event: message", "data: [DONE]")


def test_everything_else_stays_to_the_byte() -> None:
    raw = (
        b'{ "z": 1.500, "a":1e5,"big":12345678901234567890,\t"x":"caf\\u00e9 \\/ ok", "m":"ann@example.com",  "z":[] }'
    )
    assert redact(raw) == raw.replace(b"ann@example.com", ANN_GONE.encode())


def test_nan_is_no_damage() -> None:
    assert redact(b'{"score": NaN, "n": 4111111111111111, "m": "ann@example.com"}') == (
        b'{"score": NaN, "n": 4111111111111111, "m": "' + ANN_GONE.encode() + b'"}'
    )


@pytest.mark.parametrize("escaped", ["ann\\u0040example.com", "\\u0061nn@example.com", "ann@example\\u002ecom"])
def test_escapes_hide_nothing(escaped: str) -> None:
    assert json.loads(redact(f'{{"m": "{escaped}"}}'.encode())) == {"m": ANN_GONE}


def test_an_escaped_line_end_is_no_part_of_an_address() -> None:
    assert redact_value({"m": f"a\n{ANN}"}) == {"m": f"a\n{ANN_GONE}"}
    # Text that quotes JSON without being JSON.
    assert redact_value({"m": f'got: {{"x": "a\\n{ANN}"'}) == {"m": f'got: {{"x": "a\\n{ANN_GONE}"'}


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages": [{"role": "user", "content": "I am ann@example.com',
        b'{"a": "x", "b": ann@example.com}',
        b"ann@example.com",
        b'{"a": "\xff ann@example.com"}',
        b'{"a": "ann@example.com", "b": "\\',
        b'{"a": "\\ud800 ann@example.com"}',
        b'"ann@example.com',
        b'{"a": "{\\"b\\": \\"x\\\\nann@example.com\\" truncated"}',
        b"[" * 3000 + b'"ann@example.com"',
    ],
)
def test_what_is_not_json_is_redacted_as_text(raw: bytes) -> None:
    assert redact(raw) == raw.replace(b"ann@example.com", ANN_GONE.encode())


def test_keys_that_are_values_are_replaced() -> None:
    assert redact_value({"users": {ANN: {"plan": "pro"}}}) == {"users": {ANN_GONE: {"plan": "pro"}}}


def test_a_password_that_a_key_gives_away_is_replaced_where_it_stands_alone_too() -> None:
    record = {"said": "it is Tr0ub4dor&3, remember", "call": json.dumps({"user": "ann", "password": "Tr0ub4dor&3"})}
    result = redact_value(record)
    secret = json.loads(result["call"])["password"]
    assert secret.startswith("<SECRET_")
    assert result["said"] == f"it is {secret}, remember"


def test_a_secret_has_one_placeholder_whatever_gives_it_away() -> None:
    result = redact_value(
        {"url": "postgres://app:s3cr3tPw@db/x", "password": "s3cr3tPw", "env": "DB_PASSWORD=s3cr3tPw"}
    )
    secret = result["password"]
    assert result == {"url": f"postgres://app:{secret}@db/x", "password": secret, "env": f"DB_PASSWORD={secret}"}


def test_a_key_says_what_a_number_is() -> None:
    result = redact_value({"phone": "4155550132", "order_id": "4155550132 ", "sku": "415-555-0132"})
    assert result["phone"].startswith("<PHONE_")
    assert result["sku"] == "415-555-0132"
    # What the key `phone` gave away is the same number elsewhere in the record.
    assert result["order_id"] == result["phone"] + " "
    assert redact_value({"order_id": "4155550132", "count": 4155550132}) == {
        "order_id": "4155550132",
        "count": 4155550132,
    }


def test_values_to_keep_and_patterns_of_ones_own() -> None:
    settings = {"keep": [r".*@example\.com"], "patterns": {"employee": r"\bE-\d{4}\b", "room": r"room (\d+)"}}
    result = redact_value({"m": f"{ANN}, bob@example.org, E-1234 in room 42"}, **settings)["m"]
    assert result.startswith(f"{ANN}, <EMAIL_")
    assert "bob@" not in result
    assert "E-1234" not in result
    assert result.endswith("in room " + placeholder(KEY, "ROOM", "42"))
    assert redact_value({"m": "^E-1234$ escaped \\ E-1234"}, patterns={"whole": r"^E-\d+$"}) == {
        "m": "^E-1234$ escaped \\ E-1234"
    }
    assert redact_value({"m": "E-1234"}, patterns={"whole": r"(?<!\w)E-\d+$"})["m"].startswith("<WHOLE_")


def test_kinds_can_be_chosen() -> None:
    assert redact_value({"m": f"{ANN} 8.20.30.40"}, kinds=["ip_address"])["m"].startswith(f"{ANN} <IP_")
    assert redact_value({"m": "10.0.0.1 8.8.8.8"}, ip_addresses="all")["m"].count("<IP_") == 2
    assert "<PHONE_" in redact_value({"phone": "020 7946 0123"}, phone_regions=["GB"])["phone"]


def test_a_placeholder_is_not_redacted_again() -> None:
    redactor = Redactor(RedactionConfig(), KEY)
    record = {"password": "Tr0ub4dor&3", "text": f"password: Tr0ub4dor&3, mail {ANN}, call +14155550132"}
    once = redactor.documents([json.dumps(record).encode()])
    assert redactor.take_counts() == {"password": 2, "email": 1, "phone": 1}
    assert redactor.documents(once) == once
    assert redactor.take_counts() == {}


def test_a_record_keeps_its_hash_and_place() -> None:
    record = RawRecord("a.jsonl", "a.jsonl", 3, b'{"m": "ann@example.com"}', line=4)
    (redacted,) = Redactor(RedactionConfig(), KEY).records([record])
    assert b"ann@" not in redacted.raw
    assert (redacted.sha256, redacted.position, redacted.line) == (record.sha256, 3, 4)
    assert redacted.trajectory_id() == record.trajectory_id()


def test_a_record_does_not_depend_on_those_around_it() -> None:
    documents = [
        json.dumps({"password": "Tr0ub4dor&3"}).encode(),
        json.dumps(["Tr0ub4dor&3", ANN]).encode(),
        json.dumps({"a": [ANN, "+14155550132"]}).encode(),
        b'{"broken": "ann@example.com',
    ]
    together = Redactor(RedactionConfig(), KEY).documents(documents)
    assert together == [redact(document) for document in documents]
    assert together[1] == json.dumps(["Tr0ub4dor&3", ANN_GONE]).encode()


def test_what_a_stream_had_in_pieces_is_replaced_once_it_is_joined(tmp_path: Path) -> None:
    def chunk(delta: dict[str, str]) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        return json.dumps(
            {"id": "c", "object": "chat.completion.chunk", "model": "m", "created": 1, "choices": [choice]}
        )

    pieces = [{"role": "assistant", "content": "write to ann@"}, {"content": "exam"}, {"content": "ple.com"}]
    body = "".join(f"data: {chunk(piece)}\n\n" for piece in pieces) + "data: [DONE]\n\n"
    request = {"model": "m", "messages": [{"role": "user", "content": "whom?"}], "stream": True}
    log = tmp_path / "calls.jsonl"
    log.write_text(json.dumps({"request": request, "response": body}) + "\n")
    contents = read_logs(log, redact=True)
    (trajectory,) = contents.trajectories
    (part,) = trajectory.messages[-1].content or []
    assert part.text.startswith("write to <EMAIL_")  # type: ignore[union-attr]


def test_token_ids_that_spell_what_was_replaced_are_left_out(tmp_path: Path) -> None:
    def message(text: str, ids: list[int]) -> dict[str, Any]:
        return {
            "role": "assistant",
            "content": text,
            "tokens": {"token_ids": ids, "fingerprint": "f", "prompt_token_ids": [9, 9]},
        }

    user = {"role": "user", "content": "hello"}
    record = {"messages": [user, message("hi", [1]), user, message(f"to {ANN}", [2]), user, message("done", [3])]}
    log = tmp_path / "chat.jsonl"
    log.write_text(json.dumps(record) + "\n")
    (trajectory,) = read_logs(log, redact=True).trajectories
    first, second, third = (item.tokens for item in trajectory.messages if item.role == "assistant")
    assert first is not None
    assert first.token_ids == [1]
    assert first.prompt_token_ids == [9, 9]
    assert second is None
    assert third is not None
    assert third.token_ids == [3]
    assert third.prompt_token_ids is None
