"""Servers come and go; completions do not depend on it, and none is lost or made twice."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from offline_arl.errors import DataError, UsageError
from offline_arl.rollouts.sampler import Completion, SamplingConfig, StreamingSampler
from offline_arl.rollouts.server_sampler import ServerSampler

CONFIG = SamplingConfig(1.0, 8)


class Server:
    """Speaks vLLM's protocol; a completion is made of prompt, seed and the weights that were reloaded last."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.weights = 0.0
        self.served: list[int] = []
        self.pause = 0.0
        self.fault: Callable[[int], bytes | int | None] = lambda number: None
        self.calls: list[str] = []
        self._http: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(200, b"")

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.calls.append(self.path)
                if self.path == "/collective_rpc":
                    server.weights = float(load_file(f"{body['kwargs']['weights_path']}/model.safetensors")["w"])
                    self.answer(200, b'{"results": [null]}')
                elif self.path == "/reset_prefix_cache":
                    self.answer(200, b'{"success": true}')
                else:
                    time.sleep(server.pause)
                    fault = server.fault(len(server.served))
                    server.served.append(body["seed"])
                    if fault is not None:
                        status, data = (fault, b"no") if isinstance(fault, int) else (200, fault)
                        self.answer(status, data)
                        return
                    self.answer(200, json.dumps({"choices": [reply(body, server.weights)]}).encode())

            def answer(self, status: int, data: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                """Tests want a quiet server."""

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None


def reply(body: dict[str, Any], weights: float) -> dict[str, Any]:
    tokens = [sum(body["prompt"]) % 100, body["seed"] % 100, body["stop_token_ids"][0]]
    logprobs = [-0.5 - weights, -0.25, -0.125]
    return {"token_ids": tokens, "logprobs": {"token_logprobs": logprobs}, "finish_reason": "stop"}


def expected(prompt: list[int], seed: int, weights: float = 0.0) -> Completion:
    return Completion([sum(prompt) % 100, seed % 100, 3], [-0.5 - weights, -0.25, -0.125], "stop")


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    running = [Server(), Server()]
    yield running
    for server in running:
        server.stop()


def sampler(servers: list[Server], **settings: Any) -> ServerSampler:
    urls = [server.url for server in servers]
    fields = {"patience_s": 5.0, "timeout_s": 5.0, **settings}
    return ServerSampler(urls, model="m", stop_token_ids=[3], **fields)


PROMPTS = [[number, number + 1] for number in range(60)]
SEEDS = list(range(100, 160))
ALL = [expected(prompt, seed) for prompt, seed in zip(PROMPTS, SEEDS, strict=True)]


def test_completions_come_in_order_from_both_servers(servers: list[Server]) -> None:
    for server in servers:
        server.pause = 0.002
    both = sampler(servers, requests_per_server=4)
    assert isinstance(both, StreamingSampler)
    assert both.generate(PROMPTS, CONFIG, seeds=SEEDS) == ALL
    assert min(len(server.served) for server in servers) > 10
    assert sorted([*servers[0].served, *servers[1].served]) == SEEDS


def test_streamed_completions_have_the_numbers_they_were_given(servers: list[Server]) -> None:
    both = sampler(servers)
    numbers = [both.submit(prompt, CONFIG, seed=seed) for prompt, seed in zip(PROMPTS, SEEDS, strict=True)]
    found: dict[int, Completion] = {}
    while len(found) < len(numbers):
        found.update(both.advance())
    assert [found[number] for number in numbers] == ALL
    assert both.advance() == []


@pytest.mark.parametrize("fault", [500, 503, b"{cut of"], ids=["500", "503", "cut off"])
def test_a_server_that_fails_now_and_then_costs_nothing(servers: list[Server], fault: bytes | int) -> None:
    servers[0].fault = lambda number: fault if number % 5 == 1 else None
    assert sampler(servers, requests_per_server=3).generate(PROMPTS, CONFIG, seeds=SEEDS) == ALL


def test_a_server_that_dies_and_comes_back_with_old_weights_is_synchronized_first(servers: list[Server]) -> None:
    both = sampler(servers, requests_per_server=2)
    both.load_weights([("w", torch.tensor(0.5))])
    assert [server.weights for server in servers] == [0.5, 0.5]
    for server in servers:
        server.pause = 0.01
    results: list[list[Completion]] = []
    thread = threading.Thread(target=lambda: results.append(both.generate(PROMPTS * 4, CONFIG, seeds=SEEDS * 4)))
    thread.start()
    time.sleep(0.15)
    servers[0].stop()
    time.sleep(0.3)
    servers[0].weights = 0.0  # started anew from the folder that it was first started with
    before = len(servers[0].served)
    servers[0].start()
    thread.join(30)
    assert results == [[expected(prompt, seed, 0.5) for prompt, seed in zip(PROMPTS, SEEDS, strict=True)] * 4]
    assert len(servers[0].served) > before
    assert servers[0].weights == 0.5
    assert both.generate(PROMPTS, CONFIG, seeds=SEEDS)[0].logprobs[0] == -1.0


def test_all_servers_gone_is_waited_for_and_then_told(servers: list[Server]) -> None:
    patient = sampler(servers, patience_s=5.0)
    for server in servers:
        server.stop()
    timer = threading.Timer(0.5, servers[1].start)
    timer.start()
    assert patient.generate(PROMPTS[:5], CONFIG, seeds=SEEDS[:5]) == ALL[:5]
    servers[1].stop()
    patient._patience_s = 0.3
    with pytest.raises(DataError, match=r"no vLLM server answered for 0\.3 s"):
        patient.generate(PROMPTS[:1], CONFIG, seeds=SEEDS[:1])


def test_what_every_server_would_refuse_is_an_error_at_once(servers: list[Server]) -> None:
    for server in servers:
        server.fault = lambda number: 400
    with pytest.raises(DataError, match="refused"):
        sampler(servers).generate(PROMPTS[:1], CONFIG, seeds=SEEDS[:1])
    for server in servers:
        server.fault = lambda number: json.dumps({"choices": [{"token_ids": [1], "finish_reason": "stop"}]}).encode()
    with pytest.raises(DataError, match="no token ids or logprobs"):
        sampler(servers).generate(PROMPTS[:1], CONFIG, seeds=SEEDS[:1])


def test_weights_are_not_changed_under_running_requests_and_only_the_newest_are_kept(
    servers: list[Server], tmp_path: Any
) -> None:
    both = sampler(servers, weights_folder=tmp_path)
    both.submit(PROMPTS[0], CONFIG, seed=1)
    with pytest.raises(UsageError, match="under way"):
        both.load_weights([])
    while not both.advance():
        pass
    for value in (1.0, 2.0):
        both.load_weights([("w", torch.tensor(value))])
    assert [path.name for path in tmp_path.iterdir()] == ["weights-000002"]
    assert servers[0].calls[-2:] == ["/collective_rpc", "/reset_prefix_cache"]


def test_servers_that_are_not_there_are_told() -> None:
    with pytest.raises(UsageError, match=r"no vLLM server answers at http://127\.0\.0\.1:9"):
        ServerSampler(["http://127.0.0.1:9"], model="m", stop_token_ids=[3])
    with pytest.raises(UsageError, match="URL"):
        ServerSampler([], model="m", stop_token_ids=[3])
