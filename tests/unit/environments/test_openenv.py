"""OpenEnv servers as environments: one of ours that speaks the protocol, and the library's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from offline_arl import optional
from offline_arl.environments import load
from offline_arl.environments.openenv import OpenEnvFamily
from offline_arl.environments.protocol import Task
from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.schema import Message, text_message, tool_call

pytestmark = pytest.mark.skipif(not optional.available("websockets"), reason="websockets is not installed")

GUESS = {"properties": {"guess": {"type": "string"}, "metadata": {"type": "object"}}, "required": ["guess"]}
MOVE = {
    "properties": {"x": {"type": "integer"}, "fast": {"type": "boolean", "default": False}}, "required": ["x"],
}  # fmt: skip

# A server of the library itself: guess a number.
OFFICIAL = """
import sys
import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

class Guess(Action):
    guess: str

class Told(Observation):
    text: str = ""

class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def __init__(self):
        super().__init__()
        self._number, self._count = 0, 0
    def reset(self, seed=None, episode_id=None, **kwargs):
        self._number, self._count = (seed or 0) % 5, 0
        return Told(text="Guess a number from 0 to 4.", done=False, reward=0.0)
    def step(self, action, **kwargs):
        self._count += 1
        right = action.guess.strip() == str(self._number)
        return Told(text="Right." if right else "Wrong.", done=right, reward=1.0 if right else 0.0)
    @property
    def state(self):
        return State(episode_id="x", step_count=self._count)

app = create_fastapi_app(Game, Guess, Told, max_concurrent_envs=8)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""


class Server:
    """Guess a number, or move to 3; what it says is the protocol's."""

    def __init__(self, action: dict[str, Any], *, schema: Any = None) -> None:
        from websockets.http11 import Response
        from websockets.sync.server import serve

        self.broken = False
        self.reward: Any = None

        def handle(socket: Any) -> None:
            number = 0
            for text in socket:
                message = json.loads(text)
                data: dict[str, Any] = {"observation": {"text": "Go."}, "reward": None, "done": False}
                if message["type"] == "reset":
                    number = message["data"].get("seed", 0) % 5
                elif self.broken:
                    socket.send(json.dumps({"type": "error", "data": {"message": "out of order"}}))
                    continue
                elif "guess" in message["data"]:
                    right = message["data"]["guess"] == str(number)
                    data = {"observation": {"text": "Right." if right else "Wrong."}, "reward": right * 1.0}
                    data["reward"] = data["reward"] if self.reward is None else self.reward
                    data["done"] = right
                else:
                    data = {"observation": {"x": message["data"]["x"], "wall": True}, "reward": -1.0, "done": False}
                socket.send(json.dumps({"type": "observation", "data": data}))

        told = {"action": action} if schema is None else schema

        def tell(connection: Any, request: Any) -> Response | None:
            if request.path != "/schema":
                return None
            response: Response = connection.respond(HTTPStatus.OK, json.dumps(told))
            return response

        self._server = serve(handle, "127.0.0.1", 0, process_request=tell)
        self.url = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()


@pytest.fixture
def guessing() -> Iterator[Server]:
    server = Server(GUESS)
    yield server
    server.close()


@pytest.fixture
def moving() -> Iterator[Server]:
    server = Server(MOVE)
    yield server
    server.close()


def test_where_an_action_is_one_text_the_message_is_it(guessing: Server) -> None:
    family = load(f"openenv:{guessing.url}")
    environment = family.make()
    start = environment.reset(Task("t", "x", {"seed": 3}))
    assert (start.messages[0].text, start.tools) == ("Go.", [])
    assert environment.outcome().status == "unscored"
    wrong = environment.step(text_message("assistant", "1"))
    assert ([reply.text for reply in wrong.messages], wrong.terminated, wrong.reward) == (["Wrong."], False, 0.0)
    assert environment.step(text_message("assistant", " ")).info["invalid_actions"] == 1
    right = environment.step(text_message("assistant", "3"))
    assert (right.terminated, right.reward, right.stop_reason) == (True, 1.0, "goal")
    assert (environment.outcome().success, environment.outcome().score) == (True, 1.0)
    with pytest.raises(UsageError, match="has ended"):
        environment.step(text_message("assistant", "3"))


