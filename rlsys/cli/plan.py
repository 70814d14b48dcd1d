"""`rlsys plan`: memory and seconds of a run from its configuration, without starting anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlsys.cli.common import ConfigFile, Overrides, sentences, terminal

if TYPE_CHECKING:
    from rlsys.config import RunConfig
    from rlsys.planning.cards import Card


def plan(
    config_file: ConfigFile,
    overrides: Overrides = None,
    card: Annotated[
        str | None,
        typer.Option(help="h100, h200, a100, ... or GiB; without it, what nvidia-smi lists."),
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Expected length of prompts, for the seconds.")
    ] = None,
    thought_tokens: Annotated[
        int | None, typer.Option(min=1, help="The same of thoughts (metric thought/length).")
    ] = None,
    answer_tokens: Annotated[int | None, typer.Option(min=1, help="The same of answers.")] = None,
) -> None:
    """Show what runs where, the memory of every card and the seconds of a step. Starts nothing.

    The exit code is 2 if the run does not fit; the nearest settings that fit are shown.
    """
    with sentences():
        from rlsys.config.loading import load_config
        from rlsys.launch.preflight import check_batch, check_shares
        from rlsys.planning.plan import plan_run, read_shapes
        from rlsys.planning.report import plan_tables
        from rlsys.planning.workload import Lengths

        config = load_config(config_file, overrides or [])
        check_shares(config)
        check_batch(config)
        target, host_memory = _card(config, card), _host_memory(config)
        shapes = read_shapes(config)
        lengths = Lengths(prompt=prompt_tokens, thought=thought_tokens, answer=answer_tokens)
        planned = plan_run(config, shapes, target, lengths, host_memory)
        console = terminal()
        for shown in plan_tables(config, planned, target):
            console.print(shown, soft_wrap=True)
        if planned.fits:
            return
        from rlsys.planning.remedies import nearest_fit

        for fault in planned.faults:
            typer.echo(f"rlsys: {fault}", err=True)
        words = nearest_fit(config, shapes, target, host_memory)
        remedy = f"it fits with {' '.join(words)}" if words else _no_remedy(target)
        typer.echo(f"rlsys: {remedy}", err=True)
        raise typer.Exit(2)


def _card(config: RunConfig, name: str | None) -> Card:
    """Return the card that the run is planned for; raises ConfigError if none is known."""
    from rlsys.errors import ConfigError
    from rlsys.planning.cards import DEFAULT, card_named, local_cards

    if name is not None:
        return card_named(name)
    if cards := local_cards():
        return min(cards, key=lambda card: card.memory)
    if _uses_gpus(config):
        raise ConfigError(
            "the run needs GPUs and nvidia-smi lists none here; name the card that it will run on, "
            "for instance --card h100 or --card 48 for one of 48 GiB"
        )
    return DEFAULT  # nothing runs on it


def _uses_gpus(config: RunConfig) -> bool:
    return bool(config.learner.gpus_per_rank or config.generation.gpus_per_engine)


def _host_memory(config: RunConfig) -> int | None:
    """Return the bytes of this machine for a run on its CPU; None where cards do the work."""
    import psutil

    return None if _uses_gpus(config) else int(psutil.virtual_memory().total)


def _no_remedy(card: Card) -> str:
    return (
        f"no combination of the learner's and the engines' settings fits {card.name}; use larger "
        "cards, more of them (learner.ranks with learner.zero_stage=3, "
        "generation.tensor_parallel), or shorter episodes"
    )
