"""Parameters, FLOPs and cache bytes of a model of type Llama, Qwen2 or Qwen3.

The counts are exact; tests compare them with transformers' own modules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlsys.config.learner import LoraConfig
from rlsys.errors import ModelError
from rlsys.tokenization.model_folder import resolve_model_path

TYPES: Final = ("llama", "qwen2", "qwen3")
"""Model types that the learner trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder-only transformer with gated MLPs and RMSNorm."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    """True if the output head is the embedding."""
    qkv_bias: bool = False
    output_bias: bool = False
    """A bias in the attention's output projection."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """An RMSNorm over every head of queries and keys, as in Qwen3."""
    positions: int | None = None
    """Longest sequence; None if the config.json has no limit."""

    @property
    def query_size(self) -> int:
        """heads * head_dim."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """kv_heads * head_dim."""
        return self.kv_heads * self.head_dim

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of every projection of a layer, by its name in transformers."""
        hidden, inner = self.hidden, self.intermediate
        return {
            "q_proj": (hidden, self.query_size),
            "k_proj": (hidden, self.kv_size),
            "v_proj": (hidden, self.kv_size),
            "o_proj": (self.query_size, hidden),
            "gate_proj": (hidden, inner),
            "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }

    @property
    def linear_parameters(self) -> int:
        """Weights of all projections of all layers: those that every token is multiplied with."""
        return self.layers * sum(a * b for a, b in self.projections.values())

    @property
    def head_parameters(self) -> int:
        """Weights of the output head (or of the embedding): vocabulary * hidden."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters; a tied head counts once."""
        biases = (self.query_size + 2 * self.kv_size) * self.qkv_bias
        biases += self.hidden * self.output_bias
        biases += (2 * self.intermediate + self.hidden) * self.mlp_bias
        norms = 2 * self.hidden + 2 * self.head_dim * self.qk_norm
        embeddings = self.head_parameters * (1 if self.tied else 2)
        return embeddings + self.linear_parameters + self.layers * (biases + norms) + self.hidden

    def lora_parameters(self, lora: LoraConfig) -> int:
        """Parameters of the adapters: rank * (inputs + outputs) of every adapted projection."""
        adapted = (self.projections[name] for name in lora.target_modules)
        return self.layers * lora.rank * sum(a + b for a, b in adapted)

    def kv_bytes(self, itemsize: int) -> int:
        """Bytes of the KV cache per token: keys and values of every layer."""
        return 2 * self.layers * self.kv_size * itemsize

    def attention_flops(self, pairs: int) -> int:
        """FLOPs of a forward pass through attention.

        `pairs` counts the pairs of a query and a key that it sees. Each costs two products of
        head_dim in every head: one for the score, one for the value.
        """
        return 4 * self.layers * self.query_size * pairs

    def forward_flops(self, tokens: int, predicted: int, pairs: int) -> int:
        """FLOPs of a forward pass over `tokens`, of which `predicted` get logits.

        A backward pass costs twice as much (Kaplan et al., arXiv 2001.08361, Section 2.1).
        """
        linear = 2 * (self.linear_parameters * tokens + self.head_parameters * predicted)
        return linear + self.attention_flops(pairs)


def shape_of(settings: Mapping[str, Any]) -> ModelShape:
    """Return the shape in the content of a config.json.

    Raises ModelError for types that the learner does not train, and for missing sizes.
    """
    kind = settings.get("model_type")
    if kind not in TYPES:
        raise ModelError(
            f"a model of type {kind!r} cannot be planned; the learner trains {', '.join(TYPES)}"
        )
    if settings.get("use_sliding_window"):
        raise ModelError("a model with sliding windows cannot be planned; the learner has no mask")
    try:
        heads = int(settings["num_attention_heads"])
        hidden = int(settings["hidden_size"])
        bias = bool(settings.get("attention_bias", False))
        return ModelShape(
            layers=int(settings["num_hidden_layers"]),
            hidden=hidden,
            intermediate=int(settings["intermediate_size"]),
            heads=heads,
            kv_heads=int(settings.get("num_key_value_heads") or heads),
            # Qwen3's heads have 128 numbers unless the file says otherwise; other types divide.
            head_dim=int(settings.get("head_dim") or (128 if kind == "qwen3" else hidden // heads)),
            vocabulary=int(settings["vocab_size"]),
            tied=bool(settings.get("tie_word_embeddings", False)),
            qkv_bias=bias or kind == "qwen2",
            output_bias=bias and kind != "qwen2",
            mlp_bias=bool(settings.get("mlp_bias", False)) and kind == "llama",
            qk_norm=kind == "qwen3",
            positions=settings.get("max_position_embeddings"),
        )
    except KeyError as error:
        raise ModelError(f"the model's config.json has no {error.args[0]!r}") from None


def read_shape(path: str) -> ModelShape:
    """Return the shape of `model.path`: a folder, a model that ships, or a name on the hub.

    Of a hub name only its config.json is fetched. Raises ModelError if there is none.
    """
    folder = resolve_model_path(path)
    file = Path(folder) / "config.json"
    if not Path(folder).is_dir():
        from huggingface_hub import hf_hub_download

        try:
            file = Path(hf_hub_download(folder, "config.json"))
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ModelError(
                f"model.path {path!r} is neither a folder nor a hub name whose config.json can be "
                f"fetched ({reason}); correct it, or download the model and give its folder"
            ) from None
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {file} ({error}); give a Hugging Face folder") from None
    return shape_of(settings)
