"""Bytes, FLOPs and memory traffic of the learner's log-prob head (learner.logprob_head)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rlsys.planning.activations import norm_bytes

if TYPE_CHECKING:
    from rlsys.planning.memory import LearnerNeeds
    from rlsys.planning.time import TrainingLoad

HEAD_PASSES: Final = 8
"""Times that the compiled log-prob head reads or writes a float32 logit, in both of its passes, if
the backward pass computes the logits again; a quarter of it in a forward pass without gradients.
From benchmarks/results/learner_speed_H200.jsonl."""
SLOPE_PASSES: Final = HEAD_PASSES - 3
"""The same if the head keeps its slopes: logits are written once less, and read twice less. Not
measured."""


def slopes_kept(checkpointed: int, entropy_trained: bool) -> bool:
    """True if the head keeps its slopes: the derivatives of log-probs by logits, [N, V].

    Args:
        checkpointed: layers that are computed again in the backward pass.
        entropy_trained: the loss trains the entropy.
    """
    return not checkpointed and not entropy_trained


def head_work(load: TrainingLoad) -> tuple[float, float]:
    """Return FLOPs of the head in one step of a rank, and bytes that it moves between its products.

    The head has one matrix product forward and two backward. Where it keeps no slopes, the backward
    pass computes the logits again.
    """
    predicted = load.trees * load.tree.sampled
    kept = slopes_kept(load.checkpointed, load.entropy_trained)
    products = (3 if kept else 4) + load.extra_forwards
    passes = (SLOPE_PASSES if kept else HEAD_PASSES) + HEAD_PASSES / 4 * load.extra_forwards
    flops = 2 * load.shape.head_parameters * predicted * products
    return flops, passes * 4 * predicted * load.shape.vocabulary


def head_bytes(needs: LearnerNeeds) -> int:
    """Bytes at the peak of the log-prob head (learner.logprob_head), with the last norm."""
    shape, size = needs.shape, needs.itemsize
    last_norm = (norm_bytes(shape.hidden, size) + size * shape.hidden) * needs.rows.pass_slots
    kept = slopes_kept(needs.checkpointed, needs.entropy_trained)
    return last_norm + (_with_slopes(needs) if kept else _with_logits_again(needs))


def _with_slopes(needs: LearnerNeeds) -> int:
    """Bytes of the head where its backward pass uses the slopes that the forward pass kept.

    Beside the slopes and the hidden states of predicted tokens, the largest of these points: a
    chunk's float32 logits in the forward pass; in the backward pass the gradient of the hidden
    states, in float32 and rounded; then the rounded one beside the scaled hidden states, in float32
    and rounded, or beside the rounded ones and the gradient of the output embedding, in float32 and
    rounded. In a float32 run nothing is rounded.
    """
    shape, size = needs.shape, needs.itemsize
    hidden, rounded = shape.hidden * needs.predicted, size if size < 4 else 0
    logits = min(needs.logits_chunk, needs.predicted) * shape.vocabulary
    slopes = size * shape.vocabulary * needs.predicted
    points = [4 * logits, (4 + rounded) * hidden]
    if needs.trained == shape.parameters:
        # The scaled hidden states are made in float32 as well.
        points.append((size + 4 + rounded) * hidden)
        points.append(2 * size * hidden + (4 + rounded) * shape.head_parameters)
    return slopes + size * hidden + max(points)


def _with_logits_again(needs: LearnerNeeds) -> int:
    """Bytes of the head where its backward pass computes the logits a second time.

    The hidden states of predicted tokens and their gradients; and the larger of two points of the
    loop over chunks. When a chunk's float32 logits are made, those of the chunk before and their
    gradients are still there, beside the float32 sum of the output embedding's gradient. When the
    chunk's part of that gradient is made, it is there twice.
    """
    shape, size = needs.shape, needs.itemsize
    hidden = 2 * size * shape.hidden * needs.predicted
    logits = min(needs.logits_chunk, needs.predicted) * shape.vocabulary
    before = (4 + size) * logits if needs.predicted > needs.logits_chunk else 0
    weight = 4 * shape.head_parameters if needs.trained == shape.parameters else 0
    return hidden + max(weight + 4 * logits + before, 2 * weight + (4 + size) * logits)
