"""Metrics of training steps as charts: from rows to figures, without side effects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from statistics import fmean
from typing import Any, Final, NamedTuple

from rlsys.reporting.page.run_files import RunFiles

Figure = dict[str, Any]
"""A chart in the JSON form of plotly; the script of the page adds the colours of dark or light."""

COLOURS: Final = (
    *("#3b82f6", "#f97316", "#10b981", "#e11d48", "#a855f7"),
    *("#ca8a04", "#06b6d4", "#ec4899", "#84cc16", "#64748b"),
)
"""Readable on white and on black."""
DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PHASES: Final = ("time/generation", "time/training", "time/sync")
OTHER: Final = "other"


class Chart(NamedTuple):
    """One chart of metrics over steps. A chart without any of its metrics is left out."""

    key: str
    title: str
    note: str
    metrics: tuple[str, ...]
    """Names in metrics.jsonl. A name that ends with `/BUDGET` stands for all budgets."""
    unit: str
    log: bool = False


CHARTS: Final = (
    Chart(
        *("reward", "Reward per budget", "Mean score of the trained batch, by thinking budget."),
        *(("score/BUDGET",), "score"),
    ),
    Chart(
        *("return", "Return", "Sum of the rewards of an episode."),
        *(("return",), "reward"),
    ),
    Chart(
        *("accuracy", "Answers", "Right answers and answered questions of an episode."),
        *(("accuracy", "answered", "utilisation"), "share"),
    ),
    Chart(
        *("score", "Mean score", "Mean score of the trained batch."),
        *(("score/mean",), "score"),
    ),
    Chart(
        *("signal", "Groups", "Only groups with right and wrong answers train something."),
        *(("groups/signal", "groups/all_right", "groups/all_wrong"), "share"),
    ),
    Chart(
        *("length", "Length", "Mean and 95th percentile of thoughts, or of replies."),
        *(
            ("thought/length", "thought/length_p95", "reply/length", "response/length"),
            "tokens",
        ),
    ),
    Chart(
        *("truncation", "Truncation", "Thoughts cut at their limit; answers without a grade."),
        *(("thought/cut", "answers/invalid", "episodes/lost"), "share"),
    ),
    Chart(
        *("entropy", "Entropy", "Entropy of the policy per trained token."),
        *(("entropy",), "nats"),
    ),
    Chart(
        *("loss", "Loss", "Mean over the optimizer steps of a training step."),
        *(("loss", "learner/nll_mean"), "loss"),
    ),
    Chart(
        *("gradient", "Gradient norm", "Before clipping, mean over optimizer steps."),
        *(("grad_norm",), "norm"),
    ),
    Chart(
        *("kl", "KL divergence", "To the weights before the step, and to the starting policy."),
        *(("kl", "learner/reference_kl_mean"), "nats"),
    ),
    Chart(
        *("staleness", "Staleness", "Versions between a group's oldest token and the weights."),
        *(("staleness/mean", "staleness/max"), "versions"),
    ),
    Chart(
        *("mismatch", "Mismatch of engine and learner", "Distance of their log-probabilities."),
        *(("gap/mean", "gap/max", "gap/canary"), "nats", True),
    ),
    Chart(
        *("throughput", "Throughput", "Sampled tokens per second of the step; trained tokens."),
        *(("tokens_per_s/generation", "tokens_per_s/training"), "tokens/s"),
    ),
)

TIME_CHARTS: Final = (
    Chart(
        *(
            "busy",
            "Busy",
            "Shares of the time in which engines had requests, and the learner work.",
        ),
        *(("busy/engines", "busy/learner"), "share"),
    ),
    Chart(
        *("mfu", "MFU", "Arithmetic that the model needs, over the peak of the learner's cards."),
        *(("learner/mfu",), "share"),
    ),
    Chart(
        *("group-time", "Group", "Seconds of a group: rollout, grading (all calls), samples."),
        *(("time/rollout", "time/grading", "time/samples"), "seconds"),
    ),
    Chart(
        *("learner-time", "Learner", "Parts of a training step on the slowest rank."),
        *(
            (
                *("learner/seconds_pack", "learner/seconds_old_logprobs"),
                *("learner/seconds_gradient", "learner/seconds_update"),
            ),
            "seconds",
        ),
    ),
)


def line_chart(chart: Chart, runs: Sequence[RunFiles]) -> Figure | None:
    """Return the metrics of a chart over steps, or None if no run has one of them.

    With one run, a metric has a colour of its own. With several, a run has a colour and a metric
    has a dash.
    """
    names = _names(chart, runs)
    traces = []
    drawn = set()
    for number, run in enumerate(runs):
        for place, name in enumerate(names):
            points = [(row["step"], row[name]) for row in run.steps if name in row]
            values = [_on_axis(value, log=chart.log) for _, value in points]
            if any(value is not None for value in values):
                trace = _trace([step for step, _ in points], values)
                traces.append(trace | _style(runs, number, name, place))
                drawn.add(name)
    if not traces:
        return None
    if len(runs) > 1 and len(drawn) > 1:
        traces += [_dash_key(names.index(name), name) for name in names if name in drawn]
    return _figure(traces, chart.unit, log=chart.log)


def time_chart(run: RunFiles) -> Figure | None:
    """Return the seconds of every step as stacked areas, or None if the run has no times."""
    rows = [row for row in run.steps if row.get("time/step") is not None]
    if not rows:
        return None
    seconds = {
        name.removeprefix("time/"): [row.get(name) or 0.0 for row in rows] for name in PHASES
    }
    known = [sum(parts) for parts in zip(*seconds.values(), strict=True)]
    seconds[OTHER] = [
        max(row["time/step"] - part, 0.0) for row, part in zip(rows, known, strict=True)
    ]
    traces = [
        {
            "type": "bar",
            "x": [row["step"] for row in rows],
            "y": values,
            "name": f"{name} ({fmean(values):.2f} s)",
            "marker": {"color": COLOURS[place], "line": {"width": 0}},
        }
        for place, (name, values) in enumerate(seconds.items())
    ]
    figure = _figure(traces, "seconds")
    figure["layout"] |= {"barmode": "stack", "bargap": 0.1}
    return figure


def _names(chart: Chart, runs: Sequence[RunFiles]) -> list[str]:
    names: list[str] = []
    for name in chart.metrics:
        if not name.endswith("/BUDGET"):
            names.append(name)
            continue
        prefix = name.removesuffix("BUDGET")
        keys = {key for run in runs for row in run.steps for key in row if key.startswith(prefix)}
        budgets = [key for key in keys if key.removeprefix(prefix).isdecimal()]
        names += sorted(budgets, key=lambda key: int(key.removeprefix(prefix)))
    return names


def _on_axis(value: float | None, *, log: bool) -> float | None:
    """Return None, which leaves a gap, for a number that a logarithmic axis has no place for."""
    return None if log and value is not None and value <= 0 else value


def _trace(x: list[int], y: list[float | None]) -> Figure:
    mode = "lines+markers" if len(x) <= 30 else "lines"
    return {"type": "scatter", "x": x, "y": y, "mode": mode, "marker": {"size": 5}}


def _style(runs: Sequence[RunFiles], number: int, name: str, place: int) -> Figure:
    """Return name and line of a trace. The legend of several runs has each run once."""
    if len(runs) == 1:
        return {"name": plain(name), "line": {"color": COLOURS[place % len(COLOURS)]}}
    run = plain(runs[number].name)
    return {
        "name": f"{run}: {plain(name)}" if place else run,
        "line": {
            "color": COLOURS[number % len(COLOURS)],
            "dash": DASHES[place % len(DASHES)],
        },
        "legendgroup": run,
        "showlegend": place == 0,
    }


def _dash_key(place: int, name: str) -> Figure:
    """Return a trace without points, whose entry in the legend says which dash a metric has."""
    line = {"color": "#8b95a5", "dash": DASHES[place % len(DASHES)]}
    return {
        "type": "scatter",
        "x": [None],
        "y": [None],
        "name": name,
        "mode": "lines",
        "line": line,
    }


def plain(text: str) -> str:
    """Return a name for a legend, in which plotly would read a link or bold text otherwise."""
    return escape(text, quote=False)


def _figure(traces: list[Figure], unit: str, *, log: bool = False) -> Figure:
    yaxis: Figure = {"title": {"text": unit}}
    if log:
        values = [value for trace in traces for value in trace["y"] if value is not None]
        decades = math.log10(max(values) / min(values))
        # Full decades only, and at most six of them: plotly also writes the digits between them.
        yaxis |= {"type": "log", "exponentformat": "power", "dtick": max(1, round(decades / 5))}
    return {"data": traces, "layout": {"xaxis": {"title": {"text": "step"}}, "yaxis": yaxis}}
