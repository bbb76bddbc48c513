"""The notebook runs as it is, and has no outputs of an earlier run."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FILE = Path(__file__).parents[2] / "examples" / "notebook" / "redactory.ipynb"


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs() -> None:
    notebook = nbformat.read(FILE, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in cells)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(FILE.parent)}}).execute()
    results = [output.data["text/plain"] for cell in cells for output in cell.outputs if "data" in output]
    assert results[0] == "'My name is <MASK>, order <MASK>.'"
    assert "<MASK> called from <MASK>." in results[1]
    assert len(results) == len(cells)
