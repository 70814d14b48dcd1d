"""The tables of docs/economics.md: which agents of which raw files make up their rows.

Every function takes the folder of raw files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import economics_tables as tables
from economics_tables import Results, Row, read_results

ALLOCATORS: Final = ("greedy_max", "difficulty_oracle", "bandit", "uniform")


def tiny(folder: Path) -> str:
    """Training seeds of the tiny reasoner, and what they are compared with."""
    trained, earlier, others = _tiny_rows(folder)
    rows = [*trained, *earlier, *others, *_allocators(trained[0][1])]
    over_runs = {"trained, 5 seeds": trained, "trained, all 7 runs": [*trained, *earlier]}
    return tables.comparison(rows, over_runs)


def tiny_by_length(folder: Path, what: str) -> str:
    """Tokens, or right answers, of the tiny reasoner by the length of the sum."""
    trained, _, others = _tiny_rows(folder)
    return tables.by_type([others[0], *trained, *others[1:]], what)


def _tiny_rows(folder: Path) -> tuple[list[Row], list[Row], list[Row]]:
    """Return one run per seed, earlier runs with seed 0, and the agents to compare with."""
    found = read_results(folder / "economics_tiny_seeds_cpu.json")
    first = read_results(folder / "economics_tiny_cpu.json")
    again = read_results(folder / "economics_tiny_cpu_repeated.json")
    limited = read_results(folder / "economics_tiny_limit_cpu.json")
    trained = [(f"trained, seed {seed}", found, f"shared-{seed}-eval") for seed in (0, 2, 3, 4)]
    trained.insert(1, ("trained, seed 1 (earlier)", again, "tiny@trained, seed 1"))
    earlier = [
        ("trained, seed 0 (earlier, run 1)", first, "tiny@trained"),
        ("trained, seed 0 (earlier, run 2)", again, "tiny@trained, seed 0"),
    ]
    others = [
        ("warm start", found, "warm-eval"),
        ("trained with at most 24 tokens per answer", limited, "reply-24-eval"),
        ("warm start, at most 24 tokens per answer", found, "warm-reply-24-eval"),
        ("trained on single problems of 24 tokens", first, "tiny@fixed_cap"),
        ("trained on single problems of 40 tokens", found, "cap-40-eval"),
    ]
    return trained, earlier, others


def soft(folder: Path) -> str:
    """One run of the tiny reasoner in soft mode."""
    found = read_results(folder / "economics_tiny_soft_cpu.json")
    rows = [("trained, seed 0", found, "soft-eval"), ("warm start", found, "soft-warm-eval")]
    return tables.soft_mode([*rows, *_allocators(found)])


def smollm2(folder: Path) -> str:
    """Two training seeds of SmolLM2-135M, and what they are compared with."""
    warm_start, trained, capped = _smollm2_rows(folder)
    rows = [*trained, warm_start, capped, *_allocators(warm_start[1])]
    return tables.comparison(rows, {"trained, 2 seeds": trained})


def smollm2_by_length(folder: Path, what: str) -> str:
    """Tokens, or right answers, of SmolLM2-135M by the length of the sum."""
    warm_start, trained, capped = _smollm2_rows(folder)
    return tables.by_type([warm_start, *trained, capped], what)


def _smollm2_rows(folder: Path) -> tuple[Row, list[Row], Row]:
    found = read_results(folder / "economics_smollm2_H200.json")
    trained = [
        ("trained, seed 0", found, "trained@40"),
        ("trained, seed 1", found, "trained_seed_1@40"),
    ]
    capped = ("trained at a fixed cap", found, "fixed_cap")
    return ("warm start", found, "trained@0"), trained, capped


def _allocators(found: Results) -> list[Row]:
    return [(name.replace("_", " "), found, name) for name in ALLOCATORS]


def language_models(folder: Path) -> str:
    """A language model without training, in a vLLM engine, beside the allocators."""
    found = read_results(folder / "economics_models_cpu.json")
    return tables.allocators([(f"`{name}`", found, name) for name in found["summary"]])


def shipped_allocators(folder: Path) -> str:
    """The allocators that ship with rlsys."""
    adder = read_results(folder / "economics_allocators_cpu.json")
    filler = read_results(folder / "economics_filler_cpu.json")
    rows = [(f"`{name}`", adder, name) for name in ("uniform", *ALLOCATORS[:3])]
    return tables.allocators([*rows, ("`uniform`, `solver=filler`", filler, "uniform")])
