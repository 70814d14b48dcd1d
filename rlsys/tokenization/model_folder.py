"""Model folders: find and check them, and return the longest sequence of the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from rlsys.assets import SHIPPED, shipped_path
from rlsys.config import ModelConfig
from rlsys.errors import ModelError
from rlsys.model_types import check_shared_rows, check_trainable, has_experts
from rlsys.tokenization.weight_files import check_files

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CPU_HEAD_SIZES: Final = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Attention head sizes that the CPU build of vLLM has kernels for."""

_MODEL_FILES: Final = {
    "settings": ("config.json",),
    "weights": ("*.safetensors", "pytorch_model*.bin"),
}


def resolve_model_path(path: str, key: str = "model.path") -> str:
    """Return the local folder for `path`, or `path` itself if it may be a hub name.

    The names in `SHIPPED` ship with rlsys. `key` is the configuration key of the path, for errors.
    Raises ModelError if `path` does not exist and cannot be a hub name.
    """
    if path in SHIPPED:
        return str(shipped_path(path))
    folder = Path(path).expanduser()
    if folder.is_dir():
        return str(folder)
    if path.startswith(("/", ".", "~")) or path.count("/") > 1 or folder.exists():
        raise ModelError(f"model folder {path!r} does not exist; correct {key}")
    return path


def check_model(
    model: ModelConfig,
    *,
    on_cpu: bool,
    key: str = "model",
    engines: str = "generation",
    trained: bool = False,
    sequence_ranks: int = 1,
) -> int:
    """Return the longest sequence, in tokens, that the model may be used with.

    Args:
        model: path and limits of the model.
        on_cpu: True if the CPU build of vLLM will run the model.
        key: configuration key of the model, for errors.
        engines: configuration key of its engines, for errors.
        trained: True if the learner trains the model.
        sequence_ranks: learner ranks that share a row of the model.

    Raises:
        ModelError: the folder lacks files or has damaged ones, max_length is above the limit of the
            model, the CPU build has no attention kernel for its head size, or the learner cannot
            train the model, or not with so many ranks to a row.
    """
    folder = resolve_model_path(model.path, f"{key}.path")
    whole = _model_settings(model.path, folder, key)
    if trained:
        check_trainable(whole, model.path, f"{key}.path")
        check_shared_rows(whole, model.path, f"{key}.path", sequence_ranks)
        if on_cpu and has_experts(whole):
            # vLLM keeps copies of the experts' weights for its CPU kernels and leaves them as they
            # were when new weights arrive; the canary would end the run at the first sync.
            raise ModelError(
                f"{key}.path {model.path!r} is a mixture of experts, whose weights engines on the "
                f"CPU cannot replace; set {engines}.gpus_per_engine or use another model"
            )
    settings = whole.get_text_config()
    positions: int | None = getattr(settings, "max_position_embeddings", None)
    if model.max_length is not None and positions is not None and model.max_length > positions:
        raise ModelError(
            f"{key}.max_length {model.max_length} is more than the {positions} positions of "
            f"{key}.path {model.path!r}; lower it"
        )
    limit = model.max_length or positions
    if limit is None:
        raise ModelError(
            f"the config.json of {key}.path {model.path!r} does not limit the length of sequences; "
            f"set {key}.max_length"
        )
    heads = getattr(settings, "num_attention_heads", None)
    if on_cpu and heads is not None:
        size = getattr(settings, "head_dim", None) or settings.hidden_size // heads
        if size not in CPU_HEAD_SIZES:
            raise ModelError(
                f"{key}.path {model.path!r} has attention heads of size {size}, but engines on the "
                f"CPU support {', '.join(map(str, CPU_HEAD_SIZES))}; set {engines}.gpus_per_engine "
                "or use another model"
            )
    return limit


def _model_settings(path: str, folder: str, key: str) -> PretrainedConfig:
    from transformers import AutoConfig

    local = Path(folder)
    if local.is_dir():
        for what, patterns in _MODEL_FILES.items():
            if not any(found for pattern in patterns for found in local.glob(pattern)):
                raise ModelError(
                    f"model folder {path!r} has no {what} ({' or '.join(patterns)}); set "
                    f"{key}.path to a complete Hugging Face folder"
                )
        check_files(local, f"{key}.path")
    try:
        settings: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    # Settings are read by code of the model, which meets wrong values with errors of every kind.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        if local.is_dir():
            raise ModelError(
                f"the config.json of {key}.path {path!r} cannot be used ({reason}); correct it, or "
                "use another model"
            ) from error
        raise ModelError(
            f"{key}.path {path!r} is neither a folder nor a hub name that can be loaded "
            f"({reason}); correct it, or download the model and give its folder"
        ) from error
    return settings
