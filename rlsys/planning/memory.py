"""Bytes on a card, part by part.

Letters: P parameters, T trained parameters (all, or the adapters), N ranks, s bytes of a number in
the model's precision (2 in bfloat16, 4 in float32).

What DeepSpeed allocates is read from its source (0.19) and from measurements, not from the ZeRO
paper: in bfloat16 with float32 sums its stage 1 splits the master weights and the moments, but
keeps the sums of the gradients of all parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rlsys.planning.activations import compiled_layer_bytes, layer_bytes
from rlsys.planning.logprob_head import head_bytes
from rlsys.planning.shape import ModelShape
from rlsys.planning.workload import LearnerRows

REDUCE_BUCKET: Final = 50_000_000
"""Numbers per gradient reduction: learner.engine.REDUCE_BUCKET, which imports torch."""
PREFETCH_BUCKET: Final = 50_000_000
"""Numbers that ZeRO-3 gathers ahead: DeepSpeed's default of stage3_prefetch_bucket_size."""
CONTEXT_BYTES: Final = 600 << 20
"""CUDA context, cuBLAS workspace and loaded kernels of one process on an H100."""
PROCESS_BYTES: Final = 550 << 20
"""Resident memory of a process on the CPU after it has imported torch, and DeepSpeed or vLLM."""
GRAPH_BYTES: Final = 1 << 30
"""CUDA graphs of an engine, which vLLM allocates outside of gpu_memory_utilization."""
ALLOCATOR_SLACK: Final = 0.05
"""Part of a learner's peak that torch's allocator reserves beyond it, because blocks do not fit."""
FREE_BLOCKS: Final = 0.3
"""Part of the memory of a backward pass and of an update that torch's allocator keeps in further
free blocks. Five whole cards as nvidia-smi shows them, less what was planned for the engine and for
the rest of the learner, gave 0.13 to 0.43 (benchmarks/results/plan_check_H200.json)."""
BATCH_TOKENS: Final = 8192
"""Most tokens of one engine step, for which vLLM keeps memory free, if nothing else is set."""
SAMPLER_COPIES: Final = 3
"""float32 arrays [sequences, vocabulary] that sampling with log-probs needs at once."""


@dataclass(frozen=True, slots=True)
class Part:
    """Memory with one purpose."""

    name: str
    size: int
    """Bytes."""
    given_back: bool = False
    """True for free blocks, which torch's allocator gives back when the card is full."""


