"""The parsers of tool calls, on well-formed, odd and broken turns."""

from __future__ import annotations

import pytest

from offline_arl.rendering.tool_calls import (
    FORMATS,
    detect_format,
    parse_hermes,
    parse_llama3_json,
    parse_mistral,
    parse_qwen_xml,
    split_reasoning,
    typed_arguments,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def shape(parsed):
    return parsed.text, [(call.name, call.arguments_raw, call.parse_error is None) for call in parsed.calls]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Just text.", ("Just text.", [])),
        ("", ("", [])),
        (f'{OPEN}\n{{"name": "f", "arguments": {{"a": 1}}}}\n{CLOSE}', ("", [("f", '{"a": 1}', True)])),
        # The argument text stays as it was written, odd blanks included.
        (f'{OPEN}{{"name":"f","arguments":{{ "a" :1 }} }}{CLOSE}', ("", [("f", '{ "a" :1 }', True)])),
        (f'{OPEN}{{"arguments": {{}}, "name": "f"}}{CLOSE}', ("", [("f", "{}", True)])),
        (f'{OPEN}{{"name": "f"}}{CLOSE}', ("", [("f", "", True)])),
        (f'{OPEN}{{"name": "f", "arguments": "{{\\"a\\": 1}}"}}{CLOSE}', ("", [("f", '{"a": 1}', True)])),
        (
            f'{OPEN}{{"type": "function", "function": {{"name": "f", "arguments": {{}}}}}}{CLOSE}',
            ("", [("f", "{}", True)]),
        ),
        # Text before, between and after.
        (
            f'So:\n{OPEN}{{"name": "f"}}{CLOSE}\n{OPEN}{{"name": "g", "arguments": {{}}}}{CLOSE}\nend',
            ("So:\nend", [("f", "", True), ("g", "{}", True)]),
        ),
        (f'So:\n\n{OPEN}{{"name": "f"}}{CLOSE}', ("So:\n", [("f", "", True)])),
        # A closing tag inside an argument does not end the call.
        (
            f'{OPEN}{{"name": "f", "arguments": {{"a": "{CLOSE}"}}}}{CLOSE}',
            ("", [("f", f'{{"a": "{CLOSE}"}}', True)]),
        ),
        # Broken calls keep what was written.
        (f'{OPEN}{{"name": "f", "arguments": {{"a": 1}}{CLOSE}', ("", [("f", '{"a": 1', False)])),
        (f'{OPEN}{{"name": "f", "arguments": [1]}}{CLOSE}', ("", [("f", "[1]", False)])),
        (f"{OPEN}cancel(17){CLOSE}", ("", [("", "cancel(17)", False)])),
        (f'{OPEN}{{"name": 5, "arguments": {{}}}}{CLOSE}', ("", [("", '{"name": 5, "arguments": {}}', False)])),
        (f'{OPEN}{{"name": "", "arguments": {{}}}}{CLOSE}', ("", [("", '{"name": "", "arguments": {}}', False)])),
        (f"{OPEN}{CLOSE}", ("", [("", "", False)])),
        # Cut for length.
        (f'{OPEN}\n{{"name": "f", "argum', ("", [("", '{"name": "f", "argum', False)])),
        (f'Hm {OPEN}{{"name": "f", "arguments": {{"a": "b', ("Hm ", [("f", '{"a": "b', False)])),
        (f'{OPEN}{{"name": "f", "arguments": {{}}}}', ("", [("f", "{}", False)])),
        (CLOSE, (CLOSE, [])),
    ],
)
def test_hermes(text, expected):
    assert shape(parse_hermes(text)) == expected


