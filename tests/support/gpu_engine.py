"""A real vLLM engine of the tiny model on a GPU."""

from __future__ import annotations

import pytest

from actors.generation import GenerationActor
from actors.vllm_settings import EngineSpec, engine_environment
from rlsys.assets import shipped_path


def gpu_engine(
    monkeypatch: pytest.MonkeyPatch, *, max_sequences: int, enforce_eager: bool
) -> GenerationActor:
    """Return an actor that is not started yet; its environment variables are set."""
    for name, value in engine_environment(on_gpu=True, threads=1).items():
        monkeypatch.setenv(name, value)
    # Others may have used CUDA in this process, which the engine's fork would not survive.
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    return GenerationActor(
        EngineSpec(
            index=0,
            model=str(shipped_path("tiny")),
            dtype="bfloat16",
            max_length=128,
            max_sequences=max_sequences,
            tensor_parallel=1,
            on_gpu=True,
            gpu_memory_utilization=0.2,
            kv_cache_bytes=1 << 30,
            enforce_eager=enforce_eager,
            seed=0,
        )
    )