def test_else_the_action_is_a_call_of_one_tool(moving: Server) -> None:
    environment = OpenEnvFamily(moving.url, max_steps=3).make()
    start = environment.reset(Task("t", "x", {}))
    assert [tool["function"]["name"] for tool in start.tools] == ["act"]
    moved = environment.step(Message("assistant", None, tool_calls=[tool_call("act", '{"x": 2}', id="a")]))
    assert [(reply.tool_call_id, reply.text) for reply in moved.messages] == [("a", '{"x":2,"wall":true}')]
    for message in (text_message("assistant", "2"), Message("assistant", None, tool_calls=[tool_call("act", "{}")])):
        result = environment.step(message)
        assert result.info["invalid_actions"] == 1
    assert (result.truncated, result.stop_reason) == (True, "max_steps")
    assert (environment.outcome().success, environment.outcome().score) == (False, -1.0)


def test_a_server_that_fails_is_a_fault_of_the_harness(guessing: Server) -> None:
    environment = load(f"openenv:{guessing.url}").make()
    environment.reset(Task("t", "x", {}))
    guessing.broken = True
    with pytest.raises(DataError, match="out of order"):
        environment.step(text_message("assistant", "1"))
    with pytest.raises(DataError, match="no OpenEnv server answers"):
        load("openenv:http://127.0.0.1:9")


@pytest.mark.parametrize("schema", [[], {}, {"action": None}, {"action": {"properties": []}}, {"action": 5}])
def test_a_server_that_tells_no_action_is_told(schema: Any) -> None:
    server = Server(GUESS, schema=schema)
    try:
        with pytest.raises(DataError, match="tells no action"):
            load(f"openenv:{server.url}")
    finally:
        server.close()
    with pytest.raises(UsageError, match="give the server's address"):
        load("openenv:file:///etc")


@pytest.mark.parametrize(("reward", "told"), [("ten", "no number"), ([], "no number")])
def test_rewards_that_are_none_are_a_fault_of_the_harness(guessing: Server, reward: Any, told: str) -> None:
    environment = load(f"openenv:{guessing.url}").make()
    environment.reset(Task("t", "x", {"seed": 1}))
    guessing.reward = reward
    with pytest.raises(DataError, match=told):
        environment.step(text_message("assistant", "1"))


def test_splits_have_seeds_of_their_own(guessing: Server) -> None:
    family = load(f"openenv:{guessing.url}")
    seeds = [{task.payload["seed"] for task in family.tasks(split, 500, seed=1)} for split in ("train", "test")]
    assert not seeds[0] & seeds[1]


def test_a_server_of_the_library_itself(tmp_path: Path) -> None:
    python = os.environ.get("OFFLINE_ARL_OPENENV_PYTHON", sys.executable)
    has = subprocess.run([python, "-c", "import openenv.core"], capture_output=True, check=False).returncode == 0
    if not has:
        pytest.skip("openenv-core is not installed; OFFLINE_ARL_OPENENV_PYTHON names a Python that has it")
    from toys.serving import free_port

    (tmp_path / "server.py").write_text(OFFICIAL)
    port = free_port()
    process = subprocess.Popen([python, str(tmp_path / "server.py"), str(port)])
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/schema", timeout=1)
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        environment = load(f"openenv:http://127.0.0.1:{port}").make()
        start = environment.reset(Task("t", "x", {"seed": 7}))
        assert "Guess a number" in start.messages[0].text
        assert environment.step(text_message("assistant", "4")).reward == 0.0
        assert environment.step(text_message("assistant", "2")).terminated
        assert environment.outcome().success is True
    finally:
        process.terminate()
        process.wait(10)