def test_an_unclosed_call_is_never_valid():
    (call,) = parse_hermes(f'{OPEN}{{"name": "f", "arguments": {{}}}}').calls
    assert call.arguments is None
    assert call.parse_error == "the call is not closed"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Your order {17} ships.", ("Your order {17} ships.", [])),
        ('The JSON is {"a": 1}.', ('The JSON is {"a": 1}.', [])),
        ('{"name": "f", "parameters": {"a": 1}}', ("", [("f", '{"a": 1}', True)])),
        ('<|python_tag|>{"name": "f", "parameters": {}}', ("", [("f", "{}", True)])),
        (
            '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": {"name": "x"}}}',
            ("", [("f", "{}", True), ("g", '{"a": {"name": "x"}}', True)]),
        ),
        ('I look.\n{"name": "f", "arguments": {}}', ("I look.", [("f", "{}", True)])),
        ('{"type": "function", "name": "f", "parameters": {}}', ("", [("f", "{}", True)])),
        ('{"name": "f", "parameters": {"a": }', ("", [("f", '{"a": ', False)])),
        ('{"name": "f", "parameters": {"a": "b', ("", [("f", '{"a": "b', False)])),
        ('<|python_tag|>search.call(query="x")', ("", [("", 'search.call(query="x")', False)])),
        # A person's name in a JSON answer is no call.
        ('{"name": "Mia Li", "age": 30}', ('{"name": "Mia Li", "age": 30}', [])),
        ('{"name": "Mia Li", "age": ', ('{"name": "Mia Li", "age": ', [])),
    ],
)
def test_llama3_json(text, expected):
    assert shape(parse_llama3_json(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Bonjour.", ("Bonjour.", [])),
        ('[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}]', ("", [("f", '{"a": 1}', True)])),
        (
            'So:[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]',
            ("So:", [("f", "{}", True), ("g", "{}", True)]),
        ),
        ('[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g{}', ("", [("f", '{"a": 1}', True), ("g", "{}", True)])),
        ('[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1', ("", [("f", '{"a": 1', False)])),
        ("[TOOL_CALLS][{]", ("", [("", "[{]", False)])),
    ],
)
def test_mistral(text, expected):
    assert shape(parse_mistral(text)) == expected


def test_mistral_ids():
    assert parse_mistral('[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abcdefghi"}]').calls[0].id == "abcdefghi"
    assert parse_mistral("[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}").calls[0].id == "abcdefghi"


XML = "<tool_call>\n<function=f>\n<parameter=count>\n7\n</parameter>\n<parameter=code>\n7\n</parameter>\n"
XML_END = "</function>\n</tool_call>"


def test_qwen_xml_types_come_from_the_tools():
    (call,) = parse_qwen_xml("Go.\n\n" + XML + "<parameter=of>\n[1, 2]\n</parameter>\n" + XML_END).calls
    assert call.arguments == {"count": "7", "code": "7", "of": "[1, 2]"}
    properties = {"count": {"type": ["integer", "null"]}, "code": {"type": "string"}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}]
    assert typed_arguments(call, tools).arguments == {"count": 7, "code": "7", "of": [1, 2]}
    assert typed_arguments(call, None).arguments == {"count": "7", "code": "7", "of": [1, 2]}


def test_qwen_xml_text_and_broken_calls():
    assert parse_qwen_xml("Go.\n\n" + XML + XML_END).text == "Go."
    (call,) = parse_qwen_xml(XML + "<parameter=of>\n[1").calls  # cut for length
    assert call.name == "f"
    assert call.parse_error is not None
    assert "<parameter=of>\n[1" in call.arguments_raw


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", False, ("Hm.", "Yes.")),
        ("<think>\n\n</think>\n\nYes.", False, ("", "Yes.")),
        ("Hm.\n</think>\n\nYes.", True, ("Hm.", "Yes.")),
        ("<think>Hm.", False, ("Hm.", "")),  # cut for length
        ("Hm.", True, ("Hm.", "")),
        ("No thought. <think>late</think>", False, ("", "No thought. <think>late</think>")),
        ("Stray </think> tag", False, ("", "Stray </think> tag")),
    ],
)
def test_split_reasoning(text, opened, expected):
    assert split_reasoning(text, opened=opened) == expected


@pytest.mark.parametrize("parse", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 2000,
        '<tool_call>{"name": "f", "arguments": ' + "[" * 100_000,
        '{"name": "f", "parameters": ' * 5000,
        "[TOOL_CALLS][" + "[" * 100_000,
        '<|python_tag|>{"a":' * 5000,
        "<tool_call><function=f><parameter=" * 3000,
    ],
)
def test_hostile_text_takes_no_time_and_raises_nothing(parse, text):
    parse(text)


def test_detect_format():
    assert detect_format('{"name": "f", "parameters": {"a": "b"}}', "f", {"a": "b"}) == "llama3_json"
    assert detect_format("call f with a=b", "f", {"a": "b"}) is None
