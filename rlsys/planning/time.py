"""Seconds of a training step, part by part, and what bounds each part.

Every part is a roofline: the largest of the times that its bytes, its operations and its host need,
where one hides behind another, and their sum where one waits for another. Rates that no data sheet
tells are measured constants, each with its source. A step takes the parts one after the other in a
synchronous run; in an asynchronous run generation goes on beside training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rlsys.planning.attention import attention_seconds
from rlsys.planning.cards import Card
from rlsys.planning.logprob_head import head_work
from rlsys.planning.shape import ModelShape
from rlsys.planning.workload import EpisodeTree, LearnerRows

Bound = Literal["host", "memory bandwidth", "arithmetic", "link"]

MATMUL_RATE: Final = 0.7
"""Part of a card's peak that bfloat16 products of a layer reach. From the learner's measurements
(benchmarks/results/learner_speed_H200.jsonl), as are the next three."""
LAYER_BYTES: Final = (30, 500)
"""Bytes that elementwise kernels of a layer move per token, forward and backward, for every number
of the MLP's inner size and for every number of the hidden size, in bfloat16."""
COMPILED_LAYER_BYTES: Final = (12, 130)
"""The same for a layer under torch.compile, which fuses them."""
TRAINING_FIXED_S: Final = 0.1
"""Fetching samples from Ray's object store, packing them, metrics."""
UPDATE_BYTES: Final = 100
"""Bytes that clipping, AdamW and the copy to bfloat16 move per trained parameter and rank's share:
one read and write of every state in each of these kernels."""
KERNELS_PER_LAYER: Final = 140
"""Kernels of a forward and a backward pass through one layer that is not compiled."""
COMPILED_KERNELS: Final = 45
"""The same of a compiled one."""
LAUNCH_S: Final = 7e-6
"""Host time per kernel; it bounds passes over few tokens."""

DECODE_RATE: Final = 0.5
"""Part of a card's bandwidth that decoding reaches with CUDA graphs: 512 streams of a 1.5B model
kept an H100 busy for 7 ms per token."""
SAMPLER_PASSES: Final = 10
"""Times that the sampler reads or writes a float32 logit of a sequence."""
HOST_STEP_S: Final = 2.5e-3
"""Host time of an engine step, whatever it decodes: scheduling and one round trip. It was 3 ms on
one host and 2.2 ms on another (benchmarks/results/plan_check_H200.json)."""
EAGER_STEP_S: Final = 12e-3
"""The same without CUDA graphs."""
HOST_TOKEN_S: Final = 15e-6
"""Host time per sampled token of an engine, with seeds and log-probs: 43,000 to 51,000 tokens/s of
512 streams (benchmarks/results/generation_speed_H200.jsonl)."""
HOST_SEQUENCE_S: Final = 0.5e-3
"""Host time per request: Ray, tokens in and out of vLLM. On an H100, 8,192 answers of 32 tokens
took 4.3 s longer than the same number of tokens in 512 thoughts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One part of a training step."""

    name: str
    seconds: float
    bound: Bound
    """What most of the time is spent on."""
    card_s: float
    """Seconds in which the card itself works."""
    floor_s: float
    """Least seconds that the card or the link allows at its full rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationLoad:
    """What the policy's engines sample in one training step."""

    shape: ModelShape
    itemsize: int
    tree: EpisodeTree
    episodes: int
    engines: int
    tensor_parallel: int
    max_sequences: int
    """Per engine."""
    cache_tokens: int
    """Tokens that the KV cache of an engine holds."""
    graphs: bool


def generation_stages(load: GenerationLoad, card: Card) -> tuple[Stage, ...]:
    """Return prefill, thoughts and answers of one training step.

    All thoughts start together, and answers start when the thoughts of their group have ended,
    which all groups do at about the same time.
    """
    tree = load.tree
    thoughts = _decoding(
        load, card, "thoughts", load.episodes, tree.thought, tree.prompt, tree.prompt
    )
    stages = [_prefill(load, card), thoughts]
    if tree.branches:
        before = tree.prompt + tree.thought
        kept = sum(kept * count for kept, count in tree.branches) / tree.answers
        stages.append(
            _decoding(
                load,
                card,
                "answers",
                load.episodes * tree.answers,
                tree.answer,
                round(tree.prompt + kept + tree.forced),
                # The blocks of a thought are shared by all answers to it.
                round(before / tree.answers),
            )
        )
    return tuple(stages)


