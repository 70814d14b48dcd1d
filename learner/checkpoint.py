"""The learner's files: DeepSpeed checkpoints to continue from, Hugging Face folders to use.

Every public function here is called by all ranks; with ZeRO-3 each holds a part of every weight.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import torch

from learner.layout import TAG, Layout, planned_layout, written_layout
from learner.lora import save_adapter
from learner.reshard import read_state, restore_state
from learner.safe_load import load_states, unreadable
from learner.spec import LearnerSpec
from learner.weights import checkpoint_weights, gathered, is_adapter
from rlsys.errors import CheckpointError

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from transformers import PreTrainedModel

TOKENIZER_FILES = (
    "tokenizer*",
    "chat_template*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
)
"""Copied as they are: a tokenizer saved again is not always the one that was loaded."""


class RandomState(TypedDict, total=False):
    """Generators of one rank; `cuda` only where there is a card."""

    torch: torch.Tensor
    numpy: Any
    cuda: torch.Tensor


def save_checkpoint(engine: DeepSpeedEngine, folder: Path, state: dict[str, int]) -> None:
    """Write trained weights, optimizer, random states and `state` to `folder`.

    Frozen weights are left out: they are those of the starting policy.
    """
    # At the stages 0 to 2 DeepSpeed writes the client state of rank 0 only, so that has to hold the
    # generators of all ranks.
    random_states: list[RandomState | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(random_states, _random_state())
    engine.save_checkpoint(
        str(folder),
        tag=TAG,
        client_state={"rlsys": state, "random_states": random_states},
        save_latest=False,  # which checkpoint is the newest is known from its folder's name
        exclude_frozen_parameters=True,
    )


def load_checkpoint(engine: DeepSpeedEngine, folder: Path, spec: LearnerSpec) -> dict[str, int]:
    """Restore what save_checkpoint wrote and return its `state`.

    With the ranks and the ZeRO stage that wrote it, training goes on bit for bit. With others the
    state is the same, bit for bit, and its division is new (learner.reshard).

    Raises:
        CheckpointError: there is none, it was written with other adapters, or a file holds more
            than tensors and plain values.
    """
    layout = written_layout(folder)
    try:
        if layout == planned_layout(spec.config, spec.dtype):
            engine.checkpoint_engine.load = load_states
            _, counters = engine.load_checkpoint(str(folder), tag=TAG, custom_load_fn=_load_trained)
        else:
            counters = _load_resharded(engine, folder, layout)
        random_states: list[RandomState] = counters["random_states"]
    except UnpicklingError as error:
        raise unreadable(folder, error) from error
    except Exception as error:  # DeepSpeed has no error of its own for a state that does not fit
        raise CheckpointError(
            f"the learner checkpoint at {folder}, written by {layout}, does not fit learner.ranks "
            f"{spec.config.ranks}, learner.zero_stage {spec.config.zero_stage} and learner.lora "
            f"{_words(spec)} ({' '.join(str(error).split())}); resume with the settings that wrote "
            "it"
        ) from error
    _apply_settings(engine, spec)
    # A rank that is new takes the generators of another one.
    _restore_random_state(random_states[spec.rank % len(random_states)])
    state: dict[str, int] = counters["rlsys"]
    return state


def export_model(
    model: PreTrainedModel, folder: Path, spec: LearnerSpec, *, partitioned: bool
) -> None:
    """Write `model` and the tokenizer of the starting policy to `folder`, which appears complete.

    One weight at a time is whole on all ranks; rank 0 collects them in host memory and writes. An
    existing folder is replaced. Adapters are merged, and written alone to `folder/adapter` too.
    """
    weights: dict[str, torch.Tensor] = {}
    # Every rank enters every gather, in the same order, or the others would wait for ever.
    for weight in checkpoint_weights(model):
        with gathered(weight.parameters, partitioned=partitioned):
            if spec.rank == 0:
                weights[weight.name] = weight.value().to("cpu", copy=True)
    adapters: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            with gathered([parameter], partitioned=partitioned):
                if spec.rank == 0:
                    adapters[name] = parameter.detach().to("cpu", copy=True)
    if spec.rank == 0:
        _write_model(model, folder, weights, adapters, spec.model_path)
    torch.distributed.barrier()  # the folder is complete when any rank returns


def _load_resharded(engine: DeepSpeedEngine, folder: Path, layout: Layout) -> Mapping[str, Any]:
    trained = [name for name, p in engine.module.named_parameters() if p.requires_grad]
    saved = read_state(folder, layout, trained)
    restore_state(engine, saved)
    return saved.counters


def _apply_settings(engine: DeepSpeedEngine, spec: LearnerSpec) -> None:
    """Go on with the optimizer's settings of this run; DeepSpeed restores those of the checkpoint.

    The learning rate is set at every step.
    """
    settings = spec.config.optimizer
    for group in engine.optimizer.param_groups:
        group["betas"] = settings.betas
        group["eps"] = settings.epsilon
        group["weight_decay"] = settings.weight_decay
    if engine.zero_optimization_stage() > 0:  # at stage 0 learner.engine.update clips
        engine.optimizer.clip_grad = settings.max_grad_norm


def _load_trained(src: dict[str, torch.Tensor], dst: torch.nn.Module) -> None:
    """Load what `save_checkpoint` did not leave out, and refuse a state that lacks some of it."""
    missing, unexpected = dst.load_state_dict(src, strict=False)
    wrong = [*unexpected, *(name for name in missing if dst.get_parameter(name).requires_grad)]
    if wrong:
        raise ValueError(f"it was written for other weights than {wrong[0]}")


def _words(spec: LearnerSpec) -> str:
    lora = spec.config.lora
    return "null" if lora is None else str(lora.model_dump(mode="json"))


def _write_model(
    model: PreTrainedModel,
    folder: Path,
    weights: dict[str, torch.Tensor],
    adapters: dict[str, torch.Tensor],
    model_path: str,
) -> None:
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary, state_dict=weights)
    if adapters:
        save_adapter(model, adapters, temporary / "adapter", model_path)
    for pattern in TOKENIZER_FILES:
        for file in _model_folder(model_path).glob(pattern):
            shutil.copy(file, temporary)
    replace_folder(temporary, folder)


def replace_folder(new: Path, folder: Path) -> None:
    """Put the folder `new` in the place of `folder`, which may exist."""
    replaced = folder.with_name(folder.name + ".old")
    if folder.exists():
        # A folder cannot be moved onto one that is not empty, so the old one moves away first. A
        # kill between the two moves leaves both, whole, under other names.
        os.replace(folder, replaced)
    os.replace(new, folder)
    shutil.rmtree(replaced, ignore_errors=True)


def _model_folder(model_path: str) -> Path:
    if Path(model_path).is_dir():
        return Path(model_path)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model_path, allow_patterns=list(TOKENIZER_FILES)))


def _random_state() -> RandomState:
    state: RandomState = {"torch": torch.get_rng_state(), "numpy": np.random.get_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _restore_random_state(state: RandomState) -> None:
    torch.set_rng_state(state["torch"].cpu())
    np.random.set_state(state["numpy"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu())
