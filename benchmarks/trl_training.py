"""TRL's GRPOTrainer with vLLM in the same process: the other side of benchmarks/against_trl.py.

    python benchmarks/trl_training.py JOB.json

JOB.json has `model` (a folder), `metrics` (a file, to which every step appends a row), `prompts`
and `difficulty` of the arithmetic problems, and `settings` (of GRPOConfig). Needs trl.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from alternating_rewards import alternating
from rlsys.config.data import ArithmeticData
from rlsys.data.problems import load_problems


def main() -> None:
    """Train until the process is killed or max_steps are made."""
    job = json.loads(Path(sys.argv[1]).read_text())
    level = job["difficulty"]
    problems = load_problems(ArithmeticData(size=job["prompts"], difficulty=(level, level)))
    prompts = [{"prompt": [{"role": "user", "content": problem.text}]} for problem in problems]
    trainer = GRPOTrainer(
        model=job["model"],
        reward_funcs=reward,
        args=GRPOConfig(**job["settings"]),
        train_dataset=Dataset.from_list(prompts),
        callbacks=[StepTimes(Path(job["metrics"]))],
    )
    trainer.train()
    # vLLM's threads keep a finished interpreter waiting.
    os._exit(0)


def reward(completions: list[Any], **_: Any) -> list[float]:
    """TRL passes the completions of a whole batch, group after group."""
    return alternating(len(completions))


class StepTimes(TrainerCallback):  # type: ignore[misc]
    """Appends a row per optimizer step, under the names of rlsys' metrics."""

    def __init__(self, metrics: Path) -> None:
        self._metrics = metrics
        self._last = self._ended = 0.0
        """Unix times."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The first step starts."""
        self._ended = time.time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The optimizer step is launched; its kernels belong to the step."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._last, self._ended = self._ended, time.time()

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        """With logging_steps=1 it follows every step; the log after the last one has no norm."""
        if "grad_norm" not in logs:
            return
        row = {
            "time": self._ended,
            "time/step": self._ended - self._last,
            "grad_norm": float(logs["grad_norm"]),
            "thought/length": float(logs["completions/mean_length"]),
        }
        with self._metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
