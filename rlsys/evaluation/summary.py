"""From rows to numbers: accuracy with intervals, pass@k, majority votes and tokens.

Shapes: P problems, M budgets, K samples of one problem, S training seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlsys.config.evaluation_sets import AVERAGE
from rlsys.errors import DataError
from rlsys.estimates import Estimate, bootstrap_sets, majority_at_k, pass_at_k, token_ratios
from rlsys.evaluation.records import BudgetAnswer, SampleResult
from rlsys.evaluation.votes import RIGHT, vote_numbers

Doubles = NDArray[np.float64]

ANYTIME: Final = "anytime"
"""Measure: the accuracy averaged over the budgets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemResults:
    """All samples of one problem."""

    digest: str
    scores_KM: Doubles
    votes_KM: tuple[tuple[int | None, ...], ...]
    """A number that equal answers share; None for a response without an answer."""
    thought_KM: Doubles
    """Thought tokens kept under each budget."""
    answer_KM: Doubles
    """Sampled tokens of each answer."""
    forced_KM: Doubles
    """1 where the thought was cut at the budget."""
    invalid_KM: Doubles
    """1 where the grader failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetResults:
    """All results of one set, by the id of the problem."""

    name: str
    budgets: tuple[int, ...]
    problems: Mapping[str, ProblemResults]

    @property
    def samples(self) -> int:
        """Samples of the problem that has the fewest."""
        return min(len(p.scores_KM) for p in self.problems.values())

    def scores_PM(self) -> Doubles:
        """Return the mean score of every problem under every budget."""
        return np.stack([p.scores_KM.mean(axis=0) for p in self.problems.values()])

    def tokens_M(self) -> Doubles:
        """Return the mean tokens of a response, thought and answer, under every budget."""
        per_problem = [(p.thought_KM + p.answer_KM).mean(axis=0) for p in self.problems.values()]
        return np.asarray(np.mean(per_problem, axis=0))


def results_by_set(rows: Sequence[SampleResult]) -> dict[str, SetResults]:
    """Return the results of every set, in the order of the rows.

    Raises DataError if rows of one set have different budgets.
    """
    found: dict[str, dict[str, dict[int, SampleResult]]] = {}
    for row in rows:
        found.setdefault(row.set, {}).setdefault(row.problem, {})[row.sample] = row
    return {
        name: SetResults(
            name=name,
            budgets=_budgets(name, problems.values()),
            # In a fixed order: an evaluation that was killed has its rows in another one.
            problems={
                problem: _problem([row for _, row in sorted(samples.items())])
                for problem, samples in sorted(problems.items())
            },
        )
        for name, problems in found.items()
    }


def _budgets(name: str, problems: Iterable[Mapping[int, SampleResult]]) -> tuple[int, ...]:
    grids = {tuple(a.budget for a in row.answers) for p in problems for row in p.values()}
    if len(grids) > 1:
        raise DataError(
            f"rows of the set {name!r} have different budgets ({sorted(grids)}); evaluate again "
            "in another folder"
        )
    return grids.pop()


def _problem(rows: Sequence[SampleResult]) -> ProblemResults:
    answers = [row.answers for row in rows]
    numbers = vote_numbers((a.answer, a.score > 0) for of_row in answers for a in of_row)

    def vote(answer: BudgetAnswer) -> int | None:
        return RIGHT if answer.score > 0 else numbers.get(answer.answer or "")

    return ProblemResults(
        digest=rows[0].digest,
        scores_KM=np.array([[a.score for a in of_row] for of_row in answers], np.float64),
        votes_KM=tuple(tuple(vote(a) for a in of_row) for of_row in answers),
        thought_KM=np.array([[a.cut for a in of_row] for of_row in answers], np.float64),
        answer_KM=np.array([[a.tokens for a in of_row] for of_row in answers], np.float64),
        forced_KM=np.array([[a.forced for a in of_row] for of_row in answers], np.float64),
        invalid_KM=np.array([[a.invalid for a in of_row] for of_row in answers], np.float64),
    )


def sample_counts(samples: int) -> list[int]:
    """Return the k of pass@k and of votes: powers of two, and all samples.

    Example: sample_counts(6) == [2, 4, 6]; none for a single sample.
    """
    powers = [2**power for power in range(1, samples.bit_length())]
    return sorted({*powers, samples} - {1})


def summarise(
    sets: Mapping[str, SetResults], baseline: Mapping[str, SetResults] | None = None
) -> list[dict[str, Any]]:
    """Return a flat row of numbers for every set and budget, then the rows of the average.

    The budget of the rows about the mean over budgets is "anytime". With a `baseline`, rows have
    the tokens of a response in percent of the baseline's (`token_ratio`) and the reverse
    (`token_ratio_reverse`), where the baseline has the set and the budget.
    """
    rows = [row for found in sets.values() for row in _set_rows(found)]
    grids = {found.budgets for found in sets.values()}
    if len(sets) > 1 and len(grids) == 1:
        rows += _average_rows(list(sets.values()), rows)
    if baseline is not None:
        _add_ratios(rows, sets, baseline)
    return rows


def _set_rows(found: SetResults) -> list[dict[str, Any]]:
    scores_PM = found.scores_PM()
    problems = found.problems.values()
    rows = []
    for place, budget in enumerate(found.budgets):
        row = _row(found.name, budget, bootstrap_sets([scores_PM[None, :, place]]))
        for k in sample_counts(found.samples):
            row[f"pass@{k}"] = fmean(
                pass_at_k(len(p.scores_KM), int(p.scores_KM[:, place].sum()), k) for p in problems
            )
            row[f"majority@{k}"] = fmean(
                majority_at_k(
                    [votes[place] for votes in p.votes_KM],
                    [score > 0 for score in p.scores_KM[:, place]],
                    k,
                )
                for p in problems
            )
        row["thought_tokens"] = fmean(p.thought_KM[:, place].mean() for p in problems)
        row["answer_tokens"] = fmean(p.answer_KM[:, place].mean() for p in problems)
        row["cut_share"] = fmean(p.forced_KM[:, place].mean() for p in problems)
        row["invalid_share"] = fmean(p.invalid_KM[:, place].mean() for p in problems)
        rows.append(row)
    rows.append(_row(found.name, ANYTIME, bootstrap_sets([scores_PM.mean(axis=1)[None]])))
    return rows


def _average_rows(
    sets: Sequence[SetResults], set_rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the mean over sets of everything that all sets have."""
    rows = []
    budgets: tuple[int | str, ...] = (*sets[0].budgets, ANYTIME)
    for place, budget in enumerate(budgets):
        scores = [found.scores_PM() for found in sets]
        if budget == ANYTIME:
            values = [scores_PM.mean(axis=1)[None] for scores_PM in scores]
        else:
            values = [scores_PM[None, :, place] for scores_PM in scores]
        row = _row(AVERAGE, budget, bootstrap_sets(values))
        parts = [part for part in set_rows if part["budget"] == budget]
        shared = [key for key in parts[0] if key not in row and all(key in p for p in parts)]
        row |= {key: fmean(part[key] for part in parts) for key in shared}
        rows.append(row)
    return rows


