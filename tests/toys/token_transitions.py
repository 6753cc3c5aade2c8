"""Transition rows for token-level values: toy segments with rewards and endings, and a model of one-hot states."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from offline_arl.datasets.segments import SegmentRow
from offline_arl.workflows.ingest import ingest
from offline_arl.workflows.single import build_from_store
from toys import toy_row


def transition_row(
    name: str, *, seed: int, steps: int, ending: str = "terminated", final_state: bool = False, task: str | None = None
) -> SegmentRow:
    """A toy segment with random rewards. A final state gets three tokens of observation behind the last action."""
    generator = np.random.default_rng(seed)
    row = toy_row(name, generator, steps=steps)
    last = np.arange(steps) == steps - 1
    if final_state:
        more = generator.integers(2, 20, size=3).astype(np.int32)
        row = dataclasses.replace(
            row,
            token_ids=np.concatenate([row.token_ids, more]),
            action_mask=np.append(row.action_mask, [False] * 3),
            step_index=np.append(row.step_index, [-1] * 3).astype(np.int32),
        )
    return dataclasses.replace(
        row,
        task_id=task or name,
        n_steps=steps,
        steps=np.arange(steps, dtype=np.int32),
        rewards=generator.normal(size=steps).astype(np.float32),
        terminated=last & (ending == "terminated"),
        truncated=last & (ending == "truncated"),
        final_state=final_state,
    )


def transition_rows(count: int) -> list[SegmentRow]:
    """Attempts of one to three steps, every third truncated, of these every other with the state after it."""
    return [
        transition_row(
            f"t{number}",
            seed=number,
            steps=1 + number % 3,
            ending="truncated" if number % 3 == 0 else "terminated",
            final_state=number % 6 == 0,
            task=f"task {number // 2}",
        )
        for number in range(count)
    ]


def walk_transitions(folder: Path) -> Path:
    """A dataset of a few walks in the graph of `random_walks`, with a random tiny policy in its folder `policy`."""
    lines = []
    for number, walk in enumerate(("b d a", "c e a", "f h g a", "k l m")):
        messages = [{"role": "system", "content": "Walk to a along the edges of the graph."}]
        for node, following in itertools.pairwise(walk.split()):
            messages += [{"role": "user", "content": node}, {"role": "assistant", "content": following}]
        lines.append(json.dumps({"messages": messages, "success": walk.endswith("a"), "task_id": str(number)}))
    (folder / "log.jsonl").write_text("\n".join(lines))
    ingest(folder / "log.jsonl", folder / "store")
    build_from_store(folder / "store", folder / "data", form="transitions")
    return folder / "data"


class OneHotModel(nn.Module):
    """A language model whose hidden state is the token that it has just read: states are the entries of a table.

    It reads `inputs` tokens and writes the first `outputs` of them.
    """

    def __init__(self, inputs: int, outputs: int | None = None) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(layer_types=None))
        self.output = nn.Linear(inputs, outputs or inputs, bias=False)
        self._is_stateful = True  # no cache, so no shared prefix

    def get_input_embeddings(self) -> SimpleNamespace:
        return SimpleNamespace(weight=torch.eye(self.output.in_features))

    def get_output_embeddings(self) -> nn.Linear:
        return self.output

    @property
    def base_model(self) -> Any:
        def read(input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
            states = torch.nn.functional.one_hot(input_ids, self.output.in_features).float()
            return SimpleNamespace(last_hidden_state=states)

        return read
