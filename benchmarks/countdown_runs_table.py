"""Tables of GRPO and BRPO on Countdown: curves, thoughts, baselines, a collapse."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiment_tables import anytime, budgets_of
from table_runs import WARM_START, markdown, mean_and_interval

RESULTS: Final = Path(__file__).parent / "results"
ARMS: Final = ("GRPO", "AR-linear", "AR-uniform")
PAIRS: Final = (("AR-linear", "GRPO"), ("AR-uniform", "GRPO"), ("AR-uniform", "AR-linear"))
RATE, FAST_RATE, LAST_STEP = 1e-5, 1e-4, "100"
GROUP: Final = 8
"""Thoughts of a problem (batch.group_size of configs/countdown.yaml)."""
QUALITIES: Final = ("correlation", "variance")
V_NAMES: Final = ("v1", "v2", "v")
COLLAPSE: Final = (1, 5, 10, 20, 30)
"""Training steps of the table of the run with the larger learning rate."""


def anytime_curve() -> str:
    """Return the anytime accuracy of every arm over the steps, and differences paired by seed."""
    found = json.loads((RESULTS / "countdown_anytime.json").read_text())["runs"]
    steps = [f"step {evaluation['step']}" for evaluation in found[0]["evaluations"]]
    budgets = budgets_of(found[0]["evaluations"][0])
    curves: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    # The runs are in the order of their seeds, so that the curves of two arms fit each other.
    for run in sorted(found, key=lambda run: run["seed"]):
        curves[run["arm"]].append([anytime(e, budgets) for e in run["evaluations"]])
    rows = [[arm, *_means(curves[arm], ".3f")] for arm in ARMS]
    rows += [
        [f"{arm} - {base}", *_means(np.subtract(curves[arm], curves[base]), "+.3f")]
        for arm, base in PAIRS
    ]
    return markdown(["anytime accuracy", *steps], rows)


def thoughts() -> str:
    """Return how thoughts end and what they contain: a column per arm, all seeds together."""
    runs = _runs(RATE)
    # All arms start from the warm start, so its column has the evaluations of all of them.
    columns = {WARM_START: sum((Counter(run["thoughts"]["0"]) for run in runs), Counter())}
    for arm in ARMS:
        own = [Counter(run["thoughts"][LAST_STEP]) for run in runs if run["arm"] == arm]
        columns[arm] = sum(own, Counter())
    rows = [
        [name, *(f"{c[part] / c[whole]:{form}}" for c in columns.values())]
        for name, part, whole, form in (
            ("thoughts that say *found*", "found", "thoughts", ".0%"),
            ("right answers after *found*", "found, right", "found", ".0%"),
            ("thoughts that give up", "given up", "thoughts", ".0%"),
            ("right answers after giving up", "given up, right", "given up", ".0%"),
            ("thoughts with neither", "cut", "thoughts", ".0%"),
            ("thoughts that write a true solution", "true solutions", "thoughts", ".0%"),
            ("thoughts that end within 128", "whole at 128", "thoughts", ".0%"),
            ("right answers after a cut at 128", "cut at 128, right", "cut at 128", ".0%"),
            ("steps per thought", "steps", "thoughts", ".1f"),
            ("tokens after the target is reached", "tokens after the target", "tokens", ".1%"),
            ("steps computed wrong", "wrong steps", "steps", ".1%"),
        )
    ]
    return markdown(["", *columns], rows)


def baselines() -> str:
    """Return how well V1, V2 and V predict the return, for every slot."""
    rows = []
    for slot, runs in _slots():
        v1_R, v2_R, v_R = runs["variance"].T
        rows.append(
            [
                slot.name,
                *(f"{number:.2f}" for number in runs["correlation"].mean(axis=0)),
                *(f"{number.mean():.3f}" for number in (v1_R, v2_R, v_R)),
                mean_and_interval(list(v_R - v2_R), "+.3f"),
            ]
        )
    names = [f"{what} {v.upper()}" for what in QUALITIES for v in V_NAMES]
    return markdown(["slot", *names, "V - V2"], rows)


def baselines_of_others() -> str:
    """Return the variance shares where V2 and V leave out the thought's own return."""
    rows = []
    for slot, runs in _slots():
        v1_R = runs["variance"][:, 0]
        v2_R, v_R = without_own(runs["variance"], slot.share, GROUP)
        rows.append(
            [
                slot.name,
                *(f"{number.mean():.3f}" for number in (v1_R, v2_R, v_R)),
                *(
                    mean_and_interval(list(difference), "+.3f")
                    for difference in (v_R - v1_R, v_R - v2_R, v1_R - v2_R)
                ),
            ]
        )
    names = [f"variance {name}" for name in ("V1", "V2′", "V′")]
    return markdown(["slot", *names, "V′ - V1", "V′ - V2′", "V1 - V2′"], rows)


