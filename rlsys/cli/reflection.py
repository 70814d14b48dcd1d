"""`rlsys reflection`: make training data for the reflection model, and evaluate it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rlsys.cli.common import SETTINGS_AS_OPTIONS, ConfigFile, Overrides, sentences, terminal

if TYPE_CHECKING:
    from rich.table import Table

    from rlsys.config.reflection import ReflectionConfig
    from rlsys.reflection.labelling.evaluation import DetectorEvaluation

app = typer.Typer(
    help="Label thoughts, make training rows, evaluate the reflection model.", no_args_is_help=True
)


@app.command(context_settings=SETTINGS_AS_OPTIONS)
def label(config_file: ConfigFile, overrides: Overrides = None) -> None:
    """Sample thoughts of the policy and label their chunks; a restart continues the work."""
    with sentences():
        config = _load(config_file, overrides)
        from rlsys.launch import reflection

        reflection.write_labels(config, typer.echo)


@app.command(context_settings=SETTINGS_AS_OPTIONS)
def rows(config_file: ConfigFile, overrides: Overrides = None) -> None:
    """Make rows for `rlsys sft` from the labels; they are in run_dir/rows."""
    with sentences():
        config = _load(config_file, overrides)
        from rlsys.launch import reflection

        reflection.write_rows(config, typer.echo)


@app.command(name="eval", context_settings=SETTINGS_AS_OPTIONS)
def evaluate_reflection_model(config_file: ConfigFile, overrides: Overrides = None) -> None:
    """Evaluate detection and revision on held-out problems; see run_dir/evaluation."""
    with sentences():
        config = _load(config_file, overrides)
        from rlsys.launch import reflection

        evaluation = reflection.evaluate_reflection_model(config, typer.echo)
        console = terminal()
        console.print(_detection_table(evaluation))
        console.print(_revision_table(evaluation))


def _load(config_file: ConfigFile, overrides: Overrides) -> ReflectionConfig:
    from rlsys.config.loading import load_config
    from rlsys.config.reflection import ReflectionConfig
    from rlsys.launch.machine import check_machine
    from rlsys.training.run_folder import check_writable

    config = load_config(config_file, overrides or [], ReflectionConfig)
    check_machine()
    check_writable(config.run_dir)
    return config


def _detection_table(evaluation: DetectorEvaluation) -> Table:
    from rich.table import Table

    scores = evaluation.detection
    table = Table(title="Result chunks: the reflection model against the teacher")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in (
        ("thoughts with chunks", f"{scores.thoughts:,}"),
        ("chunks", f"{scores.chunks:,}"),
        ("chunks labelled right", f"{scores.accuracy:.3f}"),
        ("  if all were labelled Think", f"{scores.all_think:.3f}"),
        ("first result chunk right", f"{scores.first_accuracy:.3f}"),
        ("  of thoughts that state the answer", f"{scores.first_of_answered:.3f}"),
        ("precision of Result", f"{scores.precision:.3f}"),
        ("recall of Result", f"{scores.recall:.3f}"),
        *((name, f"{count:,}") for name, count in evaluation.counts.items() if count),
    ):
        table.add_row(name, value)
    return table


def _revision_table(evaluation: DetectorEvaluation) -> Table:
    from rich.table import Table

    table = Table(title="Revision alone: answers of the policy from each cut")
    table.add_column("cut")
    for heading in ("accuracy", "tokens", "tokens in %", "thought in %"):
        table.add_column(heading, justify="right")
    for row in evaluation.revisions:
        table.add_row(
            row.cut,
            f"{row.accuracy:.3f}",
            f"{row.tokens:.1f}",
            f"{row.token_ratio:.1f}",
            f"{row.thought_ratio:.1f}",
        )
    return table
