"""Tokens per second of `rlsys train` and of TRL's GRPOTrainer with vLLM, on the same card.

    python benchmarks/against_trl.py OUT
    python benchmarks/against_trl.py OUT --sides trl,rlsys --total 240
    python benchmarks/against_trl.py OUT --device cpu      # a toy, which proves the script

Both sides train the same model folder with random weights on the same prompts, with the same group
size, rewards and number of tokens, one after the other. `rlsys` samples the next batch during
training, which is its default on a card; `rlsys-sync` does not, and neither does TRL.

Seconds of a step are the median of all steps but the first two: the first one compiles, and during
that time rlsys samples the whole batch of the second one. Every side prints a JSON row and appends
it to OUT/against_trl.jsonl, also if it fails; the last row has the ratios. Sides may also run in
several calls with the same OUT. OUT/SIDE.log is the output of a side. Needs trl.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from plan_check import COMMON, SHARED
from rlsys.assets import shipped_path
from rlsys.reporting.metrics_file import METRICS
from whole_runs import ROOT, cards_used_gib, environment, running, training_steps, versions

SIDES: Final = ("trl", "rlsys", "rlsys-sync")
ROWS: Final = "against_trl.jsonl"
WARM_UP: Final = 2
"""First steps that are not measured."""
POLL_S: Final = 0.5
SHORTEST_S: Final = 30.0
"""A side with less time is not started."""
FREE_GIB: Final = 2.0
"""A card with less used memory holds no side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one training step samples and trains on; lengths in tokens."""

    shape: str = "1.5b"
    """Of the model: benchmarks/speed_model.py."""
    prompts: int = 32
    group_size: int = 8
    prompt_tokens: int = 100
    completion_tokens: int = 512

    @property
    def numbers(self) -> int:
        """Numbers in every problem; a number and its operator are two tokens."""
        return (self.prompt_tokens - 2) // 2

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def completions(self) -> int:
        """Of a step."""
        return self.prompts * self.group_size


TOY: Final = Load(shape="tiny", prompts=4, group_size=4, prompt_tokens=20, completion_tokens=24)


def main() -> None:
    """Run the sides one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--sides", default=",".join(SIDES), help="comma-separated")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=5, help="steps of a side, the first included")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds of a side at most")
    parser.add_argument("--total", type=float, default=600.0, help="seconds of all sides at most")
    parser.add_argument("--model", type=Path, help="folder; made anew if it is not given")
    asked = parser.parse_args()
    # The processes of a run import the method from this folder.
    paths = [os.environ.get("PYTHONPATH", ""), str(ROOT / "benchmarks")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    ends = time.monotonic() + asked.total
    asked.out.mkdir(parents=True, exist_ok=True)
    load = TOY if asked.device == "cpu" else Load()
    with tempfile.TemporaryDirectory(prefix="against_trl") as scratch:
        model = asked.model or _made_model(Path(scratch), load.shape)
        for side in asked.sides.split(","):
            seconds = min(asked.limit, ends - time.monotonic())
            row = _row(asked, side, load, model, Path(scratch), seconds)
            _record(asked.out, row)
    lines = (asked.out / ROWS).read_text().splitlines()
    _record(asked.out, ratios([json.loads(line) for line in lines]))


def _made_model(scratch: Path, shape: str) -> Path:
    """Make the model in a process of its own, so that this one has no CUDA context."""
    maker = ROOT / "benchmarks" / "speed_model.py"
    tokenizer = shipped_path("tiny")
    command = [sys.executable, maker, scratch / "model", tokenizer, "--shape", shape]
    subprocess.run(list(map(str, command)), check=True, env=environment())
    return scratch / "model"


def _row(
    asked: argparse.Namespace, side: str, load: Load, model: Path, scratch: Path, seconds: float
) -> dict[str, Any]:
    """Run a side; an error becomes part of its row, so that the other sides still run."""
    on_gpu = asked.device == "cuda"
    about = {
        "side": side,
        "device": _card_name() if on_gpu else "cpu",
        "load": asdict(load),
        "versions": versions("trl", "accelerate"),
    }
    if seconds < SHORTEST_S:
        return about | {"error": f"{seconds:.0f} s were left, which is too few to start"}
    run_dir = scratch / side
    run_dir.mkdir()
    settings: Any
    if side == "trl":
        settings = trl_settings(load, on_gpu=on_gpu)
        command = _trl_command(load, model, run_dir, settings, asked.steps)
    else:
        settings = rlsys_settings(load, on_gpu=on_gpu, ahead=side == "rlsys")
        command = _rlsys_command(model, run_dir, settings)
    log = asked.out / f"{side}.log"
    found = _measured(
        command,
        run_dir / METRICS,
        log,
        asked,
        seconds=seconds,
        completions=load.completions,
    )
    return about | found | {"settings": settings}


def trl_settings(load: Load, *, on_gpu: bool) -> dict[str, Any]:
    """Settings of GRPOConfig: TRL's fastest ones on one card that need no further package.

    Weights in bfloat16 are faster than TRL's default, float32 with autocast; rlsys has float32
    master weights. No layer is checkpointed. A pass has about as many tokens as one of rlsys. The
    correction for the difference between vLLM and the trainer is that of rlsys (`truncate`).
    """
    rows = 16 if on_gpu else 4
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.3,
        "vllm_max_model_length": load.length,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": 2.0,
        "generation_kwargs": {"ignore_eos": True, "detokenize": False},
        "num_generations": load.group_size,
        "max_completion_length": load.completion_tokens,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": load.completions // rows,
        "temperature": 1.0,
        "beta": 0.0,
        "loss_type": "grpo",
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch_fused",
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
        "model_init_kwargs": {
            "dtype": "bfloat16" if on_gpu else "float32",
            "attn_implementation": "sdpa",
        },
        "gradient_checkpointing": False,
        "shuffle_dataset": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
    }


