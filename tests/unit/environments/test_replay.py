"""Logs play back as they were, and say where they cannot know."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from offline_arl.environments import load
from offline_arl.environments.checking import check
from offline_arl.environments.demonstrations import demonstration
from offline_arl.environments.protocol import Task
from offline_arl.environments.replay.environment import Replay
from offline_arl.environments.replay.family import ReplayFamily, write_tasks
from offline_arl.errors import DataError, UsageError
from offline_arl.evaluation.policy import evaluate
from offline_arl.logs.reading import read_trajectories
from offline_arl.trajectories.schema import (
    Context,
    Message,
    Outcome,
    Producer,
    Source,
    TextPart,
    ToolCall,
    Trajectory,
    text_message,
    tool_call,
)

AIRLINE = Path(__file__).resolve().parents[4] / "shared/real_logs/tau-bench/gpt-4o-airline.json"
DOCUMENT = Path(__file__).resolve().parents[3] / "docs/environments.md"
TOOLS = msgspec.json.encode([{"type": "function", "function": {"name": name}} for name in ("look", "book")]).decode()


def calls(*made: ToolCall) -> Message:
    return Message("assistant", None, tool_calls=list(made))


def answer(call: ToolCall, text: str) -> Message:
    return Message("tool", [TextPart(text)], tool_call_id=call.id, name=call.name, producer=Producer("environment"))


def says(text: str) -> Message:
    return text_message("assistant", text)


def attempt(
    name: str, *messages: Message, success: bool | None, task: str = "t", opening: str = "Book me a flight."
) -> Trajectory:
    outcome = Outcome() if success is None else Outcome("scored", success=success, score=float(success))
    return Trajectory(
        name,
        [text_message("system", "You book."), text_message("user", opening), *messages],
        Source("test"),
        task_id=task,
        contexts=[Context(0, TOOLS)],
        outcome=outcome,
    )


LOOK, BOOK, BOOK_OTHER = (
    tool_call("look", '{"n": 1}', id="a"),
    tool_call("book", '{"f": 7}', id="b"),
    tool_call("book", '{"f": 8}', id="c"),
)
GOOD = attempt(
    "good",
    calls(LOOK), answer(LOOK, "flight 7"), calls(BOOK), answer(BOOK, "booked"), calls(LOOK), answer(LOOK, "full"),
    says("Done."),
    success=True,
)  # fmt: skip
BAD = attempt(
    "bad", calls(LOOK), answer(LOOK, "flight 7"), calls(BOOK_OTHER), answer(BOOK_OTHER, "booked 8"), says("Done."),
    success=False,
)  # fmt: skip


def family(folder: Path, trajectories: Iterable[Trajectory], **settings: list[str]) -> ReplayFamily:
    write_tasks(((trajectory, "test") for trajectory in trajectories), folder / "tasks", **settings)
    return ReplayFamily(folder / "tasks")


def started(family: ReplayFamily, number: int = 0) -> tuple[Replay, Task]:
    task = family.tasks("test", 99)[number]
    environment = family.make()
    environment.reset(task)
    return environment, task


def test_attempts_that_agree_are_one_task_and_both_play_back(tmp_path: Path) -> None:
    desk = family(tmp_path, [GOOD, BAD])
    (task,) = desk.tasks("test", 99)
    assert task.payload["recordings"] == ["good", "bad"]
    for recorded in (GOOD, BAD):
        environment, _ = started(desk)
        steps = recorded.step_indices()
        for index, end in zip(steps, [*steps[1:], len(recorded.messages)], strict=True):
            result = environment.step(recorded.messages[index])
            assert [reply.text for reply in result.messages] == [m.text for m in recorded.messages[index + 1 : end]]
            assert result.info["exact"] is True
        assert (result.terminated, result.reward) == (True, float(recorded.outcome.success or 0))
        assert environment.outcome().success == recorded.outcome.success
        assert environment.outcome().components == {"exact": 1.0, "misses": 0.0}
    report = check(desk, [task])
    assert (report.examples, report.problems) == (2, [])


def test_answers_carry_the_ids_of_the_episode_and_spelling_does_not_count(tmp_path: Path) -> None:
    environment, _ = started(family(tmp_path, [GOOD]))
    result = environment.step(calls(tool_call("look", '{ "n" : 1 }', id="mine")))
    assert [(reply.tool_call_id, reply.text) for reply in result.messages] == [("mine", "flight 7")]


def test_off_the_recordings_calls_are_looked_up_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    environment, _ = started(family(tmp_path, [GOOD, BAD]))
    first = environment.step(calls(BOOK_OTHER))
    assert (first.messages[0].text, first.info["exact"], first.info["misses"]) == ("booked 8", False, 0)
    looked = [environment.step(calls(LOOK)).messages[0].text for _ in range(3)]
    assert looked == ["flight 7", "full", "full"]


def test_what_nobody_ever_called_is_a_miss_that_is_told_and_counted(tmp_path: Path) -> None:
    environment, _ = started(family(tmp_path, [GOOD]))
    unknown = tool_call("look", '{"n": 2}', id="x")
    result = environment.step(calls(LOOK, unknown))
    assert [reply.error and reply.error.type for reply in result.messages] == [None, "not_recorded"]
    assert result.info["misses"] == 1
    environment.step(says("Goodbye."))
    assert environment.outcome().components == {"exact": 0.0, "misses": 1.0}


@pytest.mark.parametrize(
    ("writes", "made", "success"),
    [
        (["book"], [BOOK], True),  # the same booking, without looking
        (["book"], [BOOK, BOOK], False),
        (["book"], [BOOK_OTHER], False),
        (None, [BOOK], False),  # all calls count
        (None, [LOOK, LOOK, BOOK], True),  # in another order
    ],
)
def test_an_episode_that_was_never_recorded_is_judged_by_its_calls(
    tmp_path: Path, writes: list[str] | None, made: list[ToolCall], success: bool
) -> None:
    environment, _ = started(family(tmp_path, [GOOD, BAD], **({"writes": writes} if writes else {})))
    for call in made:
        environment.step(calls(call))
    result = environment.step(says("I am done."))
    assert (result.terminated, result.stop_reason, result.reward) == (True, "answered", float(success))
    assert environment.outcome().success is success


def test_writes_that_no_recording_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no recording has a tool 'boook'; did you mean book"):
        family(tmp_path, [GOOD, BAD], writes=["boook"])


def test_without_a_recorded_success_nothing_new_is_judged(tmp_path: Path) -> None:
    environment, _ = started(family(tmp_path, [BAD]))
    environment.step(says("I am done."))
    assert environment.outcome().status == "unscored"


def test_users_say_what_they_said_and_no_more(tmp_path: Path) -> None:
    talk = attempt("talk", says("Where to?"), text_message("user", "Rome."), says("Done."), success=True)
    environment, _ = started(family(tmp_path, [talk]))
    assert [reply.text for reply in environment.step(says("Whereto, please?")).messages] == ["Rome."]
    assert environment.step(says("Anything else?")).terminated


def test_attempts_that_disagree_are_tasks_of_their_own(tmp_path: Path) -> None:
    other = attempt("other", calls(LOOK), answer(LOOK, "flight 9"), says("Done."), success=False)
    elsewhere = attempt("elsewhere", says("Hello."), success=None, opening="Book me a train.")
    desk = family(tmp_path, [GOOD, other, elsewhere])
    assert [(task.task_id, task.payload["recordings"]) for task in desk.tasks("test", 99)] == [
        ("t/0", ["good"]), ("t/1", ["other"]), ("t/2", ["elsewhere"]),
    ]  # fmt: skip
    environment, _ = started(desk, 2)
    assert environment.step(calls(LOOK)).messages[0].text == "flight 7"  # lent by another attempt at the task


def test_tasks_are_found_by_the_name_of_their_folder_and_damage_is_told(tmp_path: Path) -> None:
    family(tmp_path, [GOOD])
    folder = tmp_path / "tasks"
    assert [task.task_id for task in load(f"replay:{folder}").tasks("test", 5, seed=3)] == ["t"]
    with pytest.raises(UsageError, match="no task of the split 'train'; there are 0 of train, 0 of validation, 1 of"):
        load(f"replay:{folder}").tasks("train", 5, seed=0)
    (folder / "recordings.jsonl").write_bytes(b"")
    with pytest.raises(DataError, match="another number of recordings"):
        load(f"replay:{folder}").tasks("test", 5, seed=0)
    with pytest.raises(DataError, match="no replay tasks here"):
        load(f"replay:{tmp_path}")
    (folder / "manifest.json").write_bytes((folder / "manifest.json").read_bytes().replace(b"replay_tasks", b"store"))
    with pytest.raises(DataError, match=r"holds offline_arl\.store of version 1, not replay tasks"):
        load(f"replay:{folder}")
    crashed = msgspec.structs.replace(GOOD, outcome=Outcome("infrastructure_error"))
    with pytest.raises(DataError, match="infrastructure_error: 1"):
        write_tasks([(crashed, None)], tmp_path / "none")


def test_misses_of_an_attempt_that_was_left_out_and_of_what_was_done_elsewhere(tmp_path: Path) -> None:
    """Left out, GOOD makes look (known from BAD), book 7 (a miss) and look; BAD look and book 8 (a miss); ALONE is the
    only attempt at its task. Elsewhere: task t is played with ALONE's look 3 (a miss), u with GOOD's three calls (all
    misses)."""
    look_3 = tool_call("look", '{"n": 3}', id="d")
    alone = attempt("alone", calls(look_3), answer(look_3, "no flight"), says("Done."), success=True, task="u")
    counts = family(tmp_path, [GOOD, BAD, alone]).misses()
    left, other = counts["left_out"], counts["elsewhere"]
    assert (left.episodes, left.whole, left.exact) == (2, 0, 0)
    assert (dict(left.calls), dict(left.misses)) == ({"look": 3, "book": 2}, {"book": 2})
    assert left.rate == 2 / 5
    assert (other.episodes, dict(other.calls), dict(other.misses)) == (
        2,
        {"look": 3, "book": 1},
        {"look": 3, "book": 1},
    )
    assert other.rate == 1.0


def test_attempts_that_are_the_same_miss_nothing_and_no_call_is_no_rate(tmp_path: Path) -> None:
    twin = msgspec.structs.replace(GOOD, trajectory_id="twin")
    counts = family(tmp_path, [GOOD, twin]).misses()
    assert (counts["left_out"].rate, counts["left_out"].exact, counts["left_out"].whole) == (0.0, 2, 2)
    assert (counts["elsewhere"].episodes, counts["elsewhere"].rate) == (0, None)


def test_the_share_of_calls_that_are_not_recorded_is_a_measure_of_a_policy(tmp_path: Path) -> None:
    desk = family(tmp_path, [GOOD, BAD])
    unknown = tool_call("look", '{"n": 2}', id="x")
    played = [demonstration(desk, task, [calls(LOOK, unknown), calls(BOOK), says("Done.")], agent="policy")
              for task in desk.tasks("test", 9)]  # fmt: skip
    measures = evaluate(played, generator=np.random.default_rng(0))
    assert (measures["miss_rate"].estimate, measures["miss_rate"].n) == (1 / 3, 3)
    assert (measures["whole_rate"].estimate, measures["whole_rate"].n) == (0.0, 1)
    assert measures["misses"].estimate == 1.0
    assert "miss_rate" not in evaluate([GOOD, BAD], generator=np.random.default_rng(0))


def test_the_miss_rate_of_the_airline_logs_is_what_the_documents_say(tmp_path: Path) -> None:
    if not AIRLINE.exists():
        pytest.skip(f"{AIRLINE} is not here")
    counts = family(tmp_path, read_trajectories(AIRLINE)).misses()
    left, other = counts["left_out"], counts["elsewhere"]
    assert (left.episodes, sum(left.calls.values()), sum(left.misses.values()), left.whole) == (200, 1134, 376, 62)
    assert (other.episodes, sum(other.calls.values()), sum(other.misses.values()), other.whole) == (50, 259, 229, 7)
    told = " ".join(DOCUMENT.read_text().split())
    assert "376 of 1,134 calls (33 %)" in told
    assert "229 of 259 (88 %)" in told


@pytest.mark.parametrize("damage", [{"replies": []}, {"tools": "{"}, {"tools": "5"}, {"steps": [], "replies": []}])
def test_recordings_that_are_not_whole_are_told_when_they_are_read(tmp_path: Path, damage: dict[str, Any]) -> None:
    family(tmp_path, [GOOD])
    path = tmp_path / "tasks/recordings.jsonl"
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **damage}) + b"\n")
    with pytest.raises(DataError, match="'good' is not whole"):
        ReplayFamily(tmp_path / "tasks").tasks("test", 1)


def test_tasks_without_any_recording_are_told(tmp_path: Path) -> None:
    family(tmp_path, [GOOD])
    manifest = tmp_path / "tasks/manifest.json"
    raw = msgspec.json.decode(manifest.read_bytes())
    manifest.write_bytes(msgspec.json.encode({**raw, "recordings": 0}))
    (tmp_path / "tasks/recordings.jsonl").write_bytes(b"")
    empty = ReplayFamily(tmp_path / "tasks")
    for ask in (empty.make, empty.misses, lambda: empty.tasks("test", 1)):
        with pytest.raises(DataError, match="holds no recording"):
            ask()


def test_the_airline_logs_play_back_whole(tmp_path: Path) -> None:
    if not AIRLINE.exists():
        pytest.skip(f"{AIRLINE} is not here")
    recorded = {trajectory.trajectory_id: trajectory for trajectory in read_trajectories(AIRLINE)}
    desk = family(tmp_path, recorded.values())
    played = 0
    for task in desk.tasks("test", 999):
        for name in task.payload["recordings"]:
            trajectory = recorded[name]
            environment = desk.make()
            start = environment.reset(task)
            steps = trajectory.step_indices()
            assert [m.text for m in start.messages] == [m.text for m in trajectory.messages[: steps[0]]]
            for index, end in zip(steps, [*steps[1:], len(trajectory.messages)], strict=True):
                result = environment.step(trajectory.messages[index])
                logged = [(m.role, m.text, m.tool_call_id) for m in trajectory.messages[index + 1 : end]]
                assert [(m.role, m.text, m.tool_call_id) for m in result.messages] == logged
                assert (result.terminated or result.truncated) == (index == steps[-1])
            assert environment.outcome().success == trajectory.outcome.success
            assert environment.outcome().score == trajectory.outcome.score
            played += 1
    assert played == 200
