"""Count what the runs of the Countdown experiment did: one small raw file, one line per run.

    python benchmarks/countdown_runs.py runs/countdown [OTHER_DIR ...] > FILE.jsonl

Each folder is the OUT_DIR of benchmarks/experiments.py with experiments/countdown_anytime.yaml. A
line has the counts of every sampled evaluation (how thoughts end, which answers are right), the
means of the baseline metrics over all training steps, and some numbers of every fifth step.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from experiments import Experiment, Run, runs_of
from rlsys.algorithms.reflection import chunk_thought
from rlsys.config.loading import load_config
from rlsys.reflection.labelling.countdown import result_chunks
from rlsys.reporting.metrics_file import METRICS, read_rows
from rlsys.sft.countdown import BACK, FAILED, FOUND, NEXT, written_steps
from rlsys.types import Problem

FILE: Final = Path(__file__).parent / "experiments" / "countdown_anytime.yaml"
BASELINE: Final = re.compile(r"baseline/((?:correlation|variance)_v[12]?)/(\d+)")
THINK_END: Final = "</think>"
COLUMNS: Final = ("step", "score/1024", "thought/length", "entropy")
"""Numbers of every fifth training step. The score is that of the training problems."""


def main() -> None:
    """Print one line per run of every folder."""
    experiment = load_config(FILE, [], Experiment)
    for out in sys.argv[1:]:
        for run in runs_of(experiment, Path(out)):
            print(json.dumps(line(run)))


def line(run: Run) -> dict[str, Any]:
    """Return what the raw file keeps of a run."""
    rows = [row for row in read_rows(run.run_dir / METRICS) if "score/mean" in row]
    samples = {
        int(path.stem.removeprefix("evaluation-")): path
        for path in run.run_dir.glob("samples/evaluation-*.jsonl")
    }
    return {
        "arm": run.arm,
        "seed": run.seed,
        "learning_rate": rows[-1]["learning_rate"],
        "last_step": rows[-1]["step"],
        "seconds_per_step": round(float(np.mean([row["time/step"] for row in rows])), 2),
        "thoughts": {step: dict(counts(episodes(samples[step]))) for step in sorted(samples)},
        "baselines": baselines(rows),
        "columns": COLUMNS,
        "training": [
            [round(row[name], 4) for name in COLUMNS]
            for row in rows
            if row["step"] % 5 == 0 or row["step"] == 1
        ],
    }


def episodes(path: Path) -> list[dict[str, Any]]:
    """Return the sampled episodes of an evaluation."""
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]


def counts(sampled: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Count ends of thoughts, steps and right answers. The answer at the largest budget is last."""
    found: Counter[str] = Counter(thoughts=len(sampled))
    for episode in sampled:
        thought, answers = episode["thought"].removesuffix(THINK_END), episode["answers"]
        end = "found" if FOUND in thought else "given up" if FAILED in thought else "cut"
        steps = [step for step, _, _ in written_steps(thought)]
        smallest = answers[0]
        after = tokens_after_target(episode["problem"], thought)
        whole = smallest["cut"] >= episode["thought_tokens"]
        found.update(
            {
                end: 1,
                f"{end}, right": int(answers[-1]["score"]),
                "true solutions": writes_solution(episode["problem"], thought),
                "steps": len(steps),
                "wrong steps": sum(not step.is_right for step in steps),
                "whole at 128": whole,
                "cut at 128": not whole,
                "cut at 128, right": 0 if whole else int(smallest["score"]),
                "tokens": len(thought),
                "reached": after is not None,
                "tokens after the target": after or 0,
            }
        )
    return found


def tokens_after_target(problem: str, thought: str) -> int | None:
    """Return how many tokens, which are characters, follow the step that first reaches the target.

    None if no step reaches it.
    """
    steps = chunk_thought(list(thought), separator=rf"(?=[{NEXT}{BACK}{FOUND}{FAILED}])", most=1)
    reached = result_chunks(Problem(id="", text=problem, answer=problem), steps)
    return sum(steps.token_counts[reached[0] + 1 :]) if reached else None


def writes_solution(problem: str, thought: str) -> bool:
    """Return whether the steps after `!` use every number once, are right and reach the target."""
    numbers, _, target = problem.partition("->")
    pool = [int(number) for number in numbers.split(",")]
    for step, _, _ in written_steps(thought.partition(FOUND)[2]):
        for used in (step.left, step.right):
            if used not in pool:
                return False
            pool.remove(used)
        if not step.is_right:
            return False
        pool.append(step.result)
    return pool == [int(target)]


def baselines(rows: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return metric -> budget -> mean over all steps, for instance `variance_v2` -> `512`."""
    means: dict[str, dict[str, float]] = {}
    for name in rows[0]:
        if match := BASELINE.fullmatch(name):
            values = [row[name] for row in rows if name in row]
            means.setdefault(match[1], {})[match[2]] = round(float(np.mean(values)), 5)
    return means


if __name__ == "__main__":
    main()
