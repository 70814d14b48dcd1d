"""The command line. Each command loads and checks its input, then calls rlsys.launch.

Exit codes: 0 done, 1 a run failed, 2 the input is wrong (nothing was started), 130 stopped early.
Heavy libraries are imported inside the commands, so that help and input errors appear at once.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rlsys.cli import data, economics, evaluation, ledger, plan, reflection, report
from rlsys.cli.common import (
    SETTINGS_AS_OPTIONS,
    STOPPED,
    ConfigFile,
    Overrides,
    sentences,
    terminal,
)
from rlsys.cli.submit import Retries, submit
from rlsys.signals import ignore_signals

if TYPE_CHECKING:
    from rlsys.config import RunConfig
    from rlsys.reporting.metrics_file import EvaluationRecord
    from rlsys.training.mirror import Mirror


class _Commands(TyperGroup):
    """Supports commands of two words: `eval economics` in addition to `eval CONFIG.yaml`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        two = " ".join(args[:2])
        return super().resolve_command(ctx, [two, *args[2:]] if two in self.commands else args)


app = typer.Typer(
    name="rlsys",
    cls=_Commands,
    help="Train reasoning language models to spend thinking tokens well.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Show configurations and their schema.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(reflection.app, name="reflection")
app.command("eval economics", context_settings=SETTINGS_AS_OPTIONS)(economics.compare_agents)
app.command("eval sets", context_settings=SETTINGS_AS_OPTIONS)(evaluation.evaluate_sets)
app.command("eval compare")(evaluation.compare_evaluations)
app.command("serve-env", context_settings=SETTINGS_AS_OPTIONS)(economics.serve_environment)
app.command("data", context_settings=SETTINGS_AS_OPTIONS)(data.data)
app.command("ledger")(ledger.ledger)
app.command("report")(report.report)
app.command("plan", context_settings=SETTINGS_AS_OPTIONS)(plan.plan)
app.command("submit", context_settings=SETTINGS_AS_OPTIONS)(submit)

Supervised = Annotated[bool, typer.Option("--sft", help="The configuration of `rlsys sft`.")]


FIRST_STEPS = """\
rlsys trains reasoning language models to spend thinking tokens well. To begin:

  rlsys doctor                  show what this machine lacks
  rlsys train demo --dry-run    show what a run would do, without starting it
  rlsys train demo              train the tiny reasoner on this machine; no GPU is needed

The result is in runs/demo. `rlsys --help` lists all commands."""


def main() -> None:
    """Run the command line."""
    try:
        app()
    except KeyboardInterrupt:  # a second signal, after a command has turned the first one into 130
        raise SystemExit(STOPPED) from None
    finally:
        ignore_signals()


@app.callback()
def begin(context: typer.Context) -> None:
    """Train reasoning language models to spend thinking tokens well."""
    if context.invoked_subcommand is None:
        typer.echo(FIRST_STEPS)


@app.command(context_settings=SETTINGS_AS_OPTIONS)
def train(
    config_file: ConfigFile,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything that needs no Ray, then stop.")
    ] = False,
    retries: Retries = 0,
) -> None:
    """Train a reasoner, or continue the run in the run directory."""
    began = time.monotonic()
    if retries and not dry_run:
        from rlsys.launch.attempts import Attempts, train_command

        command = train_command([str(config_file), *(overrides or [])])
        raise typer.Exit(Attempts(command, typer.echo).run(retries))
    with sentences():
        from rlsys.config.loading import load_config
        from rlsys.launch.epochs import run_with_steps
        from rlsys.launch.machine import check_machine
        from rlsys.launch.preflight import check_local_gpus, run_warnings
        from rlsys.reporting.metrics_file import read_reference
        from rlsys.training.mirror import mirror_of
        from rlsys.training.run_folder import (
            EXPORT,
            check_resume,
            check_writable,
            finished_step,
        )
        from rlsys.training.run_lock import run_lock

        config = load_config(config_file, overrides or [])
        check_machine()
        check_writable(config.run_dir)
        mirror = mirror_of(config)
        if mirror is not None and not dry_run:
            with run_lock(config.run_dir, typer.echo):
                mirror.restore()
        check_resume(config)
        config = run_with_steps(config)
        if (step := finished_step(config)) is not None:
            typer.echo(
                f"the run in {config.run_dir} is finished after step {step}, and its result is in "
                f"{config.run_dir / EXPORT}; give more steps to go on, or another run_dir"
            )
            return
        reference = read_reference(config.evaluation.reference)
        check_local_gpus(config)
        for warning in run_warnings(config):
            typer.echo(f"rlsys: warning: {warning}", err=True)
        if dry_run:
            _dry_run(config)
            return
        _train(config, mirror, reference, began)


