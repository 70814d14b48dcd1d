"""The figures that docs/reflection.md repeats add up."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reflection.md"
AVERAGES = {
    "R1-7B": 80.386,
    "GRPO": 81.244,
    "GRPO + length": 76.878,
    "reflection reward only": 82.134,
    "reflection model only": 79.482,
    "REA-RL": 80.74,
    "NoThink": 65.014,
    "ShorterBetter": 72.48,
    "DAST": 80.484,
    "Arora & Zanette": 79.2,
}


def table(first_column: str) -> dict[str, list[str]]:
    """The rows of the table whose header begins with `first_column`, by their first cell."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_column} |")) + 2
    rows = {}
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name] = cells
    return rows


def test_averages_of_the_published_results() -> None:
    results = table("method")
    assert list(results) == list(AVERAGES)
    for method, (*cells, average, _) in results.items():
        mean = sum(map(float, cells)) / 5
        assert mean == pytest.approx(AVERAGES[method])
        assert float(average) == pytest.approx(mean, abs=0.005)


def test_batches_of_the_published_runs() -> None:
    batches = table("run")
    assert {run: int(cells[0]) * int(cells[1]) for run, cells in batches.items()} == {
        "REA-RL": 64,
        "GRPO + length": 128,
        "GRPO": 64,
    }
    for questions, samples, revised, trained, split in batches.values():
        rows = int(questions) * int(samples) * (2 if revised == "yes" else 1)
        assert rows == int(trained) == prod(map(int, split.split(" × ")))
