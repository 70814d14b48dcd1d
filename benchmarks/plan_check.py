"""What `rlsys plan` predicts against what `rlsys train` needs: memory and seconds of real runs.

    python benchmarks/plan_check.py OUT
    python benchmarks/plan_check.py OUT --runs brpo-8k,grpo-8k --steps 3 --limit 400
    python benchmarks/plan_check.py OUT --runs split-1k           # needs two GPUs
    python benchmarks/plan_check.py OUT --device cpu --runs toy   # proves the script

Models have random weights, so thoughts never end early and every step samples all tokens that it
may. A run is ended after --steps steps; seconds are the median of all steps but the first, which
compiles. The learner's memory is the metric learner/peak_gib, a card's memory is what nvidia-smi
reports at most. OUT/plan_check.json is written anew after every run, OUT/NAME.log is its output.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from rlsys.assets import shipped_path
from rlsys.config import RunConfig
from rlsys.config.loading import load_config
from rlsys.planning.cards import DEFAULT, GIB, Card, local_cards
from rlsys.planning.layout import HOST
from rlsys.planning.memory import PROCESS_BYTES
from rlsys.planning.plan import RunPlan, plan_run, read_shapes
from rlsys.planning.time import seconds_of
from rlsys.planning.workload import Lengths
from rlsys.reporting.metrics_file import METRICS
from whole_runs import ROOT, cards_used_gib, environment, running, training_steps, versions

PROMPT_TOKENS: Final = 32
"""Of the arithmetic problems under the tokenizer that ships with rlsys, about."""
POLL_S: Final = 0.5

COMMON: Final = (
    "steps=1000",  # the script ends the run
    "data.prompt.max_tokens=64",
    "environment.closing=",
    "evaluation.problems=1",
    "evaluation.budgets=[16]",
    "checkpoint.every=0",
    "learner.optimizer.learning_rate=1e-6",
    "rollout.max_staleness=0",  # so that a step is the sum of its parts
)
GPU: Final = ("model.dtype=bfloat16", "environment.answers=2", "environment.answer_tokens=32")
SHARED: Final = (
    "learner.gpus_per_rank=0.5",
    "generation.gpus_per_engine=0.5",
    "generation.gpu_memory_utilization=0.25",  # must be free when the engine starts
)

LONG: Final = (
    "model.dtype=bfloat16",
    "learner.gpus_per_rank=0.5",
    "generation.gpus_per_engine=0.5",
    "generation.gpu_memory_utilization=0.2",
    "generation.kv_cache_mib=16384",
    "learner.gradient_checkpointing=true",
    "learner.logits_chunk=4096",
    "environment.answers=4",
    "environment.answer_tokens=118",
    "batch.problems=4",
    "batch.group_size=8",
)
"""32 thoughts of 8,000 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One real run: the shape of its model (benchmarks/speed_model.py) and its settings."""

    shape: str
    settings: tuple[str, ...]


RUNS: Final = {
    "shared-1k": Run(
        shape="1.5b",
        settings=(
            *GPU,
            *SHARED,
            "environment.budgets=[250,500,750,1000]",
            "batch.problems=4",
            "learner.row_tokens=4096",
            "learner.micro_batch_rows=1",
            "generation.kv_cache_mib=8192",
        ),
    ),
    "shared-small": Run(
        shape="0.5b",
        settings=(
            *GPU,
            *SHARED,
            "environment.budgets=[128,256,384,512]",
            "batch.problems=8",
            "learner.row_tokens=4096",
            "learner.micro_batch_rows=2",
            "generation.kv_cache_mib=4096",
        ),
    ),
    "shared-4k": Run(
        shape="1.5b",
        settings=(
            *GPU,
            *SHARED,
            "environment.budgets=[1000,2000,3000,4000]",
            "batch.problems=2",
            "batch.group_size=4",
            "learner.micro_batch_rows=2",
            "learner.gradient_checkpointing=true",
            "generation.kv_cache_mib=8192",
        ),
    ),
    "split-1k": Run(
        shape="1.5b",
        settings=(
            *GPU,
            "learner.gpus_per_rank=1",
            "generation.gpus_per_engine=1",
            "environment.budgets=[250,500,750,1000]",
            "batch.problems=8",
            "learner.row_tokens=4096",
            "learner.micro_batch_rows=2",
            "generation.gpu_memory_utilization=0.8",
        ),
    ),
    "brpo-8k": Run(shape="1.5b", settings=(*LONG, "environment.budgets=[2000,4000,6000,8000]")),
    "grpo-8k": Run(
        shape="1.5b",
        settings=(*LONG, "environment.budgets=[8000]", "environment.answers=1"),
    ),
    "toy": Run(
        shape="tiny",
        settings=(
            "model.dtype=float32",
            "environment.budgets=[16,32]",
            "environment.answers=2",
            "environment.answer_tokens=8",
            "batch.problems=2",
            "batch.group_size=4",
            "generation.kv_cache_mib=64",
        ),
    ),
}
DEFAULT_RUNS: Final = "shared-1k,shared-small,shared-4k"


class RunFailed(Exception):
    """A run made too few steps to measure; the message ends with its output."""


def main() -> None:
    """Run what was asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", default=DEFAULT_RUNS, help="comma-separated")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=4, help="steps of a run, the first included")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a run at most")
    parser.add_argument("--tokenizer", type=Path, default=shipped_path("tiny"))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of every run")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    card = _card(asked.device)
    results = []
    with tempfile.TemporaryDirectory(prefix="plan_check") as scratch:
        for name in asked.runs.split(","):
            try:
                results.append(_check(asked, name, RUNS[name], card, Path(scratch)))
            except RunFailed as error:  # the other runs are still worth their time
                results.append({"run": name, "error": str(error)})
            print(json.dumps(results[-1]), flush=True)
            report = {"card": card.name, "versions": versions(), "runs": results}
            (asked.out / "plan_check.json").write_text(json.dumps(report, indent=2) + "\n")


