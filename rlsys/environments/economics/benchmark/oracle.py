"""The return of an oracle in each episode, from which regret follows.

The oracle knows all questions beforehand and how long an answer to each must be. For the solver
`ColumnAdder` that length is exact; for other agents it is estimated from the agent's own answers to
questions of the same type. The oracle chooses the lengths with `knapsack.best_return`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlsys.config.economics import EconomicsConfig
from rlsys.environments.economics.benchmark.knapsack import (
    LengthCurve,
    best_return,
    estimated_curve,
    exact_curve,
)
from rlsys.environments.economics.benchmark.play import QuestionSheet
from rlsys.environments.economics.benchmark.results import EpisodeResult
from rlsys.environments.economics.benchmark.solvers import ColumnAdder
from rlsys.environments.economics.counting import TokenCounter


def with_exact_oracle(
    episodes: Sequence[EpisodeResult],
    sheets: Mapping[int, QuestionSheet],
    counter: TokenCounter,
    config: EconomicsConfig,
) -> list[EpisodeResult]:
    """Return the episodes of a ColumnAdder with the return of the oracle filled in.

    `sheets` holds the questions of every seed.
    """
    adder, empty = ColumnAdder(counter), counter.count("")

    def curves(episode: EpisodeResult) -> list[LengthCurve]:
        return [exact_curve(adder.needed(text), empty) for text in sheets[episode.seed].texts]

    return [replace(e, oracle=best_return(curves(e), e.budget, config)) for e in episodes]


def with_estimated_oracle(
    episodes: Sequence[EpisodeResult], counter: TokenCounter, config: EconomicsConfig
) -> list[EpisodeResult]:
    """Return an agent's episodes with the return of an oracle that uses the agent's own curves.

    An episode is returned unchanged if it already has the oracle's return, or if the types of its
    unanswered questions are unknown.
    """
    tokens: dict[str | None, list[int]] = {}
    right: dict[str | None, list[bool]] = {}
    for episode in episodes:
        # `types` may be longer than the answers: it covers unanswered questions, too.
        for kind, cost, correct in zip(episode.types, episode.tokens, episode.right, strict=False):
            tokens.setdefault(kind, []).append(cost)
            right.setdefault(kind, []).append(correct)
    empty = counter.count("")
    curves = {
        kind: estimated_curve(np.array(tokens[kind]), np.array(right[kind]), empty)
        for kind in tokens
    }
    # For a type that the agent never answered there is no evidence of any right answer.
    never_right = LengthCurve(np.array([empty]), np.array([0.0]))
    return [
        episode
        if episode.oracle is not None or len(episode.types) < episode.questions
        else replace(
            episode,
            oracle=best_return(
                [curves.get(kind, never_right) for kind in episode.types], episode.budget, config
            ),
        )
        for episode in episodes
    ]
