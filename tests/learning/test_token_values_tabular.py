"""Token-level training on a table of states reaches what dynamic programming says of the same data.

Each decision or message is an attempt of its own, cut off in the state that it leads to. With states as tokens and
one-hot hidden states, linear heads are tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from references import tabular
from toys import ToyTokenizer, toy_dataset
from toys.token_transitions import OneHotModel

from offline_arl.datasets.segments import SegmentDataset, SegmentRow
from offline_arl.models.token_heads import TokenValueHeads
from offline_arl.trainers.config import TokenCQLConfig, TokenIQLConfig
from offline_arl.trainers.token_values import train_token_values

pytestmark = pytest.mark.learning

DISCOUNT = tabular.DISCOUNT
SETTINGS: dict[str, Any] = {
    "hidden_layers": 0, "holdout_fraction": 0.0, "weight_decay": 0.0, "warmup_fraction": 0.0, "learning_rate": 0.03,
    "target_update_rate": 0.5, "batch_size": 1_000, "max_steps": 1_500, "discount": DISCOUNT, "whiten_states": False,
}  # fmt: skip


class Attempt(NamedTuple):
    """A state, the tokens of one message, its reward, and the state it leads to (None: the task is over)."""

    state: int
    action: list[int]
    reward: float
    following: int | None


def _dataset(attempts: list[Attempt], folder: Path) -> SegmentDataset:
    rows = []
    for number, (state, action, reward, following) in enumerate(attempts):
        ended = following is None
        tokens = [state, *action] if following is None else [state, *action, following]
        index = np.array([-1, *[0] * len(action), -1][: len(tokens)], dtype=np.int32)
        rows.append(
            SegmentRow(
                f"t{number}", f"t{number}", None, None, 0, np.array(tokens, dtype=np.int32), index >= 0, index,
                n_steps=1, steps=np.zeros(1, dtype=np.int32), rewards=np.array([reward], dtype=np.float32),
                terminated=np.array([ended]), truncated=np.array([not ended]), final_state=not ended,
            )
        )  # fmt: skip
    return toy_dataset(folder, rows, kind="transitions")


def _trained(attempts: list[Attempt], config: Any, folder: Path, *, seed: int, tokens: int, outputs: int) -> Any:
    """V of each token as a state, and the smaller Q of each token in it: [tokens], [tokens, outputs]."""
    dataset = _dataset(attempts, folder / "data")
    model = OneHotModel(tokens, outputs)
    heads: TokenValueHeads = train_token_values(model, ToyTokenizer(), dataset, config, folder / "out", seed=seed).heads
    states = torch.eye(tokens)
    return heads.v(states).numpy(), heads.q(states).amin(dim=0).numpy()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_token_iql_is_the_expectile_fixed_point(seed: int, tmp_path: Path) -> None:
    """Within 1e-3, on noisy rewards and successors, with actions that the data lack."""
    log = tabular.log_of_random_behavior(seed, 300)
    columns = (log.states, log.actions, log.rewards, log.next_states, log.terminated)
    actions = tabular.N_ACTIONS  # tokens 0, 1 and 2; then come the states
    attempts = [
        Attempt(actions + state, [action], reward, None if ended else actions + following)
        for state, action, reward, following, ended in zip(*columns, strict=True)
    ]
    config = TokenIQLConfig(expectile=0.9, conservative_weight=0.0, **SETTINGS)
    values, q_values = _trained(
        attempts, config, tmp_path, seed=seed, tokens=actions + tabular.N_STATES, outputs=actions
    )
    exact_values, exact_q = tabular.expectile_fixed_point(log, 0.9)
    np.testing.assert_allclose(values[actions:], exact_values, rtol=0, atol=1e-3)
    np.testing.assert_allclose(q_values[actions:][log.support], exact_q[log.support], rtol=0, atol=1e-3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_token_cql_without_its_weight_is_optimal_where_every_token_was_taken(seed: int, tmp_path: Path) -> None:
    """Double Q-learning over the whole vocabulary finds Q* within 1e-3; V at 0.5 is the mean of Q over the data."""
    states, actions = 6, 3
    generator = np.random.default_rng(seed)
    successors = generator.integers(states, size=(states, actions))
    rewards, ends = generator.normal(size=(states, actions)), generator.random((states, actions)) < 0.2
    optimal = np.zeros((states, actions))
    for _ in range(300):
        optimal = rewards + DISCOUNT * np.where(ends, 0.0, optimal.max(axis=1)[successors])
    attempts = [
        Attempt(
            actions + state, [action], float(rewards[state, action]),
            None if ends[state, action] else actions + int(successors[state, action]),
        )
        for state in range(states)
        for action in range(actions)
    ]  # fmt: skip
    config = TokenCQLConfig(**{**SETTINGS, "conservative_weight": 0.0, "learning_rate": 0.1, "target_update_rate": 0.3})
    values, q_values = _trained(attempts, config, tmp_path, seed=seed, tokens=actions + states, outputs=actions)
    np.testing.assert_allclose(q_values[actions:], optimal, rtol=0, atol=1e-3)
    np.testing.assert_allclose(values[actions:], optimal.mean(axis=1), rtol=0, atol=1e-2)


FIRST, SECOND = 2, 3  # choices of the first and of the second token of a message
STATES = 4
TWO_TOKEN_DISCOUNT = 0.5


class TwoTokenTask:
    """Messages of two tokens in four states. What the first token may be says in which state it stands, so a token is
    all there is to know of the past; the second tokens are the same everywhere.
    """

    tokens = STATES + STATES * FIRST + SECOND

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        shape = STATES, FIRST, SECOND
        self.rewards = generator.uniform(0.5, 1.5, size=shape)
        self.successors = generator.integers(STATES, size=shape)
        self.ends = generator.random(shape) < 0.3

    def first(self, state: int, choice: int) -> int:
        return STATES + state * FIRST + choice

    def second(self, choice: int) -> int:
        return STATES + STATES * FIRST + choice

    def attempts(self) -> list[Attempt]:
        """Every message in every state once."""
        return [
            Attempt(
                state, [self.first(state, one), self.second(two)], float(self.rewards[state, one, two]),
                None if self.ends[state, one, two] else int(self.successors[state, one, two]),
            )
            for state, one, two in np.ndindex(STATES, FIRST, SECOND)
        ]  # fmt: skip

    def values(self, *, inside: float, expectile: float | None = None) -> np.ndarray:
        """Q of the second tokens [S, first, second] of the best policy, or where V is an expectile of Q over the data.

        `inside` discounts from the first token to the second.
        """

        def summary(outcomes: np.ndarray) -> np.ndarray:
            table = outcomes.reshape(-1, outcomes.shape[-1])
            if expectile is None:
                return table.max(axis=1).reshape(outcomes.shape[:-1])
            return tabular.expectiles_of(table, np.ones_like(table), expectile).reshape(outcomes.shape[:-1])

        q_values = np.zeros((STATES, FIRST, SECOND))
        for _ in range(100):
            before = summary(inside * summary(q_values))
            q_values = self.rewards + TWO_TOKEN_DISCOUNT * np.where(self.ends, 0.0, before[self.successors])
        return q_values


def _two_token_values(task: TwoTokenTask, config: Any, folder: Path, seed: int) -> tuple[np.ndarray, np.ndarray, Any]:
    """Learned Q of the first tokens [S, first] and of the second tokens [S, first, second], and the whole table."""
    _, q_values = _trained(task.attempts(), config, folder, seed=seed, tokens=task.tokens, outputs=task.tokens)
    firsts = np.array([[task.first(state, one) for one in range(FIRST)] for state in range(STATES)])
    seconds = np.array([task.second(two) for two in range(SECOND)])
    return q_values[np.arange(STATES)[:, None], firsts], q_values[firsts[..., None], seconds], q_values


@pytest.mark.parametrize(("unit", "seed"), [("step", 0), ("step", 1), ("step", 2), ("token", 0)])
def test_values_of_messages_of_several_tokens_are_exact(unit: str, seed: int, tmp_path: Path) -> None:
    """Both tokens of a message, discounted once a message or once a token. Once a message, the best first and second
    tokens are those of the best policy too.
    """
    task = TwoTokenTask(seed)
    settings = {**SETTINGS, "discount": TWO_TOKEN_DISCOUNT, "discount_unit": unit}
    config = TokenIQLConfig(expectile=0.9, conservative_weight=0.0, **settings)
    first, second, _ = _two_token_values(task, config, tmp_path, seed)
    inside = 1.0 if unit == "step" else TWO_TOKEN_DISCOUNT
    exact = task.values(inside=inside, expectile=0.9)
    np.testing.assert_allclose(second, exact, rtol=0, atol=2e-3)
    between = tabular.expectiles_of(exact.reshape(-1, SECOND), np.ones((STATES * FIRST, SECOND)), 0.9)
    np.testing.assert_allclose(first, inside * between.reshape(STATES, FIRST), rtol=0, atol=2e-3)
    if unit == "step":
        _check_ranks(first, second, task.values(inside=inside))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_conservative_values_rank_the_data_and_keep_everything_else_below(seed: int, tmp_path: Path) -> None:
    """With its weight, no token that was never taken in a state is the best there; the best ones are those of Q*."""
    task = TwoTokenTask(seed)
    config = TokenCQLConfig(
        **{**SETTINGS, "discount": TWO_TOKEN_DISCOUNT, "conservative_weight": 0.02, "max_steps": 1_000}
    )
    first, second, table = _two_token_values(task, config, tmp_path, seed)
    _check_ranks(first, second, task.values(inside=1.0))
    for state in range(STATES):
        assert table[state].argmax() == task.first(state, int(first[state].argmax()))
        for one in range(FIRST):
            assert table[task.first(state, one)].argmax() == task.second(int(second[state, one].argmax()))


def _check_ranks(first: np.ndarray, second: np.ndarray, optimal: np.ndarray) -> None:
    """The best first and second tokens are those of the best policy."""
    assert (second.argmax(axis=2) == optimal.argmax(axis=2)).all()
    assert (first.argmax(axis=1) == optimal.max(axis=2).argmax(axis=1)).all()
