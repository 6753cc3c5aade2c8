"""A notebook's two files hold the same cells, and no outputs are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext", reason="needs the extra notebooks")

FOLDER = Path(__file__).parents[2] / "notebooks"


def cells(path: Path) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def test_each_script_has_its_notebook_and_each_notebook_its_script() -> None:
    scripts = {path.stem for path in FOLDER.glob("*.py")}
    assert scripts
    assert scripts == {path.stem for path in FOLDER.glob("*.ipynb")}


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_both_files_hold_the_same_cells(script: Path) -> None:
    notebook = script.with_suffix(".ipynb")
    assert cells(script) == cells(notebook), f"run: jupytext --sync {script.relative_to(FOLDER.parent)}"
    outputs = [cell.outputs for cell in jupytext.read(notebook).cells if cell.cell_type == "code"]
    assert not any(outputs), f"run: jupytext --to ipynb {script.relative_to(FOLDER.parent)}"