def _prefill(load: GenerationLoad, card: Card) -> Stage:
    """Prompts and forced texts; thoughts and kept parts of them come from the prefix cache."""
    tree, shape = load.tree, load.shape
    tokens = load.episodes * (tree.prompt + len(tree.branches) * tree.forced)
    pairs = load.episodes * tree.prompt * (tree.prompt + 1) // 2
    flops = shape.forward_flops(tokens, load.episodes * (1 + tree.answers), pairs)
    cards = load.engines * load.tensor_parallel
    floor = flops / (cards * card.operations(load.itemsize))
    seconds = floor / MATMUL_RATE
    return Stage(name="prefill", seconds=seconds, bound="arithmetic", card_s=seconds, floor_s=floor)


def _decoding(
    load: GenerationLoad,
    card: Card,
    name: str,
    sequences: int,
    tokens: int,
    start: int,
    shared: int,
) -> Stage:
    """Return the time to sample `tokens` for every one of `sequences`.

    Args:
        load, card: what runs where.
        name: of the stage.
        sequences: of all engines.
        tokens: sampled per sequence.
        start: tokens that a sequence attends to before its first sampled one.
        shared: tokens of `start` that the KV cache holds for this sequence alone.
    """
    mine = -(-sequences // load.engines)
    fitting = max(load.cache_tokens // (shared + tokens), 1)
    streams = min(mine, load.max_sequences, fitting)
    # Continuous batching: a sequence that ends is replaced at once.
    steps = tokens * max(mine / streams, 1.0)
    bytes_s, flops_s = _roofs(load, card, streams, start + tokens / 2)
    first, card_s, last = (
        max(by_bytes / DECODE_RATE, by_flops / MATMUL_RATE)
        for by_bytes, by_flops in (
            _roofs(load, card, streams, start),
            (bytes_s, flops_s),
            _roofs(load, card, streams, start + tokens),
        )
    )
    host_s = (HOST_STEP_S if load.graphs else EAGER_STEP_S) + streams * HOST_TOKEN_S
    step_s = _mean_of_larger(host_s, first, last)
    requests_s = mine * HOST_SEQUENCE_S
    memory = bytes_s / DECODE_RATE >= flops_s / MATMUL_RATE
    bound: Bound = "memory bandwidth" if memory else "arithmetic"
    return Stage(
        name=name,
        seconds=steps * step_s + requests_s,
        bound="host" if host_s >= card_s else bound,
        card_s=steps * card_s,
        floor_s=steps * max(bytes_s, flops_s),
    )


def _roofs(load: GenerationLoad, card: Card, streams: int, context: float) -> tuple[float, float]:
    """Return the seconds of one engine step by its bytes and by its operations, at full rates."""
    shape, size, cards = load.shape, load.itemsize, load.tensor_parallel
    read = shape.parameters * size + streams * context * shape.kv_bytes(size)
    logits = SAMPLER_PASSES * 4 * streams * shape.vocabulary
    flops = shape.forward_flops(streams, streams, round(streams * context))
    return (read / cards + logits) / card.bandwidth, flops / (cards * card.operations(size))


def _mean_of_larger(host_s: float, first: float, last: float) -> float:
    """Return the mean of max(host_s, x) where x grows evenly from `first` to `last`.

    Long thoughts are bound by the host while their context is short, and by the card later.
    """
    if last <= host_s:
        return host_s
    if first >= host_s:
        return (first + last) / 2
    return host_s + (last - host_s) ** 2 / (2 * (last - first))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoad:
    """What one learner rank computes in one training step."""

    shape: ModelShape
    itemsize: int
    tree: EpisodeTree
    trees: float
    """Trees of the rank; of a tree in rows that ranks share, its part."""
    rows: LearnerRows
    trained_parameters: int
    ranks: int
    optimizer_steps: int
    checkpointed: int
    """Layers that are computed again in the backward pass."""
    compiled: bool
    """True if every layer is compiled."""
    extra_forwards: float
    """Forward passes beside that of the loss: for old log-probs and frozen models. A teacher counts
    by its parameters over those of the policy."""
    entropy_trained: bool = False
    """True if the loss trains the entropy: the log-prob head then computes its logits again."""


def training_flops(load: TrainingLoad) -> int:
    """FLOPs that the model needs for one step of a rank: 3 forward passes over the trees' tokens.

    Padding, recomputation and further forward passes are left out, as in MFU.
    """
    tree = load.tree
    forward = load.shape.forward_flops(tree.tokens, tree.sampled, tree.visible_pairs)
    return round(3 * load.trees * forward)


def training_stages(load: TrainingLoad, card: Card) -> tuple[Stage, ...]:
    """Return the forward and backward passes of a rank, and the update."""
    shape, rows = load.shape, load.rows
    peak = card.operations(load.itemsize)
    # A checkpointed layer goes forward a second time.
    forwards = 1 + load.checkpointed / shape.layers + load.extra_forwards
    slots = rows.slots
    linear_s = 2 * shape.linear_parameters * slots * (forwards + 2) / (MATMUL_RATE * peak)
    attention_s = attention_seconds(load, forwards, peak)
    inner, hidden = COMPILED_LAYER_BYTES if load.compiled else LAYER_BYTES
    per_token = shape.layers * (inner * shape.intermediate + hidden * shape.hidden)
    moved = load.itemsize / 2 * per_token * slots
    elementwise_s = moved * (forwards + 2) / 3 / card.bandwidth
    head_flops, head_moved = head_work(load)
    head_s = head_flops / (MATMUL_RATE * peak) + head_moved / card.bandwidth
    exchange_s = _exchange_seconds(load, forwards + 1, card)
    card_s = linear_s + attention_s + elementwise_s + head_s + exchange_s
    passes = rows.passes * (forwards + 2) / 3
    kernels = COMPILED_KERNELS if load.compiled else KERNELS_PER_LAYER
    host_s = passes * shape.layers * kernels * LAUNCH_S
    arithmetic = linear_s + attention_s > elementwise_s
    bound: Bound = "arithmetic" if arithmetic else "memory bandwidth"
    compute = Stage(
        name="forward and backward",
        seconds=max(card_s, host_s) + TRAINING_FIXED_S,
        bound="host" if host_s > card_s else bound,
        card_s=card_s,
        floor_s=training_flops(load) / peak,
    )
    return compute, _update(load, card)


def _exchange_seconds(load: TrainingLoad, times: float, card: Card) -> float:
    """Seconds on the link of the heads that ranks of shared rows exchange for tokens.

    Queries, keys, values and outputs of the rank's tokens, in every layer, `times` times.
    """
    shape, ranks = load.shape, load.rows.sequence_ranks
    copies = ranks // math.gcd(shape.kv_heads, ranks)  # learner.sequence.sequence_attention
    sent = 2 * (shape.query_size + copies * shape.kv_size) * (ranks - 1) / ranks
    return times * load.rows.slots * shape.layers * load.itemsize * sent / card.link


def _update(load: TrainingLoad, card: Card) -> Stage:
    """Reduce the gradients, clip them, AdamW on the rank's share, gather the new weights.

    A ring moves every number twice over the link, in float32 for gradients and in the model's
    precision for weights.
    """
    ranks, trained = load.ranks, load.trained_parameters
    share_s = UPDATE_BYTES * trained / ranks / card.bandwidth
    moved = (2 * 4 + load.itemsize) * trained * (ranks - 1) / ranks
    link_s = moved / card.link
    seconds = load.optimizer_steps * (share_s + link_s)
    return Stage(
        name="update",
        seconds=seconds,
        bound="link" if link_s > share_s else "memory bandwidth",
        card_s=seconds,
        floor_s=seconds,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a whole training step."""

    generation: tuple[Stage, ...]
    training: tuple[Stage, ...]
    sync: Stage
    shared: bool
    """True if learner and engines use the same cards."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All parts in their order."""
        return (*self.generation, *self.training, self.sync)

    @property
    def synchronous(self) -> float:
        """Seconds of a step with rollout.max_staleness 0: all parts one after the other."""
        return seconds_of(self.stages)

    @property
    def asynchronous(self) -> float:
        """Seconds of a step with rollout.max_staleness 1 or more.

        The slower side sets the pace. On shared cards both sides also need the cards themselves.
        """
        learner = seconds_of(self.training) + self.sync.seconds
        busy = sum(stage.card_s for stage in self.generation) if self.shared else 0.0
        return max(seconds_of(self.generation), learner + busy)


def seconds_of(stages: Sequence[Stage]) -> float:
    """Return the seconds of stages that follow one another."""
    return sum(stage.seconds for stage in stages)
