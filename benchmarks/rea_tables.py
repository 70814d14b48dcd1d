"""Tables of REA-RL in the manual."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import reflection_table
from rlsys.reporting.metrics_file import EvaluationRecord
from table_runs import WARM_START, Column, Columns, Runs, markdown, runs, table

SHOWN: Final = (
    "accuracy",
    "anytime",
    "thought tokens",
    "token ratio, %",
    "reflections per 100 tokens",
    "hard: accuracy",
    "hard: reflections per 100 tokens",
)


def columns(found: Runs, without: Sequence[str] = ()) -> Columns:
    """Return the columns of REA-RL that the manual shows."""
    every = reflection_table.columns(next(iter(found.values()))[0][-1])
    return {name: every[name] for name in SHOWN if name not in without}


def tiny() -> str:
    """REA-RL and the length reward alone, six seeds."""
    found = runs("reflection_tiny_cpu.json", ["REA-RL", "GRPO + length"])
    compared = [("REA-RL", WARM_START), ("GRPO + length", WARM_START), ("REA-RL", "GRPO + length")]
    return table(found, columns(found), compared)


def per_thought() -> str:
    """Reflections per thought: mean density times mean length, as counts were not recorded."""
    found = runs("reflection_tiny_cpu.json", ["REA-RL", "GRPO + length"])
    columns = {
        "all problems": Column(partial(_per_thought, ""), ".2f"),
        "hard problems": Column(partial(_per_thought, "/difficulty_6"), ".2f"),
    }
    compared = [("REA-RL", WARM_START), ("GRPO + length", WARM_START)]
    return table(found, columns, compared)


def _per_thought(of: str, evaluation: EvaluationRecord) -> float:
    numbers = evaluation.numbers
    return numbers[f"reflections/per_token{of}"] * numbers[f"thought/length{of}"]


def weights() -> str:
    """Three weights of the reflection reward, the first three seeds."""
    found = runs("reflection_tiny_cpu.json")
    weights: Runs = {
        "weight 1, as published": found["REA-RL, reflection weight 1"],
        # The evaluations of the table in combination.md, because they have the same budgets.
        "weight 0.95": runs("combination_tiny_cpu.json")["REA-RL"],
        "weight 0.9": found["REA-RL, reflection weight 0.9"],
    }
    return table(weights, columns(weights))


def smollm2() -> str:
    """Five methods on SmolLM2-135M, two seeds."""
    found = runs("reflection_smollm2_2xH200.json")
    compared = [("REA-RL", WARM_START), ("REA-RL", "REA-RL without model")]
    return table(found, columns(found), compared)


def fixed_data() -> str:
    """Two methods that learn from fixed data, one seed."""
    found = runs("reflection_tiny_cpu.json", ["SFT on truncated paths", "RPO"])
    shown = columns(found, without=["token ratio, %"])
    rows = (
        [m, *(format(c.of(r[0][-1]), c.form) for c in shown.values())] for m, r in found.items()
    )
    return markdown(["after 100 steps", *shown], rows)
