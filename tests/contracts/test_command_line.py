"""Help of every command, examples that exist, and start-up without heavy imports."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = (
    "ingest", "show", "check", "split", "duplicates", "label", "select", "merge", "compact", "delete", "formats",
    "export", "export-model", "build", "audit", "export-dataset", "train", "evaluate", "online", "run", "compare",
    "doctor", "diagnose", "env tasks", "env misses", "env check", "env cases", "env audit",
)  # fmt: skip
HEAVY = ("torch", "transformers", "trl", "vllm", "datasets")


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, cwd=ROOT
    )


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """The help of every command, and of none ("")."""
    code = (
        "import contextlib, io, json, sys\n"
        "from offline_arl.cli.entry import run\n"
        "found = {}\n"
        "for name in ['', *sys.argv[1:]]:\n"
        "    text = io.StringIO()\n"
        "    with contextlib.redirect_stdout(text):\n"
        "        code = run([*name.split(), '--help'])\n"
        "    assert code == 0, name\n"
        "    found[name] = text.getvalue()\n"
        "print(json.dumps(found))\n"
    )
    found: dict[str, str] = json.loads(python(code, *COMMANDS).stdout)
    return {name: " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split()) for name, text in found.items()}


def test_the_help_lists_every_command_and_no_other(helps: dict[str, str]) -> None:
    listed = helps[""].split("Commands", 1)[1]
    assert all(f" {name.split()[0]} " in listed for name in COMMANDS)
    code = (
        "from offline_arl.cli.entry import app\n"
        "groups = [group.typer_instance for group in app.registered_groups]\n"
        "print(sum(len(group.registered_commands) for group in [app, *groups]))"
    )
    assert int(python(code).stdout) == len(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_json_and_an_example_with_options_that_exist(name: str, helps: dict[str, str]) -> None:
    text, _, example = helps[name].partition("Example:")
    assert "--json" in text
    words = shlex.split(example.replace("*", ""))
    assert words[: 1 + len(name.split())] == ["offline-arl", *name.split()]
    options = [word for word in words if word.startswith("--")]
    assert all(option in text for option in options), (options, text)


def imported(code: str, *arguments: str) -> set[str]:
    done = python(f"import sys\n{code}\nprint('\\n'.join(sys.modules))", *arguments)
    return {line.split(".")[0] for line in done.stdout.splitlines()}


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert not imported("import offline_arl") & {*HEAVY, "polars", "pydantic", "numpy"}


def test_help_imports_neither_torch_nor_polars_nor_pydantic() -> None:
    loaded = imported("from offline_arl.cli.entry import run; run(['--help'])")
    assert not loaded & {*HEAVY, "polars", "pydantic", "numpy"}


def test_ingest_and_show_never_import_torch(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
    logs = tmp_path / "logs.jsonl"
    logs.write_text(json.dumps({"messages": messages, "success": True}) + "\n")
    code = (
        "from offline_arl.cli.entry import run\n"
        "assert run(['ingest', sys.argv[1], '--store', sys.argv[2]]) == 0\n"
        "assert run(['show', sys.argv[2]]) == 0\n"
    )
    loaded = imported(code, str(logs), str(tmp_path / "store"))
    assert "polars" in loaded  # the commands did run
    assert not loaded & set(HEAVY)


def test_the_care_of_a_store_never_imports_torch(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
    logs = tmp_path / "logs.jsonl"
    logs.write_text(json.dumps({"messages": messages, "success": True, "user_id": "u"}) + "\n")
    store, other, both = (str(tmp_path / name) for name in ("store", "other", "both"))
    commands = [
        ["ingest", str(logs), "--store", store], ["split", store], ["duplicates", store], ["label", store],
        ["select", store, "--output", other], ["merge", store, other, "--output", both], ["compact", both],
        ["delete", store, "--user", "u", "--yes", "--datasets"], ["formats"],
    ]  # fmt: skip
    code = (
        "import json\nfrom offline_arl.cli.entry import run\n"
        "for command in json.loads(sys.argv[1]): assert run([*command, '--json']) == 0, command\n"
    )
    loaded = imported(code, json.dumps(commands))
    assert "polars" in loaded
    assert not loaded & set(HEAVY)


def test_pipeline_files_are_checked_without_torch() -> None:
    loaded = imported(
        "from offline_arl.workflows.config import load_pipeline; load_pipeline('pipelines/quickstart.yaml')"
    )
    assert "pydantic" in loaded
    assert not loaded & set(HEAVY)


def test_train_and_build_offer_what_pipelines_can() -> None:
    """The command line names them itself, since its help must not load what the stages need."""
    from offline_arl.cli.learning import Algorithm, DatasetKind
    from offline_arl.workflows.stages import STAGE_TYPES

    trained = {
        name
        for stage in STAGE_TYPES
        if "train" in get_args(stage.model_fields["kind"].annotation)
        for name in get_args(stage.model_fields["algorithm"].annotation)
    }
    assert {str(algorithm) for algorithm in Algorithm} == trained
    forms = {
        form
        for stage in STAGE_TYPES
        if "dataset" in get_args(stage.model_fields["kind"].annotation)
        for form in get_args(stage.model_fields["form"].annotation)
    } - {"filtered_bc", "copying"}  # bc --only-successes; exercises, which no store is needed for
    assert {kind.replace("-", "_") for kind in DatasetKind} == forms
