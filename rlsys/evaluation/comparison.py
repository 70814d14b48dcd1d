"""Methods against each other on the same problems, each with one training seed or several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import NamedTuple

import numpy as np

from rlsys.config.evaluation_sets import AVERAGE
from rlsys.errors import DataError
from rlsys.estimates import Estimate, bootstrap_sets, token_ratios
from rlsys.evaluation.records import read_results
from rlsys.evaluation.summary import Doubles, SetResults, results_by_set


class Method(NamedTuple):
    """The evaluations of one method: one folder per training seed."""

    name: str
    seeds: list[dict[str, SetResults]]
    """The sets of every training seed."""


class Comparison(NamedTuple):
    """A method against the first one, on one set or on the average."""

    set: str
    letter: str
    """A for the first method, B for the second, and so on."""
    method: str
    """Its folders."""
    seeds: int
    anytime: Estimate
    """Accuracy averaged over the budgets."""
    final: Estimate
    """Accuracy at the largest budget."""
    anytime_difference: Estimate | None
    """The method minus the first one, paired by problem and seed; None for the first one."""
    final_difference: Estimate | None
    tokens: float
    """Mean tokens of a response at the largest budget."""
    token_ratio: float
    """These tokens in percent of those of the first method; the mean over sets."""
    token_ratio_reverse: float
    """The reverse."""


def read_method(words: str) -> Method:
    """Return the method whose folders `words` names, separated by commas.

    Raises RunFolderError or DataError as read_results, and DataError for an empty evaluation.
    """
    seeds = []
    for folder in words.split(","):
        sets = results_by_set(read_results(Path(folder)))
        if not sets:
            raise DataError(f"{folder} holds no finished sample yet; evaluate first")
        seeds.append(sets)
    return Method(words, seeds)


def compare(methods: Sequence[Method]) -> list[Comparison]:
    """Return a row for every set that all have and every method, then those of the average.

    Raises DataError if there are more than 26 methods, if they share no set, or if a set has not
    the same problems and budgets in all of them.
    """
    if len(methods) > len(ascii_uppercase):
        raise DataError(f"{len(methods)} methods have no letter each; compare at most 26 at once")
    first = methods[0]
    names = [n for n in first.seeds[0] if all(n in sets for m in methods for sets in m.seeds)]
    if not names:
        raise DataError("the evaluations have no set in common; evaluate the same sets")
    for name in names:
        _check_same(name, methods)
    groups = [([name], name) for name in names]
    if len(names) > 1:
        groups.append((names, AVERAGE))
    return [
        _compared(sets, shown, letter, method, first)
        for sets, shown in groups
        for letter, method in zip(ascii_uppercase[: len(methods)], methods, strict=True)
    ]


def _check_same(name: str, methods: Sequence[Method]) -> None:
    """Raise DataError unless a set has the same problems and budgets everywhere."""
    known = methods[0].seeds[0][name]
    digests = {problem: p.digest for problem, p in known.problems.items()}
    for method in methods:
        for sets in method.seeds:
            found = sets[name]
            if found.budgets != known.budgets:
                raise DataError(
                    f"{method.name} has the budgets {list(found.budgets)} on the set {name!r}, and "
                    f"{methods[0].name} has {list(known.budgets)}; evaluate both under the same"
                )
            if {problem: p.digest for problem, p in found.problems.items()} != digests:
                raise DataError(
                    f"{method.name} has {len(found.problems)} problems of the set {name!r}, and "
                    f"{methods[0].name} has {len(known.problems)}, or other ones; finish both "
                    "evaluations on the same files"
                )


def _compared(
    names: Sequence[str], shown: str, letter: str, method: Method, first: Method
) -> Comparison:
    anytime, final = _scores(method, names, -1, whole=True), _scores(method, names, -1)
    tokens, known = _tokens(method, names), _tokens(first, names)
    differences: list[Estimate | None] = [None, None]
    if method is not first:
        differences = [
            _difference(anytime, _scores(first, names, -1, whole=True), method, first),
            _difference(final, _scores(first, names, -1), method, first),
        ]
    return Comparison(
        set=shown,
        letter=letter,
        method=method.name,
        seeds=len(method.seeds),
        anytime=bootstrap_sets(anytime),
        final=bootstrap_sets(final),
        anytime_difference=differences[0],
        final_difference=differences[1],
        tokens=float(np.mean(tokens)),
        token_ratio=token_ratios(tokens, known).mean_of_ratios,
        token_ratio_reverse=token_ratios(known, tokens).mean_of_ratios,
    )


def _scores(
    method: Method, names: Sequence[str], place: int, *, whole: bool = False
) -> list[Doubles]:
    """Return [S, P] of every set: the score at budget number `place`, or the mean over budgets."""
    found = []
    for name in names:
        scores_SPM = np.stack([sets[name].scores_PM() for sets in method.seeds])
        found.append(scores_SPM.mean(axis=2) if whole else scores_SPM[:, :, place])
    return found


def _difference(
    own: Sequence[Doubles], other: Sequence[Doubles], method: Method, first: Method
) -> Estimate:
    """Return own - other. A single evaluation, as of a starting model, is paired with every seed.

    Raises DataError if both have several seeds, but not equally many.
    """
    seeds = {len(method.seeds), len(first.seeds)} - {1}
    if len(seeds) > 1:
        raise DataError(
            f"{method.name} has {len(method.seeds)} seeds and {first.name} has "
            f"{len(first.seeds)}, so they cannot be paired; give equally many, or one"
        )
    return bootstrap_sets([a - b for a, b in zip(own, other, strict=True)])


def _tokens(method: Method, names: Sequence[str]) -> list[float]:
    """Return the mean tokens of a response at the largest budget, of every set, over all seeds."""
    return [float(np.mean([sets[n].tokens_M()[-1] for sets in method.seeds])) for n in names]
