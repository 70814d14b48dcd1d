"""Which rank trains what: from token counts to the rows of every rank.

The driver plans with numbers only; the tokens stay in the object store and go from the actor that
made them straight to the ranks that need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from learner.packing import assign_rows
from rlsys.errors import TrainingError

Size = tuple[int, int]
"""Tokens and trained tokens of a sample."""

BLOCK_TOKENS = 128
"""Tokens of a block of the attention mask on a GPU; other row lengths waste a part of one."""

SampleIndex = tuple[int, int]
"""A sample: number of its group, number within the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep:
    """One rank's share of one optimizer step, and the numbers that normalise the whole of it."""

    rows: tuple[tuple[SampleIndex, ...], ...]
    """Samples of every row; each rank has the same number of rows, the last ones may be empty."""
    episodes: int
    """Samples of this optimizer step over all ranks."""
    trained_tokens: int
    """Trained tokens of this optimizer step over all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """What one rank does in one training step."""

    groups: tuple[int, ...]
    """Groups of the batch that the rank needs; a SampleIndex counts groups in this order."""
    row_tokens: int
    """Length of a row; no sample is longer."""
    steps: tuple[OptimizerStep, ...]


def make_plan(
    sizes: Sequence[Sequence[Size]], *, row_tokens: int, ranks: int, optimizer_steps: int
) -> list[RankPlan]:
    """Split a batch into optimizer steps and rows, and deal the rows to ranks.

    Consecutive groups make an optimizer step, so a group is never split over two of them. An
    optimizer step without trained tokens is left out.

    Args:
        sizes: per group, per sample: its tokens and trained tokens.
        row_tokens: length of a row. Rows are longer if a sample is (see `row_width`), and shorter
            if none of them is filled.

    Raises:
        TrainingError: no sample has a trained token.
    """
    # One length for all rows of the training step; a micro-batch may leave out what none of its
    # rows fills (learner.batch).
    longest = max((tokens for group in sizes for tokens, _ in group), default=0)
    row_tokens = row_width(longest, row_tokens)
    # Without a trained token there is no gradient, and `token_mean` would divide by 0.
    shares = [
        _split(sizes, [int(g) for g in chunk], row_tokens, ranks)
        for chunk in np.array_split(np.arange(len(sizes)), optimizer_steps)
        if any(trained for g in chunk for _, trained in sizes[g])
    ]
    if not shares:
        raise TrainingError(
            f"the batch of {len(sizes)} groups has no trained token, so there is nothing to learn "
            "from; if its episodes were lost, set RLSYS_ACTOR_LOGS=1 to see why"
        )
    fullest = max(_tokens(row, sizes) for share in shares for step in share for row in step.rows)
    # In the same coarse steps, so that rows which never fill cost no padding and few compilations.
    row_tokens = min(row_tokens, row_width(fullest, BLOCK_TOKENS))
    return [_localise([share[rank] for share in shares], row_tokens) for rank in range(ranks)]


def _tokens(row: Sequence[SampleIndex], sizes: Sequence[Sequence[Size]]) -> int:
    return sum(sizes[g][s][0] for g, s in row)


def row_width(longest: int, row_tokens: int) -> int:
    """Return the length of rows in which a sample of `longest` tokens fits, at least `row_tokens`.

    Longer rows grow in steps of an eighth of the power of two below them. So a row has at most an
    eighth of padding for the sake of its length, and lengths from n to 2n have at most eight
    values, so that an allocator finds freed memory of the right size.

    Example: row_width(10_020, 1024) is 10_240, row_width(900, 1024) is 1024
    """
    if longest <= row_tokens:
        return row_tokens
    step = coarse_step(longest)
    return -(-longest // step) * step


def coarse_step(tokens: int) -> int:
    """Return an eighth of the power of two below `tokens`, at least a block.

    Example: coarse_step(10_020) is 1024
    """
    return max(BLOCK_TOKENS, (1 << tokens.bit_length()) >> 4)


def _split(
    sizes: Sequence[Sequence[Size]], chunk: list[int], row_tokens: int, ranks: int
) -> list[OptimizerStep]:
    """Return the shares of all ranks in the optimizer step over the groups in `chunk`."""
    samples = [(g, s) for g in chunk for s in range(len(sizes[g]))]
    # By all tokens and not by trained ones: a prompt costs a forward and backward pass as well.
    dealt = assign_rows([sizes[g][s][0] for g, s in samples], row_tokens=row_tokens, ranks=ranks)
    # Over all ranks: a loss is a sum over tokens that is divided by numbers of the whole step, so a
    # rank has to know them although it sees only its own samples.
    trained_tokens = sum(sizes[g][s][1] for g, s in samples)
    return [
        OptimizerStep(
            rows=tuple(tuple(samples[i] for i in row) for row in rows),
            episodes=len(samples),
            trained_tokens=trained_tokens,
        )
        for rows in dealt
    ]


def _localise(steps: list[OptimizerStep], row_tokens: int) -> RankPlan:
    """Number the groups by what this rank needs, so that no other group is sent to it."""
    # Ray delivers each group once per rank, even if several rows or steps use it.
    groups = sorted({g for step in steps for row in step.rows for g, _ in row})
    local = {g: i for i, g in enumerate(groups)}
    return RankPlan(
        groups=tuple(groups),
        row_tokens=row_tokens,
        steps=tuple(
            OptimizerStep(
                rows=tuple(tuple((local[g], s) for g, s in row) for row in step.rows),
                episodes=step.episodes,
                trained_tokens=step.trained_tokens,
            )
            for step in steps
        ),
    )
