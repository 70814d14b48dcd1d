"""Low-rank adapters inside an unmodified transformers model, through peft.

The adapters are injected: the model keeps its class, and with it its attention and the way its
hidden states are read. Only adapters are trained; the policy at the start of the run is the same
model with their scale at 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from learner.weights import ADAPTER
from rlsys.config import LoraConfig


def add_adapters(model: Any, config: LoraConfig) -> None:
    """Freeze `model` and put adapters beside its projections; they change nothing at first."""
    import peft

    peft.inject_adapter_in_model(
        peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            target_modules=list(config.target_modules),
            task_type="CAUSAL_LM",
        ),
        model,
        adapter_name=ADAPTER,
    )


@contextmanager
def adapters_off(model: torch.nn.Module) -> Iterator[None]:
    """Return to the starting policy for the time of the block.

    By the scale and not by peft's switch, which would take adapters out of the gradient and out of
    the order of modules that ZeRO-3 has learned to gather.
    """
    layers: list[Any] = [module for module in model.modules() if hasattr(module, "lora_A")]
    for layer in layers:
        layer.set_scale(ADAPTER, 0.0)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_scale(ADAPTER, 1.0)


def save_adapter(
    model: Any, tensors: Mapping[str, torch.Tensor], folder: Path, base_model: str
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