def total(parts: Sequence[Part]) -> int:
    """Return the bytes of all parts."""
    return sum(part.size for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerNeeds:
    """Settings of one learner rank that decide its memory."""

    shape: ModelShape
    itemsize: int
    """s: 2 in bfloat16, 4 in float32."""
    trained: int
    """T."""
    zero_stage: int
    ranks: int
    rows: LearnerRows
    predicted: int
    """Trained tokens of one micro-batch, which are those that need logits."""
    checkpointed: int
    """Layers that are computed again in the backward pass: the first ones."""
    compiled: bool
    """True if every layer is compiled."""
    logits_chunk: int
    reference: bool
    """True if a frozen copy of the starting policy is loaded as well."""
    kept_for_sync: int
    """Bytes that the weight sync keeps on the rank's card."""
    offload: bool = False
    """True if the optimizer is in the host's memory."""
    teacher: int = 0
    """Bytes of the teacher of `distillation`."""
    entropy_trained: bool = False
    """True if the loss trains the entropy: the log-prob head then computes its logits again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerMemory:
    """Memory of one learner rank at its peak."""

    states: tuple[Part, ...]
    """What is there from the first optimizer step to the end of the run."""
    backward: tuple[Part, ...]
    """What comes on top at the fullest moment of the backward pass of a micro-batch."""
    update: tuple[Part, ...]
    """What comes on top inside the optimizer's update, when `backward` is free again."""

    @property
    def peak(self) -> int:
        """Most bytes allocated at once: torch.cuda.max_memory_allocated()."""
        return total(self.states) + max(total(self.backward), total(self.update))

    @property
    def peak_parts(self) -> tuple[Part, ...]:
        """The parts that the peak consists of."""
        return self.states + max(self.backward, self.update, key=total)


def learner_memory(needs: LearnerNeeds) -> LearnerMemory:
    """Return the memory of one rank on its device, without the CUDA context."""
    states = [*_states(needs)]
    if needs.reference:
        states.append(Part("reference model", needs.shape.parameters * needs.itemsize))
    states.append(Part("teacher", needs.teacher))
    if needs.kept_for_sync:
        states.append(Part("weights held for the engine", needs.kept_for_sync))
    return LearnerMemory(
        states=tuple(part for part in states if part.size),
        backward=max(_at_the_head(needs), _at_a_checkpoint(needs), key=total),
        update=() if needs.offload else (Part("optimizer's workspace", _update_bytes(needs)),),
    )


def free_blocks(memory: LearnerMemory) -> Part:
    """Return the free blocks that torch's allocator keeps on a card with room for them.

    Those of the backward pass stay while the update takes its workspace, one tensor as long as the
    rank's share of the weights, for which none of them is large enough. The rest are gaps.
    """
    passing = total(memory.backward), total(memory.update)
    size = min(passing) + int(FREE_BLOCKS * sum(passing))
    return Part("free blocks", size, given_back=True)


def effective_stage(zero_stage: int, itemsize: int) -> int:
    """Return the ZeRO stage that runs: stage 0 in bfloat16 runs as 1 (learner.engine)."""
    return max(zero_stage, 1) if itemsize == 2 else zero_stage


def _states(needs: LearnerNeeds) -> list[Part]:
    """Weights, gradients and optimizer states.

    Stage 1 in bfloat16 is DeepSpeed's BF16_Optimizer: the float32 sums of gradients are a buffer of
    all T numbers on every rank, and a gradient is freed as soon as it is added. All other stages
    from 1 on are its ZeRO optimizers.
    """
    weights, trained, ranks = needs.shape.parameters, needs.trained, needs.ranks
    stage = effective_stage(needs.zero_stage, needs.itemsize)
    share = -(-trained // ranks)
    if stage == 0:
        return [
            Part("weights", weights * needs.itemsize),
            Part("gradients", 4 * trained),
            Part("Adam's moments", 8 * trained),
        ]
    # Frozen weights are not split by stages 1 and 2; by stage 3 they are.
    held = -(-weights // ranks) + _gathered(needs.shape) if stage == 3 and ranks > 1 else weights
    if needs.offload:  # sums of gradients as well, 16 bytes per weight of the share in all
        return [Part("weights", held * needs.itemsize)]
    return [
        Part("weights", held * needs.itemsize),
        Part("gradients, summed", 4 * (share if stage > 1 else trained)),
        Part("master weights", 4 * share),
        Part("Adam's moments", 8 * share),
    ]


def _gathered(shape: ModelShape) -> int:
    """Numbers that ZeRO-3 holds whole at once: the largest matrix and those gathered ahead."""
    return max(shape.head_parameters, shape.hidden * shape.intermediate) + PREFETCH_BUCKET


def _bucket_bytes(needs: LearnerNeeds) -> int:
    """Gradients that wait for their reduction, where the stage frees them afterwards."""
    stage = effective_stage(needs.zero_stage, needs.itemsize)
    if stage < 2:
        return 0
    bucket = min(REDUCE_BUCKET, needs.trained)
    # A gradient that is larger than a bucket travels alone.
    largest = 0 if needs.trained < needs.shape.parameters else needs.shape.head_parameters
    return needs.itemsize * (bucket + largest)


def _update_bytes(needs: LearnerNeeds) -> int:
    """Workspace of torch's AdamW on the rank's share: the root of the second moment.

    torch.optim.AdamW takes its `foreach` path on GPUs, on the one flat tensor of a share. Before,
    stage 3, and stages 1 and 2 in float32, copy the share's gradients into a flat tensor.
    """
    stage = effective_stage(needs.zero_stage, needs.itemsize)
    share = -(-needs.trained // (needs.ranks if stage else 1))
    copied = stage == 3 or (stage > 0 and needs.itemsize == 4)
    return 4 * share * (2 if copied else 1)


def _at_the_head(needs: LearnerNeeds) -> tuple[Part, ...]:
    """Parts at the peak of the log-prob head: the activations of all layers are there."""
    kept = (needs.shape.layers - needs.checkpointed) * _layer_bytes(needs)
    parts = (
        Part("activations", input_bytes(needs) + needs.rows.pass_slots * kept),
        Part("log-prob head", head_bytes(needs)),
        Part("gradients being reduced", _bucket_bytes(needs)),
    )
    return tuple(part for part in parts if part.size)


def _at_a_checkpoint(needs: LearnerNeeds) -> tuple[Part, ...]:
    """Parts while the last checkpointed layer is computed again; empty without one.

    It comes after the head and after all layers without checkpoint, whose activations are free.
    """
    if not needs.checkpointed:
        return ()
    parts = (
        Part("activations", input_bytes(needs)),
        Part("one layer, computed again", recomputed_bytes(needs)),
        Part("gradients being reduced", _bucket_bytes(needs)),
    )
    return tuple(part for part in parts if part.size)


def input_bytes(needs: LearnerNeeds) -> int:
    """Bytes that the checkpointed layers keep for the backward pass of one micro-batch.

    That is the input of each of them, and the rotary angles, which all layers share.
    """
    shape, size = needs.shape, needs.itemsize
    rotary = 2 * size * shape.head_dim  # cosines and sines
    return needs.rows.pass_slots * (rotary + needs.checkpointed * size * shape.hidden)


def recomputed_bytes(needs: LearnerNeeds) -> int:
    """Bytes of the layer that is computed again, with the gradients of its MLP."""
    shape, size = needs.shape, needs.itemsize
    layer = _layer_bytes(needs) + 3 * size * shape.intermediate
    return needs.rows.pass_slots * layer


def _layer_bytes(needs: LearnerNeeds) -> int:
    count = compiled_layer_bytes if needs.compiled else layer_bytes
    return count(needs.shape, needs.itemsize)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNeeds:
    """Settings of one engine that decide its memory."""

    shape: ModelShape
    itemsize: int
    tensor_parallel: int
    max_sequences: int
    longest: int
    """Most tokens of a sequence."""
    cache_bytes: int | None
    """KV cache of the whole engine; None lets `utilization` decide."""
    utilization: float
    """Part of every card that vLLM takes for weights, workspace and cache."""
    device_memory: int
    """Bytes of a card, or of the host for an engine on the CPU."""
    graphs: bool
    """True if CUDA graphs are captured."""
    received: int
    """Bytes of a weight bucket that arrives."""
    cache_itemsize: int
    """Bytes of a number in the KV cache."""
    batch_tokens: int
    """Most tokens of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Memory of one engine on each of its cards."""

    parts: tuple[Part, ...]
    cache_tokens: int
    """Tokens that the KV cache holds; negative if weights and workspace leave no room."""
    longest: int
    """Most tokens of a sequence."""

    @property
    def size(self) -> int:
        """Bytes on each of the engine's cards."""
        return total(self.parts)

    @property
    def streams(self) -> int:
        """Sequences of the greatest length that the KV cache holds at once."""
        return max(self.cache_tokens, 0) // self.longest


def engine_memory(needs: EngineNeeds) -> EngineMemory:
    """Return the memory of one engine on each of its cards, without the CUDA context.

    vLLM measures its workspace with a step of `batch_tokens` tokens. The cache gets what is left of
    `utilization`, unless it has a size of its own.
    """
    shape, cards = needs.shape, needs.tensor_parallel
    weights = -(-shape.parameters * needs.itemsize // cards)
    workspace = engine_workspace(needs)
    budget = int(needs.utilization * needs.device_memory)
    cache = budget - weights - workspace
    if needs.cache_bytes is not None:
        cache = needs.cache_bytes // cards
    # Key and value heads are split over cards, and every card has at least one of them.
    heads = max(-(-shape.kv_heads // cards), 1)
    per_token = 2 * shape.layers * heads * shape.head_dim * needs.cache_itemsize
    parts = (
        Part("weights", weights),
        Part("workspace", workspace),
        Part("KV cache", max(cache, 0)),
        Part("CUDA graphs", GRAPH_BYTES * needs.graphs),
        Part("weights being received", needs.received),
    )
    return EngineMemory(
        parts=tuple(part for part in parts if part.size),
        cache_tokens=cache // per_token,
        longest=needs.longest,
    )


def engine_workspace(needs: EngineNeeds) -> int:
    """Bytes of an engine step: activations of `batch_tokens` tokens in one layer, and sampling.

    Nothing is kept for a backward pass, so the widest point of a layer counts: gate and up of the
    MLP, their product, and two copies of the hidden states.
    """
    shape = needs.shape
    inner = 3 * shape.intermediate // needs.tensor_parallel
    layer = needs.batch_tokens * needs.itemsize * (inner + 2 * shape.hidden)
    return layer + SAMPLER_COPIES * 4 * needs.max_sequences * shape.vocabulary