def _row(name: str, budget: int | str, accuracy: Estimate) -> dict[str, Any]:
    return {
        "set": name,
        "budget": budget,
        "accuracy": accuracy.mean,
        "low": accuracy.low,
        "high": accuracy.high,
    }


def _add_ratios(
    rows: Sequence[dict[str, Any]],
    sets: Mapping[str, SetResults],
    baseline: Mapping[str, SetResults],
) -> None:
    shared = [name for name in sets if name in baseline]
    for row in rows:
        names = shared if row["set"] == AVERAGE else [n for n in shared if n == row["set"]]
        own = [_tokens(sets[name], row["budget"]) for name in names]
        other = [_tokens(baseline[name], row["budget"]) for name in names]
        known = [(a, b) for a, b in zip(own, other, strict=True) if a and b]
        if not known or len(known) < len(names):
            continue
        own_tokens, other_tokens = zip(*known, strict=True)
        row["token_ratio"] = token_ratios(own_tokens, other_tokens).mean_of_ratios
        row["token_ratio_reverse"] = token_ratios(other_tokens, own_tokens).mean_of_ratios
        if row["set"] == AVERAGE:
            row["token_ratio_of_means"] = token_ratios(own_tokens, other_tokens).ratio_of_means


def _tokens(found: SetResults, budget: int | str) -> float | None:
    """Return the mean tokens of a response under a budget; None if the set lacks it."""
    if budget not in found.budgets:
        return None
    return float(found.tokens_M()[found.budgets.index(int(budget))])
