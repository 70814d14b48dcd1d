"""`rlsys eval sets` measures a model on many sets; `rlsys eval compare` compares evaluations."""

from __future__ import annotations

from typing import Annotated

import typer

from rlsys.cli.common import ConfigFile, Overrides, sentences, terminal


def evaluate_sets(config_file: ConfigFile, overrides: Overrides = None) -> None:
    """Measure a model on many sets of problems under many budgets; a restart goes on.

    The run_dir gets results.jsonl with a row for every sampled thought, and summary.json.
    """
    with sentences():
        from rlsys.config.evaluation_sets import SetsConfig
        from rlsys.config.loading import load_config
        from rlsys.evaluation.tables import accuracy_table, details_table
        from rlsys.launch.machine import check_machine
        from rlsys.training.run_folder import check_writable
        from rlsys.training.run_lock import run_lock

        config = load_config(config_file, overrides or [], SetsConfig)
        check_machine()
        check_writable(config.run_dir)
        from rlsys.launch import evaluation_sets

        with run_lock(config.run_dir, typer.echo):
            rows = evaluation_sets.evaluate_sets(config, typer.echo)
        console = terminal()
        console.print(accuracy_table(rows))
        console.print(details_table(rows))
        typer.echo(f"wrote {config.run_dir}; `rlsys report {config.run_dir}` draws the curves")


def compare_evaluations(
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_DIR[,RUN_DIR...]...",
            help="Folders of `rlsys eval sets`; commas join the training seeds of one method.",
        ),
    ],
) -> None:
    """Compare evaluations of the same problems with the first one: differences, token ratios."""
    with sentences():
        from rlsys.evaluation.comparison import compare, read_method
        from rlsys.evaluation.tables import comparison_tables, method_letters

        compared = compare([read_method(words) for words in methods])
        for line in method_letters(compared):
            typer.echo(line)
        console = terminal()
        for table in comparison_tables(compared):
            console.print(table)
