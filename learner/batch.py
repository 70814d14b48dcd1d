"""From planned samples to the tensors of micro-batches.

Letters of shapes: R rows of the micro-batch, T tokens of a row.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from learner.attention import BLOCK, dense_trunk
from learner.packing import NO_TREE, PackedRows, PackedTree, flatten, pack_rows
from learner.plan import OptimizerStep, RankPlan, row_width
from rlsys.algorithms.loss import token_scale
from rlsys.config import LossConfig
from rlsys.types import NO_PARENT, Kind, Sample, Segment, Tokens


@dataclass(slots=True, kw_only=True)
class MicroBatch:
    """Rows of one forward and backward pass, on the rank's device, all [R, T]."""

    token_ids_RT: torch.Tensor
    positions_RT: torch.Tensor
    parents_RT: torch.Tensor
    exits_RT: torch.Tensor
    select_RT: torch.Tensor
    """Tokens whose log-prob is wanted: the trained ones, or all of them."""
    selected_N: torch.Tensor
    """Places of these tokens among all R * T, without root tokens: N numbers in rising order."""
    sampled_logprobs_RT: torch.Tensor
    advantages_RT: torch.Tensor
    weights_RT: torch.Tensor
    """Segment weight times the normaliser of the optimizer step; 0 where not trained."""
    num_tokens: int
    """Slots that hold a token of a tree."""
    num_trained: int
    """Trained tokens."""
    num_pairs: int
    """Pairs of a query and a key that it sees."""
    trunk: int
    """Tokens at the begin of every row that the attention treats as plain sequences."""
    trees_RT: torch.Tensor
    """Number of the token's tree within the micro-batch; NO_TREE on padding."""
    num_trees: int
    old_logprobs_RT: torch.Tensor | None = None
    """Log-probs at the start of the training step, once they are fixed."""

    @property
    def num_slots(self) -> int:
        """Slots of all rows, padding included."""
        return int(self.token_ids_RT.numel())


def micro_batches(
    plan: RankPlan,
    groups: Sequence[Sequence[Sample]],
    loss: LossConfig,
    *,
    micro_batch_rows: int,
    device: torch.device,
    sequence_ranks: int = 1,
    advantage_shift: float = 0.0,
    advantage_scale: float = 1.0,
) -> list[list[MicroBatch]]:
    """Return the micro-batches of every optimizer step of `plan`, in order.

    The width of rows is a multiple of `sequence_ranks`. An advantage A becomes
    (A - advantage_shift) * advantage_scale.
    """
    return [
        [
            _to_device(packed, device, select_RT=packed.trained)
            for rows in _divide(
                _trees(step, groups, loss, advantage_shift, advantage_scale), micro_batch_rows
            )
            for packed in [_pack(rows, plan.row_tokens, device, sequence_ranks)]
        ]
        for step in plan.steps
    ]


def advantage_sums(plan: RankPlan, groups: Sequence[Sequence[Sample]]) -> tuple[float, float, int]:
    """Return this rank's part of the sums for rlsys.algorithms.loss.batch_normalisation.

    That is: the mean advantage and the mean squared advantage of an episode's trained tokens, each
    summed over the episodes of the rank that have any, and how many these are. A token that stands
    for several rows counts as often.
    """
    samples = [groups[g][s] for step in plan.steps for row in step.rows for g, s in row]
    trained = [sample for sample in samples if sample.num_trained]
    means = [_mean_power(sample, 1) for sample in trained]
    squares = [_mean_power(sample, 2) for sample in trained]
    return sum(means), sum(squares), len(trained)


def _mean_power(sample: Sample, power: int) -> float:
    """Mean of advantage ** power over the trained tokens, of which there is at least one."""
    rows = sample.rows or (None,) * len(sample.segments)
    total = 0.0
    for advantages, copies in zip(sample.advantages, rows, strict=True):
        if advantages is not None:
            powers = np.power(advantages.astype(np.float64), power)
            total += float(np.sum(powers if copies is None else powers * copies))
    return total / sample.num_trained


def sequence_batches(
    sequences: Sequence[Tokens],
    *,
    micro_batch_rows: int,
    device: torch.device,
    sequence_ranks: int = 1,
) -> Iterator[MicroBatch]:
    """Yield plain sequences, one per row and in order, with every token selected.

    The width of rows is a multiple of `sequence_ranks`.
    """
    # One sequence per row, so that row and token index are those of the caller's sequences.
    rows = [[_chain(sequence)] for sequence in sequences]
    # At their own width: they are few and short, and every weight sync waits for them.
    width = row_width(max(len(sequence) for sequence in sequences), BLOCK)
    for part in _divide(rows, micro_batch_rows):
        packed = _pack(part, width, device, sequence_ranks)
        # `trained` selects nothing here: these tokens are scored and not learned from.
        yield _to_device(packed, device, select_RT=packed.trees != NO_TREE)


