"""The report about a store: every finding planted once and counted, and what else it tells, in literal numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from offline_arl.analysis.store_report import Bin, Finding, NamedCount, Rate, Shared, StoreReport
from offline_arl.errors import DataError
from offline_arl.trajectories.encoding import encode_trajectory
from offline_arl.trajectories.near_duplicates import NEAR_DUPLICATES
from offline_arl.trajectories.schema import (
    Branch,
    Context,
    Feedback,
    Message,
    MessageError,
    Outcome,
    Producer,
    Score,
    Source,
    TextPart,
    TokenRecord,
    ToolCall,
    Trajectory,
    text_message,
    tool_call,
)
from offline_arl.trajectories.splits import assign_splits
from offline_arl.trajectories.store import Store
from offline_arl.trajectories.validate import CODES, ERRORS, WARNINGS
from offline_arl.trajectories.writer import RefusedRecord, StoreWriter
from offline_arl.workflows.store_report import check_store

TOOLS = (
    '[{"type": "function", "function": {"name": "find", "parameters": '
    '{"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}}}]'
)
ASKED = text_message("user", "Where is it?")
ANSWERED = text_message("assistant", "Here.", kind="model")


def calls(*made: ToolCall, **changes: Any) -> Message:
    return Message("assistant", tool_calls=list(made), producer=Producer("model"), **changes)


def find(id: str, arguments: str | dict[str, Any] = '{"q": "it"}', tool: str = "find") -> ToolCall:
    return tool_call(tool, arguments, id=id)


def result(id: str | None, **changes: Any) -> Message:
    return Message("tool", [TextPart("found")], tool_call_id=id, **changes)


def record(name: str, *messages: Message, **changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "messages": list(messages),
        "source": Source("openai_chat", "logs/a.jsonl", 4),
        "contexts": [Context(0, TOOLS)],
        "task_type": "odd",
        "metadata": {"name": name},
    }
    return Trajectory(name, **{**fields, **changes})


# One trajectory for each warning; nothing else is odd about it.
PLANTED = {
    "invalid_json": record("a", ASKED, calls(find("1", '{"q": ')), result("1"), ANSWERED),
    "unknown_tool": record("b", ASKED, calls(find("1", tool="fly")), result("1"), ANSWERED),
    "invalid_arguments": record("c", ASKED, calls(find("1", {"q": 3})), result("1"), ANSWERED),
    "unanswered_call": record("d", ASKED, calls(find("1")), ASKED, ANSWERED),
    "unnamed_result": record("e", ASKED, calls(ToolCall("find", '{"q": "it"}', {"q": "it"})), result(None), ANSWERED),
    "orphan_result": record("f", ASKED, result("1"), ANSWERED),
    "repeated_result": record("g", ASKED, calls(find("1")), result("1"), result("1"), ANSWERED),
    "reused_call_id": record("h", ASKED, calls(find("1")), result("1"), calls(find("1")), result("1"), ANSWERED),
    "time_reversal": record("i", ASKED, ANSWERED, started_at="2026-02-01T10:00:00Z", ended_at="2026-02-01T09:00:00Z"),
    "impossible_reward": record(
        "j", text_message("user", "Is it?"), ANSWERED, outcome=Outcome("scored", success=True, score=0.0)
    ),
    "empty_message": record("k", ASKED, Message("assistant", producer=Producer("model")), ASKED, ANSWERED),
    "no_policy_step": record("l", ASKED, text_message("assistant", "So:", kind="demonstration")),
}
# What each error looks like.
REFUSED: dict[str, dict[str, Any]] = {
    "empty_id": {"trajectory_id": ""},
    "no_messages": {"messages": []},
    "contradictory_end": {"terminated": True, "truncated": True},
    "number_not_finite": {"outcome": Outcome("scored", score=float("nan"))},
    "index_out_of_range": {"branch": Branch("other", 9)},
    "unreadable_tools": {"contexts": [Context(0, tools="{}")]},
    "logprobs_mismatch": {"messages": [Message("assistant", tokens=TokenRecord([5, 6], "f", [-1.0]))]},
}


def refuse(writer: StoreWriter, reason: str, line: int, format: str | None = "openai_chat") -> None:
    writer.refuse(
        RefusedRecord.of(
            b"{", file="logs/b.jsonl", record=line - 1, line=line, format=format, reason=reason, key=reason.encode()
        )
    )


def good(name: str, task: str, success: bool | None, **changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "source": Source("tau_bench", "logs/tau.json", 0),
        "task_type": "refund",
        "task_id": task,
        "group_id": task,
        "user_id": "ann",
        "session_id": f"session of {name}",
        "agent": "desk",
        "model": "small",
        "started_at": "2026-01-01T10:00:00+02:00",
        "terminated": True,
        "stop_reason": "done",
        "outcome": Outcome("scored", success=success, score=0.5 if success is None else float(success)),
    }
    messages = (
        text_message("user", f"I am {name}"),
        calls(find("1"), find("2", tool="find")),
        result("1"),
        result("2", error=MessageError("ToolError", "no such order")),
        text_message("assistant", f"Done, {name}", kind="model"),
    )
    return record(name, *messages, **{**fields, **changes})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store.create(tmp_path_factory.mktemp("report") / "store")
    with store.writer() as writer:
        for planted in PLANTED.values():
            writer.add(planted)
        for line, changes in enumerate(REFUSED.values(), start=1):
            broken = Trajectory(**{"trajectory_id": "x", "messages": [ANSWERED], "source": Source("test"), **changes})
            with pytest.raises(DataError) as refused:
                encode_trajectory(broken)
            refuse(writer, str(refused.value), line)
        for line in (11, 12, 13):
            refuse(writer, f"not JSON: unexpected end at byte {line}00 of 'file{line}'", line, None)
        writer.add(good("one", "task 1", True, scores=[Score("tone", 0.25, scorer_kind="model", message_index=4)]))
        writer.commit()  # two parts
        writer.add(good("two", "task 1", False, user_id="bob", truncated=True, terminated=False, stop_reason="limit"))
        writer.add(good("three", "task 2", None))
        crashed = Message("assistant", error=MessageError("APIError", "overloaded"), producer=Producer("model"))
        writer.add(good("four", "task 3", None, messages=[ASKED, crashed], outcome=Outcome("infrastructure_error")))
        copied = good("one", "task 1", True)
        for name in ("five", "six"):
            writer.add(
                Trajectory(
                    name, copied.messages, copied.source, task_id="task 1", contexts=copied.contexts, task_type="refund"
                )
            )
        for line in (1, 2):
            for number in range(line):
                key = f"apart {line} {number}".encode()
                reason = f"a title for call {number}" if line == 2 else "an embedding"
                writer.set_apart(key, format="vcr", file="logs/c.yaml", record=number, line=None, reason=reason)
        writer.add_feedback(
            [
                Feedback("trajectory", "one", Score("thumb", 1.0, scorer_kind="human", direction="higher_is_better")),
                Feedback("trajectory", "two", Score("thumb", 0.0, scorer_kind="human", direction="higher_is_better")),
                Feedback("trace", "elsewhere", Score("thumb", label="up", scorer_kind="human")),
                Feedback("session", "gone", Score("tone", 0.5)),
                Feedback("session", "gone too", Score("tone", 0.5)),
            ]
        )
    return store


@pytest.fixture(scope="module")
def report(store: Store) -> StoreReport:
    return check_store(store)


def by_code(report: StoreReport) -> dict[str, Finding]:
    return {finding.code: finding for finding in report.findings}


@pytest.mark.parametrize("code", PLANTED)
def test_each_warning_that_was_planted_is_found_once(code: str, report: StoreReport) -> None:
    finding = by_code(report)[code]
    assert (finding.severity, finding.count, finding.trajectories) == ("warning", 1, 1)
    assert finding.share == pytest.approx(1 / 18)
    (example,) = finding.examples
    assert example.trajectory_id == PLANTED[code].trajectory_id
    assert example.place == "logs/a.jsonl[4]"
    assert finding.what == CODES[code]
    assert finding.meaning.endswith(".")
    assert [problem.severity for problem in report.problems if problem.text.startswith(f"{code}: ")] == ["warning"]


@pytest.mark.parametrize("code", REFUSED)
def test_each_error_is_found_among_the_refused_records(code: str, report: StoreReport) -> None:
    finding = by_code(report)[code]
    assert (finding.severity, finding.count, finding.trajectories, finding.share) == ("error", 1, 0, 0.0)
    (example,) = finding.examples
    assert example.place == f"logs/b.jsonl:{list(REFUSED).index(code) + 1}"
    assert finding.meaning.endswith(".")


def test_every_code_is_planted_and_told_errors_first(report: StoreReport) -> None:
    assert set(PLANTED) == set(WARNINGS)
    assert set(REFUSED) == set(ERRORS)
    severities = [finding.severity for finding in report.findings]
    assert severities == ["error"] * 7 + ["warning"] * 12


def test_an_empty_store_was_looked_through_for_everything(tmp_path: Path) -> None:
    report = check_store(Store.create(tmp_path / "store"))
    assert [finding.code for finding in report.findings] == list(CODES)
    assert {(finding.count, finding.share, finding.examples) for finding in report.findings} == {(0, 0.0, ())}
    assert report.holdings.trajectories == report.refused.count == report.set_apart.count == 0
    assert report.lengths == report.steps_histogram == report.tools.rows == ()
    assert {problem.severity for problem in report.problems} == {"note"}
    assert report.to_json()["outcomes"]["success"] == {"estimate": None, "low": 0.0, "high": 1.0, "n": 0}


def test_what_is_in_it(report: StoreReport) -> None:
    held = report.holdings
    # 12 planted with 4+4+4+4+4+3+5+6+2+2+4+2 messages, then 5+5+5+2+5+5.
    assert (held.trajectories, held.messages) == (18, 44 + 27)
    # 2+2+2+2+2+1+2+3+1+1+2+0 steps of the planted, then 2+2+2+1+2+2.
    assert held.steps == 20 + 11
    # Those of a to e and g have one call each, h two; the good ones two each, but for the crash.
    assert held.tool_calls == 8 + 10
    assert (held.tasks, held.groups, held.sessions, held.users) == (3, 3, 4, 2)
    # 10:00+02:00 is 08:00 in UTC; the last moment is the beginning of a trajectory that ends before it begins.
    assert (held.first, held.last) == ("2026-01-01T08:00:00+00:00", "2026-02-01T09:00:00+00:00")
    assert held.untimed == 11 + 2
    assert held.formats.rows == (NamedCount("openai_chat", 12), NamedCount("tau_bench", 6))
    assert (held.models.rows, held.models.missing) == ((NamedCount("small", 4),), 14)
    assert held.task_types.rows == (NamedCount("odd", 12), NamedCount("refund", 6))
    assert report.parts == 2


def test_outcomes(report: StoreReport) -> None:
    found = report.outcomes
    assert (found.scored, found.unscored, found.infrastructure_errors) == (4, 13, 1)
    assert (found.successes, found.failures, found.scores_without_verdict) == (2, 1, 1)
    assert found.relabeled is False
    odd, refund = found.by_task_type
    assert (odd.task_type, odd.trajectories, odd.scored, odd.mean_score) == ("odd", 12, 1, 0.0)
    assert (refund.trajectories, refund.scored, refund.infrastructure_errors) == (6, 3, 1)
    assert refund.mean_score == pytest.approx((1.0 + 0.0 + 0.5) / 3)
    # Wilson at 1 of 2: 1/2 +- z sqrt(1/8 + z^2/16) / (1 + z^2/2) with z = 1.96.
    assert refund.success == Rate(0.5, pytest.approx(0.0945, abs=1e-4), pytest.approx(0.9055, abs=1e-4), 2)
    thumb, tone = found.scores
    assert (thumb.name, thumb.scorer_kind, thumb.direction) == ("thumb", "human", "higher_is_better")
    assert (thumb.count, thumb.trajectories, thumb.mean, thumb.minimum, thumb.maximum) == (2, 2, 0.5, 0.0, 1.0)
    assert (tone.name, tone.scorer_kind, tone.direction, tone.mean, tone.on_messages) == (
        "tone", "model", "unknown", 0.25, 1,
    )  # fmt: skip


def test_endings_and_lengths(report: StoreReport) -> None:
    ends = report.endings
    assert (ends.terminated, ends.truncated, ends.open) == (3, 1, 14)
    assert ends.stop_reasons.rows == (NamedCount("done", 3), NamedCount("limit", 1))
    assert ends.stop_reasons.missing == 14
    lengths = {found.measure: found for found in report.lengths}
    messages, steps = lengths["messages of a trajectory"], lengths["steps of a trajectory"]
    assert (messages.n, messages.minimum, messages.median, messages.maximum) == (18, 2, 4, 6)
    assert (steps.n, steps.minimum, steps.maximum) == (18, 0, 3)
    assert lengths["bytes of a trajectory's messages"].n == 18
    # 'Here.' is 5 characters; '{"q": "it"}' 11, twice in one step 22.
    assert (lengths["characters of a step"].minimum, lengths["characters of a step"].maximum) == (0, 22)
    assert report.steps_histogram == (Bin(0, 0, 1), Bin(1, 1, 4), Bin(2, 2, 12), Bin(3, 3, 1))


def test_tools(report: StoreReport) -> None:
    find, fly = report.tools.rows
    assert (find.name, find.calls, find.trajectories, find.invalid) == ("find", 17, 11, 2)
    assert (fly.name, fly.calls, fly.trajectories, fly.invalid) == ("fly", 1, 1, 1)
    assert (find.error_results, fly.error_results) == (5, 0)
    assert (report.tools.calls, report.tools.invalid, report.tools.failed_turns) == (18, 3, 1)


def test_refused_and_set_apart_records_are_told_by_reason(report: StoreReport) -> None:
    assert report.refused.count == 10
    first = report.refused.rows[0]
    assert (first.reason, first.count) == ("not JSON: unexpected end at byte N of '…'", 3)
    assert (first.formats, first.code) == (("unknown",), None)
    assert [example.place for example in first.examples] == [f"logs/b.jsonl:{line}" for line in (11, 12, 13)]
    assert {row.code for row in report.refused.rows[1:]} == set(ERRORS)
    assert report.set_apart.count == 3
    assert [(row.reason, row.count) for row in report.set_apart.rows] == [
        ("a title for call N", 2), ("an embedding", 1),
    ]  # fmt: skip
    assert [example.place for example in report.set_apart.rows[0].examples] == ["logs/c.yaml[0]", "logs/c.yaml[1]"]
    assert report.problems[0].severity == "error"
    assert report.problems[0].text.startswith("10 records refused; most often: not JSON")


def test_copies(report: StoreReport) -> None:
    found = report.duplicates
    assert (found.copies, found.originals, found.largest) == (2, 1, (NamedCount("one", 2),))
    assert (found.near, found.near_clusters) == (None, None)


def test_feedback_without_a_target(report: StoreReport) -> None:
    assert (report.feedback.joined, report.feedback.unplaced) == (2, 3)
    tone, thumb = report.feedback.rows
    assert (tone.target, tone.name, tone.count, tone.examples) == ("session", "tone", 2, ("gone", "gone too"))
    assert (thumb.target, thumb.name, thumb.count, thumb.examples) == ("trace", "thumb", 1, ("elsewhere",))


def shared(report: StoreReport) -> dict[str, Shared]:
    assert report.splits is not None
    return {found.what: found for found in report.splits.shared if found.values}


def test_a_split_that_leaks(store: Store, tmp_path: Path) -> None:
    leaking = Store(shutil.copytree(store.path, tmp_path / "leaking"))
    rows = [("one", "train"), ("two", "test"), ("three", "test"), ("five", "test"), ("six", "train")]
    leaking.write_side_table("splits", pl.DataFrame(rows, schema=["trajectory_id", "split"], orient="row"))
    near = [("three", "one", 0.9)]
    schema = ["trajectory_id", "near_duplicate_of", "similarity"]
    leaking.write_side_table(NEAR_DUPLICATES, pl.DataFrame(near, schema=schema, orient="row"))
    report = check_store(leaking)
    assert report.splits is not None
    assert [(row.name, row.trajectories, row.tasks) for row in report.splits.rows] == [("test", 3, 2), ("train", 2, 1)]
    assert (report.splits.by, report.splits.unassigned) == (None, 13)
    assert (report.splits.task_types, report.splits.lacking) == ((("refund", (3, 2)),), ())
    # Of task 1, one and six are in train, two and five in test; ann has one in train and three in test.
    assert shared(report) == {
        "task": Shared("task", "leak", 1, 4, ("task 1",)),
        "group": Shared("group", "leak", 1, 2, ("task 1",)),
        "user": Shared("user", "allowed", 1, 2, ("ann",)),
        "copy and its original": Shared("copy and its original", "leak", 1, 1, ("five and one",)),
        "near duplicate and its original": Shared("near duplicate and its original", "leak", 1, 1, ("three and one",)),
    }
    assert report.count("error") == 1 + 4
    assert (report.duplicates.near, report.duplicates.near_clusters) == (1, 1)


def test_a_split_that_keeps_its_promise(store: Store, tmp_path: Path) -> None:
    split = Store(shutil.copytree(store.path, tmp_path / "split"))
    assign_splits(split, {"train": 0.5, "test": 0.5}, seed=0)
    report = check_store(split)
    assert report.splits is not None
    assert [row.name for row in report.splits.rows] == ["train", "test"]
    assert (report.splits.by, report.splits.unassigned) == ("task", 0)
    assert [(name, sum(counts)) for name, counts in report.splits.task_types] == [("odd", 12), ("refund", 6)]
    assert {found.kind for found in shared(report).values()} <= {"allowed"}
    assert [problem.text for problem in report.problems if problem.severity == "error"] == [report.problems[0].text]


def test_lists_are_bounded(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    with store.writer() as writer:
        for number in range(300):
            call = tool_call(f"tool-{number}", {}, id="1")
            writer.add(
                record(
                    f"t{number}", ASKED, calls(call), model=f"model {number}", task_type=f"type {number}",
                    stop_reason=f"reason {number}", scores=[Score(f"score {number}", 1.0)],
                )
            )  # fmt: skip
            refuse(writer, f"a reason made of {chr(97 + number % 26)}{chr(97 + number // 26)}", number + 1)
    report = check_store(store)
    assert len(report.holdings.models.rows) == len(report.endings.stop_reasons.rows) == 12
    assert (report.holdings.models.distinct, report.holdings.models.others) == (300, 288)
    assert (len(report.tools.rows), report.tools.distinct) == (30, 300)
    assert (len(report.outcomes.by_task_type), report.outcomes.more_task_types) == (30, 270)
    assert (len(report.outcomes.scores), report.outcomes.more_scores) == (50, 250)
    assert (report.refused.count, len(report.refused.rows)) == (300, 12)
    assert (report.refused.more, report.refused.others) == (288, 288)
    assert len(by_code(report)["unknown_tool"].examples) == 5


def test_the_report_changes_nothing_and_is_the_same_again(store: Store, report: StoreReport) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in store.path.rglob("*"))
    assert check_store(store.path) == report
    assert sorted((path, path.stat().st_mtime_ns) for path in store.path.rglob("*")) == before
