"""Ingestion on a real local Ray cluster of two workers gives the store that this process gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from offline_arl.trajectories.store import Store
from offline_arl.workflows.ingest import ingest

ray = pytest.importorskip("ray", reason="ray is not installed")
REAL_LOGS = Path(__file__).resolve().parents[3] / "shared/real_logs"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    from ray.cluster_utils import Cluster

    # The head does no work, so all of it is done by the two workers.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        assert len([node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]) == 2
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.usefixtures("cluster")
def test_a_ray_cluster_gives_the_same_store(tmp_path: Path) -> None:
    if not REAL_LOGS.exists():
        pytest.skip("the real logs are not here")
    here = ingest(REAL_LOGS, tmp_path / "here")
    there = ingest(REAL_LOGS, tmp_path / "there", engine="ray", workers=2)
    timeless = {"seconds": 0.0}
    assert here.to_json() | timeless == there.to_json() | timeless
    files = [
        [(entry.path, entry.sha256) for entry in Store(tmp_path / name).manifest.files()] for name in ("here", "there")
    ]
    assert files[0] == files[1]