def _trees(
    step: OptimizerStep,
    groups: Sequence[Sequence[Sample]],
    loss: LossConfig,
    advantage_shift: float,
    advantage_scale: float,
) -> list[list[PackedTree]]:
    """Flatten the samples of every row, with the normaliser of the loss inside the weights.

    A loss is then a plain sum over tokens, and its value does not depend on how the rows are split
    into micro-batches and ranks.
    """

    def tree(sample: Sample) -> PackedTree:
        flat = flatten(sample)
        scale = token_scale(
            loss.aggregation,
            episodes=step.episodes,
            constant=loss.constant or 1,  # set where aggregation is `constant`
            trained_tokens=step.trained_tokens,
            episode_tokens=max(sample.num_trained, 1),  # one without trained tokens adds nothing
        )
        return dataclasses.replace(
            flat,
            weights=flat.weights * np.float32(scale),
            advantages=(flat.advantages - np.float32(advantage_shift))
            * np.float32(advantage_scale),
        )

    return [[tree(groups[g][s]) for g, s in row] for row in step.rows]


def _chain(token_ids: Tokens) -> PackedTree:
    """Return a tree that is a single sequence, none of it trained."""
    prompt = Segment(parent=NO_PARENT, cut=0, kind=Kind.PROMPT, token_ids=token_ids)
    return flatten(Sample(segments=(prompt,), advantages=(None,)))


def _divide(
    rows: Sequence[list[PackedTree]], micro_batch_rows: int
) -> Iterator[Sequence[list[PackedTree]]]:
    """Yield the fewest parts of at most `micro_batch_rows` rows, of nearly equal size."""
    # All ranks have the same number of rows, so this gives them the same number of passes too.
    parts = -(-len(rows) // micro_batch_rows)
    for part in range(parts):
        yield rows[part * len(rows) // parts : (part + 1) * len(rows) // parts]


def _pack(
    rows: Sequence[Sequence[PackedTree]],
    row_tokens: int,
    device: torch.device,
    sequence_ranks: int,
) -> PackedRows:
    """Pack rows as wide as the fullest one; on a GPU in the coarse steps of `row_width`.

    On a GPU the first two widths are compiled; the second time the compiler makes code for any.
    """
    fullest = max(sum(len(tree.token_ids) for tree in row) for row in rows)
    fullest = max(fullest, 1)  # a rank may have nothing but empty rows
    if device.type != "cuda":
        return pack_rows(rows, fullest, multiple_of=sequence_ranks)
    # The fewer widths there are, the better the allocator can use freed memory again.
    width = min(row_tokens, row_width(fullest, BLOCK))
    return pack_rows(rows, width, multiple_of=math.lcm(BLOCK, sequence_ranks))


def _to_device(
    packed: PackedRows, device: torch.device, *, select_RT: NDArray[np.bool_]
) -> MicroBatch:
    def tensor(array_RT: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array_RT).to(device)

    # A loss over pairs sums by tree, so the numbers must be unique over the rows of a micro-batch.
    counts_R = packed.trees.max(axis=1) + 1  # padding has NO_TREE, -1
    before_R1 = (np.cumsum(counts_R) - counts_R)[:, None]
    trees_RT = np.where(packed.trees == NO_TREE, NO_TREE, packed.trees + before_R1)
    return MicroBatch(
        token_ids_RT=tensor(packed.token_ids),
        positions_RT=tensor(packed.positions),
        parents_RT=tensor(packed.parents),
        exits_RT=tensor(packed.exits),
        select_RT=tensor(select_RT),
        # Here and not on the device: the search there would hold up the forward pass.
        selected_N=tensor(np.flatnonzero(select_RT & (packed.parents != NO_PARENT))),
        sampled_logprobs_RT=tensor(packed.logprobs),
        advantages_RT=tensor(packed.advantages),
        weights_RT=tensor(packed.weights),
        num_tokens=packed.num_tokens,
        num_trained=int(np.count_nonzero(packed.trained)),
        num_pairs=packed.num_pairs,
        trunk=dense_trunk(packed.trunk, packed.parents.shape[1]),
        trees_RT=tensor(trees_RT),
        num_trees=int(counts_R.sum()),
    )
