"""Tables of the learner's last measurements: whole steps, their kernels, and TRL beside rlsys."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from speed_tables import checkpointing, json_lines, step_cells
from table_runs import markdown

TRUNKS: Final = {"flex": "FlexAttention", "cudnn": "cuDNN", "flash": "FlashAttention of torch"}
KERNELS: Final = {
    "attention of the trunk": r"sdpa|pytorch_flash|compute_dot_do_o|convert_dq",
    "attention of the branches": r"flex_attention",
    "matrix products": r"nvjet|splitKreduce",
    "softmax over the vocabulary": r"log_softmax",
    "sums of gradients": r"CUDAFunctor_add<(float|c10::BFloat16)>|direct_copy_kernel",
    "optimizer": r"multi_tensor_apply",
}
"""Patterns of kernel names; the first that matches counts."""
OTHERS: Final = "all others"
HOWS: Final = {
    ("one per bucket", None, None): "written over",
    ("one", None, None): "one allocation",
    (None, "synchronous", None): "over NCCL",
    (None, "asynchronous", "kept"): "over NCCL, engine full",
}
"""How weights traveled, by handles, order and caches of a run."""


def trunks(path: Path) -> str:
    """Return whole steps with several kernels for the trunk."""
    head = ("session", "trees", "trunk", "logits", "gradients", "waits", "checkpointing")
    return markdown(
        [*head, "padding", "s per step", "tokens/s", "MFU", "peak memory", "first step"],
        (
            [
                str(row["session"]),
                row["job"],
                # Short trees share rows, and only the first of a row has a trunk.
                TRUNKS["flex" if row["job"] == "short" else row["trunk"]],
                row["logits"],
                row["gradients"],
                "yes" if row.get("waits", True) else "no",
                checkpointing(row["checkpointing"]),
                f"{row['padding_share']:.1%}",
                *step_cells(row),
                f"{row['first_s']:.0f} s",
            ]
            for row in json_lines(path)
        ),
    )


def kernels(path: Path) -> str:
    """Return milliseconds of kernels, summed by purpose, one column per profile."""
    profiles = json_lines(path)
    sums: list[dict[str, float]] = []
    for profile in profiles:
        found = dict.fromkeys([*KERNELS, OTHERS], 0.0)
        for name, milliseconds, _calls in profile["kernels"]:
            purposes = (p for p, pattern in KERNELS.items() if re.search(pattern, name))
            found[next(purposes, OTHERS)] += milliseconds
        # The table of a profile ends before the shortest kernels.
        found[OTHERS] += profile["total_ms"] - sum(found.values())
        sums.append(found)
    columns = [f"{p['job']}, session {p['session']}" for p in profiles]
    lines = [[purpose, *(f"{s[purpose]:,.0f}" for s in sums)] for purpose in sums[0]]
    lines.append(["all kernels", *(f"{p['total_ms']:,.0f}" for p in profiles)])
    idle = [profile.get("idle_ms") for profile in profiles]
    lines.append(["nothing", *("" if ms is None else f"{ms:,.0f}" for ms in idle)])
    return markdown(["ms of a step", *columns], lines)


def against_trl(path: Path) -> str:
    """Return the speed of TRL's trainer and of rlsys on the same work."""
    rows = json_lines(path)
    base = next(row["tokens_per_s"] for row in rows if row["side"] == "trl")
    return markdown(
        ["", "s per step", "tokens/s", "over TRL", "memory of the card"],
        (
            [
                row["side"],
                f"{row['step_s']:.2f}",
                f"{row['tokens_per_s']:,}",
                f"{row['tokens_per_s'] / base:.2f}",
                f"{row['card_gib']:.0f} GiB",
            ]
            for row in rows
        ),
    )


