"""A real vLLM server of this environment, for tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(model: str, options: list[str], *, port: int, log: Path) -> subprocess.Popen[bytes]:
    """Start a server; it is ready when `wait_for` returns.

    The program `vllm` of the CPU wheel looks for a distribution of that name and ends; this is what it would start.
    """
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *options]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_SERVER_DEV_MODE": "1",
    }  # fmt: skip
    with log.open("a") as stream:
        return subprocess.Popen(
            [*command, "--port", str(port), "--enforce-eager"],
            stdout=stream,
            stderr=stream,
            env={**os.environ, **settings},
            start_new_session=True,
        )


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server is well."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-2000:])
