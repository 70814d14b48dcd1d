"""Continue from a checkpoint that another number of ranks, or another ZeRO stage, wrote.

DeepSpeed's universal checkpoints cannot go from stage 3 to another stage or back, do not exist for
stage 0, and are read as pickles that may run code. So the trained state is read here by parameter,
from the files of all ranks, and every rank copies its own part into its new optimizer. Values are
copied, not computed: weights in float32, both moments of AdamW and its step are the same bits as
before. Nothing is written, so the checkpoint stays as it is.

    stage 0      one file: whole parameters and whole moments
    stages 1, 2  a file per rank: one flat vector of float32, of which every parameter owns a range;
                 a parameter may go on in the vector of the next rank
    stage 3      a file per rank: flat vectors in which every rank holds the same share of every
                 parameter, rounded up
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from learner.layout import TAG, Layout, model_states
from learner.safe_load import load_model_states, load_states

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

WEIGHT: Final = "weight"
MOMENTS: Final = ("exp_avg", "exp_avg_sq")
"""torch's names for the moments of AdamW."""


class Piece(NamedTuple):
    """A range of flat vectors that belongs to one parameter."""

    vectors: Mapping[str, torch.Tensor]
    """The weight, and the moments once there are some; float32, flat, on the disk."""
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedState:
    """What a checkpoint holds, by parameter."""

    pieces: Mapping[str, Sequence[Piece]]
    """Of every trained parameter, in the order of its elements."""
    step: torch.Tensor | None
    """AdamW's step count; None if no step was ever taken."""
    counters: Mapping[str, Any]
    """What DeepSpeed and `save_checkpoint` noted beside the tensors."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What there is of every parameter."""
        return (WEIGHT,) if self.step is None else (WEIGHT, *MOMENTS)

    def whole(self, name: str, kind: str) -> torch.Tensor:
        """Return the weight or a moment of one parameter: flat, float32, on the CPU."""
        parts = [p.vectors[kind].narrow(0, p.start, p.length) for p in self.pieces[name]]
        return torch.cat(parts).detach()


def read_state(folder: Path, layout: Layout, trained: Sequence[str]) -> TrainedState:
    """Read the learner checkpoint in `folder`, which was written in `layout`.

    Args:
        folder: the learner's part of a checkpoint.
        layout: ranks and stage that wrote it.
        trained: names of the trained parameters in the order of the model.

    Raises KeyError, ValueError or OSError if the files are not those of this layout.
    """
    counters = load_model_states(model_states(folder))
    if layout.stage == 0:
        moments: Mapping[int, Mapping[str, torch.Tensor]] = counters["optimizer"]["state"]
        pieces = {}
        for number, name in enumerate(trained):
            vectors = {WEIGHT: counters["module"][name]} | dict(moments.get(number, {}))
            flat = {kind: vector.flatten() for kind, vector in vectors.items()}
            pieces[name] = [Piece(flat, 0, flat[WEIGHT].numel())]
        return TrainedState(pieces=pieces, step=_step(moments), counters=counters)
    found: dict[str, list[Piece]] = {}
    step = None
    for rank in range(layout.ranks):
        state = load_states(_optimizer_file(folder, rank), "cpu", mapped=True)
        state = state["optimizer_state_dict"]
        adam = state["optimizer_state_dict" if layout.stage == 3 else "base_optimizer_state"]
        step = _step(adam["state"])
        ranges = (
            _shares(state, adam, counters["param_shapes"], layout.ranks, rank)
            if layout.stage == 3
            else _ranges(state, adam)
        )
        for name, piece in ranges:
            found.setdefault(name, []).append(piece)
    return TrainedState(pieces=found, step=step, counters=counters)


