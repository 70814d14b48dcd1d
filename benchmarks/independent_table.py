"""The table of independent_eval.py: answers of vLLM alone beside those of `rlsys eval sets`."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from speed_tables import json_lines
from table_runs import markdown


def agreement(path: Path) -> str:
    """One row per set; `same answer` includes problems on which neither side found an answer."""
    head = ["", "problems", "same answer", "no answer", "right: vLLM alone", "right: rlsys"]
    lines = []
    for name, found in groupby(json_lines(path), key=lambda row: str(row["set"])):
        rows = list(found)
        counts = (
            len(rows),
            sum(row["vllm_alone"] == row["rlsys"] for row in rows),
            sum(row["vllm_alone"] is None for row in rows),
            sum(row["vllm_alone_right"] for row in rows),
            sum(row["rlsys_right"] for row in rows),
        )
        lines.append([name, *map(str, counts)])
    return markdown(head, lines)
