"""The commands that care for a store: what they print, ask and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toys.commands import Command

from offline_arl.cli.entry import run
from offline_arl.trajectories.near_duplicates import mark_near_duplicates
from offline_arl.trajectories.schema import Score, Source, Trajectory, text_message
from offline_arl.trajectories.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Ten users with two attempts each, of which the first is good and the second is bad."""
    made = Store.create(tmp_path / "store")
    with made.writer() as writer:
        for number in range(20):
            user = number // 2
            score = Score("helpful", float(number % 2 == 0), direction="higher_is_better", scorer="judge")
            messages = [text_message("user", f"I am u{user}: {number}?"), text_message("assistant", f"Yes, {number}!")]
            writer.add(
                Trajectory(
                    f"t{number}", messages, Source("test"), user_id=f"u{user}", task_id=f"task-{user}", scores=[score],
                    task_type="[bold]odd[/]" if user % 2 else "even",
                )
            )  # fmt: skip
    return made.path


def test_split_draws_each_split_and_says_what_it_did_not_do(command: Command, store: Path) -> None:
    done = command("split", store, "--fraction", "train=0.6", "--fraction", "test=0.4")
    assert done.code == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["train", "0.6", "6", "12"] in lines
    assert ["test", "0.4", "4", "8"] in lines
    assert ["[bold]odd[/]", "6", "4"] in lines
    assert f"Near duplicates are not marked yet; to keep them together: offline-arl duplicates {store}" in done.stdout
    again = command("split", store, "--json")
    assert again.json["extended"]
    assert again.json["fractions"] == {"train": 0.6, "test": 0.4}
    assert again.json["largest_family"] == 2


