"""Low-rank adapters inside an unmodified transformers model, through peft.

The adapters are injected into the model, which keeps its class, so attention and hidden states work
as before. Only adapters are trained; the policy at the start of the run is the same model with
their scale at 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from learner.weights import ADAPTER
from rlsys.config import LoraConfig
from rlsys.errors import ModelError

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer
    from transformers import PreTrainedModel


def add_adapters(model: PreTrainedModel, config: LoraConfig) -> None:
    """Freeze `model` and add adapters to its projections; they change nothing at first.

    Raises ModelError if the model has no projection of the names in `config.target_modules`.
    """
    import peft

    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(config.target_modules),
        task_type="CAUSAL_LM",
    )
    try:
        peft.inject_adapter_in_model(settings, model, adapter_name=ADAPTER)
    except ValueError as error:  # peft found none of the names
        raise ModelError(
            f"a model of type {model.config.model_type!r} has none of the projections "
            f"{', '.join(config.target_modules)}; set learner.lora.target_modules to its names"
        ) from error


@contextmanager
def adapters_off(model: torch.nn.Module) -> Iterator[None]:
    """Return to the starting policy for the time of the block.

    This sets the adapters' scale to 0. peft's own switch would set `requires_grad` of the adapters,
    and would change the order of modules in which ZeRO-3 gathers parameters.
    """
    layers: list[LoraLayer] = [module for module in model.modules() if hasattr(module, "lora_A")]
    for layer in layers:
        layer.set_scale(ADAPTER, 0.0)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_scale(ADAPTER, 1.0)


def save_adapter(
    model: PreTrainedModel, tensors: Mapping[str, torch.Tensor], folder: Path, base_model: str
) -> None:
    """Write a folder that peft and vLLM load on top of `base_model`.

    Args:
        model: the model with adapters, for their settings.
        tensors: the adapters' tensors by parameter name, on the CPU.
        folder: is created.
        base_model: folder or name of the model that the adapters belong to.
    """
    from safetensors.torch import save_file

    settings = model.peft_config[ADAPTER]
    settings.base_model_name_or_path = base_model
    settings.inference_mode = True
    settings.save_pretrained(folder)
    names = {name: f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}" for name in tensors}
    save_file(
        {names[name]: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )
