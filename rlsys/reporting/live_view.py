"""The progress of a run: a live block in a terminal, one line per step elsewhere.

Both show the same metrics. A metric that the run does not have is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlsys.training.health import WARNING

Metrics = Mapping[str, float]

_FIGURES = (
    ("return", "return", "{:+.3f}"),
    ("accuracy", "accuracy", "{:.2f}"),
    ("answered", "answered", "{:.2f}"),
    ("thought", "thought/length", "{:.1f} tokens"),
    ("cut", "thought/cut", "{:.0%}"),
    ("reply", "reply/length", "{:.1f} tokens"),
    ("signal", "groups/signal", "{:.0%}"),
    ("audit", "grading/disagreed", "{:.1%} disagree"),
    ("all right", "groups/all_right", "{:.0%}"),
    ("all wrong", "groups/all_wrong", "{:.0%}"),
    ("loss", "loss", "{:+.4f}"),
    ("grad", "grad_norm", "{:.3f}"),
    ("kl", "kl", "{:.4f}"),
    ("gap", "gap/mean", "{:.1e}"),
    ("stale", "staleness/max", "{:.0f}"),
    ("queue", "queue", "{:.0f}"),
    ("generation", "tokens_per_s/generation", "{:,.0f} tok/s"),
    ("training", "tokens_per_s/training", "{:,.0f} tok/s"),
    ("step", "time/step", "{:.1f} s"),
)
"""Label, metric and format, in the order shown."""


def health(metrics: Metrics) -> str | None:
    """Return `healthy`, or the names of the warnings that hold now; None where none is known yet.

    See rlsys.training.health, whose sentences name the keys to change.
    """
    known = {n.removeprefix(WARNING): v for n, v in metrics.items() if n.startswith(WARNING)}
    if not known:
        return None
    holding = [name.replace("_", " ") for name, value in known.items() if value]
    return f"warning: {', '.join(holding)}" if holding else "healthy"


def scores(metrics: Metrics) -> dict[int, float]:
    """Return the mean score of every budget, from the metrics `score/BUDGET`, sorted by budget."""
    found = {
        int(budget): value
        for name, value in metrics.items()
        if (budget := name.removeprefix("score/")).isdecimal() and name.startswith("score/")
    }
    return dict(sorted(found.items()))


def figures(metrics: Metrics) -> list[tuple[str, str]]:
    """Return (label, formatted value) of every metric that the views show."""
    return [
        (label, form.format(metrics[name])) for label, name, form in _FIGURES if name in metrics
    ]


def plain_line(step: int, total: int, metrics: Metrics) -> str:
    """Return the line for one step.

    Example: step 3/60 | score 0.53 (16: 0.35, 64: 0.71) | loss -0.0102 | grad 0.500
    """
    parts = [f"step {step}/{total}"]
    if "score/mean" in metrics:
        budgets = ", ".join(f"{budget}: {value:.2f}" for budget, value in scores(metrics).items())
        shown = f" ({budgets})" if budgets else ""
        parts.append(f"score {metrics['score/mean']:.2f}{shown}")
    parts += [f"{label} {value}" for label, value in figures(metrics)]
    if (state := health(metrics)) is not None:
        parts.append(state)
    return " | ".join(parts)


def live_block(step: int, total: int, metrics: Metrics) -> RenderableType:
    """Return the block for one step: progress, a bar per budget, the figures in a grid."""
    progress = Table.grid(padding=(0, 1))
    progress.add_row(
        Text(f"step {step}/{total}", style="bold"),
        ProgressBar(total=total, completed=step, width=40),
        _remaining(step, total, metrics),
    )
    bars = Table.grid(padding=(0, 1))
    for budget, value in scores(metrics).items():
        bars.add_row(
            Text(f"score at {budget}", style="cyan"),
            ProgressBar(total=1.0, completed=value, width=40),
            f"{value:.3f}",
        )
    numbers = Table.grid(padding=(0, 2))
    shown = figures(metrics)
    for start in range(0, len(shown), 4):
        cells = [f"[cyan]{label}[/] {value}" for label, value in shown[start : start + 4]]
        numbers.add_row(*cells)
    state = health(metrics)
    if state is None:
        return Group(progress, bars, numbers)
    style = "bold green" if state == "healthy" else "bold yellow"
    return Group(progress, Text(state, style=style), bars, numbers)


def _remaining(step: int, total: int, metrics: Metrics) -> str:
    if "time/step" not in metrics:
        return ""
    minutes, seconds = divmod(round((total - step) * metrics["time/step"]), 60)
    return f"about {minutes}:{seconds:02d} left"
