"""Activation checkpointing of the first layers of a model.

A layer that is checkpointed keeps only its input for the backward pass, which then computes the
layer a second time (Chen et al., arXiv 1604.06174). How many layers need it depends on the memory
(rlsys.planning.gradient_checkpointing).

Why the first layers: the backward pass starts at the last layer. When it reaches a checkpointed
layer, the activations of all layers without checkpoint are free again, so the memory of the layer
that is computed again is never added to theirs. With checkpoints spread over the depth it would be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlsys.errors import ConfigError, TrainingError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def asked_layers(setting: bool | int, layers: int) -> int:
    """Return how many of a model's layers are checkpointed.

    Args:
        setting: True for all, False for none, or their number.
        layers: of the model.

    Raises:
        ConfigError: the model has fewer layers.
    """
    if isinstance(setting, bool):
        return layers * setting
    if setting > layers:
        raise ConfigError(
            f"learner.gradient_checkpointing {setting} is more than the {layers} layers of the "
            f"model; use {layers} or less, or true for all of them"
        )
    return setting


def checkpoint_layers(model: PreTrainedModel, setting: bool | int) -> None:
    """Let the backward pass compute the first layers of `model` again, in training mode only.

    `setting` is that of `asked_layers`. Raises ConfigError if the model has fewer layers.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    # In the order in which the model defines them, which is that of its forward pass.
    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    wanted = asked_layers(setting, len(layers))
    if not wanted:
        return
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    # That also makes the embedding's output need a gradient, which only reentrant checkpoints want.
    # Without gradients the first layer would then be another case to torch.compile than the others.
    model.disable_input_require_grads()
    for layer in layers[wanted:]:
        layer.gradient_checkpointing = False


@contextmanager
def memory_errors(rank: int, setting: bool | int) -> Iterator[None]:
    """Raise a TrainingError with the remedy where the block runs out of its card's memory.

    `rank` is the learner's rank, `setting` that of `asked_layers`.
    """
    import torch  # here, because `rlsys plan` uses this module without torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        remedy = "lower learner.micro_batch_rows"
        if setting is not True:
            remedy += (
                f", or raise learner.gradient_checkpointing, which checkpoints {int(setting)} "
                "layers (true checkpoints all)"
            )
        raise TrainingError(
            f"learner rank {rank} has too little memory on its card "
            f"({str(error).partition(' GPU ')[0].rstrip('.')}); {remedy}; `rlsys plan` shows the "
            "memory of every part, and the same command with the new setting goes on from the last "
            "checkpoint"
        ) from error