class _Slot(NamedTuple):
    name: str
    share: float
    """Weight of V1 in V (algorithm.coefficients: index)."""


def _slots() -> Iterator[tuple[_Slot, dict[str, NDArray[np.float64]]]]:
    """Yield every slot of two arms with its means of V1, V2 and V in every run, float64[R, 3]."""
    for arm in ("AR-uniform", "AR-linear"):
        runs = [run["baselines"] for run in _runs(RATE) if run["arm"] == arm]
        budgets = list(runs[0]["variance_v"])
        for slot, budget in enumerate(budgets):
            yield (
                _Slot(f"{arm}, {slot}", slot / len(budgets)),
                {
                    what: np.array([[run[f"{what}_{v}"][budget] for v in V_NAMES] for run in runs])
                    for what in QUALITIES
                },
            )


def without_own(
    shares_RV: NDArray[np.float64], share: float, group: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the variance shares of V2 and V for a V2 that leaves out the thought's own return.

    Args:
        shares_RV: Var[R - V] / Var[R] of V1, V2 and V of every run, float64[R, 3].
        share: weight of V1 in V.
        group: G, the thoughts of a problem.

    R - V2 is (1 - 1/G) times R minus the mean of the other G - 1 returns, for every thought. So the
    share of V2 only changes by a factor. V is a mix: R - V = c (R - V1) + (1 - c) (R - V2), and the
    three shares determine the covariance of the two parts.
    """
    v1_R, v2_R, v_R = shares_RV.T
    factor = group / (group - 1)
    own, others = share**2 * v1_R, (1 - share) ** 2 * v2_R
    covariance_R = v_R - own - others
    return factor**2 * v2_R, own + factor**2 * others + factor * covariance_R


def collapse() -> str:
    """Return the training score at the largest budget with the larger learning rate."""
    runs = _runs(FAST_RATE)
    rows = []
    for arm in ARMS:
        own = [run for run in runs if run["arm"] == arm]
        rows_of = [{row[0]: row[1:] for row in run["training"]} for run in own]
        scores = [f"{np.mean([rows[step][0] for rows in rows_of]):.2f}" for step in COLLAPSE]
        length = np.mean([rows[COLLAPSE[-1]][1] for rows in rows_of])
        stopped = ", ".join(str(run["last_step"]) for run in own)
        rows.append([arm, *scores, f"{length:.0f}", stopped])
    steps = [f"step {step}" for step in COLLAPSE]
    return markdown(
        ["score at 1,024", *steps, "thought length, step 30", "last step of the seeds"],
        rows,
    )


def _means(values: Sequence[Sequence[float]] | NDArray[np.float64], form: str) -> Iterable[str]:
    """Return mean and interval over the seeds (rows) of every column."""
    return [mean_and_interval(list(column), form) for column in zip(*values, strict=True)]


def _runs(rate: float) -> list[dict[str, Any]]:
    lines = (RESULTS / "countdown_runs_H200.jsonl").read_text().splitlines()
    return [run for run in map(json.loads, lines) if run["learning_rate"] == rate]
