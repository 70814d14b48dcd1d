"""Settings that several larger ones are made of: a model, its engines, how it thinks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from rlsys.config_base import Fraction, NonNegativeFloat, NonNegativeInt, Section


class ModelConfig(Section):
    """A language model, for instance the policy at the start of the run."""

    path: str = "tiny"
    """Hugging Face folder or hub name; `tiny` is the arithmetic reasoner that ships with rlsys."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the engine's weights and of the learner's forward and backward pass."""
    max_length: PositiveInt | None = None
    """Longest sequence in tokens; None takes the model's own limit."""


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
    enforce_eager: bool = True
    """False captures CUDA graphs: slower start, faster decoding."""


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


Word = Annotated[str, Field(min_length=1)]


class CountingConfig(Section):
    """What counts as a reflection (rlsys.algorithms.reflection.count_reflections)."""

    mode: Literal["published", "words"] = "words"
    """`words` finds `words` standing alone, `published` the paper's keywords anywhere, as the "but"
    in "distribution"."""
    words: Annotated[tuple[Word, ...], Field(min_length=1)] = (
        "wait",
        "alternatively",
        "check",
        "but",
    )
    """What `words` counts; the tiny reasoner reflects with `?`."""
    gap: NonNegativeInt = 59
    """Characters that join two of them into one reflection, at most."""


class ThoughtSection(Section):
    """How a thought ends, and how an answer follows it."""

    answer_tokens: PositiveInt = 118
    """Most sampled tokens per answer."""
    think_end: str = "</think>"
    """The single token that ends a thought."""
    closing: str = "...\n\n...\n\n"
    """Text forced before think_end where the thought is cut."""
    answer_header: str = "\n\n**Final Answer**\n"
    """Text forced after think_end, before the answer."""
    reflections: CountingConfig = CountingConfig()

    @property
    def longest_thought(self) -> int:
        """Most tokens of a thought."""
        raise NotImplementedError
