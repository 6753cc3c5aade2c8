"""What all tests share: array shapes checked at call time, and the slow oracles on the import path."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# Before torch is imported: threads that spin while they wait slow small models down on few cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

CHECKED = [
    "offline_arl.objectives",
    "offline_arl.datasets.collate",
    "offline_arl.datasets.preference_batches",
    "offline_arl.models.feature_cache",
    "offline_arl.models.features",
    "offline_arl.models.grouped_prefix",
    "offline_arl.models.folding",
    "offline_arl.models.policy",
    "offline_arl.models.token_heads",
    "offline_arl.models.value_guidance",
    "offline_arl.models.value_heads",
    "offline_arl.trainers.preference_forward",
    "offline_arl.trainers.preference_monitors",
    "offline_arl.trainers.preference_reference",
    "offline_arl.trainers.preference_trainers",
    "offline_arl.trainers.candidates",
    "offline_arl.trainers.extraction",
    "offline_arl.trainers.token_critic",
    "offline_arl.trainers.token_states",
    "offline_arl.trainers.transitions",
    "offline_arl.trainers.value",
    "offline_arl.trainers.value_learners",
]

sys.path.insert(0, str(Path(__file__).parent))

try:
    from jaxtyping import install_import_hook
except ImportError:  # the train extra is not installed
    pass
else:
    install_import_hook(CHECKED, "type_checks.check")


@pytest.fixture(scope="session")
def lookup_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small policy for `toys.lookup` that succeeds nearly always greedily and in 0.5 to 0.7 when sampled."""
    from toys.lookup import save_cloned_policy

    folder = tmp_path_factory.mktemp("lookup") / "policy"
    save_cloned_policy(folder, accuracy=0.5, updates=300)
    return folder
