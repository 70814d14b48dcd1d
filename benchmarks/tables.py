"""Recompute every table of results in the manual from the raw files of benchmarks/results.

    python benchmarks/tables.py            compare; exit code 1 if a table differs from its raw file
    python benchmarks/tables.py --write    write the recomputed tables into the pages

A table stands between two comments, of which the first names it:

    <!-- table: NAME -->
    | ... |
    <!-- end of table -->

TABLES says how each table is computed. A table of results without these comments has no raw file in
the repository; benchmarks/results/README.md lists these tables.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import allocation_table
import anytime_table
import combination_table
import countdown_lengths
import economics_pages as economics
import independent_table
import paper_plans
import plan_table
import reflection_model
import reflection_table
import serving_table
import speed_tables as speed
import trl_loop
from experiment_tables import experiment_table
from rlsys.reporting.metrics_file import EvaluationRecord, read_evaluations
from table_runs import WARM_START, Column, Columns, Runs, markdown, read_raw, table

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
BLOCK: Final = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
REA_COLUMNS: Final = (
    "accuracy",
    "anytime",
    "thought tokens",
    "token ratio, %",
    "reflections per 100 tokens",
    "hard: accuracy",
    "hard: reflections per 100 tokens",
)


def main() -> None:
    """Compare or write the tables of all pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the recomputed tables")
    write: bool = parser.parse_args().write
    wrong = list(outdated(write=write))
    for page, name in wrong:
        print(f"{page.relative_to(ROOT)}: table {name} {'written' if write else 'differs'}")
    sys.exit(bool(wrong) and not write)