def _trl_command(
    load: Load, model: Path, run_dir: Path, settings: Mapping[str, Any], steps: int
) -> list[str]:
    job = {
        "model": str(model),
        "metrics": str(run_dir / METRICS),
        "difficulty": load.numbers,
        "prompts": load.prompts * steps,
        "settings": {**settings, "max_steps": steps, "output_dir": str(run_dir)},
    }
    path = run_dir / "job.json"
    path.write_text(json.dumps(job))
    return [sys.executable, str(ROOT / "benchmarks" / "trl_training.py"), str(path)]


def rlsys_settings(load: Load, *, on_gpu: bool, ahead: bool) -> list[str]:
    """Words of `rlsys train`. A thought is the completion; cut ones get no answers (`zero`)."""
    device = (
        "model.dtype=bfloat16",
        *SHARED,
        "generation.kv_cache_mib=8192",
        "learner.row_tokens=10240",  # 16 sequences
        "learner.micro_batch_rows=1",
        "learner.logits_chunk=4096",
    )
    return [
        *COMMON,
        "data.prompt.max_tokens=128",
        "data.shuffle=false",
        f"data.train.difficulty=[{load.numbers},{load.numbers}]",
        "data.train.size=1000",
        f"environment.budgets=[{load.completion_tokens}]",
        "environment.answers=1",
        "environment.answer_tokens=16",
        "environment.truncation=zero",
        # GRPO with scale=std.
        "algorithm.method=alternating_rewards:AlternatingRewards",
        "loss.aggregation=sequence_mean",
        f"batch.problems={load.prompts}",
        f"batch.group_size={load.group_size}",
        *(device if on_gpu else ("generation.kv_cache_mib=64",)),
        f"rollout.max_staleness={int(ahead)}",
    ]


def _rlsys_command(model: Path, run_dir: Path, settings: Sequence[str]) -> list[str]:
    config = run_dir.with_suffix(".yaml")
    config.write_text("{}\n")
    where = [f"run_dir={run_dir}", f"model.path={model}"]
    return [sys.executable, "-m", "rlsys", "train", str(config), *where, *settings]


def _measured(
    command: Sequence[str],
    metrics: Path,
    log: Path,
    asked: argparse.Namespace,
    *,
    seconds: float,
    completions: int,
) -> dict[str, Any]:
    """Run a side until it has made asked.steps steps, or until `seconds` are over."""
    on_gpu = asked.device == "cuda"
    card = 0.0
    rows: list[dict[str, float]] = []
    started = time.monotonic()
    with log.open("w") as output, running(command, output) as process:
        while len(rows) < asked.steps and process.poll() is None:
            if time.monotonic() - started > seconds:
                break
            time.sleep(POLL_S)
            rows = training_steps(metrics)
            card = max(card, *(cards_used_gib() if on_gpu else [0.0]))
        rows = training_steps(metrics)
    whole_run = {"whole_run_s": round(time.monotonic() - started, 1)}
    if on_gpu:
        _wait_for_free_card()
    if len(rows) < 2:
        tail = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-20:])
        return whole_run | {"error": f"{len(rows)} steps; see {log}:\n{tail}"}
    return whole_run | {"card_gib": round(card, 1)} | measures(rows, completions)


def measures(rows: Sequence[Mapping[str, float]], completions: int) -> dict[str, Any]:
    """Return the seconds of a step and the tokens per second, from two or more rows.

    `rows` have the names of metrics.jsonl. A step lasts from the row of the step before to its own
    row, so that reports count. Of two steps only the second one is measured.
    """
    steps = [after["time"] - before["time"] for before, after in pairwise(rows)]
    measured = steps[min(WARM_UP, len(steps)) - 1 :]
    seconds = statistics.median(measured)
    tokens = statistics.mean(row["thought/length"] for row in rows) * completions
    parts = [key for key in rows[0] if key.startswith("time/") and all(key in row for row in rows)]
    return {
        "step_s": round(seconds, 3),
        "tokens_per_s": round(tokens / seconds),
        "tokens_per_step": round(tokens),
        "steps_s": [round(step, 3) for step in (rows[0]["time/step"], *steps)],
        "parts_s": {
            key: round(statistics.median(row[key] for row in rows[-len(measured) :]), 3)
            for key in parts
        },
        "grad_norm": [round(row["grad_norm"], 5) for row in rows if "grad_norm" in row],
    }


def ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return tokens per second of every other side over those of TRL, by the last row of each."""
    rates = {row["side"]: row["tokens_per_s"] for row in rows if "tokens_per_s" in row}
    theirs = rates.pop("trl", None)
    return {"over_trl": {s: round(rate / theirs, 3) for s, rate in rates.items() if theirs}}


def _wait_for_free_card() -> None:
    for _ in range(40):
        if max(cards_used_gib()) < FREE_GIB:
            return
        time.sleep(POLL_S)


def _card_name() -> str:
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return listed.splitlines()[0].strip()


def _record(out: Path, row: Mapping[str, Any]) -> None:
    print(json.dumps(row), flush=True)
    with (out / ROWS).open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
