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
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import allocation_table
import anytime_table
import combination_table
import countdown_lengths
import countdown_runs_table as countdown_runs
import countdown_table
import economics_pages as economics
import independent_table
import learner_tables
import paper_plans
import plan_check_table
import plan_table
import rea_tables as rea
import reflection_model
import serving_table
import speed_tables as speed
import trl_loop
from ablation_table import ablation
from experiment_tables import baseline_table, difference_table, experiment_table
from rlsys.reporting.metrics_file import read_evaluations
from table_runs import WARM_START, markdown, runs, table

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
SEARCH_MODEL: Final = RESULTS / "reflection_model_countdown_H200.json"
TINY_ANYTIME: Final = ("tiny_anytime_H200", "tiny_anytime_cpu")
BLOCK: Final = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


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


def brpo_accuracy() -> str:
    """Accuracy per budget at the last common step."""
    return anytime_table.accuracies(runs("anytime_4xH100.json"))


def brpo_largest() -> str:
    """Differences in accuracy at the largest budget."""
    found = runs("anytime_4xH100.json")
    return anytime_table.differences(found, "accuracy at 64", anytime_table.at_largest)


def combination() -> str:
    """BRPO, REA-RL and both, and what each changes."""
    found = runs("combination_tiny_cpu.json")
    columns = combination_table.columns(next(iter(found.values()))[0][0])
    return table(found, columns, [(m, WARM_START) for m in found])


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
    """Two runs of `make demo`, which begin alike: the seed is the same."""
    before, after = read_evaluations(RESULTS / "demo_cpu.jsonl")
    _, again = read_evaluations(RESULTS / "demo_quiet_cpu.jsonl")
    budgets = ["16", "32", "48", "64"]

    def line(name: str, numbers: Mapping[str, float]) -> list[str]:
        scores = [numbers[budget] for budget in budgets]
        scores.append(sum(scores) / len(scores))
        return [name, *(f"{s:.3f}" for s in scores), f"{numbers['thought/length']:.1f}"]

    head = ["", *budgets, "anytime mean", "thought length"]
    rows = [
        line("before", before.numbers),
        line(f"after {after.step} steps", after.numbers),
        line("the same, a second run", again.numbers),
    ]
    return markdown(head, rows)


def serving() -> str:
    """Accuracy over HTTP, four ways."""
    return serving_table.serving(json.loads((RESULTS / "serving_tiny_cpu.json").read_text()))


def experiment(*names: str) -> str:
    """Return all arms of an experiment and their differences from its baseline."""
    return experiment_table(found_in(*names))


def found_in(*names: str) -> dict[str, Any]:
    """Return an experiment whose seeds ran on several machines, with a file each."""
    files = [json.loads((RESULTS / f"{name}.json").read_text()) for name in names]
    return {**files[0], "runs": [run for file in files for run in file["runs"]]}


def answer_weight() -> str:
    """What a smaller weight of the answers changes, and what the uniform prior does."""
    pairs = {f"AR-{prior}, answers 1/16": f"AR-{prior}" for prior in ("base", "linear", "uniform")}
    return difference_table(found_in(*TINY_ANYTIME), {**pairs, "AR-uniform": "AR-linear"})


def tiny_baselines() -> str:
    """How well V1, V2 and V predict the return on the tiny reasoner."""
    return baseline_table(found_in(*TINY_ANYTIME), ("AR-uniform", "AR-linear", "AR-base"))


def short_only() -> str:
    """BRPO and two ways to train short thoughts alone, from uniform BRPO."""
    base = "AR-uniform, answers 1/16"
    return difference_table(
        found_in(*TINY_ANYTIME), dict.fromkeys(("GRPO at 16", "LCPO to 16"), base)
    )


def importance_weight() -> str:
    """What the importance weight repairs: with it minus without it, at equal staleness."""
    found = json.loads((RESULTS / "tiny_staleness.json").read_text())
    return difference_table(
        found, {f"staleness {s}": f"staleness {s}, no weight" for s in (0, 1, 2, 4)}
    )


def without_parts(name: str, at: Literal["steps", "tokens"]) -> str:
    """REA-RL without its parts, in the experiment of this name."""
    return ablation(found_in(name), at)


