"""Documents point at things that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PATH = re.compile(r"`((?:offline_arl|tests|docs|pipelines|notebooks|data_schemas)/[\w./-]*)(?:::(\w+))?`")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{name(document)} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_files_and_functions_that_are_named_exist(document: Path) -> None:
    for path, member in PATH.findall(document.read_text()):
        assert (ROOT / path).exists(), f"{name(document)} names {path}"
        if member:
            text = (ROOT / path).read_text()
            assert re.search(rf"^\s*(?:def|class) {member}\b|^{member}\b", text, re.M), f"{path} has no {member}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_commands_and_options_that_are_shown_exist(document: Path) -> None:
    """Every `offline-arl COMMAND --option` of a document is one that the command line has."""
    code = (
        "import typer\nfrom offline_arl.cli.entry import app\n"
        "def told(name, command):\n"
        "    print(name, *(o for p in command.params for o in (*p.opts, *p.secondary_opts)), '--help', sep='|')\n"
        "    for part, inner in getattr(command, 'commands', {}).items():\n"
        "        told(f'{name} {part}'.strip(), inner)\n"
        "told('', typer.main.get_command(app))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    known = {line.split("|")[0]: set(line.split("|")[1:]) for line in done.stdout.splitlines()}
    shown = re.findall(r"offline-arl ([a-z-]+)((?:(?!offline-arl)[^`\n]|\\\n)*)", document.read_text())
    for command, rest in shown:
        first = rest.split()[0] if rest.split() else ""
        command = f"{command} {first}" if f"{command} {first}" in known else command
        used = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest))
        assert command in known, f"{name(document)} shows offline-arl {command}"
        assert used <= known[command], f"{name(document)}: {command} has no {used - known[command]}"


def test_make_targets_that_are_shown_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for document in DOCUMENTS:
        assert set(re.findall(r"`make ([a-z-]+)", document.read_text())) <= targets


def test_every_setting_of_online_training_is_documented() -> None:
    """Under its own name, or as a key of its block, in one of the two pages."""
    from offline_arl.workflows.stages import Online

    text = "".join((ROOT / "docs" / page).read_text() for page in ("online.md", "warm-start.md"))
    shown = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`\n]+)`", text))))
    given = {"kind", "algorithm", "policy", "critic", "replay", "environment", "feature_policy"}  # options of their own
    missing = Online.model_fields.keys() - shown - given
    assert not missing, f"docs/online.md lacks {sorted(missing)}"
