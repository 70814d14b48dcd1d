"""The nearest settings with which a run fits its cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from learner.plan import row_width
from rlsys.config import LoraConfig, RunConfig
from rlsys.planning.cards import Card
from rlsys.planning.plan import Shapes, plan_run
from rlsys.planning.workload import Lengths, episode_tree


class Change(NamedTuple):
    """A value for one key, None for the one that is set."""

    value: Any
    cost: float
    """How far it is from what was asked for; only their order matters."""


def nearest_fit(
    config: RunConfig, shapes: Shapes, card: Card, host_memory: int | None = None
) -> list[str] | None:
    """Return the cheapest changes with which the run fits, as words for the command line.

    Cheap changes take a little speed (shorter rows, fewer at once, a smaller cache), dearer ones
    recompute or communicate more, and adapters in the place of all weights come last. None if no
    combination fits.
    """
    options = _options(config)
    combinations = product(*options.values())
    for chosen in sorted(combinations, key=lambda changes: sum(change.cost for change in changes)):
        settings = {
            key: change.value
            for key, change in zip(options, chosen, strict=True)
            if change.value is not None
        }
        if not settings:
            continue
        other = changed(config, settings)
        if plan_run(other, shapes, card, host_memory=host_memory).fits:
            return [_word(key, value) for key, value in settings.items()]
    return None


def changed(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """Return the configuration with other values for keys such as `learner.row_tokens`."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return config.model_copy(
        update={
            section: getattr(config, section).model_copy(update=update)
            for section, update in sections.items()
        }
    )


def _options(config: RunConfig) -> Mapping[str, Sequence[Change]]:
    """Return the values that are tried for every key, the one that is set among them."""
    learner, generation = config.learner, config.generation
    keep = Change(None, 0.0)
    options: dict[str, list[Change]] = {
        "learner.micro_batch_rows": [keep],
        "learner.row_tokens": [keep],
        "learner.logits_chunk": [keep],
        "learner.gradient_checkpointing": [keep],
        "learner.zero_stage": [keep],
        "learner.lora": [keep],
    }
    halvings = enumerate(_halves(learner.micro_batch_rows), start=1)
    options["learner.micro_batch_rows"] += [Change(rows, 0.3 * n) for n, rows in halvings]
    # Rows are never shorter than the longest tree, so a smaller value would change nothing.
    shortest = row_width(episode_tree(config, Lengths()).tokens, 1)
    if shortest < learner.row_tokens:
        options["learner.row_tokens"].append(Change(shortest, 0.4))
    if learner.logits_chunk > 256:
        options["learner.logits_chunk"].append(Change(256, 0.2))
    # `is`, because one layer is a setting too, and 1 == True.
    if learner.gradient_checkpointing is not True and learner.gradient_checkpointing != "auto":
        on_card = learner.gpus_per_rank > 0  # on the CPU auto checkpoints nothing
        options["learner.gradient_checkpointing"].append(Change("auto" if on_card else True, 1.0))
    if learner.ranks > 1:
        options["learner.zero_stage"] += [
            Change(stage, stage / 2) for stage in (2, 3) if stage > learner.zero_stage
        ]
    if learner.lora is None:
        options["learner.lora"].append(Change(LoraConfig(), 10.0))
    if generation.kv_cache_mib is None and generation.gpus_per_engine:
        asked = generation.gpu_memory_utilization
        options["generation.gpu_memory_utilization"] = [
            keep,
            *(
                Change(share / 100, abs(share / 100 - asked))
                for share in range(5, 95, 5)
                if abs(share / 100 - asked) > 1e-9
            ),
        ]
    elif generation.kv_cache_mib is not None:
        options["generation.kv_cache_mib"] = [keep, *_cache_sizes(generation.kv_cache_mib)]
    return options


def _cache_sizes(asked: int) -> Iterator[Change]:
    for number, size in enumerate(_halves(asked)):
        if size >= 64:
            yield Change(size, 0.3 * (number + 1))
    for number in range(1, 7):
        yield Change(asked << number, 0.3 * number)


def _halves(number: int) -> Iterator[int]:
    while number > 1:
        number //= 2
        yield number


def _word(key: str, value: Any) -> str:
    """Return `key=value` as the command line takes it."""
    match value:
        case LoraConfig():
            return f"{key}.rank={value.rank}"
        case bool():
            return f"{key}={str(value).lower()}"
        case _:
            return f"{key}={value}"
