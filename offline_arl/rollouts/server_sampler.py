"""Sampling from vLLM servers: several at once, checked, retried, and synchronized with the trainer's weights.

Start each server on the policy's folder, with logprobs of the distribution that is sampled from and the interface by
which weights are reloaded:

    VLLM_SERVER_DEV_MODE=1 vllm serve POLICY --host 127.0.0.1 --logprobs-mode processed_logprobs --skip-tokenizer-init

A server that fails is left alone until it answers again, and its requests go to the others: an episode's step depends
on its prompt and seed alone, so it is the same wherever it is sampled. One that was away may have been started anew
with old weights; it gets the newest before it is used again.
"""

from __future__ import annotations

import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Condition
from typing import TYPE_CHECKING, Any

from offline_arl.errors import DataError, UsageError
from offline_arl.rollouts.sampler import Completion, SamplingConfig, check_request

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

_CHECK_S = 1.0  # between two looks at a server that is away


class _AwayError(Exception):
    """A server does not answer, or not as a server that is well does."""


@dataclass
class _Server:
    url: str
    running: int = 0
    is_away: bool = False
    next_look: float = 0.0
    version: int = 0  # of the weights that it has


class ServerSampler:
    """A `StreamingSampler` on vLLM servers that run the same policy.

    Args:
        urls: Of the servers, as in "http://127.0.0.1:8000".
        model: Name of the model there.
        stop_token_ids: Tokens that end a step (`Renderer.stop_token_ids`); nothing else does.
        max_model_len: Longest prompt and completion together, in tokens.
        requests_per_server: Under way at once.
        timeout_s: Of one request.
        patience_s: How long no server may answer before the call fails.
        weights_folder: Where `load_weights` leaves weights for the servers, which must see it too; None: a temporary
            folder of this machine.

    Raises:
        UsageError: There is no server, or none answers.
    """

    backend = "vllm"

    def __init__(
        self,
        urls: Sequence[str],
        *,
        model: str,
        stop_token_ids: Sequence[int],
        max_model_len: int = 1024,
        requests_per_server: int = 64,
        timeout_s: float = 300.0,
        patience_s: float = 300.0,
        weights_folder: str | Path | None = None,
    ) -> None:
        if not urls or requests_per_server < 1:
            raise UsageError("give the URL of a server at least, and let it have a request at least")
        self.max_model_len = max_model_len
        self._servers = [_Server(url.rstrip("/").removesuffix("/v1")) for url in urls]
        self._model = model
        self._stop_token_ids = list(stop_token_ids)
        self._per_server = requests_per_server
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._temporary: TemporaryDirectory[str] | None = None
        if weights_folder is None:
            self._temporary = TemporaryDirectory(prefix="offline-arl-weights-")
            weights_folder = self._temporary.name
        self._folder = Path(weights_folder)
        self._version = 0
        self._changed = Condition()
        self._pool = ThreadPoolExecutor(requests_per_server * len(self._servers), thread_name_prefix="vllm server")
        self._streamed: dict[Future[Completion], int] = {}
        self._submitted = 0
        for server in self._servers:
            server.is_away = not self._is_well(server)
        if all(server.is_away for server in self._servers):
            raise UsageError(f"no vLLM server answers at {', '.join(urls)}; start one with: vllm serve POLICY")

    def generate(
        self, prompts: Sequence[Sequence[int]], config: SamplingConfig, *, seeds: Sequence[int]
    ) -> list[Completion]:
        """See `Sampler.generate`.

        Raises:
            DataError: No server answered for `patience_s`, or one refuses a request.
        """
        check_request(prompts, config, seeds, self.max_model_len)
        futures = [
            self._pool.submit(self._complete, list(prompt), config, seed)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        return [future.result() for future in futures]

    def submit(self, prompt: Sequence[int], config: SamplingConfig, *, seed: int) -> int:
        """See `StreamingSampler.submit`."""
        check_request([prompt], config, [seed], self.max_model_len)
        self._submitted += 1
        self._streamed[self._pool.submit(self._complete, list(prompt), config, seed)] = self._submitted
        return self._submitted

    def advance(self) -> list[tuple[int, Completion]]:
        """See `StreamingSampler.advance`: waits for the next completion."""
        if not self._streamed:
            return []
        done, _ = wait(self._streamed, timeout=0.05, return_when=FIRST_COMPLETED)
        return [(self._streamed.pop(future), future.result()) for future in done]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See `Sampler.load_weights`: the weights are written to a folder, from which every server reloads.

        Raises:
            DataError: No server could reload them.
            UsageError: Completions are under way.
        """
        if self._streamed:
            raise UsageError("completions are under way; load weights when all have been taken with advance")
        from safetensors.torch import save_file

        folder = self._folder / f"weights-{self._version + 1:06}"
        folder.mkdir(parents=True, exist_ok=True)
        # Of tensors that share memory (tied embeddings) safetensors wants copies.
        save_file({name: value.detach().cpu().clone() for name, value in weights}, folder / "model.safetensors")
        self._version += 1
        for server in self._servers:
            if not server.is_away:
                self._update(server)
        if all(server.is_away for server in self._servers):
            raise DataError("no vLLM server could reload the weights; look at the servers' logs")
        for old in self._folder.glob("weights-*"):
            if old != folder:
                for path in old.iterdir():
                    path.unlink()
                old.rmdir()

    def close(self) -> None:
        """Let go of threads and files; the servers go on."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._temporary is not None:
            self._temporary.cleanup()

    def _complete(self, prompt: list[int], config: SamplingConfig, seed: int) -> Completion:
        request = {
            "model": self._model,
            "prompt": prompt,
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
            "seed": seed,
            "stop_token_ids": self._stop_token_ids,
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        while True:
            server = self._free_server()
            try:
                answer = self._post(server, "/v1/completions", request)
                return _completion(answer["choices"][0])
            except _AwayError as error:
                logger.warning("%s: %s; its requests go elsewhere until it answers again", server.url, error)
                with self._changed:
                    server.is_away, server.next_look = True, time.monotonic() + _CHECK_S
            finally:
                with self._changed:
                    server.running -= 1
                    self._changed.notify_all()

    def _free_server(self) -> _Server:
        """The server with the fewest requests under way, which is counted as having one more."""
        deadline = time.monotonic() + self._patience_s
        while True:
            self._look_after_those_away()
            with self._changed:
                well = [server for server in self._servers if not server.is_away]
                free = [server for server in well if server.running < self._per_server]
                if free:
                    chosen = min(free, key=lambda server: server.running)
                    chosen.running += 1
                    return chosen
                if well:
                    deadline = time.monotonic() + self._patience_s
                self._changed.wait(_CHECK_S)
            if time.monotonic() > deadline:
                raise DataError(
                    f"no vLLM server answered for {self._patience_s:g} s ({', '.join(s.url for s in self._servers)}); "
                    "start them again, then the same command"
                )

    def _look_after_those_away(self) -> None:
        for server in self._servers:
            with self._changed:
                is_due = server.is_away and time.monotonic() >= server.next_look
                if is_due:  # others need not look at the same time
                    server.next_look = time.monotonic() + _CHECK_S
            if is_due and self._is_well(server):
                server.version = 0  # it may have been started anew
                self._update(server)

    def _update(self, server: _Server) -> None:
        """Give a server the newest weights; it is away where that fails."""
        try:
            if server.version < self._version:
                folder = self._folder / f"weights-{self._version:06}"
                kwargs = {"weights_path": str(folder.absolute())}
                self._post(server, "/collective_rpc", {"method": "reload_weights", "kwargs": kwargs})
                # Keys of the old weights would otherwise serve prompts that share a prefix with earlier ones.
                if not self._post(server, "/reset_prefix_cache", {}).get("success", True):
                    raise _AwayError("its prefix cache cannot be reset while requests run")
            with self._changed:
                server.version, server.is_away = self._version, False
                self._changed.notify_all()
        except (_AwayError, DataError) as error:
            logger.warning("%s: the weights cannot be reloaded: %s", server.url, error)
            with self._changed:
                server.is_away, server.next_look = True, time.monotonic() + _CHECK_S

    def _is_well(self, server: _Server) -> bool:
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5):
                return True
        except (OSError, ValueError):
            return False

    def _post(self, server: _Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            _AwayError: The server fails.
            DataError: It refuses the request, which another one would too.
        """
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{server.url}{path}", data=data, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as reply:
                text = reply.read()
        except urllib.error.HTTPError as error:
            told = " ".join(error.read().decode(errors="replace").split())[:300]
            if error.code in (400, 404, 405, 422):
                raise DataError(f"{server.url}{path}: refused ({error.code}): {told}") from error
            raise _AwayError(f"{error.code} {told}") from error
        except (OSError, ValueError) as error:
            raise _AwayError(str(error)) from error
        try:
            answer = json.loads(text or b"{}")
        except ValueError as error:
            raise _AwayError("an answer that is cut off") from error
        return answer if isinstance(answer, dict) else {}


def _completion(choice: dict[str, Any]) -> Completion:
    """A completion as the server tells it.

    Raises:
        DataError: Token ids or logprobs are missing.
    """
    token_ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
    if not token_ids or not logprobs or len(logprobs) != len(token_ids) or None in logprobs:
        raise DataError(
            "the server gives no token ids or logprobs; rollouts need a vLLM that knows return_token_ids (from 0.11 on)"
        )
    return Completion(list(token_ids), list(logprobs), "stop" if choice.get("finish_reason") == "stop" else "length")
