"""What the processes that train together tell one another; in one process nothing has to be told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")


class Processes:
    """This process's place among those that share a training.

    Groups of attempts stay together: each process plays whole groups, in the order of the tasks of a step.
    """

    def __init__(self) -> None:
        import torch
        from accelerate import PartialState

        state = PartialState(cpu=not torch.accelerator.is_available())  # said aloud: else a CPU takes itself for alone
        self.index: int = state.process_index
        self.count: int = state.num_processes

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.index == 0

    def share(self, items: Sequence[Item]) -> list[Item]:
        """This process's part of what all have; parts are next to one another and of about the same size."""
        return list(items[self.index * len(items) // self.count : (self.index + 1) * len(items) // self.count])

    def gather(self, items: Sequence[Item]) -> list[Item]:
        """The parts of all processes, in their order; every process gets all of them."""
        if self.count == 1:
            return list(items)
        from accelerate.utils import gather_object

        found: list[Item] = gather_object(list(items))
        return found

    def from_first(self, value: Item) -> Item:
        """What the first process has."""
        if self.count == 1:
            return value
        from accelerate.utils import broadcast_object_list

        holder: list[Any] = [value]
        broadcast_object_list(holder)
        found: Item = holder[0]
        return found

    def wait(self) -> None:
        """Until all are here."""
        from accelerate import PartialState

        PartialState().wait_for_everyone()
