"""Evaluations: the anytime curve, bootstrap intervals over problems, the comparison of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np

from rlsys.estimates import paired_bootstrap
from rlsys.reporting.metrics_file import THOUGHT_LENGTH, EvaluationRecord
from rlsys.reporting.page.charts import COLOURS, Figure, plain
from rlsys.reporting.page.run_files import RunFiles

MEAN: Final = "mean"
"""Measure: accuracy averaged over the budgets, the anytime accuracy."""
RETURN: Final = "return"
SAME: Final = 1e-4
"""Largest relative difference of a mean over the file of episodes and the reported mean."""

ProblemScores = Mapping[str, float]
"""The score of every problem, by a name that is the same in every run on the same problems."""


class Measured(NamedTuple):
    """A mean with its 95 % interval; without an interval where the files lack what it needs."""

    mean: float
    interval: tuple[float, float] | None


def problem_scores(episodes: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return measure -> problem -> score, from the episodes of one evaluation.

    Measures are the budgets (`"16"`), `mean` over the budgets, `thought/length`, and `return` of
    dialogues.
    """
    found: dict[str, dict[str, float]] = {}
    for episode in episodes:
        name = f"{episode.get('group')} {episode.get('problem', episode.get('seed'))}"
        numbers: dict[str, float] = {}
        if (value := episode.get(RETURN)) is not None:
            numbers[RETURN] = float(value)
        by_budget: dict[str, list[float]] = {}
        for answer in episode.get("answers", ()):
            by_budget.setdefault(str(answer["budget"]), []).append(float(answer["score"]))
        numbers |= {budget: fmean(values) for budget, values in by_budget.items()}
        if by_budget:
            numbers[MEAN] = fmean(numbers[budget] for budget in by_budget)
            numbers[THOUGHT_LENGTH] = float(episode["thought_tokens"])
        for measure, value in numbers.items():
            found.setdefault(measure, {})[name] = value
    return found


def with_interval(mean: float, scores: ProblemScores) -> Measured:
    """Return a reported mean with an interval, if the problems of the file have the same mean.

    They have not if an evaluation sampled a problem several times: the file has one episode of it.
    """
    values_1P = np.array([list(scores.values())], np.float64)
    if values_1P.size < 2 or abs(values_1P.mean() - mean) > SAME * max(1.0, abs(mean)):
        return Measured(mean, None)
    _, low, high = paired_bootstrap(values_1P, np.zeros_like(values_1P))
    return Measured(mean, (low, high))


def estimates(run: RunFiles, evaluation: EvaluationRecord) -> dict[str, Measured]:
    """Return measure -> mean and interval of one evaluation: budgets, their mean, length, return.

    Intervals of an anytime curve are those that the run reported. All others, and those of runs by
    earlier versions, come from the episodes in the files.
    """
    numbers = evaluation.numbers
    scores = problem_scores(run.samples.get(f"evaluation-{evaluation.step}", ()))
    found = {}
    for measure in (*map(str, evaluation.accuracy), MEAN, THOUGHT_LENGTH, RETURN, "accuracy"):
        if (mean := numbers.get(measure)) is None:
            continue
        low, high = numbers.get(f"low/{measure}"), numbers.get(f"high/{measure}")
        if low is None or high is None:
            found[measure] = with_interval(mean, scores.get(measure, {}))
        else:
            found[measure] = Measured(mean, (low, high))
    return found


def paired_difference(before: ProblemScores, after: ProblemScores) -> Measured | None:
    """Return the mean of after - before over the problems of both; None with less than two."""
    both = sorted(before.keys() & after.keys())
    if len(both) < 2:
        return None
    mean, low, high = paired_bootstrap(
        [[after[name] for name in both]], [[before[name] for name in both]]
    )
    return Measured(mean, (low, high))


def anytime_chart(runs: Sequence[RunFiles]) -> Figure | None:
    """Return accuracy over budget: dotted before training, faint during it, solid at the end.

    Bars are the intervals of the last evaluation. None if no run has an anytime curve.
    """
    traces = []
    for number, run in enumerate(runs):
        curves = [e for e in run.evaluations if e.accuracy]
        for place, evaluation in enumerate(curves):
            last = place == len(curves) - 1
            line = {"color": COLOURS[number % len(COLOURS)], "width": 3 if last else 1.5}
            if place == 0 and not last:
                line["dash"] = "dot"
            trace: Figure = {
                "type": "scatter",
                "mode": "lines+markers",
                "x": list(evaluation.accuracy),
                "y": list(evaluation.accuracy.values()),
                "name": _curve_name(run, evaluation, alone=len(runs) == 1),
                "line": line,
                "opacity": 1.0 if last or place == 0 else 0.35,
                "showlegend": last or place == 0,
            }
            if last:
                trace |= _bars(run, evaluation)
            traces.append(trace)
    if not traces:
        return None
    budgets = sorted({budget for trace in traces for budget in trace["x"]})
    layout = {
        "xaxis": {"title": {"text": "thinking budget (tokens)"}, "tickvals": budgets},
        "yaxis": {"title": {"text": "accuracy"}},
    }
    return {"data": traces, "layout": layout}


def progress_chart(runs: Sequence[RunFiles]) -> Figure | None:
    """Return accuracy over steps, from the evaluations; None if every run has less than three."""
    traces = []
    for number, run in enumerate(runs):
        points = [
            (e.step, value)
            for e in run.evaluations
            if (value := e.numbers.get(MEAN, e.numbers.get("accuracy"))) is not None
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": [step for step, _ in points],
                "y": [value for _, value in points],
                "name": plain(run.name),
                "line": {"color": COLOURS[number % len(COLOURS)]},
            }
        )
    if all(len(trace["x"]) < 3 for trace in traces):
        return None
    layout = {
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"title": {"text": "accuracy"}},
    }
    return {"data": traces, "layout": layout}


def _curve_name(run: RunFiles, evaluation: EvaluationRecord, *, alone: bool) -> str:
    step = f"step {evaluation.step}"
    return step if alone else f"{plain(run.name)}, {step}"


def _bars(run: RunFiles, evaluation: EvaluationRecord) -> Figure:
    found = estimates(run, evaluation)
    intervals = [found[str(budget)] for budget in evaluation.accuracy]
    if any(e.interval is None for e in intervals):
        return {}
    bounds = [(e.mean, *e.interval) for e in intervals if e.interval is not None]
    return {
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [high - mean for mean, _, high in bounds],
            "arrayminus": [mean - low for mean, low, _ in bounds],
            "thickness": 1.5,
            "width": 4,
        }
    }