def _card(device: str) -> Card:
    if device == "cpu":
        return DEFAULT  # nothing runs on it
    cards = local_cards()
    if not cards:
        raise SystemExit("nvidia-smi lists no GPU; use --device cpu")
    return cards[0]


def _check(
    asked: argparse.Namespace, name: str, run: Run, card: Card, scratch: Path
) -> dict[str, Any]:
    """Plan one run, run it, and return both with their ratios."""
    model = scratch / run.shape
    if not model.exists():
        # In a process of its own, so that this one has no CUDA context.
        maker = ROOT / "benchmarks" / "speed_model.py"
        making = [sys.executable, maker, model, asked.tokenizer, "--shape", run.shape]
        subprocess.run(list(map(str, making)), check=True, env=environment())
    words = [
        f"run_dir={scratch / name}",
        f"model.path={model}",
        *COMMON,
        *run.settings,
        *asked.set,
    ]
    config = load_config(None, words, RunConfig)
    host = psutil.virtual_memory().total
    plan = plan_run(config, read_shapes(config), card, Lengths(prompt=PROMPT_TOKENS), host)
    for fault in plan.faults:
        print(f"{name}: {fault}", flush=True)
    predicted = plan_numbers(plan)
    measured = _measured(asked, name, words, scratch)
    ratios = {
        key: round(value / measured[key], 3) for key, value in predicted.items() if key in measured
    }
    return {
        "run": name,
        "shape": run.shape,
        "settings": words[2:],
        "predicted": predicted,
        "measured": measured,
        "predicted_over_measured": ratios,
    }


def plan_numbers(plan: RunPlan) -> dict[str, float]:
    """Return what is planned of the numbers that a run is measured by, under the same names."""
    cards = [place.size / GIB for place in plan.places if place.place.name != HOST]
    # On the CPU the metric is the resident memory of the process, libraries included.
    libraries = 0 if cards else PROCESS_BYTES
    numbers = {"learner_peak_gib": (plan.learner.peak + libraries) / GIB}
    numbers |= {f"card_{index}_gib": size for index, size in enumerate(cards)}
    if plan.time is not None:
        numbers |= {
            "step_s": plan.time.synchronous,
            "generation_s": seconds_of(plan.time.generation),
            "training_s": seconds_of(plan.time.training),
            "sync_s": plan.time.sync.seconds,
        }
    return {key: round(value, 3) for key, value in numbers.items()}


def _measured(
    asked: argparse.Namespace, name: str, words: Sequence[str], scratch: Path
) -> dict[str, Any]:
    """Run `rlsys train` until it has made asked.steps steps."""
    config = scratch / f"{name}.yaml"
    config.write_text("{}\n")
    command = [sys.executable, "-m", "rlsys", "train", str(config), *words]
    cards: dict[int, float] = {}
    log = asked.out / f"{name}.log"
    started = time.monotonic()
    with log.open("w") as output, running(command, output) as process:
        rows: list[dict[str, float]] = []
        while len(rows) < asked.steps and process.poll() is None:
            if time.monotonic() - started > asked.limit:
                break
            time.sleep(POLL_S)
            rows = training_steps(scratch / name / METRICS)
            for index, used in enumerate(cards_used_gib() if asked.device == "cuda" else ()):
                cards[index] = max(cards.get(index, 0.0), used)
    if len(rows) < 2:
        tail = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-20:])
        seconds = time.monotonic() - started
        raise RunFailed(f"{name}: {len(rows)} steps in {seconds:.0f} s; see {log}:\n{tail}")
    later = rows[1:]

    def median(key: str) -> float:
        return round(statistics.median(row[key] for row in later), 3)

    return {
        "steps": len(rows),
        "learner_peak_gib": round(rows[-1]["learner/peak_gib"], 3),
        **{f"card_{index}_gib": round(used, 3) for index, used in cards.items() if used > 1},
        "step_s": median("time/step"),
        "generation_s": median("time/generation"),
        "training_s": median("time/training"),
        "sync_s": median("time/sync"),
        "paused_s": median("time/paused"),
        "paused_parts_s": {
            part: median(f"time/paused/{part}") for part in ("close", "load", "finish", "check")
        },
        "busy_learner": median("busy/learner"),
        "busy_engines": median("busy/engines"),
        "gap_mean": later[0]["gap/mean"],
        "first_step_s": round(rows[0]["time/step"], 3),
        "thought_tokens": median("thought/length"),
        "first_sync_s": _first_sync_s(log.read_text(errors="replace")),
        "whole_run_s": round(time.monotonic() - started, 1),
    }


def _first_sync_s(output: str) -> float | None:
    """Return what the output says of the first weight sync; None: it took too short to be told."""
    found = re.search(r"^started in .*first weight sync ([\d.]+) s", output, re.MULTILINE)
    return None if found is None else float(found[1])


if __name__ == "__main__":
    main()
