"""The command line: every bad input is one sentence and exit code 2, and Ray is never started."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.environments.dialogue import evaluation_episodes
from rlsys.environments.dialogue_report import report_dialogues
from rlsys.errors import EngineError
from rlsys.reporting.reporter import RunReporter
from rlsys.sft.tiny_model import build_tiny
from rlsys.training.protocols import FinishedGroup
from rlsys.types import Group, GroupReport, Problem, Task

run_cli = CliRunner()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("models") / "tiny", seed=0)


@pytest.fixture
def config(tmp_path: Path, tiny: Path) -> Path:
    """A configuration that would train, were it not for one word on the command line."""
    tree: dict[str, Any] = {
        "run_dir": str(tmp_path / "run"),
        "steps": 2,
        "model": {"path": str(tiny)},
        "data": {
            "train": {"source": "arithmetic", "size": 10},
            "evaluation": {"source": "arithmetic", "size": 10},
        },
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def refusal(*words: object) -> str:
    """The one line on stderr of a command that refuses its input."""
    result = run_cli.invoke(app, [str(word) for word in words])
    assert result.exit_code == 2, (result.output, result.exception)
    (line,) = result.stderr.splitlines()
    return line


def test_without_arguments_the_first_three_commands_are_shown() -> None:
    result = run_cli.invoke(app, [])
    assert result.exit_code == 0
    commands = [line.split("  ")[1] for line in result.stdout.splitlines() if line[:2] == "  "]
    assert commands == ["rlsys doctor", "rlsys train demo --dry-run", "rlsys train demo"]


def test_a_shipped_configuration_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = run_cli.invoke(app, ["config", "show", "demo", "steps=7"])
    tree = yaml.safe_load(shown.stdout)
    assert [tree["name"], tree["steps"]] == ["demo", 7]
    Path("demo").write_text("name: mine\n")
    assert "name: mine" in run_cli.invoke(app, ["config", "show", "demo"]).stdout
    assert "write grpo for the configuration" in refusal("config", "show", "configs/grpo.yaml")


BAD_WORDS = {
    "unknown key": ("batch.groupsize=4", "unknown key 'batch.groupsize' on the command line"),
    "nearest key": ("batch.groupsize=4", "did you mean 'batch.group_size'?"),
    "wrong type": ("steps=many", "steps is 'many' on the command line but should be a valid int"),
    "not increasing": ("environment.budgets=[64,16]", "environment.budgets [64, 16] must be incre"),
    "beyond the model": ("environment.budgets=[16,4096]", "needs 4226 tokens after the prompt"),
    "prior": ("algorithm.prior=unifrom", "algorithm.prior is 'unifrom' on the command line but"),
    "group of one": ("batch.group_size=1", "batch.group_size 1 leaves algorithm.method 'brpo'"),
    "no model folder": ("model.path=/no/model", "model folder '/no/model' does not exist"),
    "think token": ("environment.think_end=→", "think_end '→' cannot be written"),
    "long prompts": ("data.prompt.max_tokens=3", "all 10 prompts have more than data.prompt.max"),
    "cards": ("learner.gpus_per_rank=1", "learner rank 1 of 1 {CPU: 1, GPU: 1} fits on no node"),
    "indivisible": ("batch.optimizer_steps=5", "batch.problems 32 must be a multiple of"),
    "idle ranks": ("learner.ranks=999", "learner.ranks 999 is more than the 256 episodes"),
    "no override": ("steps", "'steps' must be key.path=value"),
}


def test_a_bad_word_is_refused_in_a_sentence(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for word, sentence in BAD_WORDS.values():
        assert sentence in refusal("train", config, word), word
        assert not (config.parent / "run").exists(), word


def test_configurations_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot read the configuration" in refusal("train", tmp_path / "none.yaml")
    (tmp_path / "torn.yaml").write_text("steps: [1\n")
    assert "is not valid YAML: line 2" in refusal("train", tmp_path / "torn.yaml")


def test_bad_data_is_refused_by_file_and_line(config: Path) -> None:
    cases: list[tuple[str | None, str]] = [
        (None, "problems.jsonl"),
        ("", "problems.jsonl"),
        ('{"problem": "1+1", "answer": "2"}\n{"problem": "1+', "problems.jsonl, line 2"),
        ('{"problem": "1+1"}\n', "problems.jsonl, line 1: no column 'answer'"),
        ('{"problem": "1+1", "answer": null}\n', "problems.jsonl, line 1: column 'answer'"),
    ]
    for rows, sentence in cases:
        problems = config.parent / "problems.jsonl"
        if rows is not None:
            problems.write_text(rows)
        words = ["data.train.source=file", f"data.train.path=[{problems}]"]
        assert sentence in refusal("train", config, *words), rows


def test_a_model_folder_without_its_files_is_refused(config: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for command in ("train", "eval"):
        assert "has no settings (config.json)" in refusal(
            command, config, f"model.path={tmp_path / 'empty'}"
        )
    sft = tmp_path / "sft.yaml"
    sft.write_text("")
    assert "has no settings" in refusal("sft", sft, f"model.path={tmp_path / 'empty'}")


def test_supervised_runs_count_cards_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    sft = tmp_path / "sft.yaml"
    sft.write_text("learner: {ranks: 2, gpus_per_rank: 1.0}\n")
    assert "learner rank 2 of 2 {CPU: 1, GPU: 1} fits on no node" in refusal("sft", sft)


def test_every_fault_has_a_line_of_its_own(config: Path) -> None:
    result = run_cli.invoke(app, ["train", str(config), "steps=x", "seed=-1"])
    assert result.exit_code == 2
    assert [line.split()[1] for line in result.stderr.splitlines()] == ["seed", "steps"]


@pytest.mark.parametrize("options", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_evaluating_on_the_training_server_is_warned_of(config: Path, options: list[str]) -> None:
    words = ["environment.type=economics", "algorithm.method=turn_grpo"]
    words += ["environment.url=http://127.0.0.1:9"]
    result = run_cli.invoke(app, ["train", str(config), *words, *options])
    warning, refused = result.stderr.splitlines()
    assert warning.startswith(
        "rlsys: warning: evaluations play on the training server http://127.0"
    )
    assert "no server answers at environment.url 'http://127.0.0.1:9'" in refused


def test_a_dry_run_shows_the_batch_and_what_is_loaded(config: Path) -> None:
    result = run_cli.invoke(app, ["train", str(config), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "sampled tokens, at most" in result.stdout
    assert "10 training and 10 held-out problems" in result.stdout
    assert not (config.parent / "run").exists()


@pytest.mark.parametrize("options", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_heads_that_ranks_cannot_divide_are_refused(config: Path, options: list[str]) -> None:
    words = ["learner.ranks=3", "learner.sequence_ranks=3", *options]
    result = run_cli.invoke(app, ["train", str(config), *words])
    assert result.exit_code == 2
    assert "learner.sequence_ranks 3 does not divide the 4 attention heads" in result.stderr


def test_train_reports_and_ends_with_the_table(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlsys.launch import training

    def short_run(_: object, reporter: RunReporter, *__: object) -> bool:
        reporter.evaluation(0, {"score/16": 0.25, "thought/length": 9.0})
        reporter.evaluation(2, {"score/16": 0.5, "thought/length": 7.0})
        return True

    monkeypatch.setattr(training, "train", short_run)
    result = run_cli.invoke(app, ["train", str(config)])
    assert result.exit_code == 0, result.output
    assert "+0.250" in result.stdout
    recorded = yaml.safe_load((config.parent / "run/config.yaml").read_text())
    assert recorded["batch"]["group_size"] == 8


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        (EngineError("engine 0 died; look at its log"), 1, "rlsys: engine 0 died; look at its log"),
        (KeyboardInterrupt(), 130, ""),
        (None, 130, ""),
    ],
    ids=["failed", "interrupted", "stopped by a signal"],
)
def test_how_a_run_ends_is_its_exit_code(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    ending: BaseException | None,
    code: int,
    said: str,
) -> None:
    from rlsys.launch import training

    def end(*_: object) -> bool:
        if ending is not None:
            raise ending
        return False

    monkeypatch.setattr(training, "train", end)
    result = run_cli.invoke(app, ["train", str(config)])
    assert (result.exit_code, result.stderr.strip()) == (code, said)


def test_evaluation_leaves_a_runs_metrics_alone(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlsys.launch import training

    run = config.parent / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    numbers = {"score/16": 0.25, "score/64": 0.75, "thought/length": 9.0}
    monkeypatch.setattr(training, "evaluate", lambda _, r, __: r.evaluation(0, numbers))
    result = run_cli.invoke(app, ["eval", str(config)])
    assert result.exit_code == 0, result.output
    assert (run / "metrics.jsonl").read_text() == '{"step": 1}\n'
    (row,) = (run / "evaluation/metrics.jsonl").read_text().splitlines()
    assert json.loads(row)["evaluation/mean"] == 0.5


@pytest.mark.parametrize(
    ("lost", "code", "said"),
    [
        (0, 0, ""),
        (40, 0, "rlsys: warning: 40 of 48 episodes of the evaluation were lost, so its means are"),
        (
            48,
            1,
            "rlsys: all 48 episodes of the evaluation were lost, so nothing was measured; check",
        ),
    ],
    ids=["none", "some", "all"],
)
def test_an_evaluation_tells_of_lost_episodes(
    config: Path, monkeypatch: pytest.MonkeyPatch, lost: int, code: int, said: str
) -> None:
    from rlsys.launch import training
    from rlsys.training.evaluation import evaluate_policy, loss_warning

    class Runner:
        """Loses the first episodes."""

        async def train_group(self, index: int, task: Task) -> FinishedGroup:
            raise AssertionError("an evaluation trains nothing")

        async def evaluate_group(self, index: int, task: Task) -> GroupReport:
            return dialogue_report(lost=index < lost)

        async def engine_metrics(self) -> dict[str, float]:
            return {"prefix_cache/share": 0.5}

    def evaluate_without_ray(_: object, reporter: RunReporter, __: float) -> str | None:
        problems = evaluation_episodes(48)
        return loss_warning(asyncio.run(evaluate_policy(Runner(), problems, reporter, 0)))

    monkeypatch.setattr(training, "evaluate", evaluate_without_ray)
    result = run_cli.invoke(app, ["eval", str(config)])
    assert (result.exit_code, result.stderr[: len(said)]) == (code, said), result.output
    assert len(result.stderr.splitlines()) == bool(said)
    (row,) = (config.parent / "run/evaluation/metrics.jsonl").read_text().splitlines()
    assert json.loads(row)["evaluation/episodes/lost"] == pytest.approx(lost / 48)


def dialogue_report(*, lost: bool) -> GroupReport:
    """What is reported of a group of one dialogue."""
    empty = Group(index=0, task=Problem(id="0", text="", answer=""), episodes=())
    report = report_dialogues(empty, 1, (), str)
    if lost:
        return report
    one = np.ones(1, np.float32)
    return replace(report, scores_G=one, numbers={"return": one, "episodes/lost": 0 * one})


def test_config_show_prints_a_file_that_means_the_same(config: Path, tmp_path: Path) -> None:
    shown = run_cli.invoke(app, ["config", "show", str(config), "seed=7"]).stdout
    (tmp_path / "shown.yaml").write_text(shown)
    assert run_cli.invoke(app, ["config", "show", str(tmp_path / "shown.yaml")]).stdout == shown
    assert yaml.safe_load(shown)["seed"] == 7


def test_config_schema_is_json_schema() -> None:
    schema = json.loads(run_cli.invoke(app, ["config", "schema"]).stdout)
    assert schema["properties"]["steps"]["description"] == "Training steps of the whole run."
    supervised = json.loads(run_cli.invoke(app, ["config", "schema", "--sft"]).stdout)
    assert "rows_per_step" in supervised["properties"]


def test_the_doctor_names_a_remedy_for_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlsys import doctor

    findings = [
        doctor.Finding("python", doctor.Status.OK, "3.11.7"),
        doctor.Finding("ports", doctor.Status.FAIL, "cannot listen", "mend /etc/hosts"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda *, start_ray: iter(findings))
    result = run_cli.invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "ok   python: 3.11.7",
        "fail ports: cannot listen -> mend /etc/hosts",
    ]


def test_a_lock_of_a_killed_build_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlsys.doctor import Status, check_build_locks

    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert check_build_locks().status is Status.OK
    lock = tmp_path / "py311_cpu/deepspeed_shm_comm/lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    finding = check_build_locks()
    assert finding.status is Status.FAIL
    assert finding.remedy == f"if no run is starting now: rm {lock}"


def test_versions_are_compared_by_release(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlsys import doctor

    monkeypatch.setattr(doctor, "_installed", {"torch": "2.12.1+cu130", "ray": "2.9.0"}.get)
    assert doctor.check_version("torch", "2.11", "2.13").status is doctor.Status.OK
    assert doctor.check_version("ray", "2.55", "2.60").status is doctor.Status.WARN
    assert doctor.check_version("vllm", "0.24", "0.32").remedy == (
        "pip install 'rlsys[cpu]' or 'rlsys[gpu]'"
    )


def test_the_doctor_finds_libraries_without_bytecode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlsys.doctor import Status, check_bytecode

    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    finding = check_bytecode()
    assert finding.status is Status.WARN
    assert finding.remedy.startswith("python -m compileall -q ")


def test_help_comes_before_anything_heavy() -> None:
    code = (
        "import sys\n"
        "from rlsys.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'datasets', 'ray', 'vllm', 'deepspeed', 'numpy'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True
    )
    assert "doctor" in done.stdout
