"""What an oracle would have earned in each episode, for regret.

The oracle knows all questions beforehand, and how long an answer to each must be: exactly for the
solver that adds columns, else by what the same agent's answers to that type of question suggest.
It chooses lengths by `allocation.best_return`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlsys.config.economics import EconomicsConfig
from rlsys.environments.economics.benchmark.allocation import (
    Curve,
    best_return,
    estimated_curve,
    exact_curve,
)
from rlsys.environments.economics.benchmark.baselines import ColumnAdder
from rlsys.environments.economics.benchmark.play import Paper
from rlsys.environments.economics.benchmark.results import EpisodeResult
from rlsys.environments.economics.counting import TokenCounter


def with_exact_oracle(
    episodes: Sequence[EpisodeResult],
    papers: Mapping[int, Paper],
    counter: TokenCounter,
    config: EconomicsConfig,
) -> list[EpisodeResult]:
    """Return the episodes of a ColumnAdder with the oracle's return.

    `papers` holds the questions of every seed.
    """
    adder, empty = ColumnAdder(counter), counter.count("")

    def curves(episode: EpisodeResult) -> list[Curve]:
        return [exact_curve(adder.needed(text), empty) for text in papers[episode.seed].texts]

    return [replace(e, oracle=best_return(curves(e), e.budget, config)) for e in episodes]


def with_estimated_oracle(
    episodes: Sequence[EpisodeResult], counter: TokenCounter, config: EconomicsConfig
) -> list[EpisodeResult]:
    """Return an agent's episodes with the return of an oracle that has the agent's own curves.

    An episode stays as it is if it has the oracle's return already, or if the types of the
    questions never reached are not known.
    """
    tokens: dict[str | None, list[int]] = {}
    right: dict[str | None, list[bool]] = {}
    for episode in episodes:
        for kind, cost, correct in zip(episode.types, episode.tokens, episode.right, strict=False):
            tokens.setdefault(kind, []).append(cost)
            right.setdefault(kind, []).append(correct)
    empty = counter.count("")
    curves = {
        kind: estimated_curve(np.array(tokens[kind]), np.array(right[kind]), empty)
        for kind in tokens
    }
    hopeless = Curve(np.array([empty]), np.array([0.0]))
    return [
        episode
        if episode.oracle is not None or len(episode.types) < episode.questions
        else replace(
            episode,
            oracle=best_return(
                [curves.get(kind, hopeless) for kind in episode.types], episode.budget, config
            ),
        )
        for episode in episodes
    ]
