"""A plan as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from rlsys.config import RunConfig
from rlsys.launch.resources import colocated
from rlsys.planning.cards import GIB, Card
from rlsys.planning.gradient_checkpointing import reason
from rlsys.planning.layout import HOST
from rlsys.planning.memory import total
from rlsys.planning.places import PlacePlan, alike, place_names, processes
from rlsys.planning.plan import RunPlan
from rlsys.planning.time import StepTime
from rlsys.planning.workload import learner_rows


def plan_tables(config: RunConfig, plan: RunPlan, card: Card) -> Iterator[Table | Text]:
    """Yield the tables of a plan, and the sentences between them."""
    yield _layout_table(config, plan, card)
    for places in alike(plan.places):
        yield _memory_table(places)
    yield from _notes(config, plan)
    yield _tokens_table(config, plan)
    if plan.time is None:
        yield Text("Seconds are planned only for runs whose learner and engines have GPUs.")
    else:
        yield _time_table(config, plan, plan.time)


def _layout_table(config: RunConfig, plan: RunPlan, card: Card) -> Table:
    """Which processes run where."""
    parameters = plan.shapes.policy.parameters
    title = f"{config.name!r}: a policy of {parameters:,} parameters, {config.model.dtype}"
    table = Table(title=Text(title))
    table.add_column("place")
    table.add_column("processes")
    table.add_column("GiB needed", justify="right")
    for place in plan.places:
        where = (
            place.place.name if place.place.name == HOST else f"{place.place.name} ({card.name})"
        )
        sizes = f"{place.needed / GIB:.1f}"
        if place.capacity is not None:
            sizes += f" of {place.capacity / GIB:.1f}"
        table.add_row(where, processes(place), Text(sizes, "" if place.fits else "bold red"))
    table.add_row("any node", f"environment actors: {config.rollout.environment_actors}", "")
    table.add_row("", f"grading actors: {config.grading.actors}", "")
    return table


def _memory_table(places: Sequence[PlacePlan]) -> Table:
    first = places[0]
    table = Table(title=f"Memory of {place_names(places).rstrip(',')}")
    table.add_column("process")
    table.add_column("what")
    table.add_column("GiB", justify="right")
    for process, parts in groupby(first.parts, key=lambda pair: pair[0]):
        for number, (_, part) in enumerate(parts):
            table.add_row("" if number else process, part.name, f"{part.size / GIB:.2f}")
        table.add_section()
    table.add_row("needed", "", f"{first.needed / GIB:.2f}")
    if first.size > first.needed:
        table.add_row("with free blocks, given room", "", f"{first.size / GIB:.2f}")
    if first.capacity is not None:
        table.add_row("capacity", "", f"{first.capacity / GIB:.2f}")
    return table


def _notes(config: RunConfig, plan: RunPlan) -> Iterator[Text]:
    learner, engine = plan.learner, plan.engine
    when = "backward pass" if learner.peak_parts[-1] in learner.backward else "optimizer's update"
    layers, chosen = plan.shapes.policy.layers, plan.checkpointed
    sizes = ", ".join(
        f"{size / GIB:.1f} GiB with {number}" for number, size in plan.backward.items()
    )
    yield Text(
        f"learner: peak of {learner.peak / GIB:.1f} GiB in the {when}, with {chosen} of {layers} "
        f"layers checkpointed; beside its states, a backward pass takes {sizes} of them, and an "
        f"update {total(learner.update) / GIB:.1f} GiB"
    )
    if config.learner.gradient_checkpointing == "auto":
        yield Text(
            f"learner.gradient_checkpointing auto: {reason(config, chosen, plan.shapes.policy)}"
        )
    yield Text(
        f"engine: the KV cache holds {max(engine.cache_tokens, 0):,} tokens, "
        f"{engine.streams:,} streams of {engine.longest:,} tokens; generation.max_sequences is "
        f"{config.generation.max_sequences:,}"
    )
    if colocated(config.learner, config.generation) and config.generation.kv_cache_mib is None:
        cache = next((part.size for part in engine.parts if part.name == "KV cache"), 0)
        yield Text(
            "on a shared card vLLM may count memory that the learner takes at the same time, and "
            f"then has less or none for the cache; generation.kv_cache_mib={cache >> 20} avoids it"
        )


def _tokens_table(config: RunConfig, plan: RunPlan) -> Table:
    batch, tree, rows = config.batch, plan.expected, learner_rows(config, plan.expected)
    table = Table(title="A training step", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    episode = (
        f"{tree.prompt:,} prompt + {tree.thought:,} thought"
        + f" + {tree.answers:,} answers x {tree.answer:,}" * bool(tree.branches)
    )
    shape = f"{rows.passes:,} passes of up to {rows.rows_per_pass:,} x {rows.row_tokens:,}"
    shape += f" on {rows.sequence_ranks} ranks" * (rows.sequence_ranks > 1)
    most = batch.most_sampled / batch.problems
    replaced = f"up to {most:.3g} times as many with batch.dynamic_sampling" * (most > 1)
    for name, count, origin in (
        ("episodes", batch.episodes, f"{batch.problems:,} problems x {batch.group_size:,}"),
        ("tokens of an episode", tree.tokens, episode),
        ("sampled tokens", batch.episodes * tree.sampled, replaced),
        ("trained places of a rank", rows.slots, f"padding included: {shape}"),
    ):
        table.add_row(name, f"{count:,}", origin)
    return table


def _time_table(config: RunConfig, plan: RunPlan, time: StepTime) -> Table:
    table = Table(title="Expected seconds of a training step")
    for heading in ("part", "seconds", "bound by", "floor"):
        table.add_column(heading, justify="right" if heading in ("seconds", "floor") else "left")
    for stage in time.stages:
        table.add_row(stage.name, f"{stage.seconds:.2f}", stage.bound, f"{stage.floor_s:.2f}")
    table.add_section()
    sampled = config.batch.episodes * plan.expected.sampled
    runs_ahead = config.max_staleness > 0
    for name, seconds, chosen in (
        ("synchronous", time.synchronous, not runs_ahead),
        ("asynchronous", time.asynchronous, runs_ahead),
    ):
        note = "this configuration" if chosen else f"rollout.max_staleness={int(not runs_ahead)}"
        rate = f"{sampled / seconds:,.0f} sampled tokens/s; {note}"
        table.add_row(name, f"{seconds:.2f}", rate, "", style="bold" if chosen else "")
    return table