def _train(
    config: RunConfig, mirror: Mirror | None, reference: EvaluationRecord | None, began: float
) -> None:
    """Train under the lock of the run directory.

    `reference` is what evaluations compare with, `began` when the command began.
    """
    from rlsys.config.loading import dump_config
    from rlsys.launch import training
    from rlsys.launch.preflight import batch_table
    from rlsys.reporting.reporter import RunReporter
    from rlsys.training.checkpoints import CheckpointStore
    from rlsys.training.run_folder import CHECKPOINTS
    from rlsys.training.run_lock import run_lock

    with (
        run_lock(config.run_dir, typer.echo),
        RunReporter(
            config.run_dir, config.steps, terminal(), reference, config.reporting
        ) as reporter,
    ):
        checkpoints = CheckpointStore(
            config.run_dir / CHECKPOINTS,
            config.checkpoint.keep,
            reporter.message,
            copy=None if mirror is None else mirror.save,
        )
        resumed = checkpoints.latest()
        resumed_step = 0 if resumed is None else resumed.step
        reporter.start(dump_config(config), batch_table(config), resumed_step)
        if mirror is not None:
            mirror.tell = reporter.message
            mirror.claim()
        finished = training.train(config, reporter, checkpoints, resumed, began)
        if mirror is not None:
            mirror.finish()
        if not finished:
            raise typer.Exit(STOPPED)
        reporter.final_table()


def _dry_run(config: RunConfig) -> None:
    """Print what a start would do, down to the checkpoint that it would go on from."""
    from rlsys.launch.inputs import check_inputs
    from rlsys.launch.preflight import batch_table, check_shared_memory
    from rlsys.launch.resuming import check_layout
    from rlsys.reporting.sinks.opening import check_sinks
    from rlsys.training.checkpoints import CheckpointStore
    from rlsys.training.run_folder import CHECKPOINTS

    check_sinks(config.reporting)
    console = terminal()
    console.print(batch_table(config))
    console.print(check_inputs(config).summary, highlight=False)
    if config.epochs is not None:
        console.print(f"{config.epochs} epochs: {config.steps:,} steps", highlight=False)
    check_shared_memory(config)
    folder = config.run_dir / CHECKPOINTS
    resumed = CheckpointStore(folder, config.checkpoint.keep, typer.echo).inspect()
    if resumed is not None:
        check_layout(config, resumed, typer.echo)
        typer.echo(f"the run would go on after step {resumed.step} of {config.steps}")


