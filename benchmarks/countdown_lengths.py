"""Lengths of the written searches of Countdown, drawn anew: the table needs no raw file.

python benchmarks/countdown_lengths.py
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rlsys.config.data import CountdownShape
from rlsys.config.sft import SearchHabits
from rlsys.data.countdown import draw_puzzles
from rlsys.sft.countdown import draw_search
from table_runs import markdown

DRAWS: Final = 3000
SHARES: Final = (10, 25, 50, 75, 90)
SMALL: Final = CountdownShape(difficulty=(3, 3), largest=9, targets=(5, 50))
"""The problems of configs/sft_countdown_small.yaml."""
ROWS: Final = {
    "three up to 9 (small configuration)": (SMALL, SearchHabits(width=(2, 5), longest=160)),
    "three": (CountdownShape(difficulty=(3, 3)), SearchHabits()),
    "four": (CountdownShape(difficulty=(4, 4)), SearchHabits()),
    "five": (CountdownShape(difficulty=(5, 5)), SearchHabits()),
}


def lengths() -> str:
    """Return percentiles of the characters of a search, its end included, and the share solved."""
    head = ["numbers", *(f"{share} %" for share in SHARES), "longest", "found"]
    return markdown(head, ([name, *_row(*drawn)] for name, drawn in ROWS.items()))


def _row(shape: CountdownShape, habits: SearchHabits) -> list[str]:
    rng = np.random.default_rng(0)
    puzzles = draw_puzzles(rng, shape, held_out=False, size=DRAWS)
    traces = [draw_search(puzzle, rng, habits) for puzzle in puzzles]
    found = [len(trace.thought) + 1 for trace in traces]
    numbers = [*np.percentile(found, SHARES), max(found)]
    solved = sum(trace.solved for trace in traces) / DRAWS
    return [*(f"{number:,.0f}" for number in numbers), f"{solved:.2f}".lstrip("0")]


if __name__ == "__main__":
    print(lengths())
