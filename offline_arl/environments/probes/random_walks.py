"""Shortest walks in a random directed graph, learned from random walks: the task of trlx's `examples/randomwalks`.

21 nodes, named by letters; each has an edge to each other one with probability 0.1, and at least one. Walks end in
node `a`. A walk has at most 10 nodes. Its optimality is (10 - length) / (10 - length of the shortest walk from its
start), where the length counts nodes and a walk that does not arrive counts 10: 1 for a shortest walk, 0 for one that
does not arrive within the limit or takes an edge that is not there.

The state is the node, the action the node to go to. The reward is the optimality, at the last step. A step to where
no edge leads, or that names no node, ends the episode as an illegal move, with reward 0, as an invalid walk does in
trlx.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from offline_arl.environments.probes.dynamic_programming import (
    FloatArray,
    TabularMDP,
    start_values,
)
from offline_arl.environments.probes.environment import Move, Probe
from offline_arl.environments.probes.family import Behavior, ExamplePolicies, ProbeFamily, Start, tabular
from offline_arl.environments.protocol import Task

NODES = tuple("abcdefghijklmnopqrstu")
GOAL = NODES[0]
EDGE_PROBABILITY = 0.1
MAX_LENGTH = 10  # nodes of a walk, the first included
MAX_STEPS = MAX_LENGTH - 1
GRAPH_SEED = 1002  # of trlx's example; the graph does not depend on the seed of the logs


@cache
def graph() -> Mapping[str, tuple[str, ...]]:
    """The successors of each node, in alphabetical order; none for the goal, where walks end.

    The same graph as trlx's, which draws it with NumPy's legacy generator: whole matrices until no node is without
    a successor.
    """
    generator = np.random.RandomState(GRAPH_SEED)
    while True:
        edges = generator.rand(len(NODES), len(NODES)) > 1 - EDGE_PROBABILITY
        edges &= ~np.eye(len(NODES), dtype=np.bool_)
        if edges.any(axis=1).all():
            break
    successors = {
        node: tuple(other for other, edge in zip(NODES, row, strict=True) if edge)
        for node, row in zip(NODES, edges, strict=True)
    }
    return {**successors, GOAL: ()}


@cache
def shortest_lengths() -> Mapping[str, int]:
    """Nodes of the shortest walk to the goal from each node, both ends included; at most `MAX_LENGTH`."""
    lengths = {GOAL: 1}
    waiting = deque([GOAL])
    while waiting:
        reached = waiting.popleft()
        for node, successors in graph().items():
            if reached in successors and node not in lengths:
                lengths[node] = lengths[reached] + 1
                waiting.append(node)
    return {node: min(lengths.get(node, MAX_LENGTH), MAX_LENGTH) for node in NODES}


def optimality(walk: Sequence[str]) -> float:
    """How close a walk comes to the shortest one from its start, from 0 to 1.

    Args:
        walk: Names of the nodes, from the start on; what follows the first arrival at the goal does not count.

    >>> optimality("gba"), round(optimality("gqka"), 3), optimality("gb"), optimality("ga")
    (1.0, 0.857, 0.0, 0.0)
    """
    if not walk or walk[0] not in NODES[1:]:
        return 0.0
    for length, (node, following) in enumerate(pairwise(walk), start=2):
        if following not in graph()[node]:
            return 0.0
        if following == GOAL:
            return max(0.0, (MAX_LENGTH - length) / (MAX_LENGTH - shortest_lengths()[walk[0]]))
    return 0.0


class RandomWalk(Probe):
    """One walk."""

    name: ClassVar[str] = "random_walks"
    instructions: ClassVar[str] = "Walk to a along the edges of the graph. Answer with the next node."

    def __init__(self, *, max_steps: int = MAX_STEPS) -> None:
        super().__init__(max_steps=max_steps)

    def _begin(self, payload: dict[str, Any]) -> str:
        self._walk: list[str] = [str(payload["start"])]
        return self._walk[0]

    def _act(self, action: str) -> Move:
        node = self._walk[-1]
        if action not in graph()[node]:
            return Move(node, 0.0, "illegal_move", invalid=True)
        self._walk.append(action)
        if action == GOAL:
            return Move(action, optimality(self._walk), "arrived")
        return Move(action, 0.0)

    def _judge(self) -> tuple[bool, float, dict[str, float]]:
        measure = optimality(self._walk)
        return self._walk[-1] == GOAL, measure, {"optimality": measure}


class RandomWalksFamily(ProbeFamily):
    """Random walks, found by the name "random_walks". Success is arrival within the limit; the score is optimality."""

    name: ClassVar[str] = "random_walks"

    def make(self) -> RandomWalk:
        """A fresh environment."""
        return RandomWalk()

    def starts(self, split: str, *, seed: int) -> Sequence[Start]:
        """Every node but the goal; the task type says how far it is from the goal."""
        return [Start(node, f"distance_{shortest_lengths()[node] - 1}", {"start": node}) for node in NODES[1:]]

    def behavior(self, start: Start, generator: np.random.Generator) -> Behavior:
        """Takes each edge with the same probability."""
        return Behavior("random_walker", _WALKER)

    def example_policies(self, task: Task) -> ExamplePolicies:
        """A shortest walk, and a step to where no edge leads: no node has one to itself."""
        return ExamplePolicies(
            lambda states, _: min(graph()[states[-1]], key=shortest_lengths().__getitem__),
            lambda states, _: states[-1],
        )


@cache
def mdp() -> TabularMDP:
    """The task as a table, actions in the order of `NODES`.

    A walk's optimality grows with the steps it has left on arrival, so the goal is a state that pays 1 for each of
    them: with horizon `MAX_STEPS` and no discount, a value is the expected number of steps left on arrival.
    """
    index = {node: position for position, node in enumerate(NODES)}
    following = np.full((len(NODES), len(NODES)), -1)
    for node, successors in graph().items():
        for other in successors or (GOAL,):
            following[index[node], index[other]] = index[other]
    rewards = np.zeros(following.shape)
    rewards[index[GOAL], index[GOAL]] = 1.0
    return TabularMDP.deterministic(NODES, NODES, following, rewards)


def walker_policy() -> FloatArray:
    """[S, A] the policy of the logs."""
    edges = mdp().transitions.any(axis=2).astype(np.float64)
    return np.asarray(edges / edges.sum(axis=1, keepdims=True))


def expected_optimality(policy: FloatArray | None = None) -> FloatArray:
    """The exact expected optimality from each start, [20] in the order of `NODES[1:]`.

    Args:
        policy: [S, A] or [MAX_STEPS, S, A]; None is the best one, which reaches 1 from everywhere.
    """
    steps_left = start_values(mdp(), policy, horizon=MAX_STEPS, discount=1.0)
    scale = np.array([MAX_LENGTH - shortest_lengths()[node] for node in NODES])
    return np.asarray((steps_left / scale)[1:])


_WALKER = tabular(NODES, NODES, walker_policy())

family = RandomWalksFamily()
