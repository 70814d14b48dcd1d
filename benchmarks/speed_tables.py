"""Tables of measured speed: learner, attention, generation, random faults, training steps."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import fmean, median
from typing import Any

from table_runs import markdown


def row_lengths(path: Path) -> str:
    """Return the learner's speed with rows of doubling and of finer lengths."""
    head = ("rows", "checkpointing", "padding", "s per step", "tokens/s", "MFU", "peak memory")
    rows = sorted(json_lines(path), key=lambda row: -float(row["median_s"]))
    return markdown(
        head,
        (
            [
                f"{row['row_tokens']:,}" + " (doubling)" * (row["job"] == "wide"),
                checkpointing(row["checkpointing"]),
                f"{row['padding_share']:.1%}",
                *step_cells(row),
            ]
            for row in rows
        ),
    )


def step_cells(row: Mapping[str, Any]) -> list[str]:
    """Return seconds, tokens per second, MFU and memory of a measured step of the learner."""
    return [
        f"{row['median_s']:.2f}",
        f"{row['tokens_per_s']:,}",
        f"{row['mfu']:.3f}",
        f"{row['peak_gib']:.1f} GiB",
    ]


def checkpointing(setting: bool | int) -> str:
    """Return the words for all layers, none, or their number."""
    if isinstance(setting, bool):
        return "yes" if setting else "no"
    return f"{setting} layers"


def compiled_layers(path: Path) -> str:
    """Return the learner's speed with eager and with compiled layers on long trees."""
    head = ("layers", "checkpointing", "`logits_chunk`", "s per step", "tokens/s", "MFU")
    return markdown(
        [*head, "peak memory", "first step"],
        (
            [
                "compiled" if row["compile"] else "eager (head compiled)",
                checkpointing(row["checkpointing"]),
                f"{row['logits_chunk']:,}",
                *step_cells(row),
                f"{row['first_s']:.0f} s",
            ]
            for row in json_lines(path)
            if row["job"] == "long"
        ),
    )


def attention(path: Path) -> str:
    """Return TFLOP/s of dense attention, and of tree attention with three choices of tiles."""
    rows = json_lines(path)
    dense, *trees = rows
    copied = [row for row in trees if row["key_heads"] == 12]
    best = max(copied, key=lambda row: float(row["both_tflops"]))
    tiles = {key: value for key, value in best.items() if key[:4] in {"fwd_", "bwd_"}}
    shared = next(row for row in trees if row["key_heads"] == 2 and tiles.items() <= row.items())
    labels = {
        "dense causal, flash": dense,
        "tree, torch's tiles": copied[0],
        "tree, tiles of `learner/attention.py`": best,
        "the same, 2 key heads for 12 query heads without copies": shared,
    }
    kinds = ("forward", "backward", "both")
    return markdown(
        ["kernel", *kinds, "of dense"],
        (
            [
                label,
                *(str(row[f"{kind}_tflops"]) for kind in kinds),
                f"{row['both_tflops'] / dense['both_tflops']:.2f}",
            ]
            for label, row in labels.items()
        ),
    )


def generation(path: Path) -> str:
    """Return sampled tokens per second of vLLM alone and of rlsys's engines."""
    rows = json_lines(path)
    return markdown(
        ["what", "engines", "tokens/s", "ratio"],
        (
            [
                row["what"],
                str(row["engines"]),
                f"{row['tokens_per_s']:,}",
                f"{row['tokens_per_s'] / rows[0]['tokens_per_s']:.2f}",
            ]
            for row in rows
        ),
    )


