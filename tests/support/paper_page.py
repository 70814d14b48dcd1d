"""docs/paper.md as a test reads it: the runs of every file of configs/paper."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "configs" / "paper"
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
SFT = ("rearl_sft.yaml", "rearl_rpo.yaml", "rearl_reflection_sft.yaml")
REFLECTION = "rearl_reflection.yaml"
EVALUATION = "brpo_eval.yaml"
RUNS = sorted({path.name for path in PAPER.iterdir()} - {*SFT, REFLECTION, EVALUATION})


def variants(file: str) -> dict[str, tuple[str, ...]]:
    """The runs of a file by name, from the tables of the page: its settings on the command line."""
    section = PAGE.partition(f"<!-- runs of {file} -->")[2].partition("\n\n")[0]
    cells = [line.split("|")[1:3] for line in section.splitlines() if "`" in line or "none" in line]
    return {name.strip(): tuple(re.findall("`(.*?)`", words)) for name, words in cells}
