"""A model's folder: where it is, what its settings say, and how long its sequences may be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from rlsys.assets import SHIPPED, shipped_path
from rlsys.config import ModelConfig
from rlsys.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CPU_HEAD_SIZES: Final = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Attention head sizes that the CPU build of vLLM has kernels for."""

_MODEL_FILES: Final = {
    "settings": ("config.json",),
    "weights": ("*.safetensors", "pytorch_model*.bin"),
}


def resolve_model_path(path: str, key: str = "model.path") -> str:
    """Return the folder that `path` names, or the hub name it is; `key` is where it was set.

    The names in `SHIPPED` ship with rlsys. Raises ModelError for a folder that cannot be a hub name
    and does not exist.
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
    model: ModelConfig, *, on_cpu: bool, key: str = "model", engines: str = "generation"
) -> int:
    """Return the longest sequence in tokens that the model may be used with.

    `on_cpu` says that the CPU build of vLLM will run it; `key` and `engines` are where it and its
    engines are set.

    Raises ModelError if the folder lacks its files, if max_length is beyond the model's own limit,
    or if the CPU build has no attention for its head size.
    """
    folder = resolve_model_path(model.path, f"{key}.path")
    settings = _model_settings(model.path, folder, key)
    own: int | None = getattr(settings, "max_position_embeddings", None)
    if model.max_length is not None and own is not None and model.max_length > own:
        raise ModelError(
            f"{key}.max_length {model.max_length} is beyond the {own} positions of {key}.path "
            f"{model.path!r}; lower it"
        )
    limit = model.max_length or own
    if limit is None:
        raise ModelError(
            f"{key}.path {model.path!r} does not say how long its sequences may be; "
            f"set {key}.max_length"
        )
    heads = getattr(settings, "num_attention_heads", None)
    if on_cpu and heads is not None:
        size = getattr(settings, "head_dim", None) or settings.hidden_size // heads
        if size not in CPU_HEAD_SIZES:
            raise ModelError(
                f"{key}.path {model.path!r} has attention heads of size {size}, but engines on the "
                f"CPU take {', '.join(map(str, CPU_HEAD_SIZES))}; set {engines}.gpus_per_engine "
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
                    f"{key}.path to a whole Hugging Face folder"
                )
    try:
        settings = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"{key}.path {path!r} is neither a folder nor a hub name that can be loaded "
            f"({reason}); correct it, or download the model and give its folder"
        ) from error
    return settings.get_text_config()
