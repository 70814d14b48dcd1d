"""Tables of results in the manual follow from the raw files of benchmarks/results."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from rlsys.reporting.metrics_file import EvaluationRecord

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
WITHOUT = re.compile(r"<!-- no raw file: ([\w-]+) -->\n\|")


def test_tables_equal_their_raw_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    tables = importlib.import_module("tables")
    assert [f"{page.name}: {name}" for page, name in tables.outdated()] == []
    assert sorted(tables.named()) == sorted(tables.TABLES)


def test_a_changed_figure_is_found_and_corrected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    tables = importlib.import_module("tables")
    page = tmp_path / "page.md"
    right = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    page.write_text(right.replace("| 5.42 |", "| 4.52 |", 1), encoding="utf-8")
    monkeypatch.setattr(tables, "pages", lambda: [page])
    assert list(tables.outdated()) == [(page, "row-lengths")]
    assert list(tables.outdated(write=True)) == [(page, "row-lengths")]
    assert page.read_text(encoding="utf-8") == right
    assert list(tables.outdated()) == []


def test_raw_files_keep_every_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    parts = importlib.import_module("table_runs")
    found = {"GRPO": [[EvaluationRecord(0, {"16": 0.25}), EvaluationRecord(9, {"16": 0.5})]]}
    parts.write_raw(tmp_path / "raw.json", found)
    assert parts.read_raw(tmp_path / "raw.json") == found


def test_a_warm_start_counts_once_per_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two methods with two seeds: the interval is that of two values and not of four."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    parts = importlib.import_module("table_runs")
    found = {m: [[EvaluationRecord(0, {"16": v})] for v in (0.25, 0.5)] for m in ("GRPO", "BRPO")}
    values = parts.starts(found, lambda e: e.numbers["16"])
    assert values == [0.25, 0.5]
    assert parts.mean_and_interval(values, ".3f") == "0.375 ± 1.588"  # .125 * 12.706


def test_tables_without_raw_files_and_raw_files_are_listed() -> None:
    listed = (BENCHMARKS / "results" / "README.md").read_text(encoding="utf-8")
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), BENCHMARKS / "results" / "README.md"]
    unmarked = {n for page in pages for n in WITHOUT.findall(page.read_text(encoding="utf-8"))}
    section = listed.partition("no raw file of them is in the repository")[2]
    first_cells = "".join(
        line.split("|")[1] for line in section.splitlines() if "| [" in line or "| this" in line
    )
    assert set(re.findall(r"`([\w-]+)`", first_cells)) == unmarked
    files = {path.name for path in (BENCHMARKS / "results").iterdir()} - {"README.md"}
    assert {name for name in files if name not in listed} == set()
