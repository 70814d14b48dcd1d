"""Settings of engines: from the configuration to the arguments of vLLM."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from actors.vllm_settings import engine_args
from rlsys.config import GenerationConfig, ModelConfig
from rlsys.config.loading import load_config
from rlsys.errors import ConfigError
from rlsys.launch.engines import _spec


@pytest.fixture(autouse=True)
def _no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's arguments as a plain record; importing vLLM takes ten seconds."""
    module = ModuleType("vllm.engine.arg_utils")
    module.__dict__["AsyncEngineArgs"] = SimpleNamespace
    for name in ("vllm", "vllm.engine", "vllm.engine.arg_utils"):
        monkeypatch.setitem(sys.modules, name, module)


def arguments(**settings: Any) -> dict[str, Any]:
    generation = GenerationConfig.model_validate(settings)
    spec = _spec(ModelConfig(), generation, max_length=6000, seed=7, index=0)
    return dict(vars(engine_args(spec)))


def test_every_setting_reaches_vllm() -> None:
    gpu = {"gpus_per_engine": 1.0}
    for settings, expected in (
        ({}, {"enable_prefix_caching": True, "kv_cache_dtype": "auto"}),
        ({"prefix_caching": False}, {"enable_prefix_caching": False}),
        (gpu | {"kv_cache_dtype": "fp8"}, {"kv_cache_dtype": "fp8"}),
        (gpu, {"max_num_batched_tokens": None, "enforce_eager": False, "block_size": 64}),
        (gpu | {"max_batched_tokens": 16_384}, {"max_num_batched_tokens": 16_384}),
        # Without parts of prompts, a step on the CPU must have room for the longest sequence.
        ({}, {"max_num_batched_tokens": 6000, "enforce_eager": True, "block_size": 32}),
        ({"max_batched_tokens": 1000}, {"max_num_batched_tokens": 6000}),
        ({"max_batched_tokens": 8000}, {"max_num_batched_tokens": 8000}),
        (gpu, {"tensor_parallel_size": 1, "distributed_executor_backend": None}),
        # With Ray's executor vLLM would wait for cards that its own actor has.
        (
            gpu | {"tensor_parallel": 2},
            {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
        ),
        ({"max_sequences": 5, "kv_cache_mib": 1}, {"max_num_seqs": 5}),
        ({"kv_cache_mib": 2}, {"kv_cache_memory_bytes": 2 << 20}),
        ({}, {"logprobs_mode": "processed_logprobs", "seed": 7, "max_model_len": 6000}),
    ):
        found = arguments(**settings)
        assert {name: found[name] for name in expected} == expected, settings


def test_short_sequences_keep_the_small_blocks_of_the_card() -> None:
    generation = GenerationConfig(gpus_per_engine=1.0)
    sizes = [
        vars(engine_args(_spec(ModelConfig(), generation, length, seed=7, index=0)))["block_size"]
        for length in (4095, 4096)
    ]
    assert sizes == [None, 64]


def test_an_fp8_cache_is_refused_on_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("generation: {kv_cache_dtype: fp8}")
    with pytest.raises(ConfigError, match=r"kv_cache_dtype 'fp8' needs engines on GPUs"):
        load_config(path, [])
    words = ["generation.gpus_per_engine=1", "loss.importance=none"]
    with pytest.raises(ConfigError, match=r"'fp8' needs the importance weight"):
        load_config(path, words)
    assert load_config(path, ["generation.gpus_per_engine=1"]).generation.kv_cache_dtype == "fp8"
