"""A tree of an original and its revision trains like the two of them as separate rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from one_rank import start, train

from rlsys.config import LossConfig
from rlsys.types import NO_PARENT, Kind, Sample, Segment

pytestmark = pytest.mark.slow


def segment(
    parent: int, kind: Kind, token_ids: np.ndarray, logprobs: np.ndarray, cut: int
) -> Segment:
    sampled = kind.sampled
    return Segment(
        parent=parent,
        cut=cut,
        kind=kind,
        token_ids=token_ids.astype(np.int32),
        logprobs=logprobs.astype(np.float32) if sampled else None,
        versions=(0, 0) if sampled else None,
    )


def chain(*parts: tuple[Kind, np.ndarray, np.ndarray], advantage: float) -> Sample:
    """A plain row: every sampled token has the advantage of the row."""
    segments: list[Segment] = []
    for kind, ids, logprobs in parts:
        parent = len(segments) - 1 if segments else NO_PARENT
        cut = len(segments[-1].token_ids) if segments else 0
        segments.append(segment(parent, kind, ids, logprobs, cut))
    advantages = [
        np.full(len(s.token_ids), advantage, np.float32) if s.kind.sampled else None
        for s in segments
    ]
    return Sample(segments=tuple(segments), advantages=tuple(advantages))


def pair(rng: np.random.Generator, *, replaced: bool) -> tuple[Sample, tuple[Sample, Sample]]:
    """The same original and revision as one tree and as two rows.

    A replaced revision was wrong: its row is its original once more, and its ending trains nobody.
    """

    def part(kind: Kind, length: int) -> tuple[Kind, np.ndarray, np.ndarray]:
        return kind, rng.integers(0, 32, length), rng.normal(-3.4, 0.1, length)

    length, cut = int(rng.integers(6, 12)), int(rng.integers(2, 6))
    prompt, thought = part(Kind.PROMPT, 3), part(Kind.THOUGHT, length)
    answer, forced, ending = part(Kind.ANSWER, 3), part(Kind.FORCED, 2), part(Kind.ANSWER, 4)
    first, second = rng.normal(size=2)

    kept = (Kind.THOUGHT, thought[1][:cut], thought[2][:cut])
    original = chain(prompt, thought, answer, advantage=first)
    revision = chain(prompt, thought, answer, advantage=second)
    if not replaced:
        revision = chain(prompt, kept, forced, ending, advantage=second)

    mean, rows = (first + second) / 2, np.full(length, 2)
    thought_advantages, answer_advantages = np.full(length, mean), np.full(3, mean)
    if not replaced:
        rows[cut:], thought_advantages[cut:], answer_advantages[:] = 1, first, first
    tree = Sample(
        segments=(
            segment(NO_PARENT, *prompt, cut=0),
            segment(0, *thought, cut=3),
            segment(1, *answer, cut=length),
            segment(1, *forced, cut=cut),
            segment(3, *ending, cut=2),
        ),
        advantages=(
            None,
            thought_advantages.astype(np.float32),
            answer_advantages.astype(np.float32),
            None,
            None if replaced else np.full(4, second, np.float32),
        ),
        rows=(None, rows, np.full(3, 2) if replaced else None, None, None),
    )
    return tree, (original, revision)


def test_one_tree_equals_two_rows_in_loss_and_gradient(model_path: str) -> None:
    """Token mean, with a KL term that is not zero from the second step on, and entropy."""
    rng = np.random.default_rng(0)
    pairs = [pair(rng, replaced=number == 2) for number in range(4)]
    trees = [tuple(tree for tree, _ in pairs)]
    rows = [tuple(row for _, both in pairs for row in both)]
    assert sum(s.num_trained for s in trees[0]) == sum(s.num_trained for s in rows[0])
    assert sum(s.num_tokens for s in trees[0]) < sum(s.num_tokens for s in rows[0])

    loss = LossConfig(aggregation="token_mean", kl_coefficient=0.5, entropy_coefficient=0.05)
    seen = []
    for groups in (trees, rows):
        worker, steps = start(model_path, zero_stage=0, loss=loss, max_grad_norm=100.0), []
        state = worker.engine.optimizer.state
        for _ in range(3):
            metrics = train(worker, groups)
            moments = [state[p]["exp_avg"].flatten() for p in worker.module.parameters()]
            steps.append((metrics["loss"], metrics["grad_norm"], torch.cat(moments)))
        assert metrics["reference_kl_mean"] > 1e-4
        seen.append(steps)
    for ours, theirs in zip(*seen, strict=True):
        assert ours[0] == pytest.approx(theirs[0], abs=1e-5)
        assert ours[1] == pytest.approx(theirs[1], rel=1e-4)
        assert (ours[2] - theirs[2]).norm() <= 1e-4 * theirs[2].norm()
