"""A window of the history: what a prompt shows, the same in rendering, rollouts and datasets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from offline_arl.datasets.segments import SegmentDataset
from offline_arl.datasets.transitions import TransitionsConfig, build_transitions
from offline_arl.environments.probes.double_t_maze import DoubleTMaze, family
from offline_arl.errors import TemplateError, UsageError
from offline_arl.models.tiny import train_tiny_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.rendering.history import SETTINGS, set_history_steps, window
from offline_arl.rewards.components import RewardConfig
from offline_arl.rollouts.collect import collect
from offline_arl.rollouts.sampler import Completion
from offline_arl.trajectories.schema import Context, Message, Source, Trajectory, text_message, tool_call

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
CHAT = [
    text_message("system", "Walk."),
    text_message("user", "one"),
    text_message("assistant", "left"),
    text_message("user", "two"),
    text_message("assistant", "right"),
    text_message("user", "three"),
]


def walk(*, tools: bool = False, steps: int = 3) -> Trajectory:
    messages = [text_message("system", "Walk.")]
    for step in range(steps):
        messages += [text_message("user", f"state {step}"), text_message("assistant", f"go {step}")]
    contexts = [Context(0, tools=json.dumps(TOOLS))] if tools else []
    return Trajectory("walk", [*messages, text_message("user", "the end")], Source("test"), contexts=contexts)


def renderer(history_steps: int | None, tokenizer: Any = None) -> Renderer:
    if tokenizer is None:
        tokenizer = train_tiny_tokenizer([message.text for message in walk().messages] * 9, vocabulary_size=300)
    set_history_steps(tokenizer, history_steps)
    return Renderer(tokenizer)


def shown(rendering: Renderer, trajectory: Trajectory) -> list[str]:
    return [rendering.tokenizer.decode(segment.token_ids) for segment in rendering.render(trajectory)]


@pytest.mark.parametrize(
    ("end", "history_steps", "expected"),
    [
        (1, 0, [0]),  # nothing has been said yet
        (2, 0, [0, 1]),
        (4, 0, [0, 3]),
        (4, 1, [0, 1, 2, 3]),
        (6, 0, [0, 5]),
        (6, 1, [0, 3, 4, 5]),
        (6, 2, [0, 1, 2, 3, 4, 5]),
        (6, 9, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_window_is_the_system_prompt_and_the_latest_steps(end: int, history_steps: int, expected: list[int]) -> None:
    assert window(CHAT, end, history_steps) == expected


def test_a_window_that_begins_with_a_result_shows_its_call() -> None:
    call = Message("assistant", tool_calls=[tool_call("look", {}, id="a")])
    result = text_message("tool", "nothing")
    messages = [text_message("user", "Hi"), call, result, call, result, result]
    assert window(messages, 6, 0) == [3, 4, 5]
    assert window(messages, 6, 1) == [1, 2, 3, 4, 5]


def test_each_step_is_a_segment_of_what_the_window_shows() -> None:
    head = "<|system|>Walk.<|end|>"
    turn = "<|user|>state {0}<|end|><|assistant|>go {0}<|end|>"
    turns = [turn.format(step) for step in range(3)]
    assert shown(renderer(0), walk()) == [head + turns[0], head + turns[1], head + turns[2]]
    assert shown(renderer(1), walk()) == [head + turns[0], head + turns[0] + turns[1], head + turns[1] + turns[2]]
    assert shown(renderer(None), walk()) == [head + "".join(turns)]


def test_only_the_steps_own_tokens_are_trained() -> None:
    rendering = renderer(1)
    for step, segment in enumerate(rendering.render(walk())):
        assert rendering.tokenizer.decode(segment.token_ids[segment.action_mask]) == f"go {step}<|end|>"
        assert set(segment.step_index[segment.action_mask].tolist()) == {step}
        assert (segment.step_index[~segment.action_mask] == -1).all()


def test_tools_stay_in_every_window() -> None:
    texts = shown(renderer(0), walk(tools=True))
    assert len(texts) == 3
    assert all("look()" in text for text in texts)


@pytest.mark.parametrize("family_name", ["tiny", "qwen2.5", "qwen3-original", "llama3.1", "mistral"])
def test_a_prompt_is_what_precedes_the_step(family_name: str, renderer_of: Any) -> None:
    rendering = renderer(1, renderer_of(family_name).tokenizer)
    try:
        trajectory = walk(tools=family_name != "mistral")
        for segment, index in zip(rendering.render(trajectory), trajectory.step_indices(), strict=True):
            prompt = rendering.prompt(trajectory.messages[:index], trajectory.tools_at(index))
            assert segment.token_ids[~segment.action_mask].tolist() == prompt
    finally:
        set_history_steps(rendering.tokenizer, None)


def test_a_window_longer_than_the_chat_gives_the_tokens_of_the_whole_chat() -> None:
    whole, windowed = renderer(None), renderer(9)
    assert windowed.prompt(walk().messages, None) == whole.prompt(walk().messages, None)


def test_a_step_of_a_window_that_is_too_long_is_left_out() -> None:
    """The first step has less before it than the others: it alone fits."""
    rendering = renderer(1)
    first, *others = rendering.render(walk())
    assert [segment.token_ids.tolist() for segment in rendering.render(walk(), max_tokens=len(first))] == [
        first.token_ids.tolist()
    ]
    assert all(len(segment) > len(first) for segment in others)


def test_a_window_seen_before_is_rendered_once_and_keeps_its_own_step() -> None:
    rendering = renderer(0)
    again = Trajectory("again", [*walk().messages[:3], *walk().messages[1:3]], Source("test"))
    first, second = rendering.render(again)
    assert first.token_ids is second.token_ids
    assert [set(segment.step_index[segment.action_mask].tolist()) for segment in (first, second)] == [{0}, {1}]
    assert rendering.render(walk())[0].trajectory_id == "walk"
    with_tools = rendering.render(walk(tools=True))[0]
    assert len(with_tools) > len(first)


def test_the_setting_survives_saving_and_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    rendering = renderer(1)
    rendering.tokenizer.init_kwargs[SETTINGS]["another"] = "setting"
    rendering.tokenizer.save_pretrained(tmp_path)
    loaded = Renderer(AutoTokenizer.from_pretrained(tmp_path))
    assert (loaded.history_steps, loaded.fingerprint) == (1, rendering.fingerprint)
    fingerprints = {renderer(steps, loaded.tokenizer).fingerprint for steps in (None, 0, 1)}
    assert len(fingerprints) == 3
    assert loaded.tokenizer.init_kwargs[SETTINGS] == {"another": "setting", "history_steps": 1}


@pytest.mark.parametrize("wrong", [-1, 1.0, True, "1"])
def test_what_is_no_number_of_steps_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="history_steps is"):
        renderer(wrong)


def test_a_window_has_no_prompt_that_goes_on() -> None:
    rendering = renderer(0)
    assert not rendering.prefix_preserving
    with pytest.raises(TemplateError, match="window of its history"):
        rendering.extend([1, 2], [text_message("user", "next")], None)


class _Walker:
    """Samples the text that a script names, with odd token ids: letter by letter."""

    backend, max_model_len = "script", 512

    def __init__(self, rendering: Renderer) -> None:
        self.rendering = rendering
        self.prompts: list[list[int]] = []

    def generate(self, prompts: Any, config: Any, *, seeds: Any) -> list[Any]:
        self.prompts += [list(prompt) for prompt in prompts]
        encode = self.rendering.tokenizer.encode
        words = ["up", "sideways", "left"]
        ids = [token for letter in words[len(self.prompts) % 3] for token in encode(letter)]
        sampled = [*ids, self.rendering.stop_token_ids[0]]
        return [Completion(sampled, [-0.5] * len(sampled), "stop") for _ in prompts]

    def load_weights(self, weights: Any) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("history_steps", [0, 2])
def test_rollouts_rendering_and_datasets_agree_token_for_token(history_steps: int, tmp_path: Path) -> None:
    """What the sampler saw and said, with its own token ids, is what training sees; the last state is the next prompt.

    An action of the past stands in later prompts with the very ids that were sampled.
    """
    tokenizer = train_tiny_tokenizer(["left right up down A1 B2 Walk through the maze"] * 9, vocabulary_size=300)
    rendering = renderer(history_steps, tokenizer)
    sampler = _Walker(rendering)
    (episode,) = collect(
        lambda: DoubleTMaze(max_steps=5),
        family.tasks("validation", 1, seed=0),
        sampler,
        rendering,
        temperature=1.0,
        max_tokens_per_step=16,
        seed=0,
    )
    trajectory = episode.trajectory
    segments = rendering.render(trajectory)
    assert len(segments) == len(episode.segments) == 5
    for rendered, played, prompt in zip(segments, episode.segments, sampler.prompts, strict=True):
        assert rendered.token_ids.tolist() == played.token_ids.tolist()
        assert rendered.token_ids[~rendered.action_mask].tolist() == prompt
        assert rendered.step_index.tolist() == played.step_index.tolist()
        assert np.array_equal(rendered.logprobs, played.logprobs, equal_nan=True)
        assert not rendered.rendered
    config = TransitionsConfig(rewards=RewardConfig(source="logged"))
    build_transitions([trajectory], rendering, tmp_path / "data", config=config)
    rows = list(SegmentDataset.load(tmp_path / "data"))
    assert [row.token_ids.tolist() for row in rows[:-1]] == [segment.token_ids.tolist() for segment in segments]
    assert [row.rewards.tolist() for row in rows] == [*([reward] for reward in episode.rewards), []]
    assert rows[-1].final_state
    assert rows[-1].token_ids.tolist() == rendering.prompt(trajectory.messages, [])
