"""TRL on the economics server, with and without the loop that answers abandoned questions.

    pip install trl
    python docs/recipes/trl_tiny_model.py --output runs/trl_tiny
    rlsys serve-env environment.problems=3 "environment.corpus.terms=[2,2]" &
    python benchmarks/trl_loop.py --model runs/trl_tiny --out runs/trl_loop.jsonl

One line of the result is one step of one run. The same command again skips the runs that the file
already has. docs/trl.md has the table.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any, Final

from table_runs import markdown

LOOPS: Final = (True, False)
BLOCK: Final = 10
"""Steps of one row of the table."""


def main() -> None:
    """Carry out the runs that the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=lambda t: [int(s) for s in t.split(",")], default=[0, 1, 2])
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["loop"], row["seed"]) for row in read_rows(arguments.out)}
    for seed in arguments.seeds:
        for loop in LOOPS:
            if (loop, seed) not in done:
                rows = run(arguments.model, arguments.steps, seed, loop=loop)
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.writelines(f"{json.dumps(row)}\n" for row in rows)


def run(model: str, steps: int, seed: int, *, loop: bool) -> list[dict[str, Any]]:
    """Train once, and return one row per step: mean reward and mean tool calls of its episodes."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "recipes"))
    recipe = import_module("trl_environment_factory")

    class WithoutLoop(recipe.Economics):  # type: ignore[misc, name-defined]
        """Scores the episode at the place where the policy stopped calling the tool."""

        def get_reward(self) -> float:
            return float(self._reward)

    environment = recipe.Economics if loop else WithoutLoop
    with tempfile.TemporaryDirectory() as folder:
        log = recipe.train(model, steps, folder, seed, environment)
    return [
        {
            "loop": loop,
            "seed": seed,
            "step": step,
            "reward": entry["reward"],
            "tool_calls": entry["tools/call_frequency"],
            "trl": version("trl"),
        }
        for step, entry in enumerate(log, start=1)
    ]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a raw file; a file that does not exist has none."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def trl_loop(path: Path) -> str:
    """Return the table: means over ten steps each, one number per seed."""
    rows = read_rows(path)
    lines = []
    for first in range(1, max(row["step"] for row in rows) + 1, BLOCK):
        block = [row for row in rows if first <= row["step"] < first + BLOCK]
        cells = [
            _of_seeds([row for row in block if row["loop"] == loop], what)
            for loop in LOOPS
            for what in ("reward", "tool_calls")
        ]
        lines.append([f"{first}-{first + BLOCK - 1}", *cells])
    with_loop = ["steps", "reward", "tool calls"]
    return markdown([*with_loop, "reward without loop", "tool calls without loop"], lines)


def _of_seeds(rows: Sequence[Mapping[str, Any]], what: str) -> str:
    seeds = sorted({row["seed"] for row in rows})
    means = [mean(row[what] for row in rows if row["seed"] == seed) for seed in seeds]
    return ", ".join(f"{m:.2f}".replace("-0.00", "0.00") for m in means)


if __name__ == "__main__":
    main()
