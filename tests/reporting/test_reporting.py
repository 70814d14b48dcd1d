"""What a run writes and shows, and what a resumed run keeps of it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlsys.config import (
    BrpoConfig,
    CheckpointConfig,
    GenerationConfig,
    LearnerConfig,
    LoraConfig,
    OptimizerConfig,
    RunConfig,
)
from rlsys.config.loading import dump_config
from rlsys.errors import ConfigError
from rlsys.reporting.live_view import live_block, plain_line
from rlsys.reporting.metrics_file import EvaluationRecord, read_reference
from rlsys.reporting.reporter import RunReporter
from rlsys.reporting.tables import evaluation_table
from rlsys.training.run_folder import check_resume, last_checkpoint

METRICS = {
    "score/mean": 0.53,
    "score/16": 0.35,
    "score/64": 0.71,
    "thought/length": 41.38,
    "loss": -0.01024,
    "grad_norm": 0.5,
    "gap/mean": 1.2e-6,
    "staleness/max": 1.0,
    "queue": 16.0,
    "tokens_per_s/generation": 4286.0,
    "time/step": 2.07,
}
LENGTH = {"thought/length": 41.4}


def reporter_of(run_dir: Path, *, terminal: bool = False) -> tuple[RunReporter, io.StringIO]:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=100, no_color=True)
    return RunReporter(run_dir, 60, console), shown


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_one_line_a_step_where_there_is_no_terminal() -> None:
    assert plain_line(3, 60, METRICS) == (
        "step 3/60 | score 0.53 (16: 0.35, 64: 0.71) | thought 41.4 tokens | loss -0.0102 "
        "| grad 0.500 | gap 1.2e-06 | stale 1 | queue 16 | generation 4,286 tok/s | step 2.1 s"
    )


def test_both_views_say_whether_the_run_is_healthy() -> None:
    for metrics, words in (
        ({"warning/truncation": 0.0, "warning/mismatch": 0.0}, "healthy"),
        ({"warning/truncation": 1.0, "warning/no_signal": 1.0}, "warning: truncation, no signal"),
    ):
        assert plain_line(3, 60, metrics) == f"step 3/60 | {words}"
        console = Console(file=io.StringIO(), width=100)
        with console.capture() as shown:
            console.print(live_block(3, 60, metrics))
        assert words in shown.get()


def test_metrics_that_a_run_does_not_have_are_left_out() -> None:
    assert plain_line(1, 9, {"loss": 1.0}) == "step 1/9 | loss +1.0000"


def test_the_live_block_shows_a_bar_a_budget() -> None:
    console = Console(file=io.StringIO(), width=100, no_color=True)
    console.print(live_block(3, 60, METRICS))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [
        ["score", "at", "16"],
        ["score", "at", "64"],
    ]
    assert "about 1:58 left" in lines[0]


def test_a_run_writes_its_configuration_metrics_events_and_episodes(tmp_path: Path) -> None:
    reporter, shown = reporter_of(tmp_path / "run")
    with reporter:
        reporter.start("seed: 3\n", "the batch table")
        assert not (tmp_path / "run").exists()
        reporter.evaluation(0, {"score/16": 0.2, "score/64": 0.4, **LENGTH})
        reporter.step(1, {"loss": 1.0, "kl": float("nan")})
        reporter.episodes(1, [{"thought": "3+8=11;½", "answers": []}])
        reporter.message("a [bracketed] sentence")
    run = tmp_path / "run"
    assert (run / "config.yaml").read_text() == "seed: 3\n"
    evaluation, step = rows_of(run)
    assert (evaluation["step"], evaluation["evaluation/16"]) == (0, 0.2)
    assert evaluation["evaluation/mean"] == pytest.approx(0.3)
    assert (step["step"], step["loss"], step["kl"]) == (1, 1.0, None)
    assert list((run / "tensorboard").iterdir())
    assert json.loads((run / "samples/step-1.jsonl").read_text())["thought"] == "3+8=11;½"
    assert shown.getvalue().splitlines() == [
        "the batch table",
        "evaluation after step 0: 0.300 (16: 0.200, 64: 0.400)",
        "step 1/60 | loss +1.0000 | kl nan",
        "a [bracketed] sentence",
    ]


def test_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    first, _ = reporter_of(tmp_path)
    with first:
        first.start("", "")
        first.evaluation(0, {"score/64": 0.4, **LENGTH})
        for step in (1, 2, 3):
            first.step(step, {"loss": float(step)})
            first.episodes(step, [])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')  # killed while it wrote

    second, _ = reporter_of(tmp_path)
    with second:
        second.start("", "", resumed_step=2)
        second.step(3, {"loss": 30.0})
    assert [(row["step"], row.get("loss")) for row in rows_of(tmp_path)] == [
        (0, None),
        (1, 1.0),
        (2, 2.0),
        (3, 30.0),
    ]
    assert not (tmp_path / "samples/step-3.jsonl").exists()


def test_a_run_that_starts_anew_drops_everything(tmp_path: Path) -> None:
    for _ in range(2):
        reporter, _ = reporter_of(tmp_path)
        with reporter:
            reporter.start("", "")
            reporter.evaluation(0, {"score/64": 0.4, **LENGTH})
    assert [row["step"] for row in rows_of(tmp_path)] == [0]


def test_a_users_own_files_beside_the_samples_stay(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    for name in ("my-notes.jsonl", "step-best.jsonl", "step-3.jsonl.bak", "best-step-9.jsonl"):
        (tmp_path / "samples" / name).write_text("mine")
    (tmp_path / "samples" / "step-9.jsonl").write_text("")
    reporter, _ = reporter_of(tmp_path)
    with reporter:
        reporter.start("", "", resumed_step=2)
        reporter.step(3, {"loss": 1.0})
    assert {path.name for path in (tmp_path / "samples").iterdir()} == {
        *("my-notes.jsonl", "step-best.jsonl", "step-3.jsonl.bak", "best-step-9.jsonl")
    }


def test_half_a_surrogate_pair_is_written_and_shown(tmp_path: Path) -> None:
    reporter, shown = reporter_of(tmp_path)
    with reporter:
        reporter.start("", "")
        reporter.step(1, {"loss": 1.0, "tokens/\ud800": 3.0})
        reporter.evaluation(1, {"return": 1.0, "odd\udfff": 2.0})
        reporter.episodes(1, [{"thought": "\ud800 ½"}, {"thought": "½"}])
        reporter.message("answer \ud800")
    assert rows_of(tmp_path)[0]["tokens/\ud800"] == 3.0
    lines = (tmp_path / "samples/step-1.jsonl").read_text().splitlines()
    assert [json.loads(line)["thought"] for line in lines] == ["\ud800 ½", "½"]
    assert "½" in lines[1]
    assert "answer ?" in shown.getvalue()


def test_lines_that_are_no_rows_are_left_out(tmp_path: Path) -> None:
    rows = b'{"step": 1}\n\xff\xfe\n\0\0\n[1]\n{"time": 2}\n{"step": 2}\n'
    (tmp_path / "metrics.jsonl").write_bytes(rows)
    reporter, _ = reporter_of(tmp_path)
    with reporter:
        reporter.start("", "", resumed_step=2)
        reporter.step(3, {})
    assert [row["step"] for row in rows_of(tmp_path)] == [1, 2, 3]


def test_the_configuration_is_only_written_if_it_differs(tmp_path: Path) -> None:
    path, written = tmp_path / "config.yaml", []
    for text in ("a: 1\n", "a: 1\n", "a: 2\n"):
        reporter, _ = reporter_of(tmp_path)
        with reporter:
            reporter.start(text, "")
            reporter.step(1, {})
        written.append(path.stat().st_ino)
        assert path.read_text() == text
    assert written[0] == written[1] != written[2]
    assert not list(tmp_path.glob("*.tmp"))


def test_the_final_table_compares_the_first_and_the_last_evaluation(tmp_path: Path) -> None:
    reporter, shown = reporter_of(tmp_path)
    with reporter:
        reporter.start("", "")
        reporter.evaluation(0, {"score/16": 0.2, "score/64": 0.4, **LENGTH})
        reporter.evaluation(30, {"score/16": 0.3, "score/64": 0.4, **LENGTH})
        reporter.evaluation(60, {"score/16": 0.8, "score/64": 0.5, "thought/length": 16.0})
        reporter.final_table()
    words = [line.replace("│", " ").split() for line in shown.getvalue().splitlines()]
    assert ["before", "0.200", "0.400", "0.300", "41.4"] in words
    assert ["after", "0.800", "0.500", "0.650", "16.0"] in words
    assert ["change", "+0.600", "+0.100", "+0.350", "-25.4"] in words


def test_thoughts_are_compared_with_those_of_the_runs_start(tmp_path: Path) -> None:
    for step, length in ((0, 40.0), (30, 50.0), (60, 24.0)):
        reporter, _ = reporter_of(tmp_path)  # the run was killed and goes on
        reporter.start("", "", resumed_step=step)
        with reporter:
            reporter.evaluation(step, {"score/64": 0.4, "thought/length": length})
    assert [row["evaluation/token_ratio"] for row in rows_of(tmp_path)] == [100.0, 125.0, 60.0]


def test_an_evaluation_is_compared_with_another_run(tmp_path: Path) -> None:
    numbers = {"thought/length": 40.0, "response/length": 50.0, "thought/length/difficulty_2": 10.0}
    base = RunReporter(tmp_path / "base", 0, Console(file=io.StringIO()))
    base.start("", "")
    with base:
        base.evaluation(0, {"score/64": 0.4, **numbers})
        base.evaluation(9, {"score/64": 0.4, "thought/length": 1.0})
    reference = read_reference(tmp_path / "base")
    with RunReporter(tmp_path / "run", 0, Console(file=io.StringIO()), reference) as reporter:
        reporter.start("", "")
        reporter.evaluation(0, {"score/64": 0.4} | {n: v / 4 for n, v in numbers.items()})
    (row,) = rows_of(tmp_path / "run")
    ratios = {n: v for n, v in row.items() if "token_ratio" in n}
    assert ratios == {
        "evaluation/token_ratio": 25.0,
        "evaluation/token_ratio/response": 25.0,
        "evaluation/token_ratio/difficulty_2": 25.0,
    }


def test_a_reference_without_an_evaluation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.reference '.*' holds no evaluation"):
        read_reference(tmp_path)


def test_a_single_evaluation_has_no_change(tmp_path: Path) -> None:
    table = evaluation_table({"step 0": EvaluationRecord(0, {"16": 0.5, "thought/length": 12.0})})
    assert table.row_count == 1


def test_lost_episodes_are_shown_where_there_are_any(tmp_path: Path) -> None:
    reporter, shown = reporter_of(tmp_path)
    with reporter:
        reporter.start("", "")
        reporter.evaluation(0, {"return": 9.941, "episodes/lost": 0.0, "problems": 48.0})
        reporter.evaluation(1, {"return": 9.941, "episodes/lost": 5 / 6, "problems": 48.0})
        reporter.evaluation(2, {"episodes/lost": 1.0, "problems": 48.0})
    assert shown.getvalue().splitlines()[1:] == [
        "evaluation after step 0: return 9.941, problems 48.000",
        "evaluation after step 1: return 9.941, problems 48.000, episodes/lost 0.833",
        "evaluation after step 2: problems 48.000, episodes/lost 1.000",
    ]


@pytest.mark.parametrize("lost_last", [True, False])
def test_the_final_table_takes_an_evaluation_that_lost_everything(
    tmp_path: Path, lost_last: bool
) -> None:
    played = {"return": 9.5, "episodes/lost": 0.0, "problems": 48.0}
    first, last = [played, {"episodes/lost": 1.0, "problems": 48.0}][:: 1 if lost_last else -1]
    reporter, shown = reporter_of(tmp_path)
    with reporter:
        reporter.start("", "")
        reporter.evaluation(0, first)
        reporter.evaluation(9, last)
        reporter.final_table()
    words = [line.replace("│", " ").split() for line in shown.getvalue().splitlines()]
    assert ["change", "+0.000"] in words
    assert ["after" if lost_last else "before", "48.000"] in words


def test_the_live_view_ends_with_the_reporter(tmp_path: Path) -> None:
    reporter, shown = reporter_of(tmp_path, terminal=True)
    with reporter:
        reporter.start("", "")
        reporter.step(1, METRICS)
        reporter.message("said above the block")
    assert "said above the block" in shown.getvalue()
    assert shown.getvalue().endswith("\x1b[?25h")  # the cursor is back


def leave_checkpoint(config: RunConfig, step: int) -> None:
    folder = config.run_dir / f"checkpoints/step-{step}"
    folder.mkdir(parents=True)
    (config.run_dir / "config.yaml").write_text(dump_config(config))


def test_length_and_placement_may_change_on_the_way(tmp_path: Path) -> None:
    config = RunConfig(run_dir=tmp_path)
    leave_checkpoint(config, 20)
    leave_checkpoint(config, 100)
    assert last_checkpoint(tmp_path) == 100
    changes: dict[str, Any] = {
        "steps": 500,
        "checkpoint": CheckpointConfig(every=5),
        "learner": LearnerConfig(
            ranks=2, zero_stage=3, optimizer=OptimizerConfig(learning_rate=0.5)
        ),
    }
    check_resume(config.model_copy(update=changes))


def test_another_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"algorithm": BrpoConfig(prior="linear")}, "algorithm.prior is 'linear'"),
        ({"seed": 7}, "seed is 7"),
        (
            {"learner": LearnerConfig(lora=LoraConfig(target_modules=("q_proj",)))},
            "learner.lora is {'rank': 16, 'alpha': 32.0, 'target_modules': ['q_proj']}",
        ),
        (
            {"generation": GenerationConfig(temperature=0.5)},
            "generation.temperature is 0.5",
        ),
    ]
    config = RunConfig(run_dir=tmp_path)
    leave_checkpoint(config, 20)
    for change, key in cases:
        with pytest.raises(ConfigError) as caught:
            check_resume(config.model_copy(update=change))
        said = str(caught.value)
        assert said.startswith(f"{key} but the run in {tmp_path} was trained with "), change


def test_a_folder_without_a_checkpoint_takes_any_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(dump_config(RunConfig(seed=3)))
    check_resume(RunConfig(run_dir=tmp_path))