@app.command(context_settings=SETTINGS_AS_OPTIONS)
def sft(config_file: ConfigFile, overrides: Overrides = None) -> None:
    """Train a model on given responses; the result is in run_dir/export."""
    with sentences():
        from rlsys.config import SftConfig
        from rlsys.config.loading import dump_config, load_config
        from rlsys.launch.machine import check_machine
        from rlsys.launch.preflight import check_local_gpus
        from rlsys.tokenization.model_folder import check_model
        from rlsys.training.run_folder import check_writable

        config = load_config(config_file, overrides or [], SftConfig)
        check_machine()
        check_writable(config.run_dir)
        check_local_gpus(config)
        check_model(
            config.model,
            on_cpu=False,
            trained=True,
            sequence_ranks=config.learner.sequence_ranks,
        )
        from rlsys.launch import supervised
        from rlsys.launch.epochs import sft_with_steps
        from rlsys.reporting.reporter import RunReporter
        from rlsys.training.run_lock import run_lock

        rows = supervised.load_rows(config)
        config = sft_with_steps(config, rows)
        with (
            run_lock(config.run_dir, typer.echo),
            RunReporter(
                config.run_dir, config.steps, terminal(), reporting=config.reporting
            ) as reporter,
        ):
            steps = f"{config.steps} steps of {config.rows_per_step} rows"
            reporter.start(dump_config(config), steps)
            supervised.sft(config, rows, reporter)


@app.command(name="eval", context_settings=SETTINGS_AS_OPTIONS)
def evaluate_model(config_file: ConfigFile, overrides: Overrides = None) -> None:
    """Measure the anytime curve of model.path; the numbers are in run_dir/evaluation."""
    began = time.monotonic()
    with sentences():
        from rlsys.config.loading import dump_config, load_config
        from rlsys.launch.machine import check_machine
        from rlsys.launch.preflight import check_local_gpus
        from rlsys.reporting.metrics_file import read_reference
        from rlsys.training.run_folder import check_writable

        config = load_config(config_file, overrides or [])
        check_machine()
        check_writable(config.run_dir / "evaluation")
        reference = read_reference(config.evaluation.reference)
        check_local_gpus(config)
        from rlsys.launch import training
        from rlsys.reporting.reporter import RunReporter

        # A separate folder, so that the metrics of a training run in run_dir are not changed.
        folder = config.run_dir / "evaluation"
        with RunReporter(folder, 0, terminal(), reference, config.reporting) as reporter:
            reporter.start(dump_config(config), f"evaluating {config.model.path}")
            warning = training.evaluate(config, reporter, began)
            reporter.final_table()
            if warning:
                typer.echo(f"rlsys: warning: {warning}", err=True)


@app.command()
def doctor(
    ray: Annotated[bool, typer.Option("--ray", help="Start a local Ray as well.")] = False,
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", metavar="CONFIG.yaml", help="Examine the nodes for this run."),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Show the problems of this machine or of a cluster's nodes, and the remedy for each."""
    from rich.text import Text

    from rlsys.doctor import Status, examine

    with sentences():
        if cluster is None:
            findings = examine(start_ray=ray)
        else:
            from rlsys.config.loading import load_config
            from rlsys.launch.cluster_doctor import examine_cluster

            findings = iter(examine_cluster(load_config(cluster, overrides or []), typer.echo))
    console = terminal()
    styles = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}
    failed = False
    for finding in findings:
        failed |= finding.status is Status.FAIL
        line = Text(f"{finding.status.value:<4} ", styles[finding.status])
        line.append(f"{finding.check}: {finding.seen}", "default")
        line.append(f" -> {finding.remedy}" if finding.remedy else "", "default")
        console.print(line, soft_wrap=True)
    raise typer.Exit(int(failed))


@config_app.command("show", context_settings=SETTINGS_AS_OPTIONS)
def show(config_file: ConfigFile, overrides: Overrides = None, sft: Supervised = False) -> None:
    """Print the whole configuration with every default, as YAML."""
    with sentences():
        from rlsys.config import RunConfig, SftConfig
        from rlsys.config.loading import dump_config, load_config

        schema = SftConfig if sft else RunConfig
        typer.echo(dump_config(load_config(config_file, overrides or [], schema)), nl=False)


@config_app.command("schema")
def schema(sft: Supervised = False) -> None:
    """Print the JSON Schema of configurations, for editors."""
    import json

    from rlsys.config import RunConfig, SftConfig

    typer.echo(json.dumps((SftConfig if sft else RunConfig).model_json_schema(), indent=2))
