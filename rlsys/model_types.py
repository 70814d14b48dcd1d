"""Which models the learner trains, and how it computes their log-probs.

A group's thoughts and answers form trees. Models whose layers all attend to the whole path read a
packed tree at once. Other models (sliding windows, linear attention) read every path from the root
to a leaf as a row of its own: the same log-probs and the same loss, for more computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rlsys.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PACKED_TYPES: Final = (
    *("llama", "qwen2", "qwen3", "mistral", "gemma", "phi3", "olmo2", "smollm3", "granite"),
    *("mixtral", "qwen2_moe", "qwen3_moe"),
)
"""Model types in which every layer is causal and uses positions only for rotary angles, unless the
settings ask for sliding windows. Experts are chosen token by token, so they do not matter here."""

_SCALED_LOGITS: Final = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
)
"""Settings of models that change their logits after the output embedding. The learner computes
logits by itself, chunk by chunk, and would leave this out."""


def packs_trees(config: PretrainedConfig) -> bool:
    """True if the learner packs trees of a model with these settings."""
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    # Settings of Qwen2 name a window also where it is not in use.
    windowed = getattr(config, "use_sliding_window", True) and getattr(
        config, "sliding_window", None
    )
    return config.model_type in PACKED_TYPES and kinds == {"full_attention"} and not windowed


def has_experts(config: PretrainedConfig) -> bool:
    """True for a mixture of experts."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return any(getattr(config, name, None) for name in names)


def check_trainable(config: PretrainedConfig, path: str, key: str) -> None:
    """Raise ModelError if the learner cannot train a model with these settings.

    `config` is that of the whole model, `path` its folder or hub name, `key` the configuration key.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    if getattr(config, "quantization_config", None) is not None:
        method = dict(_as_dict(config.quantization_config)).get("quant_method", "unknown method")
        raise ModelError(
            f"{key} {path!r} is quantized ({method}), and the learner trains unquantized weights; "
            "name the folder of the unquantized model"
        )
    name = config.model_type
    known = name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    # Encoders are listed as causal models too, for use as a decoder.
    if not known or name in MODEL_FOR_MASKED_LM_MAPPING_NAMES or config.is_encoder_decoder:
        raise ModelError(
            f"{key} {path!r} has type {name!r}, which is no causal language model of transformers; "
            f"use another model, for instance of type {', '.join(PACKED_TYPES[:3])}"
        )
    if config.get_text_config() is not config:
        raise ModelError(
            f"{key} {path!r} of type {name!r} has parts for images or sound, and the learner "
            "trains language models alone; use a model of text only"
        )
    for setting in _SCALED_LOGITS:
        if getattr(config, setting, None) not in (None, 1, 1.0):
            raise ModelError(
                f"{key} {path!r} of type {name!r} changes its logits ({setting}), which the "
                "learner does not support; use another model, for instance of type "
                f"{', '.join(PACKED_TYPES[:3])}"
            )


def check_shared_rows(config: PretrainedConfig, path: str, key: str, ranks: int) -> None:
    """Raise ModelError if `ranks` learner ranks cannot share the rows of this model.

    The arguments are those of `check_trainable`, and learner.sequence_ranks. 1 fits every model.
    """
    if ranks == 1:
        return
    if not packs_trees(config):
        raise ModelError(
            f"learner.sequence_ranks {ranks} needs a model that reads packed trees, and {key} "
            f"{path!r} of type {config.model_type!r} does not; set learner.sequence_ranks=1"
        )
    rotary = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rotary in ("dynamic", "longrope"):
        # Their frequencies depend on the largest position that is there, and ranks hold different
        # positions of one row.
        raise ModelError(
            f"learner.sequence_ranks {ranks} needs rotary angles that do not change with the "
            f"length, and {key} {path!r} has rope_type {rotary!r}; set learner.sequence_ranks=1"
        )
    check_heads(config.num_attention_heads, path, key, ranks)


def check_heads(heads: int, path: str, key: str, ranks: int) -> None:
    """Raise ModelError if `ranks` learner ranks cannot divide attention heads among them.

    `path` and `key` are those of `check_trainable`.
    """
    if heads % ranks:
        raise ModelError(
            f"learner.sequence_ranks {ranks} does not divide the {heads} attention heads of {key} "
            f"{path!r}; set it to a divisor of {heads}"
        )


def _as_dict(settings: object) -> dict[str, object]:
    return settings if isinstance(settings, dict) else dict(vars(settings))
