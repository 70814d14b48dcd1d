"""Whole runs next to their plans: memory of the learner, memory of the card, seconds of a step.

The runs are those of benchmarks/plan_check.py. Their plans are computed anew from the settings of
every run; the raw file also has the plan of the day on which it was measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from plan_check import PROMPT_TOKENS, plan_numbers
from rlsys.config import RunConfig
from rlsys.config.loading import load_config
from rlsys.planning.cards import CARDS
from rlsys.planning.plan import Shapes, plan_run
from rlsys.planning.shape import shape_of
from rlsys.planning.workload import Lengths
from speed_model import SHAPES
from table_runs import markdown

MEASURES: Final = {
    "learner_peak_gib": ("GiB of the learner", ".1f"),
    "card_0_gib": ("GiB of the card", ".1f"),
    "step_s": ("s per step", ".2f"),
}


def whole_runs(path: Path) -> str:
    """Return what was measured and what is planned, with their ratio now and on that day."""
    found = json.loads(path.read_text())
    head = [word for name, _ in MEASURES.values() for word in (name, "planned")]
    lines = []
    for run in found["runs"]:
        if "predicted" not in run:  # made for another question
            continue
        plan = planned(run, found["card"])
        line = [f"`{run['run']}`"]
        for key, (_, form) in MEASURES.items():
            measured, before = run["measured"][key], run["predicted_over_measured"][key]
            ratio = f"{plan[key] / measured:.2f}, was {before:.2f}"
            line += [f"{measured:{form}}", f"{plan[key]:{form}} ({ratio})"]
        lines.append(line)
    return markdown(["run", *head], lines)


def planned(run: dict[str, Any], card: str) -> dict[str, float]:
    """Return what `rlsys plan` predicts today for a measured run."""
    sizes = {"model_type": "qwen2", "tie_word_embeddings": True, **SHAPES[run["shape"]]}
    config = load_config(None, run["settings"], RunConfig)
    shapes, lengths = Shapes(policy=shape_of(sizes)), Lengths(prompt=PROMPT_TOKENS)
    return plan_numbers(plan_run(config, shapes, CARDS[card], lengths))