def test_split_says_which_type_and_which_split_went_short(command: Command, store: Path) -> None:
    done = command("split", store, "--by", "session")
    assert (done.code, "no trajectory has a session_id" in done.stderr) == (2, True)
    shares = [word for number in range(7) for word in ("--fraction", f"s{number}={1 / 7}")]
    done = command("split", store, *shares)
    assert "task type even: 5 families, none in" in done.stdout
    assert command("split", store, "--by", "user").code == 2
    report = command("split", store, "--by", "user", "--fresh", "--json").json
    assert (report["by"], report["shared"]) == ("user", {"task_id": 0, "session_id": 0})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fraction", "train"], "--fraction train: expected a new NAME=SHARE"),
        (["--fraction", "a=0.5", "--fraction", "a=0.5"], "--fraction a=0.5"),
        (["--fraction", "a=2"], "--fraction a=2"),
        (["--fraction", "a=nan"], "--fraction a=nan"),
        (["--fraction", "a=0.5"], "must be positive and sum to 1"),
        (["--by", "moon"], "moon"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_split_refuses_what_is_no_split(command: Command, store: Path, arguments: list[str], words: str) -> None:
    done = command("split", store, *arguments, "--json")
    assert done.code == 2
    assert words in done.json["error"]
    assert done.stderr == f"error: {done.json['error']}\n"
    assert "split" not in Store(store).side_tables


def test_duplicates_counts_and_shows(command: Command, store: Path) -> None:
    words = " ".join(f"word{number}" for number in range(50))
    with Store(store).writer() as writer:
        for name in ("x", "y"):
            messages = [text_message("user", f"{words} {name}"), text_message("assistant", "ok")]
            writer.add(Trajectory(name, messages, Source("test")))
    report = command("duplicates", store, "--json").json
    expected = mark_near_duplicates(Store(store))
    assert report["near_duplicates"] == expected.height >= 1
    assert ("y", "x") in {(row["trajectory_id"], row["near_duplicate_of"]) for row in report["examples"]} or (
        expected.height > len(report["examples"])
    )
    assert "near duplicates" in command("duplicates", store, "--threshold", "0.9").stdout
    assert command("duplicates", store, "--threshold", "1.5").code == 2
    assert command("duplicates", store, "--threshold", "0").code == 2


def test_label_lists_judgements_and_takes_one(command: Command, store: Path) -> None:
    listed = command("label", store, "--json").json
    assert [(row["name"], row["judgements"]) for row in listed["judgements"]] == [("helpful", 20)]
    assert f"Take one: offline-arl label {store} --outcome helpful" in command("label", store).stdout
    report = command("label", store, "--outcome", "helpful", "--threshold", "0.5", "--json").json
    assert (report["successes"], report["failures"]) == (10, 10)
    assert "Scores alone are no verdicts" in command("label", store, "--outcome", "helpful").stdout
    done = command("label", store, "--outcome", "nice")
    assert (done.code, done.stderr) == (
        2,
        f"error: {store}: no judgement 'nice' with a number; there are: helpful\n",
    )
    assert "--outcome" in command("label", store, "--threshold", "0.5").stderr


def test_label_says_how_to_take_a_judgement_of_unknown_direction(command: Command, store: Path) -> None:
    with Store(store).writer() as writer:
        score = Score("stars", 4.0)
        writer.add(Trajectory("rated", [text_message("assistant", "Yes")], Source("test"), scores=[score]))
    assert "label" in command("label", store).stdout
    refused = command("label", store, "--outcome", "stars")
    assert refused.code == 2
    assert "stars: the judgements are of unknown direction; say --direction higher_is_better" in refused.stderr
    assert command("label", store, "--outcome", "stars", "--direction", "higher_is_better").code == 0


def test_select_merge_and_compact(command: Command, store: Path, tmp_path: Path) -> None:
    some = tmp_path / "some"
    report = command("select", store, "--output", some, "--user", "u1", "--user", "u2", "--where",
                         "trajectory_id <> 't2'", "--json").json  # fmt: skip
    assert (report["trajectories"], report["filters"]) == (
        3,
        {"users": ["u1", "u2"], "where": "trajectory_id <> 't2'"},
    )
    none = command("select", store, "--output", tmp_path / "none", "--outcome", "success")
    assert (none.code, "no trajectory fits" in none.stderr) == (1, True)
    merged = command("merge", some, store, "--output", tmp_path / "both", "--json").json
    assert (merged["trajectories"], merged["identical"]) == (20, 3)
    assert "became 1" in command("compact", tmp_path / "both").stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both", "some", "store"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--where", ""], "write SQL such as"),
        (["--where", "usr_id = 'u1'"], "did you mean user_id?"),
        (["--where", "max(n_steps) = 2"], "max cannot be used here"),
        (["--where", "user_id::int = 1"], "conversion from `str`"),
        (["--since", "soon"], "--since 'soon': no date"),
        (["--outcome", "fine"], "fine"),
    ],
)
@pytest.mark.parametrize("name", ["select", "delete"])
def test_filters_that_are_wrong_are_refused_and_change_nothing(
    command: Command, store: Path, tmp_path: Path, name: str, arguments: list[str], words: str
) -> None:
    more = ["--output", tmp_path / "out"] if name == "select" else ["--yes"]
    done = command(name, store, *arguments, *more, "--json")
    assert done.code == 2, done.stderr
    assert words in done.json["error"]
    assert done.stderr.count("\n") == 1
    assert len(Store(store)) == 20
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_delete_asks_and_says_what_goes(command: Command, store: Path) -> None:
    dry = command("delete", store, "--user", "u1", "--dry-run")
    assert "2 trajectories with 2 steps go" in dry.stdout
    assert "users: u1" in dry.stdout
    for answer, code in (("n\n", 1), ("\n", 1), ("", 2)):
        done = command("delete", store, "--user", "u1", answer=answer)
        assert (done.code, done.stdout) == (code, "")
        assert "2 trajectories with 2 steps go" in done.stderr
        assert "nothing was deleted" in done.stderr.splitlines()[-1]
    assert len(Store(store)) == 20
    done = command("delete", store, "--user", "u1", "--json", answer="y\n")
    assert (done.code, done.json["deleted"], done.json["trajectories"]) == (0, True, 2)
    assert len(Store(store)) == 18
    again = command("delete", store, "--user", "u1")
    assert (again.code, "Delete?" in again.stderr) == (0, False), "there is nothing to ask about"


