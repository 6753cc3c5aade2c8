"""Every log adapter says what it is, and the documents say how it is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from offline_arl.logs.adapter import LogAdapter, adapter_named, adapters, is_assembling
from offline_arl.logs.registry import BUILT_IN, built_in_adapter

ROOT = Path(__file__).parents[2]
FORMATS = (ROOT / "docs/formats.md").read_text()


@pytest.mark.parametrize("name", list(adapters()))
def test_an_adapter_has_what_the_table_shows(name: str) -> None:
    adapter = adapters()[name]
    assert isinstance(adapter, LogAdapter)
    assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
    assert adapter.name == name
    assert all(isinstance(text, str) and "\n" not in text for text in (adapter.title, adapter.keeps, adapter.lacks))
    assert 3 < len(adapter.title) < 100
    assert adapter.keeps
    assert hasattr(adapter, "assemble") == hasattr(adapter, "fragments") == is_assembling(adapter)
    assert hasattr(adapter, "convert") != is_assembling(adapter)


@pytest.mark.parametrize("name", list(adapters()))
def test_the_documents_tell_of_each_format(name: str) -> None:
    assert re.search(rf"(?<![\w-]){name}(?![\w-])", FORMATS), f"docs/formats.md does not mention {name}"


def test_the_documents_name_no_format_that_is_not_there() -> None:
    """Each name in a heading that looks like a name of a format is one."""
    headings = re.findall(r"^#+ (.+)$", FORMATS, re.M)
    named = {word for heading in headings for word in re.findall(r"\b[a-z][a-z0-9]*_[a-z0-9_]+\b", heading)}
    assert named <= set(adapters())


def test_the_registry_knows_each_built_in_adapter_by_its_name() -> None:
    assert [built_in_adapter(name).name for name in BUILT_IN] == list(BUILT_IN)
    assert all(adapter_named(name) is adapters()[name] for name in BUILT_IN)