def pauses(trl: Path, runs: Path, *later: Path) -> str:
    """Return how long engines served nothing in a weight sync, part by part, in ms."""
    parts = ("close", "load", "finish", "check")
    lines: list[list[str]] = []

    def add(run: str, how: str, total: float, seconds: Sequence[float | None]) -> None:
        cells = ("" if part is None else f"{1000 * part:.0f}" for part in seconds)
        lines.append([run, how, f"{1000 * total:.0f}", *cells])

    def add_run(row: dict[str, Any], how: str) -> None:
        measured = row["measured"]
        add(row["run"], how, measured["paused_s"], [measured["paused_parts_s"][p] for p in parts])

    for row in json_lines(trl):
        measured = row["parts_s"]
        if "time/paused" in measured:
            seconds = [measured.get(f"time/paused/{part}") for part in parts]
            # A run without parts is older than the writing over.
            how = "reloaded" if None in seconds else "written over"
            add(row["side"], how, measured["time/paused"], seconds)
    for row in json.loads(runs.read_text())["runs"]:
        if row["shape"] == "1.5b":
            add_run(row, "written over")
    for row in chain.from_iterable(json.loads(path.read_text())["runs"] for path in later):
        key = (row.get("handles"), row.get("order"), row.get("caches"))
        if key in HOWS and "beside" not in row:
            add_run(row, HOWS[key])
    return markdown(["run", "weights", "ms without service", *parts], lines)


def two_cards(path: Path) -> str:
    """Return a synchronous run and asynchronous ones with a card for each side."""
    runs = json.loads(path.read_text())["runs"]
    rows = {(row.get("order"), row.get("caches")): row["measured"] for row in runs}
    keys = {
        "seconds per step": ("step_s", ".1f"),
        "the learner waits for samples": ("generation_s", ".1f"),
        "training": ("training_s", ".1f"),
        "weight sync": ("sync_s", ".2f"),
        "of which the check": ("check", ".2f"),
        "busy share of the learner": ("busy_learner", ".2f"),
        "busy share of the engine": ("busy_engines", ".2f"),
        "log-prob gap, mean": ("gap_mean", ".3f"),
    }
    columns = {
        "synchronous": ("synchronous", None),
        "asynchronous, caches cleared": ("asynchronous", "cleared"),
        "asynchronous": ("asynchronous", "kept"),
    }
    values = [rows[run] | rows[run]["paused_parts_s"] for run in columns.values()]
    lines = [[name, *(f"{v[key]:{form}}" for v in values)] for name, (key, form) in keys.items()]
    return markdown(["", *columns], lines)


def full_engine(path: Path) -> str:
    """Return asynchronous runs whose engine is full, before and after it admitted requests."""
    keys = ("time/step", "time/paused", "time/paused/check")
    lines = [[row["when"], *(f"{row[key]:.2f}" for key in keys)] for row in json_lines(path)]
    return markdown(["requests admitted by the engine", "s per step", "s paused", "check"], lines)


def engine_steps(path: Path) -> str:
    """Return what an engine did while it sampled one training step."""
    found = json.loads(path.read_text())
    lines = [
        [
            part["what"],
            f"{part['steps']:,}",
            f"{part['s']:.2f}",
            f"{1e3 * part['s'] / part['steps']:.1f}",
        ]
        for part in found["parts"]
    ]
    return markdown(["the engine", "steps", "seconds", "ms per step"], lines)


def cache_blocks(path: Path) -> str:
    """Return seconds of thoughts and answers for two sizes of the blocks of the cache."""
    rows = json_lines(path)
    cuts = [int(key.removeprefix("answers_")) for key in rows[0] if key.startswith("answers_")]
    names = {
        "thoughts": "thoughts, from the last cut to this one",
        "answers": "answers at this cut",
    }
    lines = [
        [name, str(row["block"]), *(f"{row[f'{what}_{cut}']:.2f}" for cut in cuts)]
        for what, name in names.items()
        for row in rows
    ]
    return markdown(["seconds", "tokens of a block", *(f"{cut:,}" for cut in cuts)], lines)


def long_thoughts(path: Path) -> str:
    """Return steps of BRPO and GRPO with thoughts of 8,000 tokens, and their ratio."""
    rows = {row["run"]: row["measured"] for row in json.loads(path.read_text())["runs"]}
    brpo, grpo = rows["brpo-8k"], rows["grpo-8k"]
    keys = {
        "seconds per step": "step_s",
        "generation": "generation_s",
        "training": "training_s",
        "weight sync": "sync_s",
        "tokens of a thought": "thought_tokens",
        "learner, GiB at most": "learner_peak_gib",
        "card, GiB at most": "card_0_gib",
        "log-prob gap, mean": "gap_mean",
    }
    digits = {"thought_tokens": 0, "gap_mean": 3}
    return markdown(
        ["", "BRPO", "GRPO", "ratio"],
        (
            [
                name,
                *(f"{row[key]:,.{digits.get(key, 1)}f}" for row in (brpo, grpo)),
                f"{brpo[key] / grpo[key]:.2f}",
            ]
            for name, key in keys.items()
        ),
    )
