"""How many layers a learner rank checkpoints: as few as its part of a card needs.

`rlsys plan` shows the number that is found here for learner.gradient_checkpointing `auto`, and the
run trains with it (rlsys.launch.gradient_checkpointing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from learner.gradient_checkpointing import asked_layers
from learner.plan import BLOCK_TOKENS, row_width
from rlsys.config import AgentConfig, DialogueSection, RunConfig
from rlsys.config.environments import EnvironmentConfig, ThoughtSection
from rlsys.planning.layout import HOST, Place
from rlsys.planning.memory import (
    ALLOCATOR_SLACK,
    CONTEXT_BYTES,
    LearnerMemory,
    LearnerNeeds,
    Part,
    learner_memory,
    total,
)
from rlsys.planning.shape import ModelShape
from rlsys.planning.workload import EpisodeTree, LearnerRows

MARGIN: Final = 0.05
"""Part of every card that `auto` leaves free. Plans differ from measured peaks by up to 3 %
(tests/planning/test_memory.py), and a card has less free memory than nvidia-smi calls its total."""


ON_CPU: Final = "no layer, because the learner is on the CPU"
"""The choice of `auto` there."""


def checkpointed_layers(
    config: RunConfig, tree: EpisodeTree, needs: LearnerNeeds, room: int
) -> int:
    """Return the layers that a rank checkpoints, learner.gradient_checkpointing as a number.

    Args:
        config: the run.
        tree: its longest episode.
        needs: of a rank; `checkpointed` is not read.
        room: bytes that a rank may take of its card (see `rank_room`).

    Raises:
        ConfigError: more layers are asked for than the model has.
    """
    setting, layers = config.learner.gradient_checkpointing, needs.shape.layers
    if setting != "auto":
        return asked_layers(setting, layers)
    if not config.learner.gpus_per_rank:
        return 0
    tokens = _most_tokens(config, tree, needs.shape)
    if tokens is None:
        return layers
    widest = _widest_rows(config, tokens)
    return fewest_layers(replace(needs, rows=widest, predicted=widest.pass_slots), room)


def _most_tokens(config: RunConfig, tree: EpisodeTree, shape: ModelShape) -> int | None:
    """Return the most tokens that an episode can have; None if they are unknown.

    The length of texts that a dialogue or an agent's tools add is unknown, but the model's length
    limits the episode. A dialogue may end with one text that does not fit any more, which is taken
    to be no longer than an eighth of the limit. Nothing limits an environment outside rlsys.
    """
    limit = config.model.max_length or shape.positions
    environment: EnvironmentConfig = config.environment  # of any class in a run with plugins
    match environment:
        case ThoughtSection():
            return tree.tokens
        case AgentConfig():
            return limit
        case DialogueSection():
            return None if limit is None else limit + limit // 8
        case _:
            return None


def reason(config: RunConfig, checkpointed: int, shape: ModelShape) -> str:
    """Return what `auto` chose and why, for a terminal."""
    layers, kind = shape.layers, config.environment.type
    if not config.learner.gpus_per_rank:
        return ON_CPU
    if checkpointed == layers and not isinstance(config.environment, ThoughtSection):
        return (
            f"all {layers} layers, because an episode of environment.type {kind!r} may be as long "
            "as the model allows; lower model.max_length, or give a number of layers"
        )
    share = f"{MARGIN:.0%} of the card kept free"
    if checkpointed == layers:
        return f"all {layers} layers; with fewer a rank may need more than its part of the card"
    return f"{checkpointed} of {layers} layers, the fewest that fit with {share}"


def fewest_layers(needs: LearnerNeeds, room: int) -> int:
    """Return the fewest checkpointed layers with which a rank takes at most `room` bytes.

    All layers if no number is enough.
    """
    layers = needs.shape.layers
    for checkpointed in range(layers):
        memory = learner_memory(replace(needs, checkpointed=checkpointed))
        if total(reserved_parts(memory)) <= room:
            return checkpointed
    return layers


def reserved_parts(memory: LearnerMemory) -> tuple[Part, ...]:
    """Return the parts of a rank's peak, with what torch's allocator must reserve beyond them."""
    slack = Part("allocator's slack", int(ALLOCATOR_SLACK * memory.peak))
    return (*memory.peak_parts, slack)


def rank_room(places: Sequence[Place], engines: Mapping[str, Sequence[Part]], capacity: int) -> int:
    """Return the bytes of a card that `auto` gives to one learner rank.

    Every process on the card has a CUDA context, engines take what they need, and MARGIN of the
    card stays free; ranks that share a card share the rest of it. The fullest card counts, because
    all ranks checkpoint the same layers: with ZeRO-3 they gather weights for them together.

    Args:
        places: the cards of the run and their processes.
        engines: parts of an engine's memory, by role (rlsys.planning.layout.Tenant).
        capacity: bytes of each card.

    Returns:
        Bytes, negative if the engines leave nothing; 0 without a rank on a card.
    """
    rooms = []
    for place in places:
        roles = [tenant.role for tenant in place.tenants]
        ranks = roles.count("learner rank")
        if place.name != HOST and ranks:
            taken = sum(total(engines[role]) for role in roles if role != "learner rank")
            free = int((1 - MARGIN) * capacity) - taken - CONTEXT_BYTES * len(roles)
            rooms.append(free // ranks)
    return min(rooms, default=0)


def _widest_rows(config: RunConfig, tokens: int) -> LearnerRows:
    """Return the rows of the largest pass that a step of episodes of up to `tokens` may have.

    They can be wider than those of the longest episodes alone: two episodes of 4,000 tokens fill a
    row of 8,192 in which one of 5,000 lies by itself.
    """
    learner, batch = config.learner, config.batch
    width = row_width(tokens, learner.row_tokens)
    episodes = -(-batch.episodes // (batch.optimizer_steps * learner.data_parallel))
    rows = min(learner.micro_batch_rows, episodes)
    return LearnerRows(
        row_tokens=-(-width // BLOCK_TOKENS) * BLOCK_TOKENS,
        rows=rows,
        passes=1,
        rows_per_pass=rows,
        trees_per_row=1,
        sequence_ranks=learner.sequence_ranks,
    )