def driver(path: Path) -> str:
    """Return the cost of a group around the engines, before and after; the fastest run counts."""
    rows: dict[tuple[str, str, int], dict[str, dict[str, Any]]] = {}
    for row in json_lines(path):
        found = rows.setdefault((row["method"], row["job"], row["engines"]), {})
        best = found.get(row["label"], {}).get("us_per_group", inf)
        if row["us_per_group"] < best:
            found[row["label"]] = row

    def cells(found: Mapping[str, Mapping[str, Any]], key: str, form: str) -> list[str]:
        values = [found.get(label, {}).get(key) for label in ("before", "after")]
        return ["" if value is None else format(value, form) for value in values]

    return markdown(
        [
            *("method", "what runs", "engines", "µs per group before", "after"),
            *("groups/s before", "after", "busiest engine / mean before", "after"),
        ],
        (
            [
                method,
                "driver" if job == "driver" else "all in one process",
                str(engines),
                *cells(found, "us_per_group", ",.0f"),
                *cells(found, "groups_per_s", ",d"),
                *cells(found, "busiest_over_mean", ".2f"),
            ]
            for (method, job, engines), found in sorted(
                rows.items(), key=lambda item: (item[0][0], item[0][1] != "driver", item[0][2])
            )
        ),
    )


def group_times(path: Path) -> str:
    """Return the seconds of a group, with answers that wait for all thoughts and without."""
    return markdown(
        ["answers wait for", "Ray", "groups at once", "median s per group", "fastest round"],
        (
            [
                row["answers_wait_for"],
                "yes" if row["ray"] else "no",
                str(row["in_flight"]),
                f"{row['median_s']:.3f}",
                f"{row['fastest_s']:.3f}",
            ]
            for row in json_lines(path)
        ),
    )


def medians(paths: Mapping[str, Path]) -> str:
    """Return medians over all training steps of each run."""
    columns = {
        "s per step": ("time/step", ".2f"),
        "s weight synchronisation": ("time/sync", ".2f"),
        "s training": ("time/training", ".2f"),
        "packed tokens/s in training": ("tokens_per_s/training", ",.0f"),
        "canary difference, nats": ("gap/canary", ".3f"),
        "prefix cache": ("prefix_cache/share", ".2f"),
        "largest staleness": ("staleness/max", ".0f"),
    }
    lines = []
    for label, path in paths.items():
        rows = csv_rows(path)
        values = {key: [float(row[key]) for row in rows] for key, _ in columns.values()}
        cells = [
            format((max if key == "staleness/max" else median)(values[key]), form)
            for key, form in columns.values()
        ]
        lines.append([label, str(len(rows)), *cells])
    return markdown(["medians over all steps", "steps", *columns], lines)


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file with one row per training step."""
    with path.open() as file:
        return list(csv.DictReader(file))


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file with one JSON object per line."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def faults(runs: Iterable[Mapping[str, Any]]) -> str:
    """Return, per process and kind of fault, the seconds to detection and to serving again."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        for seen in run["faults"]:
            rows[seen["fault"]["target"], seen["fault"]["kind"]].append(seen)
    head = ("process", "fault", "how often", "seconds to detection", "seconds to serving again")
    return markdown(
        head,
        (
            [
                target,
                kind,
                str(len(seen)),
                *(_seconds(seen, key) for key in ("detected_s", "serving_s")),
            ]
            for (target, kind), seen in sorted(rows.items())
        ),
    )


def _seconds(seen: Sequence[Mapping[str, Any]], key: str) -> str:
    """Return the median and the largest value, without faults of which there is none."""
    values = [one[key] for one in seen if one[key] is not None]
    if not values:
        return "–"
    return f"{median(values):.1f}" + f" (at most {max(values):.1f})" * (len(values) > 1)


def steps(path: Path, of_ten: Sequence[int]) -> str:
    """Return means over ten training steps each; `of_ten` names the first step of each column."""
    rows = csv_rows(path)
    columns = [[r for r in rows if first <= int(r["step"]) < first + 10] for first in of_ten]
    names = {
        "mean training score": ("score/mean", ".3f"),
        "thought length": ("thought/length", ".1f"),
    }
    return markdown(
        ["steps", *(f"{first}-{first + 9}" for first in of_ten)],
        (
            [label, *(format(fmean(float(r[key]) for r in column), form) for column in columns)]
            for label, (key, form) in names.items()
        ),
    )
