"""learner.gradient_checkpointing `auto` as a number, from the cards on which the learner runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rlsys.config import LearnerConfig, RunConfig, SftConfig
from rlsys.errors import ModelError
from rlsys.launch.node_checks import on_nodes, own_node
from rlsys.launch.placement import Placement, node_of, registered_nodes
from rlsys.planning.cards import Card, local_cards
from rlsys.planning.gradient_checkpointing import ON_CPU, reason
from rlsys.planning.plan import plan_run, read_shapes


async def with_checkpointed_layers(
    config: RunConfig | SftConfig, placement: Placement, tell: Callable[[str], None]
) -> LearnerConfig:
    """Return the learner's settings without `auto`, and tell what was chosen.

    The number is that of `rlsys plan` for the smallest card on the nodes of the learner. Where the
    memory cannot be planned, as that of `rlsys sft`, all layers are checkpointed.

    Raises ResourceError if a node does not answer.
    """
    learner = config.learner
    if learner.gradient_checkpointing != "auto":
        return learner
    chosen: bool | int
    if not learner.gpus_per_rank:
        chosen, why = False, ON_CPU
    elif isinstance(config, SftConfig):
        chosen, why = True, "all layers, because the memory of supervised rows is not planned"
    else:
        chosen, why = _chosen(config, await _cards(placement))
    tell(f"learner.gradient_checkpointing auto: {why}")
    return learner.model_copy(update={"gradient_checkpointing": chosen})


def _chosen(config: RunConfig, cards: list[Card]) -> tuple[bool | int, str]:
    """Return the layers for the smallest of `cards`, and the reason."""
    if not cards:
        return True, "all layers, because nvidia-smi lists no card on a node of the learner"
    card = min(cards, key=lambda card: card.memory)
    try:
        shapes = read_shapes(config)
    except ModelError as error:
        return True, f"all layers, because the memory cannot be planned: {error}"
    layers = plan_run(config, shapes, card).checkpointed
    why = reason(config, layers, shapes.policy)
    return layers, f"{why} ({card.name}, {card.memory_gib:.1f} GiB)"


async def _cards(placement: Placement) -> list[Card]:
    """Return the cards of every node with a rank; none if one of the nodes lists none."""
    wanted = {node_of(options) for options in placement.ranks}
    if wanted == {own_node()}:  # a task there would first start a process
        return await asyncio.to_thread(local_cards)
    nodes = [node for node in registered_nodes() if node.id in wanted]
    found = await on_nodes(nodes, local_cards, ())
    return [card for cards in found for card in cards] if all(found) else []
