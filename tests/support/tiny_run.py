"""A run of the tiny reasoner that takes about a minute, and what it ends with."""

from __future__ import annotations

from typing import Any

from commands import Command

CONFIG: dict[str, Any] = {
    "steps": 30,
    "data": {
        "train": {"source": "arithmetic", "size": 64},
        "evaluation": {"source": "arithmetic", "size": 4, "held_out": True},
    },
    "environment": {
        "budgets": [8, 64],
        "answers": 2,
        "answer_tokens": 6,
        "closing": "",
        "answer_header": "\n\n**Final Answer**\n\\boxed{",
    },
    "batch": {"problems": 4, "group_size": 4},
    "learner": {"row_tokens": 256, "optimizer": {"learning_rate": 1e-4}},
    "generation": {"kv_cache_mib": 32},
    "checkpoint": {"every": 5},
}

ON_GPUS = (
    "model.dtype=bfloat16",
    "generation.gpu_memory_utilization=0.1",
    "generation.kv_cache_mib=1024",
    "generation.enforce_eager=true",  # no CUDA graphs, so that an engine starts sooner
)
"""Settings of a run on GPUs, without the shares of learner and engines."""


def weights(command: Command) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return dict(load_file(command.run_dir / "export" / "model.safetensors"))
