"""Chat models behind any OpenAI-compatible endpoint, for users and judges: many at once, retried, cached, structured.

Answers are cached on disk by the whole request, so a run that is repeated asks nothing twice and gives the same
verdicts. Keys are read from the environment and never written anywhere.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from offline_arl import optional
from offline_arl.errors import DataError, UsageError
from offline_arl.trajectories.files import write_atomically

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EndpointConfig:
    """Where a model is and how it is asked.

    Attributes:
        model: Name of the model there.
        base_url: Of the server, as in "http://localhost:8000/v1".
        api_key_variable: Environment variable that holds the key; where it is unset, "none" is sent, as local servers
            want it.
        temperature: 0 by default, so that verdicts repeat.
        max_tokens: Of an answer.
        timeout_s: Of one try.
        retries: After failures that may pass (no connection, overload, a server error).
        concurrency: Requests under way at once.
        cache: Folder of the answers so far; None: every request is sent.
        seed: Sent along; part of the cache's key.
        extra: Further fields of the request.
    """

    model: str
    base_url: str
    api_key_variable: str = "OPENAI_API_KEY"
    temperature: float = 0.0
    max_tokens: int = 512
    timeout_s: float = 60.0
    retries: int = 3
    concurrency: int = 16
    cache: Path | None = None
    seed: int = 0
    extra: dict[str, Any] = field(default_factory=dict)


class Endpoint:
    """A chat model; safe to share between threads.

    Raises:
        MissingDependencyError: The openai client is not installed.
        UsageError: The configuration cannot work.
    """

    def __init__(self, config: EndpointConfig) -> None:
        if config.concurrency < 1 or config.retries < 0 or not config.timeout_s > 0:
            raise UsageError(
                "an endpoint needs a concurrency of at least 1, a positive timeout_s and no negative retries"
            )
        openai = optional.require("openai", extra="environments")
        self.config = config
        self._failures = openai.OpenAIError
        self._client = openai.OpenAI(
            base_url=config.base_url,
            api_key=os.environ.get(config.api_key_variable) or "none",
            timeout=config.timeout_s,
            max_retries=config.retries,
        )

    def complete(
        self,
        messages: Sequence[dict[str, str]],
        *,
        schema: dict[str, Any] | None = None,
        fits: Callable[[str], bool] | None = None,
    ) -> str:
        """The model's answer to a conversation.

        Args:
            messages: In OpenAI form.
            schema: JSON Schema that the answer must fit (the server's structured output).
            fits: Whether an answer is of use; others are returned too, but asked for anew the next time.

        Raises:
            DataError: No answer came, after all retries, or what came is none.
        """
        request: dict[str, Any] = {
            "model": self.config.model,
            "messages": list(messages),
            "temperature": self.config.temperature,
            "max_tokens": self.config.max_tokens,
            "seed": self.config.seed,
            **self.config.extra,
        }
        if schema is not None:
            form = {"name": "answer", "schema": schema, "strict": True}
            request["response_format"] = {"type": "json_schema", "json_schema": form}
        path = self._cached(request)
        if path is not None and path.is_file():
            return path.read_text(encoding="utf-8")
        try:
            reply = self._client.chat.completions.create(**request)
            text = reply.choices[0].message.content
        except self._failures as error:
            raise DataError(f"{self.config.base_url}: no answer from {self.config.model} ({_told(error)})") from error
        except Exception as error:  # whatever the client makes of what is no answer: no JSON, no choices, half of one
            raise DataError(f"{self.config.base_url}: an answer without a message; is it a chat endpoint?") from error
        # Halves of surrogate pairs can be neither kept nor sent on.
        text = (text if isinstance(text, str) else "").encode(errors="replace").decode()
        if path is not None and (text if fits is None else fits(text)):
            write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
        return text

    def complete_many(
        self,
        conversations: Sequence[Sequence[dict[str, str]]],
        *,
        schema: dict[str, Any] | None = None,
        fits: Callable[[str], bool] | None = None,
    ) -> list[str | DataError]:
        """Answers to many conversations, in order, `concurrency` at a time; a failure stands where its answer would."""

        def one(messages: Sequence[dict[str, str]]) -> str | DataError:
            try:
                return self.complete(messages, schema=schema, fits=fits)
            except DataError as error:
                return error

        with ThreadPoolExecutor(self.config.concurrency, thread_name_prefix="endpoint") as pool:
            return list(pool.map(one, conversations))

    def _cached(self, request: dict[str, Any]) -> Path | None:
        if self.config.cache is None:
            return None
        text = msgspec.json.encode([self.config.base_url, request], order="sorted")
        key = hashlib.sha256(text).hexdigest()
        folder = self.config.cache / key[:2]
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{key}.txt"


def _told(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
