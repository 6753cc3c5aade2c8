"""A two-step toy task that a small Llama learns in seconds: look a key up, answer with what the tool said.

Also a noisy demonstrator for it, a policy cloned from that demonstrator, and a sampler that says what it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offline_arl.environments.protocol import EpisodeStart, StepResult, Task
from offline_arl.rendering import Renderer
from offline_arl.rollouts.sampler import Completion, SamplingConfig, check_request
from offline_arl.trajectories.calls import call_problem
from offline_arl.trajectories.schema import (
    Context,
    Message,
    MessageError,
    Outcome,
    Producer,
    Source,
    TextPart,
    Trajectory,
    text_message,
    tool_call,
)

PARAMETERS = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": PARAMETERS}}]
ANSWERS = "ABCD"
PENALTY = 0.1


class Lookup:
    """One episode. A malformed call costs a penalty; text ends the episode; three steps at most."""

    max_steps = 3

    def reset(self, task: Task) -> EpisodeStart:
        if task.payload.get("fail") == "reset":
            raise RuntimeError("no database")
        self._task, self._steps, self._answer = task, 0, ""
        return EpisodeStart([text_message("user", f"what is {task.payload['key']}?", kind="script")], TOOLS)

    def step(self, message: Message) -> StepResult:
        if self._task.payload.get("fail") == "step":
            raise RuntimeError("connection lost")
        self._steps += 1
        replies, invalid = [], 0
        for call in message.tool_calls:
            problem = call_problem(call, TOOLS)
            invalid += problem is not None
            right = problem is None and call.arguments == {"key": self._task.payload["key"]}
            error = None if problem is None else MessageError(problem.kind, problem.text)
            text = self._task.payload["answer"] if right else "unknown"
            replies.append(
                Message("tool", [TextPart(text)], tool_call_id=call.id, error=error, producer=Producer("environment"))
            )
        if not message.tool_calls:
            self._answer = message.text
        terminated = not message.tool_calls
        truncated = not terminated and self._steps >= self.max_steps
        reward = -PENALTY * invalid
        if terminated or truncated:
            reward += float(bool(self.outcome().success))
        reason = "answered" if terminated else "max_steps" if truncated else None
        return StepResult(replies, reward, terminated, truncated, reason, {"invalid_actions": invalid})

    def outcome(self) -> Outcome:
        if self._task.payload.get("fail") == "outcome":
            raise RuntimeError("the judge is away")
        success = self._answer.strip() == self._task.payload["answer"]
        return Outcome("scored", success=success, score=float(success), scorer="lookup")


class LookupFamily:
    """Keys are 000 to 999; the splits take them by their remainder."""

    name = "lookup"

    def make(self) -> Lookup:
        return Lookup()

    def tasks(self, split: str, count: int, *, seed: int) -> list[Task]:
        generator = np.random.default_rng(seed)
        keys = np.arange(["train", "validation", "test"].index(split), 1000, 3)
        chosen = generator.permutation(keys)[:count]
        return [task(f"{key:03d}", ANSWERS[generator.integers(4)]) for key in chosen]


def task(key: str, answer: str, *, fail: str | None = None) -> Task:
    payload = {"key": key, "answer": answer} | ({} if fail is None else {"fail": fail})
    return Task(task_id=f"lookup-{key}", task_type="odd" if int(key) % 2 else "even", payload=payload)


def demonstrations(count: int, *, accuracy: float, seed: int) -> list[Trajectory]:
    """Right lookups; the answer is right with a chance of `accuracy`, else any of the four letters."""
    generator = np.random.default_rng(seed)
    found = []
    for index in range(count):
        key, answer = f"{3 * generator.integers(333):03d}", ANSWERS[generator.integers(4)]
        said = answer if generator.random() < accuracy else ANSWERS[generator.integers(4)]
        messages = [
            text_message("user", f"what is {key}?"),
            Message("assistant", tool_calls=[tool_call("look", {"key": key}, id="a")]),
            Message("tool", [TextPart(answer)], tool_call_id="a"),
            text_message("assistant", said),
        ]
        contexts = [Context(0, tools='[{"type":"function","function":{"name":"look","parameters":{"type":"object",'
                               '"properties":{"key":{"type":"string"}},"required":["key"]}}}]')]  # fmt: skip
        found.append(Trajectory(f"demo-{index}", messages, Source("toy"), contexts=contexts))
    return found


def save_cloned_policy(folder: Path, *, accuracy: float, updates: int, seed: int = 0, tied: bool = True) -> None:
    """Clone demonstrations into a Llama of 0.1 M parameters and save it; about ten seconds."""
    from offline_arl.models.policy import save_policy
    from offline_arl.models.tiny import build_tiny_policy, train_tiny_tokenizer

    shown = demonstrations(2000, accuracy=accuracy, seed=seed)
    texts = [text for item in shown for message in item.messages for text in _texts(message)]
    tokenizer = train_tiny_tokenizer(texts, vocabulary_size=300)
    renderer = Renderer(tokenizer)
    model = build_tiny_policy(
        tokenizer, seed=seed, hidden_size=64, layers=2, heads=2, intermediate_size=128, tie_embeddings=tied
    )
    segments = [renderer.render(item)[0] for item in shown]
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=updates, pct_start=0.1)
    order = np.random.default_rng(seed)
    for _ in range(updates):
        batch = [segments[index] for index in order.integers(len(segments), size=32)]
        width = max(map(len, batch))
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        for row, segment in enumerate(batch):
            ids[row, : len(segment)] = torch.from_numpy(segment.token_ids.astype(np.int64))
            labels[row, : len(segment)][torch.from_numpy(segment.action_mask)] = ids[row, : len(segment)][
                torch.from_numpy(segment.action_mask)
            ]
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    save_policy(model.eval(), tokenizer, folder)


def _texts(message: Message) -> Iterable[str]:
    if message.text:
        yield message.text
    for call in message.tool_calls:
        yield f'{{"name": "{call.name}", "arguments": {call.arguments_raw}}}'


def call_text(key: str) -> str:
    return f'<tool_call>{{"name": "look", "arguments": {{"key": "{key}"}}}}</tool_call>'


class ScriptedSampler:
    """Says what `script` returns for (text of the prompt, seed); None: sixteen tokens without an end."""

    backend = "scripted"

    def __init__(
        self, renderer: Renderer, script: Callable[[str, int], str | None], *, max_model_len: int = 256
    ) -> None:
        self.max_model_len = max_model_len
        self.batches: list[int] = []  # prompts of each call
        self._renderer, self._script = renderer, script

    def generate(
        self, prompts: Sequence[Sequence[int]], config: SamplingConfig, *, seeds: Sequence[int]
    ) -> list[Completion]:
        check_request(prompts, config, seeds, self.max_model_len)
        self.batches.append(len(prompts))
        tokenizer = self._renderer.tokenizer
        completions = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            text = self._script(tokenizer.decode(prompt), seed)
            ids = tokenizer.encode("x" if text is None else text, add_special_tokens=False)
            ids = ids * 16 if text is None else [*ids, self._renderer.stop_token_ids[0]]
            logprobs = [-0.01 * (seed % 7 + position) for position in range(len(ids))]
            completions.append(Completion(ids, logprobs, "length" if text is None else "stop"))
        return completions

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass
