"""How many layers a learner rank checkpoints: as few as its part of a card needs.

`rlsys plan` shows the number that is found here for learner.gradient_checkpointing `auto`, and the
run trains with it (rlsys.launch.checkpointing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from learner.checkpointing import asked_layers
from learner.plan import BLOCK_TOKENS, row_width
from rlsys.config import RunConfig
from rlsys.config.environments import ThoughtSection
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
    if not plans_episodes(config):
        return layers
    widest = _widest_rows(config, tree)
    return fewest_layers(replace(needs, rows=widest, predicted=widest.pass_slots), room)


def plans_episodes(config: RunConfig) -> bool:
    """Return True if the plan knows the longest episode of the run.

    It does not know texts that an environment of several turns, or one outside rlsys, adds.
    """
    return isinstance(config.environment, ThoughtSection)


def reason(config: RunConfig, checkpointed: int, layers: int) -> str:
    """Return what `auto` chose and why, for a terminal."""
    if not config.learner.gpus_per_rank:
        return ON_CPU
    if not plans_episodes(config):
        return (
            f"all {layers} layers, because an environment of type {config.environment.type!r} may "
            "add text of any length; give a number of layers to keep more activations"
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
    """Return the parts of a rank's peak, with what torch's allocator reserves beyond them."""
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
        ranks = sum(role not in engines for role in roles)
        if place.name != HOST and ranks:
            taken = sum(total(engines[role]) for role in roles if role in engines)
            free = int((1 - MARGIN) * capacity) - taken - CONTEXT_BYTES * len(roles)
            rooms.append(free // ranks)
    return min(rooms, default=0)


def _widest_rows(config: RunConfig, tree: EpisodeTree) -> LearnerRows:
    """Return the rows of the largest pass that a step may have.

    They can be wider than those of the longest episodes alone: two episodes of 4,000 tokens fill a
    row of 8,192 in which one of 5,000 lies by itself.
    """
    learner, batch = config.learner, config.batch
    width = row_width(tree.tokens, learner.row_tokens)
    episodes = -(-batch.episodes // (batch.optimizer_steps * learner.ranks))
    rows = min(learner.micro_batch_rows, episodes)
    return LearnerRows(
        row_tokens=-(-width // BLOCK_TOKENS) * BLOCK_TOKENS,
        rows=rows,
        passes=1,
        rows_per_pass=rows,
        trees_per_row=1,
    )
