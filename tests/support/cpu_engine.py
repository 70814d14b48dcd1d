"""The settings of an engine on the CPU, small enough for a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from actors.vllm_settings import EngineSpec


def cpu_spec(model: Path, **changes: Any) -> EngineSpec:
    """An engine with the model in this folder; further keywords are fields of EngineSpec."""
    fields: dict[str, Any] = {
        "index": 0,
        "model": str(model),
        "dtype": "float32",
        "max_length": 256,
        "max_sequences": 32,
        "tensor_parallel": 1,
        "on_gpu": False,
        "gpu_memory_utilization": 0.4,
        "kv_cache_bytes": 64 << 20,
        "enforce_eager": True,
        "seed": 0,
    }
    return EngineSpec(**fields | changes)
