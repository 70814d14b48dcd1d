"""REA-RL without its parts: a table from the file of an experiment with these arms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from experiment_tables import LENGTH, Numbers, budgets_of, compared, warm_starts
from table_runs import markdown, mean_and_interval

DENSITY: Final = "reflections/per_token"
COLUMNS: Final[Mapping[str, tuple[Callable[[Numbers], float], str]]] = {
    "accuracy": (lambda numbers: numbers[budgets_of(numbers)[-1]], ".3f"),
    "anytime": (lambda numbers: numbers["mean"], ".3f"),
    "thought tokens": (lambda numbers: numbers[LENGTH], ".1f"),
    "reflections per 100 tokens": (lambda numbers: 100 * numbers[DENSITY], ".2f"),
    "reflections per thought": (lambda numbers: numbers[DENSITY] * numbers[LENGTH], ".2f"),
    "tokens, M": (lambda numbers: numbers["tokens"] / 1e6, ".2f"),
}
"""The value of an evaluation and its format. Counts per thought are mean density times length."""
PAIRS: Final = (
    ("REA-RL", "REA-RL without model"),
    ("REA-RL", "REA-RL without reward"),
    ("REA-RL", "GRPO + length"),
    ("REA-RL", "GRPO"),
)


def ablation(found: Mapping[str, Any], at: Literal["steps", "tokens"]) -> str:
    """Return every arm after equally many steps or sampled tokens, and differences by seed."""
    runs = [run for run in found["runs"] if run["evaluations"]]
    name, ends = compared({**found, "compared_at": at}, runs)
    starts = warm_starts(runs)
    rows = [
        [arm, str(len(seeds)), *(_cell(list(seeds.values()), column) for column in COLUMNS)]
        for arm, seeds in {"warm start": starts, **ends}.items()
    ]
    for arm, base in PAIRS:
        pairs = [(ends[arm][seed], ends[base][seed]) for seed in ends[arm] if seed in ends[base]]
        rows.append([f"{arm} - {base}", str(len(pairs)), *(_difference(pairs, c) for c in COLUMNS)])
    return markdown([f"after {name}", "seeds", *COLUMNS], rows)


def _cell(seeds: list[Numbers], column: str) -> str:
    value, form = COLUMNS[column]
    return mean_and_interval([value(numbers) for numbers in seeds], form)


def _difference(pairs: list[tuple[Numbers, Numbers]], column: str) -> str:
    value, form = COLUMNS[column]
    return mean_and_interval([value(a) - value(b) for a, b in pairs], f"+{form}")
