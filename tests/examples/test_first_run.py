"""The example notebook: its code runs from the first cell to the last, and draws the curves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "first_run.ipynb"


@pytest.mark.slow
def test_the_cells_run_in_order(tmp_path: Path) -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    # A figure is not shown without a screen, and outputs in the file would grow old.
    assert [cell["outputs"] for cell in cells] == [[]] * len(cells)
    script = tmp_path / "cells.py"
    script.write_text("\n".join("".join(cell["source"]) for cell in cells), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert "thought budgets: (16, 32, 48, 64)" in done.stdout
    assert (tmp_path / "runs" / "first-run" / "curves.png").stat().st_size > 10_000
    rows = (tmp_path / "runs" / "first-run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [0, 1, 2, 3, 4, 5, 6, 6]
