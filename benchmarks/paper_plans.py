"""What the runs of configs/paper would need, as `rlsys plan` predicts it.

    python benchmarks/paper_plans.py       print the table of docs/paper.md

Only the sizes of the models are needed, so nothing is downloaded. These are predictions: no run of
configs/paper was measured. Their seconds follow from constants that were fitted to measurements of
models of at most 1.5B (docs/planning.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from rlsys.config import RunConfig
from rlsys.config.loading import load_config
from rlsys.planning.cards import CARDS, GIB
from rlsys.planning.plan import RunPlan, Shapes, plan_run
from rlsys.planning.shape import shape_of
from rlsys.planning.workload import Lengths
from table_runs import markdown

PAPER: Final = Path(__file__).parents[1] / "configs" / "paper"

QWEN2: Final = {"model_type": "qwen2", "vocab_size": 152_064, "tie_word_embeddings": False}
SIZE_7B: Final = {
    **QWEN2,
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": {
        **QWEN2,
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131_072,
    },
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": {**SIZE_7B, "max_position_embeddings": 131_072},
    "Qwen/Qwen2.5-7B-Instruct": {**SIZE_7B, "max_position_embeddings": 32_768},
    "Qwen/Qwen2.5-32B-Instruct": {
        **QWEN2,
        "hidden_size": 5120,
        "intermediate_size": 27_648,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32_768,
    },
    "Qwen/Qwen2.5-0.5B-Instruct": {
        **QWEN2,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
    },
    "Qwen/Qwen3-14B": {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "tie_word_embeddings": False,
        "hidden_size": 5120,
        "intermediate_size": 17_408,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
    },
}
"""The sizes in the config.json of every model that configs/paper trains or asks."""

READER: Final = "runs/paper/rearl-reflection-sft/export"
"""The reflection model of rearl.yaml, which rearl_reflection_sft.yaml trains."""
TRAINED_FROM: Final = {READER: "Qwen/Qwen2.5-7B-Instruct"}
"""Folders that a run of configs/paper writes, and the model whose sizes they have."""


class Hardware(NamedTuple):
    """A run on some cards."""

    file: str
    cards: str
    words: tuple[str, ...] = ()
    """The settings of the header of the file for these cards; none for those of the file itself."""
    card: str = "h100"
    """The smallest card that the run is for."""


HARDWARE: Final = (
    Hardware("brpo_8k.yaml", "1", ("learner.ranks=1", "generation.engines=1")),
    Hardware("brpo_8k.yaml", "8"),
    Hardware("brpo_8k.yaml", "2 × 8", ("learner.ranks=16", "generation.engines=16")),
    Hardware(
        "brpo_16k.yaml",
        "1",
        ("learner.ranks=1", "generation.engines=1", "generation.kv_cache_mib=16384"),
    ),
    Hardware("brpo_16k.yaml", "8"),
    Hardware("brpo_16k.yaml", "2 × 8", ("learner.ranks=16", "generation.engines=16")),
    Hardware(
        "rearl.yaml",
        "1",
        (
            *("learner.ranks=1", "learner.gpus_per_rank=0.3", "generation.engines=1"),
            *("generation.gpus_per_engine=0.4", "environment.revision.generation.engines=1"),
            "environment.revision.generation.gpus_per_engine=0.3",
        ),
        "h200",
    ),
    Hardware(
        "rearl.yaml",
        "3",
        (
            *("learner.ranks=2", "generation.engines=1"),
            "environment.revision.generation.engines=1",
        ),
    ),
    Hardware("rearl.yaml", "8"),
    Hardware(
        "rearl.yaml",
        "2 × 8",
        (
            *("learner.ranks=8", "generation.engines=8"),
            *("environment.revision.generation.engines=8", "cluster.layout=split"),
        ),
    ),
    Hardware("economics_500m.yaml", "1"),
    Hardware("economics_500m.yaml", "8", ("learner.ranks=8", "generation.engines=8")),
    Hardware("economics_500m.yaml", "2 × 8", ("learner.ranks=16", "generation.engines=16")),
    Hardware(
        "economics_14b.yaml",
        "1",
        (
            *("learner.ranks=1", "learner.gpus_per_rank=0.5", "learner.zero_stage=1"),
            *("learner.lora.rank=16", "generation.engines=1", "generation.gpus_per_engine=0.5"),
            "generation.kv_cache_mib=8192",
        ),
        "h200",
    ),
    Hardware("economics_14b.yaml", "8"),
    Hardware(
        "economics_14b.yaml",
        "2 × 8",
        ("learner.ranks=8", "generation.engines=8", "cluster.layout=split"),
    ),
)
STEPS: Final = {"brpo_8k.yaml": 629, "brpo_16k.yaml": 942, "rearl.yaml": 2519}
"""Steps of the runs whose file says epochs: all 40,315 problems, of which REA-RL drops some."""
EXPECTED: Final = {
    "brpo_8k.yaml": Lengths(prompt=100, thought=5500, answer=40),
    "brpo_16k.yaml": Lengths(prompt=100, thought=8000, answer=40),
    "rearl.yaml": Lengths(prompt=120, thought=4000, answer=60),
    "economics_500m.yaml": Lengths(prompt=900, thought=2400),
    "economics_14b.yaml": Lengths(prompt=500, thought=512),
}
"""Assumed mean lengths of a step. 5,500 tokens are those of the starting model on AMC (arXiv
2505.13438); the others are guesses."""


def shape_sizes(path: str) -> dict[str, Any]:
    """Return the sizes of a model that configs/paper names."""
    return SETTINGS[TRAINED_FROM.get(path, path)]


def plan(
    config: RunConfig, card: str, lengths: Lengths | None = None, host_memory: int | None = None
) -> RunPlan:
    """Return the plan of a run on cards of this name."""
    revision = config.revision
    shapes = Shapes(
        policy=shape_of(shape_sizes(config.model.path)),
        reflection=None if revision is None else shape_of(shape_sizes(revision.model.path)),
    )
    return plan_run(config, shapes, CARDS[card], lengths, host_memory)


def plans() -> str:
    """Return the table of all runs on all hardware, for H100 and H200."""
    heading = [
        *("file", "GPUs", "GiB of the fullest card", "steps", "s per step, longest episodes"),
        *("s per step, assumed lengths", "hours, assumed lengths"),
    ]
    return markdown(heading, [_line(hardware) for hardware in HARDWARE])


def _line(hardware: Hardware) -> list[str]:
    file, cards = hardware.file, ("h100", "h200")
    config = load_config(PAPER / file, hardware.words)
    steps = STEPS.get(file, config.steps)
    memory, longest, assumed, hours = [], [], [], []
    for card in cards:
        most, some = plan(config, card), plan(config, card, EXPECTED[file])
        if not most.fits:
            continue
        memory.append(max(place.needed for place in most.places) / GIB)
        longest.append(_seconds(config, most))
        assumed.append(_seconds(config, some))
        hours.append(assumed[-1] * steps / 3600)
    return [
        f"`{file}`",
        hardware.cards + " H200" * (len(memory) == 1),
        f"{memory[0]:.0f}",
        f"{steps:,}",
        *(" / ".join(f"{value:,.0f}" for value in values) for values in (longest, assumed)),
        " / ".join(f"{value:,.1f}" for value in hours),
    ]


def _seconds(config: RunConfig, planned: RunPlan) -> float:
    assert planned.time is not None
    time = planned.time
    return time.asynchronous if config.rollout.max_staleness else time.synchronous


if __name__ == "__main__":
    print(plans())
