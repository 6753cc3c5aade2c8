"""The page is well-formed, asks nothing of anybody, and shows what logs say as text, whatever they say."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from offline_arl.analysis.charts import histogram
from offline_arl.analysis.store_report import Bin
from offline_arl.analysis.store_report_page import render
from offline_arl.trajectories.schema import (
    Context,
    Feedback,
    Message,
    Outcome,
    Score,
    Source,
    TextPart,
    Trajectory,
    tool_call,
)
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.writer import RefusedRecord
from offline_arl.workflows.store_report import check_store

HOSTILE = "</td></table><script>alert(1)</script><img src=x onerror='alert(2)'>\"&amp;${x}"
VOID = {"meta", "br", "hr", "img", "input", "link"}
SVG_EMPTY = {"rect", "circle", "line"}


class Page(HTMLParser):
    """Checks that every element is closed in its order; keeps what a reader sees and every attribute."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.shown: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend((name, value or "") for name, value in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SVG_EMPTY
        self.tags.append(tag)
        self.attributes.extend((name, value or "") for name, value in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.shown.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.shown).split())


def hostile_store(folder: Path, text: str) -> Store:
    """A store in which a log says `text` wherever a log can say anything."""
    store = Store.create(folder)
    call = tool_call(text, '{"q": ', id=text)
    with store.writer() as writer:
        for number in range(3):
            writer.add(
                Trajectory(
                    f"{text}{number}",
                    [Message("assistant", [TextPart(text)], [call]), Message("tool", tool_call_id=f"{text}{number}")],
                    Source(text, text, 0),
                    task_id=text,
                    task_type=text,
                    agent=text,
                    model=text,
                    session_id=text,
                    user_id=text,
                    started_at=text,
                    stop_reason=text,
                    contexts=[Context(0, "[]")],
                    outcome=Outcome("scored", success=True, scorer=text),
                    scores=[Score(text, 1.0, label=text, scorer=text)],
                )
            )
        for number in range(2):
            place = {"file": text, "record": number, "line": number + 1, "format": text}
            writer.refuse(RefusedRecord.of(b"x", reason=f"{text}: {number}", key=b"%d" % number, **place))  # type: ignore[arg-type]
            writer.set_apart(b"apart %d" % number, format=text, file=text, record=number, line=1, reason=text)
        writer.add_feedback([Feedback("session", f"{text} of nobody", Score(text, 0.0))])
    return store


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(check_store(hostile_store(tmp_path_factory.mktemp("<b>hostile") / "<i>", HOSTILE)))


def test_what_logs_say_is_text(hostile: str) -> None:
    page = Page(hostile)
    assert not {"script", "img", "i", "link", "iframe", "base"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "style", "action")]
    # As tool, agent, model, task type, score, stop reason, format, and in reasons and examples.
    assert page.text.count(HOSTILE) > 12
    assert "<i>" in page.text


def test_the_page_asks_nothing_of_anybody(hostile: str) -> None:
    page = Page(hostile)
    references = [value for name, value in page.attributes if name in ("href", "xlink:href", "data", "srcset")]
    assert references
    assert all(re.fullmatch("#[a-z-]+", value) for value in references)
    assert not re.search(r"https?:|@import|url\(", hostile)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def test_links_lead_to_sections_and_ids_are_unique(hostile: str) -> None:
    page = Page(hostile)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    assert [value[1:] for name, value in page.attributes if name == "href"] == ids


def test_tables_are_accessible(hostile: str) -> None:
    page = Page(hostile)
    assert page.tags.count("table") == page.tags.count("caption") == page.tags.count("thead") > 10
    scopes = [value for name, value in page.attributes if name == "scope"]
    assert len(scopes) == page.tags.count("th")
    assert set(scopes) == {"col", "row"}
    assert dict(page.attributes)["lang"] == "en"
    assert page.tags.count("h1") == 1
    assert all("aria-label" in tag or "aria-hidden" in tag for tag in re.findall("<svg[^>]*>", hostile))


def test_what_moves_the_cursor_or_turns_text_around_is_replaced(tmp_path: Path) -> None:
    text = "a\x1b[31mb\u202ec\x07"
    drawn = render(check_store(hostile_store(tmp_path / "store", text)))
    assert "a\ufffd[31mb\ufffdc\ufffd" in drawn
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", drawn)


def test_an_empty_store_has_a_page_too(tmp_path: Path) -> None:
    page = Page(render(check_store(Store.create(tmp_path / "store"))))
    assert "Validation found nothing." in page.text
    assert "Looked for and not found" in page.text
    assert "orphan_result" in page.text
    assert "svg" not in page.tags


def test_bars_are_as_high_as_their_counts() -> None:
    drawn = histogram([Bin(0, 0, 10), Bin(1, 1, 40), Bin(2, None, 20)], "Steps")
    heights = [float(height) for height in re.findall(r'height="([\d.]+)"><title>', drawn)]
    assert heights == [35.0, 140.0, 70.0]
    assert 'aria-label="Steps; 0: 10, 1: 40, 2+: 20"' in drawn
    assert histogram([], "Steps") == ""
