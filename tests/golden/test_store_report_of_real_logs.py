"""The report about all real logs, against counts that are made in another way."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from offline_arl.analysis.store_report import StoreReport
from offline_arl.analysis.store_report_page import render
from offline_arl.trajectories.near_duplicates import mark_near_duplicates
from offline_arl.trajectories.splits import assign_splits
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.validate import ERRORS, problems_of
from offline_arl.workflows.ingest import ingest
from offline_arl.workflows.ingest_report import IngestReport
from offline_arl.workflows.store_report import check_store

REAL_LOGS = Path(__file__).resolve().parents[3] / "shared/real_logs"


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, IngestReport]:
    if not REAL_LOGS.exists():
        pytest.skip(f"{REAL_LOGS} is not here")
    folder = tmp_path_factory.mktemp("real") / "store"
    report = ingest(REAL_LOGS, folder)
    return Store(folder), report


@pytest.fixture(scope="module")
def checked(ingested: tuple[Store, IngestReport]) -> StoreReport:
    return check_store(ingested[0])


def test_every_record_that_is_no_trajectory_is_told_with_its_reason(
    ingested: tuple[Store, IngestReport], checked: StoreReport
) -> None:
    report = ingested[1]
    assert report.records == report.records_used + report.quarantined + report.duplicates + report.set_apart
    assert checked.refused.count == report.quarantined
    assert checked.set_apart.count == report.set_apart == sum(report.set_apart_reasons.values())
    assert checked.repeated.count == report.duplicates
    assert all(row.examples for row in (*checked.refused.rows, *checked.set_apart.rows, *checked.repeated.rows))


def test_findings_are_those_of_validating_every_trajectory_anew(
    ingested: tuple[Store, IngestReport], checked: StoreReport
) -> None:
    store, report = ingested
    times: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for trajectory in store.iter_trajectories():
        codes = [problem.code for problem in problems_of(trajectory)]
        times.update(codes)
        rows.update(set(codes))
    found = {item.code: (item.count, item.trajectories) for item in checked.findings if item.code not in ERRORS}
    assert {code: counts for code, counts in found.items() if counts[0]} == {
        code: (count, rows[code]) for code, count in times.items()
    }
    assert report.findings == dict(times)


def test_counts_are_those_of_the_trajectories(ingested: tuple[Store, IngestReport], checked: StoreReport) -> None:
    trajectories = list(ingested[0].iter_trajectories())
    steps = [len(item.step_indices()) for item in trajectories]
    assert checked.holdings.trajectories == len(trajectories)
    assert checked.holdings.messages == sum(len(item.messages) for item in trajectories)
    assert checked.holdings.steps == sum(steps)
    assert sum(bin.count for bin in checked.steps_histogram) == len(trajectories)
    for bin in checked.steps_histogram:
        high = max(steps) if bin.high is None else bin.high
        assert bin.count == sum(bin.low <= number <= high for number in steps)
    calls = Counter(
        call.name for item in trajectories for index in item.step_indices() for call in item.messages[index].tool_calls
    )
    assert (checked.tools.distinct, checked.tools.calls) == (len(calls), calls.total())
    assert {row.name: row.calls for row in checked.tools.rows} == {
        row.name: calls[row.name] for row in checked.tools.rows
    }
    failed = [message for item in trajectories for message in item.messages if message.error is not None]
    assert checked.tools.error_results == sum(message.role == "tool" for message in failed)
    assert checked.tools.failed_turns == sum(message.role == "assistant" for message in failed)


def test_the_airline_is_what_its_file_says(tmp_path: Path) -> None:
    file = REAL_LOGS / "tau-bench/gpt-4o-airline.json"
    if not file.exists():
        pytest.skip(f"{file} is not here")
    ingest(file, tmp_path / "store")
    store = Store(tmp_path / "store")
    mark_near_duplicates(store)
    assign_splits(store, {"train": 0.8, "test": 0.2}, seed=0)
    report = check_store(store)
    assert (report.holdings.trajectories, report.holdings.tasks, report.holdings.tool_calls) == (200, 50, 1164)
    assert (report.outcomes.successes, report.outcomes.failures) == (84, 116)
    assert report.outcomes.success.estimate == 0.42
    assert (report.endings.terminated, report.endings.truncated, report.endings.open) == (195, 5, 0)
    assert [(row.name, row.count) for row in report.endings.stop_reasons.rows] == [
        ("user_stop", 147), ("handover", 48), ("max_steps", 5),
    ]  # fmt: skip
    assert report.splits is not None
    assert [found for found in report.splits.shared if found.kind == "leak" and found.values] == []
    assert report.count("error") == 0


def test_the_page_of_everything_is_small_and_well_formed(checked: StoreReport) -> None:
    open_tags: list[str] = []

    class Balanced(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag != "meta":
                open_tags.append(tag)

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    page = render(checked)
    Balanced().feed(page)
    assert open_tags == []
    assert len(page) < 200_000
