"""The random walks: trlx's graph, its data and its measure."""

from __future__ import annotations

import numpy as np
import pytest

from offline_arl.environments.probes.random_walks import (
    MAX_LENGTH,
    NODES,
    RandomWalk,
    expected_optimality,
    family,
    graph,
    optimality,
    shortest_lengths,
    walker_policy,
)
from offline_arl.trajectories.schema import text_message


def test_the_graph_is_that_of_the_example() -> None:
    """Derived once with trlx's own procedure and seed: 42 edges, the farthest nodes four steps away."""
    edges = {node: "".join(successors) for node, successors in graph().items()}
    assert edges == {
        "a": "", "b": "a", "c": "ou", "d": "noqu", "e": "jor", "f": "p", "g": "bq", "h": "n", "i": "np", "j": "gmqr",
        "k": "air", "l": "cdu", "m": "h", "n": "b", "o": "st", "p": "imn", "q": "kmp", "r": "mp", "s": "en", "t": "b",
        "u": "a",
    }  # fmt: skip
    lengths = [shortest_lengths()[node] for node in NODES]
    assert lengths == [1, 2, 3, 3, 5, 5, 3, 4, 4, 4, 2, 3, 5, 3, 4, 4, 3, 5, 4, 3, 2]


def test_shortest_lengths_are_the_first_powers_of_the_graph_that_reach_the_goal() -> None:
    edges = np.array([[other in graph()[node] for other in NODES] for node in NODES], dtype=np.int64)
    for node, start in zip(NODES[1:], np.eye(len(NODES), dtype=np.int64)[1:], strict=True):
        reached, length = start, 1
        while not reached[0]:
            reached, length = reached @ edges, length + 1
        assert shortest_lengths()[node] == length


def test_the_walks_of_the_example_have_the_published_optimality() -> None:
    """trlx draws its 1,000 walks from the generator that drew the graph: 0.790 in the mean, 53.9 % optimal."""
    generator = np.random.RandomState(1002)
    while True:
        edges = generator.rand(21, 21) > 0.9
        np.fill_diagonal(edges, val=False)
        if edges.any(axis=1).all():
            break
    walks = []
    for _ in range(1000):
        node = 0
        while node == 0:
            node = generator.randint(21)
        walk = [node]
        while len(walk) < MAX_LENGTH and walk[-1] != 0:
            walk.append(generator.choice(np.flatnonzero(edges[walk[-1]])))
        walks.append("".join(NODES[node] for node in walk))
    measures = np.array([optimality(walk) for walk in walks])
    assert measures.mean() == pytest.approx(0.790, abs=5e-4)
    assert (measures == 1.0).mean() == pytest.approx(0.539, abs=1e-9)


def test_exact_expectations() -> None:
    np.testing.assert_allclose(expected_optimality(), 1.0, atol=1e-12)
    assert expected_optimality(walker_policy()).mean() == pytest.approx(0.785171, abs=1e-6)


def test_the_generated_logs_are_like_the_example() -> None:
    measures = np.array([record["outcome"]["score"] for record in family.records(1000, seed=0)])
    assert measures.mean() == pytest.approx(0.785, abs=0.03)  # three standard errors
    assert (measures == 1.0).mean() == pytest.approx(0.537, abs=0.047)


@pytest.mark.parametrize(
    ("walk", "measure"),
    [
        ("ka", 1.0),
        ("gba", 1.0),
        ("gqka", 6 / 7),  # 4 nodes where 3 do: (10 - 4) / (10 - 3)
        ("gqkrmhnba", 1 / 7),  # 9 nodes
        ("fpihnba", 0.0),  # no edge from i to h
        ("gbab", 1.0),  # what follows the goal does not count
        ("gb", 0.0),
        ("g", 0.0),
        ("", 0.0),
        ("a", 0.0),
        ("Za", 0.0),
    ],
)
def test_optimality(walk: str, measure: float) -> None:
    assert optimality(walk) == pytest.approx(measure)


def test_an_episode_pays_its_optimality_on_arrival() -> None:
    walk = RandomWalk()
    start = walk.reset(family.tasks("test", 6, seed=0)[5])
    assert start.messages[1].text == "g"
    rewards = []
    for node in "qka":
        result = walk.step(text_message("assistant", node))
        rewards.append(result.reward)
    assert rewards == [0.0, 0.0, 6 / 7]
    assert (result.terminated, result.truncated, result.stop_reason, result.messages) == (True, False, "arrived", [])
    assert walk.outcome().components == {"return": 6 / 7, "optimality": 6 / 7}


def test_a_step_without_an_edge_ends_the_walk_and_pays_nothing() -> None:
    walk = RandomWalk()
    walk.reset(family.tasks("test", 6, seed=0)[5])
    result = walk.step(text_message("assistant", "a"))
    assert (result.reward, result.terminated, result.stop_reason) == (0.0, True, "illegal_move")
    assert result.info == {"invalid_actions": 1}
    assert (walk.outcome().success, walk.outcome().score) == (False, 0.0)


def test_the_tenth_node_is_the_last() -> None:
    walk = RandomWalk()
    walk.reset(family.tasks("test", 9, seed=0)[8])  # from j
    for node in "gqkrpmhnb":
        result = walk.step(text_message("assistant", node))
    assert (result.terminated, result.truncated, result.stop_reason, result.reward) == (False, True, "max_steps", 0.0)
    assert [message.text for message in result.messages] == ["b"]
    assert walk.outcome().success is False
