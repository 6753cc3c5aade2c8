"""Attempts of the support desk's scripted agents and a renderer over real tokens."""

from __future__ import annotations

import pytest

from offline_arl.environments.support_desk.logs import write_logs
from offline_arl.models.tiny import tokenizer_texts, train_tiny_tokenizer
from offline_arl.rendering import Renderer
from offline_arl.trajectories.schema import Trajectory
from offline_arl.trajectories.store import open_store
from offline_arl.workflows.ingest import ingest


@pytest.fixture(scope="session")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> list[Trajectory]:
    """60 attempts at 30 tasks."""
    folder = tmp_path_factory.mktemp("attempts")
    write_logs(folder / "logs.jsonl", 60, seed=0)
    ingest([folder / "logs.jsonl"], folder / "store")
    return list(open_store(folder / "store").iter_trajectories())


@pytest.fixture(scope="session")
def renderer(attempts: list[Trajectory]) -> Renderer:
    texts = (text for trajectory in attempts for text in tokenizer_texts(trajectory))
    return Renderer(train_tiny_tokenizer(texts, vocabulary_size=400))
