"""Environments of the verifiers library, played by the library itself in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from offline_arl.environments import load
from offline_arl.environments.protocol import Task
from offline_arl.environments.verifiers_env import PYTHON_VARIABLE, VerifiersFamily
from offline_arl.errors import DataError, MissingDependencyError, UsageError
from offline_arl.trajectories.schema import Message, text_message, tool_call

PACKAGES = Path(__file__).parents[2] / "toys" / "verifiers_packages"
PYTHON = os.environ.get(PYTHON_VARIABLE, sys.executable)
FOUND = "import importlib.util, sys; sys.exit(importlib.util.find_spec('verifiers.v1') is None)"
needs_verifiers = pytest.mark.skipif(
    subprocess.run([PYTHON, "-c", FOUND], capture_output=True, check=False).returncode != 0,
    reason=f"verifiers is not installed; {PYTHON_VARIABLE} names a Python that has it",
)


@pytest.fixture(scope="module")
def importable() -> Iterator[None]:
    """The packages of these tests can be imported by the worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PACKAGES))
        yield


@pytest.fixture(scope="module")
def shop(importable: None) -> Iterator[VerifiersFamily]:
    family = load("verifiers:offline_arl_toy_shop")
    assert isinstance(family, VerifiersFamily)
    yield family
    family.close()


def called(*calls: tuple[str, str]) -> Message:
    return Message("assistant", None, tool_calls=[tool_call(name, raw, id=f"id-{raw}") for name, raw in calls])


def task(family: VerifiersFamily, name: str) -> Task:
    found = [task for split in ("train", "validation", "test") for task in family.tasks(split, 99)]
    return next(task for task in found if task.task_id == name)


@needs_verifiers
def test_tools_run_and_the_rubric_judges(shop: VerifiersFamily) -> None:
    environment = shop.make()
    start = environment.reset(task(shop, "ink-4"))
    assert [(message.role, message.text) for message in start.messages] == [
        ("system", "Look prices up."), ("user", "What do 4 of ink cost?"),
    ]  # fmt: skip
    assert [tool["function"]["name"] for tool in start.tools] == ["shop_price"]
    assert environment.outcome().status == "unscored"
    said = called(
        ("shop_price", '{"item": "ink"}'), ("shop_price", '{"item": "gold"}'), ("shop_price", '{"item'), ("x", "[]")
    )
    result = environment.step(said)
    replies = [(reply.role, reply.tool_call_id, reply.text[:26]) for reply in result.messages]
    assert replies[0] == ("tool", 'id-{"item": "ink"}', "7")
    assert [text for _, _, text in replies[1:]] == [
        "Error executing tool price", "error: invalid JSON in the", "error: the arguments must ",
    ]  # fmt: skip
    assert (result.reward, result.terminated, result.truncated) == (0.0, False, False)
    end = environment.step(text_message("assistant", "28 \ud800"))
    assert (end.terminated, end.truncated, end.stop_reason, end.messages) == (True, False, "answered", [])
    outcome = environment.outcome()
    assert (outcome.success, outcome.score, end.reward) == (True, 1.0, 1.0)
    assert outcome.components == {"right": 0.75, "looked_up": 0.25, "calls": 4.0}
    with pytest.raises(UsageError, match="has ended"):
        environment.step(text_message("assistant", "28"))


@needs_verifiers
def test_a_guess_that_was_not_looked_up_is_no_success(shop: VerifiersFamily) -> None:
    environment = shop.make()
    environment.reset(task(shop, "pen-1"))
    assert environment.step(text_message("assistant", "3")).reward == 0.75
    assert (environment.outcome().success, environment.outcome().score) == (False, 0.75)


@needs_verifiers
def test_a_rubric_that_fails_is_a_fault_of_the_harness_and_the_next_episode_is_whole(shop: VerifiersFamily) -> None:
    environment = shop.make()
    environment.reset(task(shop, "pen-1"))
    with pytest.raises(DataError, match="a rubric that fails"):
        environment.step(text_message("assistant", "BOOM"))
    assert environment.outcome().status == "unscored"
    environment.reset(task(shop, "pen-1"))  # this one is abandoned
    environment.reset(task(shop, "pen-2"))
    environment.step(called(("shop_price", '{"item": "pen"}')))
    assert environment.step(text_message("assistant", "6")).reward == 1.0


