"""Which sampler is used, and what is said about it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from offline_arl import optional
from offline_arl.errors import MissingDependencyError, UsageError
from offline_arl.rollouts.backends import make_sampler, resolve_backend
from offline_arl.rollouts.sampler import SamplingConfig


def test_without_vllm_one_line_says_so_and_how_to_change_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(optional, "available", lambda package: False)
    with caplog.at_level(logging.WARNING):
        assert resolve_backend("auto") == "transformers"
    (record,) = caplog.records
    assert "pip install 'offline_arl[vllm]'" in record.message
    assert "\n" not in record.message


def test_with_vllm_auto_takes_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(optional, "available", lambda package: package == "vllm")
    assert resolve_backend("auto") == "vllm"
    assert not caplog.records


def test_a_named_backend_is_taken_as_it_is() -> None:
    assert resolve_backend("transformers") == "transformers"
    assert resolve_backend("vllm") == "vllm"
    with pytest.raises(UsageError, match="unknown rollout backend 'sglang'"):
        resolve_backend("sglang")  # type: ignore[arg-type]


def test_asking_for_vllm_without_it_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(MissingDependencyError, match=r"pip install 'offline_arl\[vllm\]'"):
        make_sampler("anywhere", stop_token_ids=[0], backend="vllm")


def test_a_saved_policy_samples(lookup_policy: Path) -> None:
    sampler = make_sampler(lookup_policy, stop_token_ids=[1], backend="transformers", max_model_len=64)
    assert sampler.backend == "transformers"
    (completion,) = sampler.generate([[2, 3]], SamplingConfig(max_tokens=4), seeds=[0])
    assert len(completion.token_ids) in range(1, 5)