def test_delete_needs_to_be_told_what(command: Command, store: Path) -> None:
    done = command("delete", store, "--yes")
    assert (done.code, "say which trajectories" in done.stderr) == (2, True)
    assert command("delete", store, "--user", "", "--yes", "--json").json["trajectories"] == 0
    assert len(Store(store)) == 20


def test_related_trajectories_that_remain_are_named(command: Command, store: Path) -> None:
    with Store(store).writer() as writer:
        messages = [text_message("assistant", "helping")]
        writer.add(Trajectory("helper", messages, Source("test"), parent_trajectory_id="t4"))
    done = command("delete", store, "--where", "trajectory_id = 't4'", "--yes")
    assert "1 related trajectories remain and may share text (copies, branches, sub-agents): helper" in done.stdout


def test_formats_lists_all_with_what_they_keep(command: Command) -> None:
    from offline_arl.logs.adapter import adapters

    found = command("formats", "--json").json["formats"]
    assert [entry["name"] for entry in found] == list(adapters())
    assert {"name", "title", "keeps", "lacks", "unit", "origin"} == set(found[0])
    units = {entry["name"]: entry["unit"] for entry in found}
    assert (units["openai_chat"], units["claude_code"]) == ("record", "records")
    drawn = command("formats").stdout
    assert all(entry["name"] in drawn for entry in found)


@pytest.mark.parametrize(
    "arguments",
    [
        "show", "show --steps", "split", "duplicates", "label", "compact", "delete --user u1 --yes", "select -o {out}",
        "merge -o {out}", "build bc -o {out} --store", "export --format openai_chat -o {out}.jsonl --store",
    ],
)  # fmt: skip
def test_no_store_and_a_rotten_one_are_one_line(command: Command, store: Path, tmp_path: Path, arguments: str) -> None:
    filled = arguments.format(out=tmp_path / "out").split()
    done = command(*filled, store / "steps")
    assert (done.code, done.stderr.count("\n"), "no trajectory store here" in done.stderr) == (1, 1, True)
    for part in [*store.glob("trajectories/*"), *store.glob("steps/*"), *store.glob("scores/*")]:
        data = bytearray(part.read_bytes())
        data[4 : len(data) - 8] = bytes(len(data) - 12)
        part.write_bytes(data)
    done = command(*filled, store)
    assert done.code == 1, done.stdout
    assert done.stderr.count("\n") == 1, done.stderr
    assert "changed since it was written" in done.stderr or "is damaged" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_what_logs_say_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences in texts, names and file names would move the cursor or set the title of the window."""
    said = "a\x1b]0;title\x07\x1b[2Jb\u202ec"
    call = {"id": said, "type": "function", "function": {"name": said, "arguments": "{"}}
    messages = [{"role": "user", "content": said}, {"role": "assistant", "content": said, "tool_calls": [call]}]
    record = {"messages": messages, "task_id": said, "task_type": said, "model": said}
    logs = tmp_path / "logs\x1b[31m"
    logs.mkdir()
    (logs / "a.jsonl").write_text(json.dumps(record) + "\n" + json.dumps({"messages": [{"role": said}]}) + "\n")
    store = str(tmp_path / "store")
    assert run(["ingest", str(logs), "--store", store]) == 0
    (trajectory,) = Store(store).iter_trajectories()
    for arguments in ([], ["--steps"], ["--trajectory", trajectory.trajectory_id]):
        assert run(["show", store, *arguments]) == 0
    assert run(["ingest", str(logs / "b\x1b.jsonl"), "--store", store]) == 1
    shown = capsys.readouterr()
    assert "a\ufffd]0;title\ufffd\ufffd[2Jb\ufffdc" in shown.out
    assert not {"\x1b", "\x07", "\u202e"} & set(shown.out + shown.err)
