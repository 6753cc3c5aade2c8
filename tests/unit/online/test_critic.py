"""The offline critic online: what it says of steps, how it learns, and that it goes on where it was."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from toys.lookup import LookupFamily, ScriptedSampler, call_text, demonstrations, task

from offline_arl.datasets.return_conditioning import fit_conditioning
from offline_arl.environments.protocol import Task
from offline_arl.errors import DataError
from offline_arl.models.policy import hidden_states, load_model, policy_fingerprint, save_policy
from offline_arl.models.tiny import CHAT_TEMPLATE, build_tiny_policy, train_tiny_tokenizer
from offline_arl.models.value_heads import HeadShape, ValueHeads
from offline_arl.online.config import TurnAdvantageConfig
from offline_arl.online.critic import TurnCritic
from offline_arl.rendering import Renderer
from offline_arl.rendering.return_conditioning import ConditioningConfig
from offline_arl.rewards.components import RewardConfig
from offline_arl.rollouts.collect import collect
from offline_arl.rollouts.episode import Episode
from offline_arl.trainers.value_record import ValueRecord, save_values

SIZE = 64
RIGHT, WRONG, ENDLESS = task("122", "A"), task("124", "B"), task("126", "C")
TASKS = [RIGHT, WRONG, ENDLESS, task("128", "D", fail="step"), task("130", "A", fail="reset")]


@dataclasses.dataclass(frozen=True)
class Start:
    """A random policy, random values of it, and episodes on `TASKS`."""

    policy: Path
    values: Path
    renderer: Renderer
    episodes: list[Episode]


def said(prompt: str, _: int) -> str:
    """Look up and answer A; key 126 is looked up for ever, its first call malformed."""
    calls = prompt.count("<|tool|>")
    key = next(key for key in ("122", "124", "126", "128") if key in prompt)
    if key == "126":
        return call_text("126") if calls else "<tool_call>{bad"
    return "A" if calls else call_text(key)


def play(renderer: Renderer, tasks: list[Task] = TASKS, **fields: Any) -> list[Episode]:
    settings: dict[str, Any] = {"temperature": 1.0, "max_tokens_per_step": 40, "seed": 0, **fields}
    sampler = ScriptedSampler(renderer, said, max_model_len=512)
    return collect(LookupFamily(), tasks, sampler, renderer, **settings)


def save_random_values(
    policy: Path, folder: Path, *, seed: int = 0, ensemble: int = 1, window: int = 0, **config: Any
) -> None:
    shape = HeadShape(2 * SIZE if window else SIZE, 2 * SIZE, hidden_size=16, ensemble=ensemble)
    heads = ValueHeads(shape, generator=torch.Generator().manual_seed(seed))
    record = ValueRecord(
        "iql_values", config, 0, str(policy), policy_fingerprint(load_model(policy)), (-1,), "", "", window
    )
    save_values(heads, record, folder, intervals={})


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    folder = tmp_path_factory.mktemp("critic")
    texts = [message.text for item in demonstrations(50, accuracy=1.0, seed=0) for message in item.messages]
    tokenizer = train_tiny_tokenizer([*texts, call_text("123")] * 3, vocabulary_size=300)
    for seed, name in enumerate(("policy", "other")):
        model = build_tiny_policy(tokenizer, seed=seed, hidden_size=SIZE, heads=2, intermediate_size=64)
        save_policy(model, tokenizer, folder / name)
    save_random_values(folder / "policy", folder / "values")
    renderer = Renderer(tokenizer)
    return Start(folder / "policy", folder / "values", renderer, play(renderer))


def load(start: Start, values: Path | None = None, seed: int = 0, **config: Any) -> TurnCritic:
    return TurnCritic.load(
        values or start.values, start.policy, config=TurnAdvantageConfig(**config), dtype="float32", seed=seed
    )


def v(critic: TurnCritic, prefix: NDArray[np.int32]) -> float:
    """V of the state behind some tokens, computed alone."""
    ids = torch.from_numpy(prefix.astype(np.int64))[None]
    with torch.no_grad():
        states, _ = hidden_states(critic._model, ids, torch.ones_like(ids), layers=(-1,))
        state = states[0, -1:]
        if critic._state_window:
            state = torch.cat([state, states[0, -critic._state_window :].mean(dim=0, keepdim=True)], dim=-1)
        return float(critic._learner.heads.v(state))


def by_hand(critic: TurnCritic, episode: Episode, after: float, *, discount: float, trace_decay: float) -> list[float]:
    """delta = reward + discount * V(next) - V; advantage = delta + discount * trace_decay * the next advantage."""
    values = [v(critic, episode.token_ids[:start]) for _, start, _ in episode.segments[0].step_spans()]
    following, advantage, found = after, 0.0, []
    for reward, value in list(zip(episode.rewards, values, strict=True))[::-1]:
        advantage = reward + discount * following - value + discount * trace_decay * advantage
        found.append(advantage)
        following = value
    return found[::-1]


def state_after(start: Start, episode: Episode) -> NDArray[np.int32]:
    """The tokens a policy would go on from: the last step, what the tool said, the prompt of the next step."""
    text = start.renderer.tokenizer.decode(episode.token_ids) + "<|tool|>C<|end|><|assistant|>"
    return np.array(start.renderer.tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)


def test_advantages_are_those_computed_by_hand(start: Start) -> None:
    """Terminated episodes end with nothing; the truncated one is continued by V of the state after its last step."""
    settings = {"discount": 0.9, "trace_decay": 0.8}
    critic = load(start, **settings)
    right, wrong, endless = critic.judge(start.episodes)[:3]
    assert [episode.trajectory.truncated for episode in start.episodes[:3]] == [False, False, True]
    assert start.episodes[2].rewards == [-0.1, 0.0, 0.0]
    assert right == pytest.approx(by_hand(critic, start.episodes[0], 0.0, **settings), abs=1e-5)
    assert wrong == pytest.approx(by_hand(critic, start.episodes[1], 0.0, **settings), abs=1e-5)
    after = v(critic, state_after(start, start.episodes[2]))
    assert endless == pytest.approx(by_hand(critic, start.episodes[2], after, **settings), abs=1e-5)


def test_the_mean_of_an_ensemble_judges_and_learns(start: Start, tmp_path: Path) -> None:
    """Three value functions of other initial weights: their mean is what counts, and the returns pull at each."""
    save_random_values(start.policy, tmp_path / "values", ensemble=3)
    settings = {"discount": 0.9, "trace_decay": 0.8}
    critic = load(start, tmp_path / "values", updates=60, learning_rate=1e-2, batch_size=16, **settings)
    heads, states = critic._learner.heads, torch.randn(2, SIZE)
    members = heads.v_by_member(states)
    assert members.shape == (3, 2)
    assert len(set(members[:, 0].tolist())) == 3
    assert torch.allclose(heads.v(states), members.mean(dim=0))
    right, _ = critic.judge(start.episodes[:2])
    assert right == pytest.approx(by_hand(critic, start.episodes[0], 0.0, **settings), abs=1e-5)
    critic.learn()
    critic.judge(start.episodes[:2])
    assert critic.explained_variance > 0.9
    assert not any(torch.allclose(*pair) for pair in zip(members, heads.v_by_member(states), strict=True))


def test_a_window_of_the_values_is_read_here_too(start: Start, tmp_path: Path) -> None:
    save_random_values(start.policy, tmp_path / "values", window=5)
    settings = {"discount": 0.9, "trace_decay": 0.8}
    critic = load(start, tmp_path / "values", **settings)
    right, wrong = critic.judge(start.episodes[:2])
    assert right == pytest.approx(by_hand(critic, start.episodes[0], 0.0, **settings), abs=1e-5)
    assert wrong == pytest.approx(by_hand(critic, start.episodes[1], 0.0, **settings), abs=1e-5)


def test_truncation_is_an_end_where_the_values_were_trained_so(start: Start, tmp_path: Path) -> None:
    save_random_values(start.policy, tmp_path / "values", truncation="terminal")
    critic = load(start, tmp_path / "values", discount=1.0, trace_decay=0.5)
    (endless,) = critic.judge([start.episodes[2]])
    assert endless == pytest.approx(by_hand(critic, start.episodes[2], 0.0, discount=1.0, trace_decay=0.5), abs=1e-5)


def test_a_step_that_the_environment_did_not_take_is_only_a_next_state(start: Start) -> None:
    """Of three sampled steps two were taken: V before the third continues them, and it has no advantage."""
    critic = load(start)
    cut = dataclasses.replace(start.episodes[2], rewards=[0.5, 0.25])
    (found,) = critic.judge([cut])
    before = [v(critic, cut.token_ids[:begin]) for _, begin, _ in cut.segments[0].step_spans()]
    second = 0.25 + before[2] - before[1]
    assert found == pytest.approx([0.5 + before[1] - before[0] + 0.95 * second, second], abs=1e-5)


def test_where_nothing_followed_a_cut_its_step_has_no_advantage(start: Start) -> None:
    """There is no state after the last step to continue with; the steps before it are continued by V before it."""
    critic = load(start)
    episode = start.episodes[2]
    assert episode.trajectory.messages[-1].role == "tool"
    trajectory = msgspec.structs.replace(episode.trajectory, messages=episode.trajectory.messages[:-1])
    (found,) = critic.judge([dataclasses.replace(episode, trajectory=trajectory)])
    before = [v(critic, episode.token_ids[:begin]) for _, begin, _ in episode.segments[0].step_spans()]
    second = before[2] - before[1]
    assert found == pytest.approx([-0.1 + before[1] - before[0] + 0.95 * second, second, 0.0], abs=1e-5)


def test_episodes_of_a_failed_harness_get_zeros(start: Start) -> None:
    """Step 1 of the fourth episode raised, the fifth never started; alone they leave nothing to learn from."""
    critic = load(start)
    fourth, fifth = critic.judge(start.episodes)[3:]
    assert fourth.tolist() == fifth.tolist() == []
    assert critic.learn()
    critic.judge(start.episodes[3:])
    assert critic.learn() == {}
    assert np.isnan(critic.explained_variance)


def test_an_exact_critic_sees_no_advantage(start: Start) -> None:
    """Undiscounted, every state of a sure success is worth 1; V is the bias of the last layer alone."""
    critic = load(start, trace_decay=0.7)
    with torch.no_grad():
        for parameter in critic._learner.heads.value.parameters():
            parameter.zero_()
        critic._learner.heads.value.biases[-1].fill_(1.0)
    right, wrong = critic.judge(start.episodes[:2])
    assert right == pytest.approx([0.0, 0.0], abs=1e-7)
    assert wrong == pytest.approx([-0.7, -1.0], abs=1e-6)


def test_learning_explains_more_of_the_returns(start: Start) -> None:
    critic = load(start, updates=60, learning_rate=1e-2, batch_size=16, trace_decay=1.0)
    critic.judge(start.episodes[:2])
    before = critic.explained_variance
    losses = critic.learn()
    right, wrong = critic.judge(start.episodes[:2])
    assert critic.explained_variance > max(before, 0.9)
    assert np.abs([*right, *wrong]).max() < 0.2
    assert set(losses) == {"value_loss", "q_loss", "mean_q", "mean_v"}
    assert critic.learn()["value_loss"] < losses["value_loss"] / 10


def test_explained_variance_is_one_minus_the_share_of_the_error(start: Start) -> None:
    """Returns 1, 1, 0, 0 against V of the four states, sample variances."""
    critic = load(start, trace_decay=0.3)
    critic.judge(start.episodes[:2])
    values = [
        v(critic, episode.token_ids[:begin])
        for episode in start.episodes[:2]
        for _, begin, _ in episode.segments[0].step_spans()
    ]
    returns = np.array([1.0, 1.0, 0.0, 0.0])
    assert critic.explained_variance == pytest.approx(1 - np.var(returns - values) / np.var(returns), abs=1e-4)


def test_without_updates_the_values_stay_as_they_are(start: Start) -> None:
    critic = load(start, updates=0)
    critic.judge(start.episodes)
    before = policy_fingerprint(critic._learner.heads)
    assert critic.learn() == {}
    assert policy_fingerprint(critic._learner.heads) == before


def test_the_model_is_frozen_and_the_caller_keeps_the_random_state(start: Start) -> None:
    state = torch.get_rng_state()
    critic = load(start)
    critic.judge(start.episodes)
    critic.learn()
    assert policy_fingerprint(critic._model) == policy_fingerprint(load_model(start.policy))
    assert not any(parameter.requires_grad for parameter in critic._model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_restored_critic_learns_the_very_same_weights(start: Start, tmp_path: Path) -> None:
    """Targets, moments and random state count: a critic that only has the same weights learns others."""
    straight, resumed, forgetful = (load(start, batch_size=2, seed=seed) for seed in (0, 1, 1))
    straight.judge(start.episodes)
    straight.learn()
    straight.save(tmp_path)
    resumed.restore(tmp_path)
    forgetful._learner.heads.load_state_dict(straight._learner.heads.state_dict())
    advantages = []
    for critic in (straight, resumed, forgetful):
        advantages.append(critic.judge(start.episodes))
        critic.learn()
    first, second, third = (critic._learner.state() for critic in (straight, resumed, forgetful))
    assert set(first) == set(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], third[name]) for name in first)
    assert all(np.array_equal(*pair) for pair in zip(*advantages[:2], strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["critic.safetensors"]


def test_a_state_of_other_values_or_a_damaged_one_is_refused(start: Start, tmp_path: Path) -> None:
    save_random_values(start.policy, tmp_path / "values", seed=1)
    load(start, tmp_path / "values").save(tmp_path)
    with pytest.raises(DataError, match="critic from other values; name those, or begin anew"):
        load(start).restore(tmp_path)
    (tmp_path / "critic.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"cannot read the state of the critic .*; begin anew"):
        load(start).restore(tmp_path)
    with pytest.raises(DataError, match="cannot read the state"):
        load(start).restore(tmp_path / "elsewhere")


def test_values_of_another_model_are_refused(start: Start, tmp_path: Path) -> None:
    other = start.policy.parent / "other"
    with pytest.raises(DataError, match=r"read the hidden states of .*policy, not of .*other in float32; name the pol"):
        TurnCritic.load(start.values, other, config=TurnAdvantageConfig(), dtype="float32", seed=0)
    with pytest.raises(DataError, match=r"not of .* in bfloat16; .* in the same dtype"):
        TurnCritic.load(start.values, start.policy, config=TurnAdvantageConfig(), dtype="bfloat16", seed=0)
    with pytest.raises(DataError, match="no step-level value heads; name a stage such as iql_values"):
        TurnCritic.load(start.policy, start.policy, config=TurnAdvantageConfig(), dtype="float32", seed=0)


def test_episodes_of_another_template_are_refused(start: Start) -> None:
    template = CHAT_TEMPLATE.replace("'<|user|>'", "'<|user|>: '")
    other = Renderer(start.renderer.tokenizer, chat_template=template)
    with pytest.raises(DataError, match=r"another tokenizer or chat template .*; train values on a dataset"):
        load(start).judge(play(other, [RIGHT]))
    with pytest.raises(DataError, match="another tokenizer or chat template"):
        load(start).first_values(LookupFamily(), [RIGHT], other)


def test_first_values_are_those_of_the_first_states(start: Start) -> None:
    """Two tasks may look alike at first; one that does not start has no value."""
    critic = load(start)
    twin = dataclasses.replace(RIGHT, task_id="twin")
    found = critic.first_values(LookupFamily(), [RIGHT, TASKS[4], ENDLESS, twin], start.renderer)
    expected = [
        v(critic, episode.token_ids[: episode.prompt_length]) for episode in (start.episodes[0], start.episodes[2])
    ]
    assert np.isnan(found[1])
    assert found[[0, 2, 3]] == pytest.approx([*expected, expected[0]], abs=1e-6)
    assert expected[0] != pytest.approx(expected[1], abs=1e-3)


def test_what_a_policy_is_asked_for_does_not_change_what_a_step_is_worth(start: Start) -> None:
    """Values are trained on text without conditions, so episodes with conditions are judged without them."""
    trajectories = [episode.trajectory for episode in start.episodes[:3]]
    conditioning = fit_conditioning(
        trajectories, rewards=RewardConfig(source="logged"), config=ConditioningConfig(form="number")
    )
    asked = play(start.renderer, [RIGHT, WRONG, ENDLESS], conditioning=conditioning)
    assert len(asked[0].token_ids) > len(start.episodes[0].token_ids)
    critic = load(start)
    plain, conditioned = critic.judge(start.episodes[:3]), critic.judge(asked)
    for one, other in zip(plain, conditioned, strict=True):
        assert other == pytest.approx(one, abs=1e-5)


def test_the_state_is_plain_tensors(start: Start, tmp_path: Path) -> None:
    critic = load(start, updates=1)
    critic.judge(start.episodes)
    critic.learn()
    critic.save(tmp_path)
    header = (tmp_path / "critic.safetensors").read_bytes()
    names = set(json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")]))
    assert {"random", "heads.value.weights.0", "target.weights.0", "optimizer.0.exp_avg"} <= names
