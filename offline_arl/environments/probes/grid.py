"""Grid maps: cells named like squares of a chessboard, and moves in four directions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
ACTIONS = tuple(DIRECTIONS)
OPPOSITE = {"left": "right", "right": "left", "up": "down", "down": "up"}


def cell_name(row: int, column: int) -> str:
    """A letter for the column and a number for the row.

    >>> cell_name(8, 6)
    'G8'
    """
    return f"{chr(ord('A') + column)}{row}"


class Grid:
    """The free cells of a map drawn with `#` for walls and `.` for free cells; outside of it all is wall.

    Args:
        drawing: One line a row; the first row is row 0.
    """

    def __init__(self, drawing: str) -> None:
        rows = drawing.strip().splitlines()
        places = [(row, column) for row, line in enumerate(rows) for column, sign in enumerate(line) if sign == "."]
        self.cells = tuple(cell_name(row, column) for row, column in places)
        names = dict(zip(places, self.cells, strict=True))
        self._next = {
            (names[row, column], action): names.get((row + down, column + right), names[row, column])
            for row, column in places
            for action, (down, right) in DIRECTIONS.items()
        }

    def moved(self, cell: str, action: str) -> str:
        """The cell that an action leads to: the same one where a wall is in the way."""
        return self._next[cell, action]

    def next_states(self, *, ends: tuple[str, ...] = ()) -> NDArray[np.int64]:
        """[S, 4] index of the next cell for each cell and action; -1 where it is one of `ends`."""
        index = {cell: -1 if cell in ends else position for position, cell in enumerate(self.cells)}
        return np.array([[index[self.moved(cell, action)] for action in ACTIONS] for cell in self.cells])
