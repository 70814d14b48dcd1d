"""Measure the reflection model that ships with rlsys by itself, on thoughts and on written traces.

    python benchmarks/reflection_model.py --out runs/reflection-model --seeds 0,1,2

This is `rlsys reflection eval configs/reflection_tiny.yaml reflection_model.path=tiny-reflection`.
For each seed, it runs once on thoughts that the tiny reflective reasoner samples, and once on
generated traces about twice as many problems, of which a fifth are cut at a random place. The raw
file OUT/results.json is written after every measurement, and the same command again goes on where
it stopped. docs/reflection-model.md has the tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from table_runs import markdown, mean_and_interval

ROOT: Final = Path(__file__).parents[1]
THOUGHTS, TRACES = KINDS = "thoughts", "traces"
PROBLEMS: Final = {THOUGHTS: 512, TRACES: 1024}
CUT_SHARE: Final = 0.2
"""Share of the traces that are cut at a random place."""
DETECTION: Final = {
    "chunks with the teacher's label": ("accuracy",),
    "the same, if every label were `Think`": ("all_think",),
    "first result chunk right, or rightly none": ("first_accuracy",),
    "the same, only thoughts that state the right answer": ("first_of_answered",),
    "precision and recall of `Result`": ("precision", "recall"),
}
CUTS: Final = ("original", "teacher", "first", "strong", "normal", "weak")

Results = dict[str, list[dict[str, Any]]]
"""Per kind of thought, the result of `rlsys reflection eval` for every seed."""


def main() -> None:
    """Carry out the measurements that the raw file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=lambda t: [int(s) for s in t.split(",")], default=[0, 1, 2])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path: Path = arguments.out / "results.json"
    found: Results = json.loads(path.read_text()) if path.exists() else {THOUGHTS: [], TRACES: []}
    for seed in arguments.seeds:
        for kind in KINDS:
            if seed not in [result["seed"] for result in found[kind]]:
                measured = measure(kind, seed, arguments.out / f"{kind}-{seed}")
                found[kind].append({"seed": seed, **measured})
                path.write_text(json.dumps(found, indent=1) + "\n")


def measure(kind: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the result of `rlsys reflection eval` on thoughts or on traces."""
    from rlsys.config.loading import load_config
    from rlsys.config.reflection import ReflectionConfig
    from rlsys.launch.reflection import evaluate_reflection_model

    size = PROBLEMS[kind]
    words = [f"run_dir={folder}", f"seed={seed}", "reflection_model.path=tiny-reflection"]
    words += [f"measure.problems={size}", f"data.evaluation.size={size}"]
    config = load_config(ROOT / "configs" / "reflection_tiny.yaml", words, ReflectionConfig)
    if kind == TRACES:
        write_traces(config, folder / "evaluation" / "thoughts.jsonl")
    return evaluate_reflection_model(config, print).to_dict()


def write_traces(config: Any, path: Path) -> None:
    """Write a generated trace about every held-out problem, in place of a sampled thought.

    Args:
        config: A ReflectionConfig.
        path: The file in which `rlsys reflection eval` looks for thoughts.
    """
    import numpy as np

    from rlsys.config import TraceHabits
    from rlsys.reflection.labelling.responses import Thought, thought_id
    from rlsys.reflection.labelling.workspace import Workspace
    from rlsys.sft.traces import draw_trace
    from rlsys.tokenization.model_folder import check_model
    from rlsys.tokenization.tokenizer import encode

    place = Workspace.load(config, check_model(config.policy, on_cpu=True))
    rng = np.random.default_rng(config.seed)
    rows = []
    for problem in place.problems(held_out=True):
        text = draw_trace(problem, rng, TraceHabits(check=0.3, slip=0.03)).thought
        ids = np.array(encode(place.tokenizer, text), np.int32)
        cut = rng.random() < CUT_SHARE
        kept = ids[: rng.integers(1, len(ids) + 1)] if cut else ids
        name = thought_id(problem, 0)
        rows.append(Thought(id=name, problem=problem, token_ids=kept, closed=not cut).to_row())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def detection(path: Path, task: str = "tiny") -> str:
    """Return the table of labels: agreement with the teacher on thoughts and on traces."""
    found: Results = json.loads(path.read_text())
    kinds = [kind for kind in KINDS if kind in found]
    rows = []
    for label, names in DETECTION.items():
        cells = [", ".join(_detected(found[kind], name) for name in names) for kind in kinds]
        rows.append([label, *cells])
    return markdown(["detection", *(f"{task}, {kind}" for kind in kinds)], rows)


def cuts(path: Path, task: str = "tiny") -> str:
    """Return the table of answers after every kind of cut of the thoughts."""
    found: Results = json.loads(path.read_text())
    rows = []
    for cut in CUTS:
        names = (("accuracy", ".3f"), ("tokens", ".1f"), ("token_ratio", ".1f"))
        cells = [_of_cut(found[THOUGHTS], cut, name, form) for name, form in names]
        blind = f"as {cut}"
        known = any(r["cut"] == blind for r in found[THOUGHTS][0]["revisions"])
        cells.append(_of_cut(found[THOUGHTS], blind, "accuracy", ".3f") if known else "")
        rows.append([f"`{cut}`", *cells])
    head = [f"cut ({task})", "accuracy", "tokens", "tokens in %"]
    return markdown([*head, "accuracy of a cut at the same share, without reading"], rows)


def _detected(results: Sequence[dict[str, Any]], name: str) -> str:
    return mean_and_interval([float(r["detection"][name]) for r in results], ".3f")


def _of_cut(results: Sequence[dict[str, Any]], cut: str, name: str, form: str) -> str:
    rows = [row for result in results for row in result["revisions"] if row["cut"] == cut]
    return mean_and_interval([float(row[name]) for row in rows], form)


if __name__ == "__main__":
    main()