def single_parts_on_searches() -> str:
    """What revisions (with and without the reflection reward) and the length reward change."""
    pairs = {
        "REA-RL": "REA-RL without model",
        "REA-RL without reward": "GRPO + length",
        "GRPO + length": "GRPO",
    }
    return difference_table(found_in("countdown_reflection"), pairs)


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
    "brpo-largest": brpo_largest,
    "combination": combination,
    "rea-tiny": rea.tiny,
    "rea-per-thought": rea.per_thought,
    "rea-weights": rea.weights,
    "rea-smollm2": rea.smollm2,
    "rea-fixed-data": rea.fixed_data,
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
    "learner-trunk": partial(learner_tables.trunks, RESULTS / "learner_trunk_H200.jsonl"),
    "learner-kernels": partial(learner_tables.kernels, RESULTS / "learner_kernels_H200.jsonl"),
    "pauses": partial(
        learner_tables.pauses,
        RESULTS / "against_trl_H200.jsonl",
        RESULTS / "plan_check_H200.json",
        RESULTS / "plan_check_H200_session_5.json",
        RESULTS / "plan_check_H200_session_6.json",
    ),
    "two-cards": partial(learner_tables.two_cards, RESULTS / "plan_check_H200_session_6.json"),
    "full-engine": partial(learner_tables.full_engine, RESULTS / "full_engine_cpu.jsonl"),
    "long-thoughts": partial(learner_tables.long_thoughts, RESULTS / "plan_check_H200.json"),
    "long-thoughts-again": partial(
        learner_tables.long_thoughts, RESULTS / "plan_check_H200_session_7.json"
    ),
    "engine-steps": partial(
        learner_tables.engine_steps, RESULTS / "engine_steps_brpo_8k_H200.json"
    ),
    "cache-blocks": partial(learner_tables.cache_blocks, RESULTS / "cache_blocks_H200.jsonl"),
    "against-trl": partial(learner_tables.against_trl, RESULTS / "against_trl_H200.jsonl"),
    "attention": partial(speed.attention, RESULTS / "attention_speed_H200.jsonl"),
    "generation": partial(speed.generation, RESULTS / "generation_speed_H200.jsonl"),
    "driver-speed": partial(speed.driver, RESULTS / "driver_speed_cpu.jsonl"),
    "group-time": partial(speed.group_times, RESULTS / "group_time_cpu.jsonl"),
    "plans": partial(plan_table.plans, RESULTS / "learner_trunk_H200.jsonl"),
    "plan-check": partial(plan_check_table.whole_runs, RESULTS / "plan_check_H200.json"),
    "plan-check-later": partial(
        plan_check_table.whole_runs, RESULTS / "plan_check_H200_session_5.json"
    ),
    "paper-plans": paper_plans.plans,
    "estimator-lab": estimator_lab,
    "tiny-methods": partial(experiment, "tiny_methods"),
    "tiny-anytime": partial(experiment, *TINY_ANYTIME),
    "tiny-anytime-weight": answer_weight,
    "tiny-anytime-baselines": tiny_baselines,
    "tiny-anytime-short": short_only,
    "tiny-staleness": partial(experiment, "tiny_staleness"),
    "tiny-reflection-steps": partial(without_parts, "tiny_reflection", "steps"),
    "tiny-reflection-tokens": partial(without_parts, "tiny_reflection", "tokens"),
    "countdown-reflection-steps": partial(without_parts, "countdown_reflection", "steps"),
    "countdown-reflection-tokens": partial(without_parts, "countdown_reflection", "tokens"),
    "countdown-single-parts": single_parts_on_searches,
    "importance-weight": importance_weight,
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
    "countdown-detection": partial(reflection_model.detection, SEARCH_MODEL, "searches"),
    "countdown-cuts": partial(reflection_model.cuts, SEARCH_MODEL, "searches"),
    "trl-loop": partial(trl_loop.trl_loop, RESULTS / "trl_loop_cpu.jsonl"),
    "independent": partial(independent_table.agreement, RESULTS / "independent_eval_cpu.jsonl"),
    "countdown-lengths": countdown_lengths.lengths,
    "countdown-training": countdown_table.training,
    "countdown-accuracy": countdown_table.accuracy,
    "countdown-thoughts": countdown_table.thoughts,
    "countdown-anytime": partial(experiment, "countdown_anytime"),
    "countdown-curve": countdown_runs.anytime_curve,
    "countdown-trained-thoughts": countdown_runs.thoughts,
    "countdown-baselines": countdown_runs.baselines,
    "countdown-baselines-of-others": countdown_runs.baselines_of_others,
    "countdown-collapse": countdown_runs.collapse,
    "svamp-medians": svamp_medians,
    "svamp-steps": partial(
        speed.steps, RESULTS / "smollm2_svamp_1xH100_shared.csv", range(1, 111, 20)
    ),
}


if __name__ == "__main__":
    main()
