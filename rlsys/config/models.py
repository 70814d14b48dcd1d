"""A language model, its engines, or the endpoint that serves it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import PositiveFloat, PositiveInt, field_validator, model_validator

from rlsys.config.base import Fraction, NonNegativeFloat, NonNegativeInt, Section, expand_path


class ModelConfig(Section):
    """A language model, for instance the policy at the start of the run."""

    path: str = "tiny"
    """Hugging Face folder or hub name; `tiny` is the arithmetic reasoner that ships with rlsys."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the engine's weights and of the learner's forward and backward pass."""
    max_length: PositiveInt | None = None
    """Longest sequence in tokens; None takes the model's own limit."""

    @field_validator("path")
    @classmethod
    def _expand_path(cls, value: str) -> str:
        return expand_path(value)


class EnginesConfig(Section):
    """The vLLM engines of one model."""

    engines: PositiveInt = 1
    tensor_parallel: PositiveInt = 1
    gpus_per_engine: NonNegativeFloat = 0.0
    """Cards per engine (tensor_parallel of them), a fraction to share one, 0 for the CPU."""
    cpus_per_engine: PositiveFloat = 1.0
    max_sequences: PositiveInt = 256
    """Sequences an engine decodes at once."""
    kv_cache_mib: PositiveInt | None = None
    """KV cache per engine; None lets gpu_memory_utilization decide."""
    gpu_memory_utilization: Fraction = 0.4
    enforce_eager: bool | None = None
    """False captures CUDA graphs: slower start, faster decoding. None captures them on GPUs."""
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    """fp8 holds twice the tokens of bfloat16, on GPUs only. Log-probs are those of the rounded
    cache, so `gap/mean` grows, and loss.importance corrects for it."""
    prefix_caching: bool = True
    """False computes the thought again for the answers of every cut."""
    max_batched_tokens: PositiveInt | None = None
    """Most tokens of one engine step; None takes vLLM's own number. More make prompts faster and
    take memory from the KV cache. On the CPU the longest sequence raises it."""

    @model_validator(mode="after")
    def _cache_fits_device(self) -> Self:
        if self.kv_cache_dtype == "fp8" and not self.gpus_per_engine:
            raise ValueError(
                "kv_cache_dtype 'fp8' needs engines on GPUs; set gpus_per_engine, or use 'auto'"
            )
        return self


class GenerationConfig(EnginesConfig):
    """The policy's engines."""

    temperature: PositiveFloat = 1.0
    heartbeat_s: PositiveFloat = 60.0
    """An engine that does not answer for so long is ended and started again. Keep it below
    sync.deadline_s."""
    restarts: NonNegativeInt = 3
    """How often an engine that died is started again. A lost or drained node costs none."""
    restart_s: PositiveFloat = 600.0
    """How long one start may take, and how long requests wait while too few engines serve."""
    min_engines: PositiveInt = 1
    """With fewer engines the run waits for a restart; it ends if none is left to wait for, or if no
    node has room for one within restart_s."""

    @model_validator(mode="after")
    def _enough_engines(self) -> GenerationConfig:
        if self.min_engines > self.engines:
            raise ValueError(
                f"generation.min_engines {self.min_engines} is more than generation.engines "
                f"{self.engines}; set it to at most that number"
            )
        return self


class EndpointSection(Section):
    """A model behind an OpenAI-compatible server, `vllm serve` included."""

    base_url: str
    """With the version, for instance https://api.openai.com/v1 or http://127.0.0.1:8001/v1."""
    model: str
    api_key_env: str | None = None
    """Name of the environment variable with the key; None sends none."""
    timeout_s: PositiveFloat = 60.0
    """Of one attempt."""
    retries: NonNegativeInt = 2
    """Further attempts, after growing pauses, where the network or the server fails."""
