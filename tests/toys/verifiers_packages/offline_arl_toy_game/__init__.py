"""An environment of verifiers of several turns: its engine answers each guess as the user; its tasks have no end."""

import itertools
from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["GameEnv", "GameTaskset"]


class GameData(vf.TaskData):
    """The number to guess."""

    number: int


class GameTask(vf.Task[GameData]):
    """Nothing but its data; the engine keeps the score."""


class GameConfig(vf.EnvConfig):
    """One player."""

    player: vf.AgentConfig = vf.AgentConfig()


class GameEnv(vf.Env[GameConfig]):
    """Says higher or lower; the score falls with the guesses."""

    async def run(self, task: GameTask, agents: vf.Agents) -> None:
        guesses = 0
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                guesses += 1
                guess = int("".join(filter(str.isdigit, segment.last_reply)) or -1)
                if guess == task.data.number:
                    break
                segment = await interaction.turn("higher" if guess < task.data.number else "lower")
        won = not segment.terminated
        interaction.trace.record_reward("game", 1.0 / guesses if won else 0.0)


class GameTaskset(vf.Taskset[GameTask]):
    """A task for every number."""

    INFINITE = True

    def load(self) -> Iterator[GameTask]:
        for seed in itertools.count():
            yield GameTask(GameData(name=f"game-{seed}", prompt="Guess a number from 0 to 9.", number=seed * 7 % 10))
