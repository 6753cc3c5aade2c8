"""Every notebook runs from top to bottom, offline, and shows what it promises."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the extra notebooks")
nbclient = pytest.importorskip("nbclient", reason="needs the extra notebooks")

ROOT = Path(__file__).parents[2]
PICTURES = {"01_explore_logs": 3}


@pytest.mark.e2e
@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))])
def test_the_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == PICTURES[name]
    shown = "\n".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)
    assert "records=400, trajectories=400, quarantined=0" in shown
    assert "outcome: Outcome(status='scored', success=False" in shown
