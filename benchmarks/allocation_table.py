"""Compare allocators that share a pool of thinking tokens among open requests.

    rlsys eval configs/demo.yaml evaluation.answers=4 evaluation.problems=2048 \\
      data.evaluation.size=2048 run_dir=runs/trees
    samples=runs/trees/evaluation/samples/evaluation-0.jsonl
    python benchmarks/allocation_table.py --record $samples --out trees.jsonl
    python benchmarks/allocation_table.py trees.jsonl

The first command answers the thought of every problem at every budget. The second one keeps what
allocators use of these trees, one problem a line. The third one prints the table: gains are
estimated from every second problem, and the other problems are served in pools of 16 requests.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlsys.estimates import paired_bootstrap
from rlsys.serving.allocation import (
    Array,
    Ints,
    Trees,
    agreement,
    estimate_gains,
    most_frequent,
    next_request,
    spent,
)
from table_runs import markdown

PROBLEMS: Final = 1024
"""Most problems that are recorded."""
REQUESTS: Final = 16
"""Open requests that share a pool."""
POOLS: Final = {False: (20, 24, 32, 40), True: (40, 48, 56, 64)}
"""Tokens of a pool per request: thought tokens alone, and with those of all answers."""

COMPARED: Final = (
    ("greedy", "uniform"),
    ("greedy by cut", "uniform"),
    ("greedy", "greedy by cut"),
    ("greedy", "oracle"),
)


def main() -> None:
    """Record trees, or print the table of recorded ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", type=Path, nargs="?", help="recorded trees")
    parser.add_argument("--record", type=Path, help="samples of rlsys eval")
    parser.add_argument("--out", type=Path, help="file for the recorded trees")
    asked = parser.parse_args()
    if asked.record is not None:
        lines = asked.record.read_text(encoding="utf-8").splitlines()
        asked.out.write_text("".join(map(_line, islice(recorded(lines), PROBLEMS))))
    else:
        print(allocation(asked.trees))


