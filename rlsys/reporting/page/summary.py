"""Headline and tables of the page, as HTML. Every text from a file is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any

from rlsys.reporting.live_view import health
from rlsys.reporting.metrics_file import THOUGHT_LENGTH
from rlsys.reporting.page.evaluations import (
    MEAN,
    RETURN,
    Measured,
    estimates,
    paired_difference,
    problem_scores,
)
from rlsys.reporting.page.run_files import RunFiles
from rlsys.training.health import STEPS
from rlsys.training.ledger import summarise

SETTINGS = (
    ("model", "model.path"),
    ("method", "algorithm.method"),
    ("environment", "environment.type"),
    ("budgets", "environment.budgets"),
    ("problems per step", "batch.problems"),
    ("group size", "batch.group_size"),
    ("learning rate", "learner.optimizer.learning_rate"),
    ("loss", "loss.surrogate"),
    ("max staleness", "rollout.max_staleness"),
    ("seed", "seed"),
)
"""Heading and key of config.yaml."""

LABELS = {MEAN: "anytime mean", THOUGHT_LENGTH: "thought length", RETURN: "return"}


def tiles(runs: Sequence[RunFiles]) -> str:
    """Return the headline: state, steps, time, and the evaluation before and after, of each run."""
    return "".join(f'<div class="tiles">{"".join(_tiles(run, len(runs)))}</div>' for run in runs)


def settings_table(runs: Sequence[RunFiles]) -> str:
    """Return the settings that tell what a run is, one row per run."""
    used = [
        (heading, key) for heading, key in SETTINGS if any(_setting(r.config, key) for r in runs)
    ]
    rows = [
        [run.name, *(_setting(run.config, key) for _, key in used), str(run.folder)] for run in runs
    ]
    return html_table(["run", *(heading for heading, _ in used), "folder"], rows)


def evaluation_table(runs: Sequence[RunFiles]) -> str:
    """Return first and last evaluation of every run, with intervals, and differences of runs."""
    rows: list[tuple[str, dict[str, Measured]]] = []
    for run in runs:
        if not run.evaluations:
            continue
        first, last = run.evaluations[0], run.evaluations[-1]
        rows.append((f"{run.name}, step {first.step}", estimates(run, first)))
        if last is not first:
            rows.append((f"{run.name}, step {last.step}", estimates(run, last)))
            rows.append((f"{run.name}, change", _differences(run, 0, run)))
    rows += [(f"{run.name} − {runs[0].name}", _differences(runs[0], -1, run)) for run in runs[1:]]
    measures = list(dict.fromkeys(measure for _, found in rows for measure in found))
    cells = [
        [heading, *(_estimate(found.get(measure), measure) for measure in measures)]
        for heading, found in rows
        if found
    ]
    if not cells:
        return ""
    note = (
        "Brackets: 95 % bootstrap interval over problems. Changes and differences are paired: only "
        "problems that both files of episodes contain."
    )
    head = ["", *(LABELS.get(measure, measure) for measure in measures)]
    return html_table(head, cells) + f'<p class="note">{note}</p>'


def ledger_table(runs: Sequence[RunFiles]) -> str:
    """Return how many groups were trained, dropped (by reason) or in flight, one row per run."""
    rows = []
    for run in runs:
        if not run.fates:
            continue
        summary = summarise(run.fates)
        reasons = "; ".join(f"{count}: {reason}" for reason, count in summary.dropped.items())
        faults = [
            f"{len(groups)} {name}"
            for name, groups in (("missing", summary.missing), ("doubled", summary.doubled))
            if groups
        ]
        rows.append(
            [
                run.name,
                *map(str, (summary.steps, summary.trained, sum(summary.dropped.values()))),
                *(reasons, str(len(summary.in_flight)), ", ".join(faults) or "none"),
            ]
        )
    head = ["run", "steps", "trained", "dropped", "reasons", "in flight", "missing or doubled"]
    return html_table(head, rows) if rows else ""


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table; all texts are escaped."""
    heading = "".join(f"<th>{escape(text)}</th>" for text in head)
    lines = (
        f"<tr><th>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{heading}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _tiles(run: RunFiles, runs: int) -> list[str]:
    total = run.config.get("steps")
    done = f"{run.last_step} of {total}" if total else str(run.last_step)
    name = run.name if runs > 1 else ""
    tiles = [_tile(run.state, f"step {done}", name)]
    if run.steps and (state := health(run.steps[-1])) is not None:
        kind, _, names = state.partition(": ")
        tiles.append(_tile(f"last {STEPS} steps", kind, names))
    if run.evaluations:
        first, last = (estimates(run, run.evaluations[place]) for place in (0, -1))
        for measure in (MEAN, RETURN, THOUGHT_LENGTH):
            if measure in last:
                before = first.get(measure)
                below = f"before: {_number(before.mean, measure)}" if before else ""
                tiles.append(_tile(LABELS[measure], _estimate(last[measure], measure), below))
    for label, name, form in (
        ("seconds per step", "time/step", "{:.1f}"),
        ("sampled tokens per second", "tokens_per_s/generation", "{:,.0f}"),
    ):
        if values := [row[name] for row in run.steps if row.get(name) is not None]:
            tiles.append(_tile(label, form.format(fmean(values)), "mean over steps"))
    return tiles


def _tile(label: str, value: str, below: str = "") -> str:
    number, _, interval = value.partition(" [")
    small = f"<small>[{escape(interval)}</small>" if interval else ""
    return (
        f'<div class="tile"><span>{escape(label)}</span><b>{escape(number)} {small}</b>'
        f"<span>{escape(below)}</span></div>"
    )


def _differences(run: RunFiles, place: int, other: RunFiles) -> dict[str, Measured]:
    """Return the last evaluation of `other` minus evaluation number `place` of `run`, paired."""
    if not run.evaluations or not other.evaluations:
        return {}
    before, after = (
        problem_scores(r.samples.get(f"evaluation-{r.evaluations[p].step}", ()))
        for r, p in ((run, place), (other, -1))
    )
    found = {m: paired_difference(before[m], after[m]) for m in before if m in after}
    return {measure: value for measure, value in found.items() if value is not None}


def _estimate(value: Measured | None, measure: str) -> str:
    if value is None:
        return ""
    mean = _number(value.mean, measure)
    if value.interval is None:
        return mean
    low, high = (_number(bound, measure) for bound in value.interval)
    return f"{mean} [{low}, {high}]"


def _number(value: float, measure: str) -> str:
    return f"{value:.1f}" if measure == THOUGHT_LENGTH else f"{value:.3f}"


def _setting(config: Mapping[str, Any], key: str) -> str:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
