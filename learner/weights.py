"""The tensors of the checkpoint, read from the module in training, with its adapters merged.

Engines and exported folders use the tensor names of the starting policy. A projection with an
adapter is merged whenever it is read, one tensor at a time; the trained parameters do not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

ADAPTER = "default"
"""peft's name for the only adapter there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A pair of low-rank factors: the projection gains scale * up @ down."""

    down: torch.nn.Parameter
    """[rank, inputs]"""
    up: torch.nn.Parameter
    """[outputs, rank]"""
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One tensor of the checkpoint."""

    name: str
    """Its name there."""
    base: torch.nn.Parameter
    adapter: Adapter | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor; ZeRO-3 keeps it in ds_shape and leaves numel() at 0."""
        return tuple(getattr(self.base, "ds_shape", self.base.shape))

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Parameters that must be whole before `value` is called."""
        return [self.base, *((self.adapter.down, self.adapter.up) if self.adapter else ())]

    def value(self) -> torch.Tensor:
        """The tensor; a new one, summed in float32 and rounded once, where an adapter is merged."""
        if self.adapter is None:
            return self.base.detach()
        down, up = self.adapter.down.detach().float(), self.adapter.up.detach().float()
        merged = torch.addmm(self.base.detach().float(), up, down, alpha=self.adapter.scale)
        return merged.to(self.base.dtype)


def checkpoint_weights(model: torch.nn.Module) -> Iterator[Weight]:
    """Yield the checkpoint's tensors in parameter order; a tied head is its embedding, once.

    Where peft added an adapter, the projection's own weight is named `q_proj.base_layer.weight`,
    and the factors are `q_proj.lora_A` and `q_proj.lora_B`.
    """
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            continue
        layer, wrapped, kind = name.rpartition(".base_layer.")
        if not wrapped:
            yield Weight(name=name, base=parameter)
            continue
        adapter = None
        if kind == "weight":
            module: LoraLayer = model.get_submodule(layer)
            adapter = Adapter(
                down=module.lora_A[ADAPTER].weight,
                up=module.lora_B[ADAPTER].weight,
                scale=module.scaling[ADAPTER],
            )
        yield Weight(name=f"{layer}.{kind}", base=parameter, adapter=adapter)


def checkpoint_tensors(
    model: torch.nn.Module, name: str, value: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return the tensors of the checkpoint, by name, that one tensor of the module stands for.

    transformers joins the experts of a layer into one tensor, while checkpoints and engines have
    one for each expert; it also renames some layers. For most models the result is {name: value}.
    """
    from transformers import PreTrainedModel
    from transformers.core_model_loading import revert_weight_conversion

    if not isinstance(model, PreTrainedModel):
        return {name: value}
    tensors: dict[str, torch.Tensor] = revert_weight_conversion(model, {name: value})
    return tensors


def is_adapter(name: str) -> bool:
    """True for the names of the parameters that peft added."""
    return ".lora_A." in name or ".lora_B." in name


def gathered(
    parameters: list[torch.nn.Parameter], *, partitioned: bool
) -> AbstractContextManager[object]:
    """Return the context in which `parameters` are whole on every rank; all ranks must enter it."""
    if not partitioned:
        return nullcontext()
    import deepspeed

    context: AbstractContextManager[object] = deepspeed.zero.GatheredParameters(parameters)
    return context
