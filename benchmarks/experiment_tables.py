"""Tables from the file of an experiment (benchmarks/experiments.py).

Accuracy at every budget, the mean over the budgets (anytime accuracy), lengths and tokens of every
arm, as means over seeds with 95 % t intervals; then the differences from the baseline arm, paired
by seed. The last budget is the largest one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from table_runs import markdown, mean_and_interval

Numbers = Mapping[str, float]
"""An evaluation: step, tokens sampled for training until then, and what was measured."""
Seeds = dict[int, Numbers]
"""The evaluation of every seed of an arm that is compared."""
LENGTH: Final = "thought/length"


def experiment_table(found: Mapping[str, Any]) -> str:
    """Return the table of an experiment. `seeds` counts runs; differences count pairs of them."""
    runs = [run for run in found["runs"] if run["evaluations"]]
    if not runs:
        return "no run has finished"
    name, ends = compared(found, runs)
    starts = warm_starts(runs)
    budgets = budgets_of(starts[min(starts)])
    rows = [["warm start", str(len(starts)), *cells(list(starts.values()), budgets)]]
    rows += [
        [arm, str(len(seeds)), *cells(list(seeds.values()), budgets)] for arm, seeds in ends.items()
    ]
    base = found["baseline"]
    rows += differences(ends, {arm: base for arm in ends if arm != base}, budgets)
    return markdown(head(name, budgets), rows)


def difference_table(found: Mapping[str, Any], pairs: Mapping[str, str]) -> str:
    """Return the table of differences of each arm in `pairs` from its value."""
    runs = [run for run in found["runs"] if run["evaluations"]]
    name, ends = compared(found, runs)
    budgets = budgets_of(runs[0]["evaluations"][0])
    return markdown(head(name, budgets), differences(ends, pairs, budgets))


def differences(
    ends: Mapping[str, Seeds], pairs: Mapping[str, str], budgets: Sequence[str]
) -> list[list[str]]:
    """Return a line for each arm in `pairs` that shares a seed with its value, paired by seed."""
    rows = []
    for arm, base in pairs.items():
        others = ends.get(base, {})
        seeds = [(numbers, others[seed]) for seed, numbers in ends[arm].items() if seed in others]
        if seeds:
            rows.append([f"{arm} - {base}", str(len(seeds)), *gaps(seeds, budgets)])
    return rows


def baseline_table(found: Mapping[str, Any], arms: Sequence[str]) -> str:
    """Return how well BRPO's baselines predict the return in every slot, as means over seeds."""
    rows = []
    for arm in arms:
        runs = [r["baselines"] for r in found["runs"] if r["arm"] == arm and r.get("baselines")]
        names = [f"baseline/{kind}_" for kind in ("correlation", "variance")]
        columns = [f"{name}{v}/" for name in names for v in ("v1", "v2", "v")]
        slots = sorted({int(key.rpartition("/")[2]) for key in runs[0]})
        rows += [
            [
                arm,
                str(slot),
                *(f"{np.mean([run[f'{column}{slot}'] for run in runs]):.2f}" for column in columns),
            ]
            for slot in slots
        ]
    heads = [f"{kind} {v}" for kind in ("correlation", "variance") for v in ("V1", "V2", "V")]
    return markdown(["method", "slot that ends at", *heads], rows)


def budgets_of(numbers: Numbers) -> list[str]:
    """Return the budgets of an evaluation, the smallest first."""
    return sorted((key for key in numbers if key.isdecimal()), key=int)


def head(name: str, budgets: Sequence[str]) -> list[str]:
    """Return the columns of a table of arms or of their differences."""
    return [f"after {name}", "seeds", *budgets, "anytime", "thought length", "tokens, M"]


def compared(
    found: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]
) -> tuple[str, dict[str, Seeds]]:
    """Return where the arms are compared, in words, and the evaluations of every arm there."""
    compared_at = found.get("compared_at", "steps")
    place = shared_place(runs, compared_at)
    ends: dict[str, Seeds] = {}
    for run in runs:
        ends.setdefault(run["arm"], {})[run["seed"]] = at(run["evaluations"], compared_at, place)
    return f"{place:,.0f} {'sampled tokens' if compared_at == 'tokens' else 'steps'}", ends


def shared_place(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    """Return the largest step, or number of tokens, that every run has reached."""
    key = "tokens" if key == "tokens" else "step"
    return float(min(run["evaluations"][-1][key] for run in runs))


def at(evaluations: Sequence[Numbers], key: str, place: float) -> Numbers:
    """Return the numbers of a run at a step or after a number of sampled tokens.

    Evaluations are rarely made at the same number of tokens, so the numbers in between are on the
    straight line between the two evaluations around it.
    """
    key = "tokens" if key == "tokens" else "step"
    places = [e[key] for e in evaluations]
    return {
        name: float(np.interp(place, places, [e[name] for e in evaluations]))
        for name in evaluations[0]
        if all(name in e for e in evaluations)
    }


def warm_starts(runs: Sequence[Mapping[str, Any]]) -> Seeds:
    """Return one evaluation per seed before training: the mean over the arms.

    All arms of a seed start from one policy, so their measurements are not independent runs.
    """
    of_seed: dict[int, list[Numbers]] = {}
    for run in runs:
        of_seed.setdefault(run["seed"], []).append(run["evaluations"][0])
    return {
        seed: {name: float(np.mean([e[name] for e in every])) for name in every[0]}
        for seed, every in of_seed.items()
    }


def anytime(numbers: Numbers, budgets: Sequence[str]) -> float:
    """Return the mean accuracy over the budgets."""
    return float(np.mean([numbers[b] for b in budgets]))


def cells(seeds: Sequence[Numbers], budgets: Sequence[str]) -> list[str]:
    """Return the cells of an arm after its name and count."""
    columns = [[n[b] for n in seeds] for b in budgets] + [[anytime(n, budgets) for n in seeds]]
    made = [mean_and_interval(values, ".3f") for values in columns]
    made.append(mean_and_interval([n[LENGTH] for n in seeds], ".1f"))
    return [*made, mean_and_interval([n["tokens"] / 1e6 for n in seeds], ".2f")]


def gaps(pairs: Sequence[tuple[Numbers, Numbers]], budgets: Sequence[str]) -> list[str]:
    """Return the cells of the differences between two arms, paired by seed."""
    columns = [[a[b] - c[b] for a, c in pairs] for b in budgets]
    columns.append([anytime(a, budgets) - anytime(c, budgets) for a, c in pairs])
    made = [mean_and_interval(values, "+.3f") for values in columns]
    made.append(mean_and_interval([a[LENGTH] - c[LENGTH] for a, c in pairs], "+.1f"))
    return [*made, mean_and_interval([(a["tokens"] - c["tokens"]) / 1e6 for a, c in pairs], "+.2f")]
