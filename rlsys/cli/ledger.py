"""`rlsys ledger`: what became of every group of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlsys.cli.common import sentences

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlsys.training.ledger import Summary


def ledger(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run of `rlsys train`.")],
) -> None:
    """Count what became of the groups of a run; exit code 1 if some are missing or doubled."""
    with sentences():
        from rlsys.reporting.ledger_file import read_ledger
        from rlsys.training.ledger import summarise

        summary = summarise(read_ledger(run_dir))
        for line in _lines(summary):
            typer.echo(line)
    raise typer.Exit(0 if summary.whole else 1)


def _lines(summary: Summary) -> Iterator[str]:
    yield f"steps      {summary.steps}"
    yield f"trained    {summary.trained}"
    yield f"dropped    {sum(summary.dropped.values())}"
    yield from (f"           {count}: {reason}" for reason, count in summary.dropped.items())
    waiting = summary.in_flight
    yield f"in flight  {len(waiting)}" + f" (from group {waiting.start} on)" * bool(waiting)
    for what, groups in (("missing", summary.missing), ("doubled", summary.doubled)):
        if groups:
            more = f" and {len(groups) - 10} more" if len(groups) > 10 else ""
            yield f"{what}    {', '.join(map(str, groups[:10]))}{more}"
    if summary.whole:
        yield "every admitted group is trained, dropped or in flight, and none is so twice"