def _optimizer_file(folder: Path, rank: int) -> Path:
    # The name begins with bf16_ where the model is in bfloat16.
    found = list((folder / TAG).glob(f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"))
    if len(found) != 1:
        raise ValueError(f"rank {rank} has {len(found)} files of optimizer state, not 1")
    return found[0]


def _step(moments: Mapping[int, Mapping[str, torch.Tensor]]) -> torch.Tensor | None:
    return next((moments[number]["step"] for number in moments), None)


def _ranges(state: Mapping[str, Any], adam: Mapping[str, Any]) -> Iterator[tuple[str, Piece]]:
    """Yield the pieces of one rank at the stages 1 and 2."""
    groups = state["single_partition_of_fp32_groups"], state["param_slice_mappings"]
    for number, (weights, addresses) in enumerate(zip(*groups, strict=True)):
        vectors = {WEIGHT: weights} | dict(adam["state"].get(number, {}))
        for name, address in addresses.items():
            yield name, Piece(vectors, address.start, address.numel)


def _shares(
    state: Mapping[str, Any],
    adam: Mapping[str, Any],
    shapes: Sequence[Mapping[str, Sequence[int]]],
    ranks: int,
    rank: int,
) -> Iterator[tuple[str, Piece]]:
    """Yield the pieces of one rank at stage 3."""
    for number, (weights, of_group) in enumerate(
        zip(state["fp32_flat_groups"], shapes, strict=True)
    ):
        vectors = {WEIGHT: weights} | dict(adam["state"].get(number, {}))
        start = 0
        for name, shape in of_group.items():
            size = prod(shape)
            share = -(-size // ranks)
            # The shares of the last ranks are padded at their end, or are nothing but padding.
            yield name, Piece(vectors, start, min(share, max(size - rank * share, 0)))
            start += share


@torch.no_grad()  # type: ignore[untyped-decorator]
def restore_state(engine: DeepSpeedEngine, saved: TrainedState) -> None:
    """Give `engine`, on every rank, its part of `saved`.

    Raises ValueError, before anything changes, if `saved` has other parameters than the engine.
    """
    trained = {n: p for n, p in engine.module.named_parameters() if p.requires_grad}
    _compare(trained, saved)
    # The stages wrap torch's optimizer; at stage 0 there is nothing around it.
    stage = engine.zero_optimization_stage()
    adam = engine.optimizer.optimizer if stage else engine.optimizer
    if stage == 3:
        vectors = engine.optimizer.fp32_partitioned_groups_flat
        engine.optimizer.checkpoint_event_prologue()
    else:
        vectors = [p for group in adam.param_groups for p in group["params"]]
    adam.state.clear()
    if saved.step is not None:
        for vector in vectors:
            zeros = {kind: torch.zeros_like(vector) for kind in MOMENTS}
            adam.state[vector] = {"step": saved.step.clone(), **zeros}
    restore = _restore_share if stage == 3 else _restore_range if stage else _restore_whole
    for name, parameter in trained.items():
        for kind in saved.kinds:
            restore(parameter, saved.whole(name, kind), kind, adam, vectors)
    if stage == 3:
        engine.optimizer.checkpoint_event_epilogue()  # small parameters are whole on every rank
    elif stage:
        engine.optimizer.update_lp_params()  # the model's weights, from the float32 ones
    engine.global_steps = saved.counters["global_steps"]
    engine.global_samples = saved.counters["global_samples"]
    engine.skipped_steps = saved.counters["skipped_steps"]


def _compare(trained: Mapping[str, torch.nn.Parameter], saved: TrainedState) -> None:
    if other := sorted(trained.keys() ^ saved.pieces.keys()):
        raise ValueError(f"it was written for other weights than {other[0]}")
    for name, parameter in trained.items():
        size = getattr(parameter, "ds_numel", parameter.numel())  # a stage-3 parameter is empty
        found = sum(piece.length for piece in saved.pieces[name])
        if found != size:
            raise ValueError(f"it holds {found:,} elements of {name}, which has {size:,}")


def _restore_whole(
    parameter: torch.nn.Parameter,
    value: torch.Tensor,
    kind: str,
    adam: torch.optim.Optimizer,
    vectors: Sequence[torch.Tensor],
) -> None:
    target = parameter if kind == WEIGHT else adam.state[parameter][kind]
    target.copy_(value.view_as(target))


def _restore_range(
    parameter: torch.nn.Parameter,
    value: torch.Tensor,
    kind: str,
    adam: torch.optim.Optimizer,
    vectors: Sequence[torch.Tensor],
) -> None:
    mapping = parameter._hp_mapping
    if mapping is None:  # all of it belongs to other ranks
        return
    vector = vectors[mapping.param_group_index]
    target = vector if kind == WEIGHT else adam.state[vector][kind]
    ours, here = mapping.lp_fragment_address, mapping.hp_fragment_address
    target.narrow(0, here.start, here.numel).copy_(value.narrow(0, ours.start, ours.numel))


def _restore_share(
    parameter: torch.nn.Parameter,
    value: torch.Tensor,
    kind: str,
    adam: torch.optim.Optimizer,
    vectors: Sequence[torch.Tensor],
) -> None:
    from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state

    share: torch.Tensor = parameter.ds_tensor
    start = min(torch.distributed.get_rank() * share.numel(), value.numel())
    ours = value[start : start + share.numel()]
    padded = torch.nn.functional.pad(ours, (0, share.numel() - ours.numel()))
    if kind == WEIGHT:
        safe_set_local_fp32_param(parameter, padded)
        share.copy_(padded.view_as(share))  # the model's own weights, perhaps in bfloat16
    else:
        safe_set_local_optimizer_state(parameter, padded, kind)