@needs_verifiers
def test_episodes_side_by_side_keep_apart(shop: VerifiersFamily) -> None:
    rewards: dict[int, float] = {}

    def play(count: int) -> None:
        environment = shop.make()
        environment.reset(task(shop, f"desk-{count}"))
        environment.step(called(("shop_price", '{"item": "desk"}')))
        rewards[count] = environment.step(text_message("assistant", str(120 * count if count != 3 else 1))).reward

    threads = [threading.Thread(target=play, args=(count,)) for count in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rewards == {1: 1.0, 2: 1.0, 3: 0.25, 4: 1.0, 5: 1.0}


@needs_verifiers
def test_splits_share_no_task_and_stay_what_they_are(shop: VerifiersFamily) -> None:
    splits = {split: [task.task_id for task in shop.tasks(split, 99)] for split in ("train", "validation", "test")}
    listed = [name for names in splits.values() for name in names]
    assert sorted(listed) == sorted(f"{item}-{n}" for item in ("pen", "ink", "desk") for n in range(1, 6))
    assert [task.task_id for task in shop.tasks("train", 3, seed=5)] == splits["train"][:3]
    with pytest.raises(UsageError, match="unknown split"):
        shop.tasks("dev", 1)


@needs_verifiers
def test_an_environment_of_several_turns_by_a_file(importable: None, tmp_path: Path) -> None:
    (tmp_path / "game.toml").write_text(
        'max_steps = 3\nsuccess_threshold = 0.4\n[env.taskset]\nid = "offline_arl_toy_game"\n'
    )
    family = load(f"verifiers:{tmp_path / 'game.toml'}")
    (first,) = family.tasks("train", 1, seed=0)  # of a taskset without end
    number = first.payload["data"]["number"]
    environment = family.make()
    assert environment.reset(first).messages[-1].text == "Guess a number from 0 to 9."
    wrong = environment.step(text_message("assistant", str(number + 1)))
    assert [(reply.role, reply.text) for reply in wrong.messages] == [("user", "lower")]
    assert environment.step(text_message("assistant", str(number))).reward == 0.5
    assert environment.outcome().success is True
    environment.reset(first)
    for _ in range(2):
        assert not environment.step(text_message("assistant", "99")).truncated
    last = environment.step(text_message("assistant", "99"))
    assert (last.truncated, last.terminated, last.stop_reason, last.reward) == (True, False, "max_steps", 0.0)
    assert environment.outcome().success is False


@needs_verifiers
def test_an_episode_whose_context_is_full_is_judged_as_it_stands(shop: VerifiersFamily, importable: None) -> None:
    environment = shop.make()
    environment.reset(task(shop, "ink-2"))
    for _ in range(2):  # what follows the last message is not yet part of verifiers' trace
        environment.step(called(("shop_price", '{"item": "ink"}')))
    environment.abandon("context_length")
    assert environment.outcome().status == "scored"
    assert (environment.outcome().success, environment.outcome().score) == (False, 0.25)
    environment.abandon("context_length")  # it is over already
    game = VerifiersFamily("offline_arl_toy_game")
    environment = game.make()
    environment.reset(game.tasks("test", 1)[0])
    environment.abandon("context_length")
    assert (environment.outcome().success, environment.outcome().score) == (False, 0.0)
    game.close()


@needs_verifiers
def test_a_worker_that_dies_is_told_of(importable: None) -> None:
    family = VerifiersFamily("offline_arl_toy_game")
    environment = family.make()
    environment.reset(family.tasks("test", 1)[0])
    family.close()
    with pytest.raises(DataError, match="has ended"):
        environment.step(text_message("assistant", "1"))
    with pytest.raises(DataError, match="has ended"):
        family.tasks("test", 1)


@needs_verifiers
def test_what_there_is_not(importable: None, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="offline_arl_no_such_taskset"):
        load("verifiers:offline_arl_no_such_taskset")
    two = tmp_path / "two.toml"
    two.write_text('[env]\nid = "user-sim"\n[env.taskset]\nid = "offline_arl_toy_game"\n[env.user]\nmax_turns = 2\n')
    with pytest.raises(DataError, match="assistant and user would be played by the policy"):
        load(f"verifiers:{two}")


def test_without_verifiers_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offline_arl.optional.available", lambda package: False)
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    with pytest.raises(MissingDependencyError, match=f"pip install verifiers.*{PYTHON_VARIABLE}"):
        load("verifiers:gsm8k-v1")
    monkeypatch.setenv(PYTHON_VARIABLE, "/no/such/python")
    with pytest.raises(DataError, match="/no/such/python: cannot be started"):
        load("verifiers:gsm8k-v1")


@pytest.mark.parametrize(
    ("text", "told"),
    [("env = 3", "env"), ("[env]\n[steps]", "steps"), ("[[[", "no configuration"), (None, "no config")],
)
def test_a_file_that_is_none_of_these(text: str | None, told: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=told):
        load(f"verifiers:{path}")