def recorded(samples: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield one row per distinct problem, from the lines of an evaluation's samples file.

    A row has the length of the thought and, per cut, the share of the most frequent answer, whether
    it is another one than at the cut before, its score, and the tokens of all answers.
    """
    seen = set()
    for line in samples:
        episode = json.loads(line)
        if episode["problem"] in seen:
            continue
        seen.add(episode["problem"])
        cuts: list[tuple[float, int, float, int]] = []
        before = None
        budgets = tuple(dict.fromkeys(a["budget"] for a in episode["answers"]))
        for budget in budgets:
            answers = [a for a in episode["answers"] if a["budget"] == budget]
            answer, share = most_frequent([a["text"] for a in answers])
            score = next(a["score"] for a in answers if a["text"] == answer)
            tokens = sum(a["tokens"] for a in answers)
            cuts.append((share, int(before not in (None, answer)), score, tokens))
            before = answer
        names = ("share", "changed", "score", "tokens")
        columns = dict(zip(names, zip(*cuts, strict=True), strict=True))
        yield {"budgets": budgets, "length": episode["thought_tokens"], **columns}


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"


def read_trees(path: Path) -> Trees:
    """Return recorded trees."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    budgets_K = np.array(rows[0]["budgets"])
    length_Q1 = np.array([[row["length"]] for row in rows])
    kinds = [list(map(agreement, row["share"], map(bool, row["changed"]))) for row in rows]
    return Trees(
        budgets_K=budgets_K,
        thought_QK=np.minimum(length_Q1, budgets_K),
        answered_QK=np.array([row["tokens"] for row in rows]),
        # A thought of exactly the last budget may go on; there is no later cut for it.
        ended_QK=length_Q1 <= budgets_K,
        kind_QK=np.array(kinds),
        score_QK=np.array([row["score"] for row in rows], np.float64),
    )


class Served(NamedTuple):
    """How a pool is used, by whom."""

    trees: Trees
    pool: float
    charged: bool
    """True if sampled answers are taken from the pool as well."""


Allocator = Callable[[Served], Ints]
"""Returns the cut at which every request stops, [Q]."""


def spread(served: Served, rate: Callable[[int, int], float], *, at_every_cut: bool) -> Ints:
    """Let requests think on by `next_request`; `rate` is the rate of (request, cut).

    With `at_every_cut` False answers are sampled only where a request stops. The price of a cut
    then leaves out that its answers may be longer than those of the cut before.
    """
    trees, budgets_K = served.trees, served.trees.budgets_K
    cost_QK = spent(trees, charge_answers=served.charged, at_every_cut=at_every_cut)
    answers = float(trees.answered_QK.max()) if served.charged and at_every_cut else 0.0
    cuts = [0] * len(cost_QK)
    left = float(served.pool - cost_QK[:, 0].sum())
    last = len(budgets_K) - 1
    while True:
        rates = [
            rate(q, k) if k < last and not trees.ended_QK[q, k] else 0.0 for q, k in enumerate(cuts)
        ]
        prices = [float(budgets_K[min(k + 1, last)] - budgets_K[k]) + answers for k in cuts]
        chosen = next_request(cuts, rates, prices, left)
        if chosen is None:
            return np.array(cuts)
        k = cuts[chosen]
        left -= cost_QK[chosen, k + 1] - cost_QK[chosen, k]
        cuts[chosen] += 1


def uniform(served: Served) -> Ints:
    """Every open request gets its next cut in turn, so unused tokens go to the others."""
    return spread(served, lambda q, k: 1.0, at_every_cut=False)


def fixed_cap(served: Served) -> Ints:
    """Every request gets its share of the pool, rounded down to a cut."""
    trees = served.trees
    answers = trees.answered_QK.mean() if served.charged else 0.0
    fits_K = trees.budgets_K + answers <= served.pool / len(trees.thought_QK)
    return np.full(len(trees.thought_QK), max(int(fits_K.sum()) - 1, 0))


def greedy(known: Trees, *, charged: bool, by_kind: bool) -> Allocator:
    """The largest expected gain per token first, as estimated from other trees.

    With `by_kind` False the answers before the last cut are not needed, so they are not sampled.
    """
    cost_QK = spent(known, charge_answers=charged, at_every_cut=by_kind)
    rates_KB = estimate_gains(known, cost_QK, by_kind=by_kind).rates_KB()

    def allocate(served: Served) -> Ints:
        kind_QK = served.trees.kind_QK
        return spread(served, lambda q, k: float(rates_KB[k, kind_QK[q, k]]), at_every_cut=by_kind)

    return allocate


def oracle(served: Served) -> Ints:
    """The best use of the pool in hindsight: it knows the score at every cut of every thought.

    Exact, by dynamic programming over the requests and the tokens spent.
    """
    trees, pool = served.trees, int(served.pool)
    cost_QK = spent(trees, charge_answers=served.charged, at_every_cut=False).astype(np.int64)
    value_T = np.zeros(pool + 1)  # the best total score with at most T tokens
    choice_QT: list[Ints] = []
    for cost_K, score_K in zip(cost_QK, trees.score_QK, strict=True):
        # [K, T]: a cut that costs more than T is impossible.
        found_KT = np.full((len(cost_K), pool + 1), -np.inf)
        for k, cost in enumerate(cost_K):
            if cost <= pool:
                found_KT[k, cost:] = value_T[: pool + 1 - cost] + score_K[k]
        choice_QT.append(found_KT.argmax(axis=0))
        value_T = found_KT.max(axis=0)
    cuts, left = [], pool
    for cost_K, choice_T in zip(cost_QK[::-1], choice_QT[::-1], strict=True):
        cuts.append(int(choice_T[left]))
        left -= int(cost_K[cuts[-1]])
    return np.array(cuts[::-1])


def scores(trees: Trees, allocate: Allocator, pool: int, charged: bool) -> Array:
    """Return the mean score of every pool of REQUESTS requests; `pool` is per request."""
    found = []
    for start in range(0, len(trees.thought_QK) - REQUESTS + 1, REQUESTS):
        batch = trees.rows(slice(start, start + REQUESTS))
        cut_Q = allocate(Served(batch, float(pool * REQUESTS), charged))
        found.append(batch.score_QK[np.arange(REQUESTS), cut_Q].mean())
    return np.array(found)


def allocation(path: Path) -> str:
    """Return the table of one file of trees; brackets are 95 % intervals over pools."""
    trees = read_trees(path)
    questions = np.arange(len(trees.thought_QK))
    known, asked = trees.rows(questions[::2]), trees.rows(questions[1::2])
    rows = []
    for charged, pools in POOLS.items():
        allocators = {
            "uniform": uniform,
            "fixed cap": fixed_cap,
            "greedy": greedy(known, charged=charged, by_kind=True),
            "greedy by cut": greedy(known, charged=charged, by_kind=False),
            "oracle": oracle,
        }
        for pool in pools:
            found = {n: scores(asked, a, pool, charged) for n, a in allocators.items()}
            rows.append(
                [f"{pool}, {'all' if charged else 'thought'}"]
                + [f"{score_P.mean():.3f}" for score_P in found.values()]
                + [_difference(found[first], found[second]) for first, second in COMPARED]
            )
    compared = [f"{first} - {second}" for first, second in COMPARED]
    return markdown(["tokens per request", *allocators, *compared], rows)


def _difference(first: NDArray[np.float64], second: NDArray[np.float64]) -> str:
    found = paired_bootstrap(first[None], second[None])
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


if __name__ == "__main__":
    main()
