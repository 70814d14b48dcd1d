"""Rows of `rlsys eval sets` for tests, from a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from rlsys.evaluation.records import RESULTS, BudgetAnswer, SampleResult, result_id

Answers = Sequence[tuple[int, float, str | None]]
"""Budget, score and text of each answer."""


def sample_row(
    name: str, problem: str, sample: int, answers: Answers, *, thought: int = 20, tokens: int = 3
) -> SampleResult:
    """A row of a thought with `thought` tokens that ended by itself."""
    return SampleResult(
        id=result_id(name, problem, sample),
        set=name,
        problem=problem,
        digest=f"of-{problem}",
        weights="w",
        sample=sample,
        seed=1,
        thought_tokens=thought,
        closed=True,
        answers=tuple(
            BudgetAnswer(
                budget=budget,
                score=score,
                invalid=answer == "invalid",
                cut=min(budget, thought),
                forced=budget < thought,
                tokens=tokens,
                answer=answer,
            )
            for budget, score, answer in answers
        ),
    )


def write_results(folder: Path, rows: Sequence[SampleResult], tail: bytes = b"") -> Path:
    """Write the rows as results.jsonl, with `tail` as a line that a kill cut off."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    (folder / RESULTS).write_bytes(lines + tail)
    return folder
