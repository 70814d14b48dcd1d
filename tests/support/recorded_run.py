"""The files of a tiny run, as `rlsys train` leaves them: two steps and two evaluations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONFIG = """
name: {name}
steps: 3
model: {{path: tiny}}
algorithm: {{method: brpo}}
environment: {{type: anytime, budgets: [2, 4]}}
"""


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def episode(group: int, scores: tuple[float, float], **fields: Any) -> dict[str, Any]:
    """An episode of four thought tokens with an answer at 2 and one at 4 tokens."""
    answers = [
        {
            "budget": budget,
            "cut": budget,
            "cut_characters": 3 * budget,
            "text": f"{score:.0f}}}",
            "verdict": "right" if score else "wrong",
            "score": score,
        }
        for budget, score in zip((2, 4), scores, strict=True)
    ]
    return {
        "group": group,
        "problem": f"problem {group}",
        "gold": "1",
        "thought": "aa bb cc dd ",
        "thought_tokens": 4,
        "answers": answers,
        **fields,
    }


def step_row(step: int, **fields: float | None) -> dict[str, Any]:
    return {
        "step": step,
        "time": 1e9 + step,
        "score/2": 0.25 * step,
        "score/4": 0.5,
        "entropy": 0.125,
        "gap/mean": 1e-4,
        "time/generation": 1.0,
        "time/training": 2.0,
        "time/sync": 0.5,
        "time/step": 4.0,
        **fields,
    }


def evaluation_row(step: int, at_2: float, at_4: float) -> dict[str, Any]:
    return {
        "step": step,
        "evaluation/2": at_2,
        "evaluation/4": at_4,
        "evaluation/mean": (at_2 + at_4) / 2,
        "evaluation/thought/length": 4.0,
    }


def write_run(
    folder: Path, name: str = "recorded", last: Sequence[dict[str, Any]] | None = None
) -> Path:
    """Write a run whose last evaluation has the episodes `last`; return its folder."""
    before = [episode(group, (0.0, float(group % 2))) for group in range(4)]
    after = last or [episode(group, (float(group % 2), 1.0)) for group in range(4)]
    rows = [
        evaluation_row(0, 0.0, 0.5),
        step_row(1),
        step_row(2, entropy=None, **{"warning/truncation": 1.0, "warning/no_signal": 1.0}),
        evaluation_row(2, 0.5, 1.0),
    ]
    write_lines(folder / "metrics.jsonl", rows)
    write_lines(folder / "samples" / "evaluation-0.jsonl", before)
    write_lines(folder / "samples" / "evaluation-2.jsonl", after)
    write_lines(folder / "samples" / "step-1.jsonl", before[:1])
    fate = {"step": 1, "problem": "p", "sampled": [0, 0], "length": 4.0, "admitted": 5}
    trained = {"fate": "trained", "reason": None, "tokens": 9, "score": 0.5}
    dropped = {"fate": "dropped", "reason": "no token of it is trained", "tokens": 0, "score": 0.5}
    fates = [{**fate, "group": 0, **trained}, {**fate, "group": 1, **dropped}]
    write_lines(folder / "ledger.jsonl", fates)
    (folder / "config.yaml").write_text(CONFIG.format(name=name), encoding="utf-8")
    return folder
