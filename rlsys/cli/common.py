"""Shared parts of the command line: arguments, exit codes, and errors as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rlsys.errors import RlsysError, UserError
from rlsys.signals import interrupt_on_signals
from rlsys.training.durable import disk_full

if TYPE_CHECKING:
    from rich.console import Console

STOPPED: Final = 130
"""Exit code after Ctrl-C, SIGTERM or SIGHUP; the same command goes on from the last checkpoint."""

ConfigFile = Annotated[
    Path,
    typer.Argument(metavar="CONFIG.yaml", help="The configuration, or a name that ships: demo."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[key.path=value]...", help="Values that replace those of the file."),
]

SETTINGS_AS_OPTIONS: Final = {"ignore_unknown_options": True}
"""Context settings of commands with Overrides: `--steps 10` reaches rlsys.config.words, which reads
it as `steps=10`."""


@contextmanager
def sentences() -> Iterator[None]:
    """Print the message of an error to stderr, and exit with the code of its kind.

    A signal that asks the command to stop ends it like Ctrl-C.
    """
    interrupt_on_signals()
    try:
        yield
    except RlsysError as error:
        # Ray wraps an actor's error in one that carries the remote traceback in its text.
        cause = getattr(error, "cause", error)
        for sentence in str(cause).splitlines():
            typer.echo(f"rlsys: {sentence}", err=True)
        raise typer.Exit(2 if isinstance(error, UserError) else 1) from None
    except KeyboardInterrupt:
        raise typer.Exit(STOPPED) from None
    except Exception as error:
        if not disk_full(error):
            raise
        typer.echo(
            "rlsys: the disk is full; free some space and give the same command again to go on "
            f"from the last checkpoint ({' '.join(str(error).split())[-200:]})",
            err=True,
        )
        raise typer.Exit(1) from None


def terminal() -> Console:
    """Return the console that tables are printed to."""
    from rich.console import Console

    return Console()