def pages() -> list[Path]:
    """Return all pages that may have tables of results."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), RESULTS / "README.md"]


def outdated(*, write: bool = False) -> Iterator[tuple[Path, str]]:
    """Yield page and name of every table that differs from its raw file; `write` corrects it."""
    for page in pages():
        text = corrected = page.read_text(encoding="utf-8")
        for begin, name, found, end in BLOCK.findall(text):
            computed = f"{TABLES[name]()}\n"
            if found != computed:
                yield page, name
                corrected = corrected.replace(begin + found + end, begin + computed + end)
        if write and corrected != text:
            page.write_text(corrected, encoding="utf-8")


def named() -> list[str]:
    """Return the name of every table that is marked in a page."""
    return [block[1] for page in pages() for block in BLOCK.findall(page.read_text("utf-8"))]


def runs(name: str, methods: Sequence[str] | None = None) -> Runs:
    """Return the evaluations of a raw file, of all methods or of some."""
    found = read_raw(RESULTS / name)
    return {m: found[m] for m in methods or found}


def brpo_accuracy() -> str:
    """Accuracy per budget at the last common step."""
    return anytime_table.accuracies(runs("anytime_4xH100.json"))


def brpo_anytime() -> str:
    """Differences in anytime accuracy."""
    found = runs("anytime_4xH100.json")
    return anytime_table.differences(found, "anytime accuracy", anytime_table.anytime)


def brpo_largest() -> str:
    """Differences in accuracy at the largest budget."""
    found = runs("anytime_4xH100.json")
    return anytime_table.differences(found, "accuracy at 64", anytime_table.at_largest)


def combination() -> str:
    """BRPO, REA-RL and both, and what each changes."""
    found = runs("combination_tiny_cpu.json")
    columns = combination_table.columns(next(iter(found.values()))[0][0])
    return table(found, columns, [(m, WARM_START) for m in found])


def rea_columns(found: Runs, without: Sequence[str] = ()) -> Columns:
    """Return the columns of REA-RL that the manual shows."""
    every = reflection_table.columns(next(iter(found.values()))[0][-1])
    return {name: every[name] for name in REA_COLUMNS if name not in without}


def rea_tiny() -> str:
    """REA-RL and the length reward alone, six seeds."""
    found = runs("reflection_tiny_cpu.json", ["REA-RL", "GRPO + length"])
    compared = [("REA-RL", WARM_START), ("GRPO + length", WARM_START), ("REA-RL", "GRPO + length")]
    return table(found, rea_columns(found), compared)


def rea_per_thought() -> str:
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


def rea_weights() -> str:
    """Three weights of the reflection reward, the first three seeds."""
    found = runs("reflection_tiny_cpu.json")
    weights: Runs = {
        "weight 1, as published": found["REA-RL, reflection weight 1"],
        # The evaluations of the table in combination.md, because they have the same budgets.
        "weight 0.95": runs("combination_tiny_cpu.json")["REA-RL"],
        "weight 0.9": found["REA-RL, reflection weight 0.9"],
    }
    return table(weights, rea_columns(weights))


def rea_smollm2() -> str:
    """Five methods on SmolLM2-135M, two seeds."""
    found = runs("reflection_smollm2_2xH200.json")
    compared = [("REA-RL", WARM_START), ("REA-RL", "REA-RL without model")]
    return table(found, rea_columns(found), compared)


def rea_fixed_data() -> str:
    """Two methods that learn from fixed data, one seed."""
    found = runs("reflection_tiny_cpu.json", ["SFT on truncated paths", "RPO"])
    columns = rea_columns(found, without=["token ratio, %"])
    rows = (
        [m, *(format(c.of(r[0][-1]), c.form) for c in columns.values())] for m, r in found.items()
    )
    return markdown(["after 100 steps", *columns], rows)


def random_faults() -> str:
    """Random faults of tiny runs."""
    return speed.faults(json.loads((RESULTS / "chaos_cpu.json").read_text())["runs"])


def svamp_medians() -> str:
    """Seconds of the two runs of SmolLM2-135M on SVAMP."""
    runs_by_name = {
        "one H100, shared": RESULTS / "smollm2_svamp_1xH100_shared.csv",
        "two H100s, NCCL": RESULTS / "smollm2_svamp_2xH100_nccl.csv",
    }
    return speed.medians(runs_by_name)


def grading() -> str:
    """Other spellings and near misses of golds, judged by two policies."""
    rows = speed.json_lines(RESULTS / "grading_counts.jsonl")
    theirs = {row["set"]: row for row in rows if row["policy"] == "math-verify"}
    head = ["set", "golds", "right as right", "wrong as wrong"]
    return markdown(
        [*head, "math-verify: right as right", "math-verify: wrong as wrong"],
        (
            [row["set"], *(f"{row[k]:,}" for k in ("golds", "right", "wrong"))]
            + [f"{theirs[row['set']][k]:,}" for k in ("right", "wrong")]
            for row in rows
            if row["policy"] == "rlsys"
        ),
    )


def demo() -> str:
    """One run of `make demo`."""
    before, after = read_evaluations(RESULTS / "demo_cpu.jsonl")
    budgets = ["16", "32", "48", "64"]

    def line(name: str, numbers: Mapping[str, float]) -> list[str]:
        scores = [numbers[budget] for budget in budgets]
        scores.append(sum(scores) / len(scores))
        return [name, *(f"{s:.3f}" for s in scores), f"{numbers['thought/length']:.1f}"]

    head = ["", *budgets, "anytime mean", "thought length"]
    last = f"after {after.step} steps"
    return markdown(head, [line("before", before.numbers), line(last, after.numbers)])


def serving() -> str:
    """Accuracy over HTTP, four ways."""
    return serving_table.serving(json.loads((RESULTS / "serving_tiny_cpu.json").read_text()))


def tiny_methods() -> str:
    """Methods for short thoughts against GRPO and BRPO."""
    return experiment_table(json.loads((RESULTS / "tiny_methods.json").read_text()))


def estimator_lab() -> str:
    """Signal, noise and direction of the gradients of every method on the same trees."""
    found = json.loads((RESULTS / "estimator_lab.json").read_text())["table"]
    return markdown(
        ["method", "no signal", "signal / noise", "own", "anytime", "final"],
        (
            [name, f"{row['no_signal']:.0%}", f"{row['signal_to_noise']:.2f}"]
            + [f"{row[column]:+.2f}" for column in ("own", "anytime", "final")]
            for name, row in found.items()
        ),
    )


TABLES: Final[dict[str, Callable[[], str]]] = {
    "demo": demo,
    "brpo-accuracy": brpo_accuracy,
    "brpo-anytime": brpo_anytime,
    "brpo-largest": brpo_largest,
    "combination": combination,
    "rea-tiny": rea_tiny,
    "rea-per-thought": rea_per_thought,
    "rea-weights": rea_weights,
    "rea-smollm2": rea_smollm2,
    "rea-fixed-data": rea_fixed_data,
    "economics-tiny": partial(economics.tiny, RESULTS),
    "economics-tiny-tokens": partial(economics.tiny_by_length, RESULTS, "tokens"),
    "economics-tiny-right": partial(economics.tiny_by_length, RESULTS, "right"),
    "economics-soft": partial(economics.soft, RESULTS),
    "economics-smollm2": partial(economics.smollm2, RESULTS),
    "economics-smollm2-tokens": partial(economics.smollm2_by_length, RESULTS, "tokens"),
    "economics-smollm2-right": partial(economics.smollm2_by_length, RESULTS, "right"),
    "economics-models": partial(economics.language_models, RESULTS),
    "economics-allocators": partial(economics.shipped_allocators, RESULTS),
    "random-faults": random_faults,
    "row-lengths": partial(speed.row_lengths, RESULTS / "learner_speed_H100.jsonl"),
    "compiled-layers": partial(speed.compiled_layers, RESULTS / "learner_speed_H200.jsonl"),
    "attention": partial(speed.attention, RESULTS / "attention_speed_H200.jsonl"),
    "generation": partial(speed.generation, RESULTS / "generation_speed_H200.jsonl"),
    "driver-speed": partial(speed.driver, RESULTS / "driver_speed_cpu.jsonl"),
    "group-time": partial(speed.group_times, RESULTS / "group_time_cpu.jsonl"),
    "plans": partial(plan_table.plans, RESULTS / "learner_speed_H200.jsonl"),
    "paper-plans": paper_plans.plans,
    "estimator-lab": estimator_lab,
    "tiny-methods": tiny_methods,
    "grading": grading,
    "serving": serving,
    "allocation-tiny": partial(allocation_table.allocation, RESULTS / "allocation_tiny_cpu.jsonl"),
    "allocation-reflective": partial(
        allocation_table.allocation, RESULTS / "allocation_tiny_reflective_cpu.jsonl"
    ),
    "reflection-detection": partial(
        reflection_model.detection, RESULTS / "reflection_model_tiny_cpu.json"
    ),
    "reflection-cuts": partial(reflection_model.cuts, RESULTS / "reflection_model_tiny_cpu.json"),
    "trl-loop": partial(trl_loop.trl_loop, RESULTS / "trl_loop_cpu.jsonl"),
    "independent": partial(independent_table.agreement, RESULTS / "independent_eval_cpu.jsonl"),
    "countdown-lengths": countdown_lengths.lengths,
    "svamp-medians": svamp_medians,
    "svamp-steps": partial(
        speed.steps, RESULTS / "smollm2_svamp_1xH100_shared.csv", range(1, 111, 20)
    ),
}


if __name__ == "__main__":
    main()
