"""`rlsys report`: one HTML page about one run or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlsys.cli.common import sentences


def report(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...", help="Runs of `rlsys train`, or evaluations of `rlsys eval sets`."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PAGE.html", help="Default: report.html in the first run."
        ),
    ] = None,
) -> None:
    """Write one HTML page with charts and episodes of a run, or a comparison of several."""
    with sentences():
        from rlsys.reporting.page.document import write_page

        place = output or run_dirs[0] / "report.html"
        write_page(run_dirs, place)
        typer.echo(f"wrote {place}")
