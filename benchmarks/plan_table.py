"""The learner's measured memory and seconds next to those that `rlsys plan` computes for them.

The rows are those of benchmarks/learner_speed.py on one H200: a model of Qwen2-1.5B's shape, eight
trees of 8,000 thought tokens in rows of their own, or 64 trees of 1,000 thought tokens, two rows in
a pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from learner.gradient_checkpointing import asked_layers
from rlsys.planning.cards import CARDS, GIB
from rlsys.planning.memory import LearnerNeeds, learner_memory
from rlsys.planning.shape import shape_of
from rlsys.planning.time import TrainingLoad, seconds_of, training_stages
from rlsys.planning.workload import EpisodeTree, LearnerRows
from speed_model import SHAPES
from speed_tables import json_lines
from table_runs import markdown

SHAPE: Final = shape_of({"model_type": "qwen2", "tie_word_embeddings": True, **SHAPES["1.5b"]})
LONG: Final = EpisodeTree(
    prompt=100,
    thought=8000,
    branches=tuple((budget, 4) for budget in (2000, 4000, 6000, 8000)),
    forced=8,
    answer=118,
)
SHORT: Final = EpisodeTree(
    prompt=100,
    thought=1000,
    branches=tuple((budget, 4) for budget in (250, 500, 750, 1000)),
    forced=8,
    answer=32,
)


def plans(path: Path) -> str:
    """Return measured and planned memory and seconds of the rows of a file with today's learner.

    That adds gradients without copies; trees of several lengths are not planned.
    """
    lines = []
    for row in json_lines(path):
        if row["gradients"] != "added" or row["job"] == "uneven":
            continue
        label = f"rows of {'2 × ' * (row['job'] == 'short')}{row['row_tokens']:,}"
        layers = checkpointed(row)
        if layers:
            part = "" if layers == SHAPE.layers else f" {layers} of {SHAPE.layers} layers"
            label += f", checkpointing{part}"
        measured = f"{row['peak_gib']:.1f} GiB, {row['median_s']:.2f} s"
        lines.append([str(row["session"]), label, measured, planned(row)])
    head = ["session", "one learner rank, 1.5B shape, one H200", "measured", "planned"]
    return markdown(head, lines)


def checkpointed(row: dict[str, Any]) -> int:
    """Return the checkpointed layers of a measured row."""
    return asked_layers(row["checkpointing"], SHAPE.layers)


def planned(row: dict[str, Any]) -> str:
    """Return the planned peak of memory and seconds of one measured row."""
    short = row["job"] == "short"
    tree, trees = (SHORT, 64) if short else (LONG, 8)
    trees_per_row = row["row_tokens"] // tree.tokens
    rows = LearnerRows(
        row_tokens=row["row_tokens"],
        rows=trees // trees_per_row,
        passes=8,
        rows_per_pass=2 if short else 1,
        trees_per_row=trees_per_row,
    )
    answers = sum(count for _, count in tree.branches) * tree.answer
    needs = LearnerNeeds(
        shape=SHAPE,
        itemsize=2,
        trained=SHAPE.parameters,
        zero_stage=1,
        ranks=1,
        rows=rows,
        predicted=rows.rows_per_pass * rows.trees_per_row * (tree.thought + answers),
        checkpointed=checkpointed(row),
        compiled=row["compile"],
        logits_chunk=row["logits_chunk"],
        reference=False,
        kept_for_sync=0,
    )
    load = TrainingLoad(
        shape=SHAPE,
        itemsize=2,
        tree=tree,
        trees=trees,
        rows=rows,
        trained_parameters=SHAPE.parameters,
        ranks=1,
        optimizer_steps=1,
        checkpointed=checkpointed(row),
        compiled=row["compile"],
        extra_forwards=0,
    )
    seconds = seconds_of(training_stages(load, CARDS["h200"]))
    return f"{learner_memory(needs).peak / GIB:.1f} GiB, {seconds:.2f} s"
