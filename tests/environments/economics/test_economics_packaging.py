"""What is deployed: the OpenEnv package, its image and settings, and the guard on its own."""

import json
import re
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml
from openenv.cli._cli_utils import validate_env_structure
from openenv.validation import Level, run_validation

import rlsys.environments.economics as economics
from rlsys.config.economics import ArithmeticCorpus, EconomicsConfig, EconomicsServerConfig
from rlsys.config.loading import load_config
from rlsys.environments.economics import grading
from rlsys.environments.economics.environment import VERSION
from rlsys.environments.economics.grading import BoundedGrader
from rlsys.environments.economics.server.application import bind, url_of
from rlsys.environments.economics.server.frames import refuse, tidy_error
from rlsys.environments.economics.server.settings import config_from_environment
from rlsys.environments.economics.server.staging import stage
from rlsys.errors import ConfigError, DataError, RlsysError
from rlsys.grading.compare import compare_hard
from rlsys.grading.process import GradingProcess
from rlsys.types import GradingRequest, Verdict

FOLDER = Path(economics.__file__).parent
ROOT = FOLDER.parents[2]


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stage") / "economics"
    stage(folder)
    return folder


def test_both_folders_have_the_structure_that_push_asks_for(staged: Path) -> None:
    assert validate_env_structure(FOLDER) == ["Recommended directory missing: outputs/"]
    assert validate_env_structure(staged) == ["Recommended directory missing: outputs/"]


def test_the_staged_folder_validates(staged: Path) -> None:
    report = run_validation(staged, max_level=Level.STATIC)
    assert report.verdict.value == "pass"


def test_staging_overwrites_nothing(staged: Path) -> None:
    with pytest.raises(DataError, match="not an empty folder"):
        stage(staged)


def test_every_copied_path_exists_in_both_build_contexts(staged: Path) -> None:
    lines = (FOLDER / "server" / "Dockerfile").read_text().splitlines()
    sources = [line.split()[1] for line in lines if line.startswith("COPY ")]
    assert len(sources) == 2
    for source in sources:
        assert (ROOT / source).exists()
        assert (staged / source).exists()


def test_one_version() -> None:
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    manifest = yaml.safe_load((FOLDER / "openenv.yaml").read_text())
    rlsys = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["version"], manifest["version"], rlsys["version"]} == {VERSION}


def test_the_server_installs_no_learner_and_no_engine() -> None:
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^a-z_-]", name)[0] for name in project["dependencies"]}
    assert not names & {"torch", "vllm", "deepspeed", "ray", "transformers", "trl"}


def test_the_space_finds_its_port() -> None:
    _, front, _ = (FOLDER / "README.md").read_text().split("---", 2)
    matter = yaml.safe_load(front)
    assert (matter["sdk"], matter["app_port"]) == ("docker", 8000)


def test_a_port_is_bound_before_its_url_is_known_and_a_taken_one_is_refused() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert port > 0
        assert url_of(listener) == f"http://127.0.0.1:{port}"
        with pytest.raises(ConfigError, match=f"host '127.0.0.1', port {port} .*in use.*port=0"):
            bind("127.0.0.1", port)


def test_nothing_heavy_is_imported_by_the_server() -> None:
    import subprocess

    code = (
        "import sys, rlsys.environments.economics.server.application as a;"
        "print([m for m in ('torch','vllm','deepspeed','ray','transformers') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_settings_from_variables() -> None:
    config = config_from_environment(
        {
            "ECONOMICS_MODE": "soft",
            "ECONOMICS_PROBLEMS": "4",
            "ECONOMICS_CORPUS": "{source: arithmetic, terms: [3, 5]}",
            "ECONOMICS_MAX_SESSIONS": "2",
            "ECONOMICS_TOKENIZER": "  ",
            "PATH": "/bin",
        }
    )
    assert (config.max_sessions, config.environment.mode) == (2, "soft")
    assert config.environment.corpus == ArithmeticCorpus(terms=(3, 5))
    assert config.environment.tokenizer is None
    assert config_from_environment({}) == EconomicsServerConfig()


def test_variables_take_what_the_command_line_takes() -> None:
    for variable, word in (
        ("ECONOMICS_IDLE_TIMEOUT_S=9e2", "idle_timeout_s=9e2"),
        ("ECONOMICS_BUDGET_RATIO=1e1", "environment.budget_ratio=1e1"),
        ("ECONOMICS_CORPUS={terms: [2, 6]}", "environment.corpus.terms=[2, 6]"),
        ("ECONOMICS_CORPUS={source: datasets}", "environment.corpus.source=datasets"),
        ("ECONOMICS_HOST=::", "host='::'"),
        ("ECONOMICS_HOST='::'", "host='::'"),
        ("ECONOMICS_HOST=12", "host='12'"),
        ("ECONOMICS_TOKENIZER=3e1", "environment.tokenizer='3e1'"),
        ("ECONOMICS_TOKENIZER=null", "environment.tokenizer=null"),
    ):
        name, _, text = variable.partition("=")
        expected = load_config(None, [word], EconomicsServerConfig)
        assert config_from_environment({name: text}) == expected


def test_wrong_settings_are_refused() -> None:
    for variables, sentence in (
        ({"ECONOMICS_MODES": "soft"}, "ECONOMICS_MODES names no setting; .*config/economics.py"),
        ({"ECONOMICS_MODES": "soft"}, "ECONOMICS_HOST, .* are the server's"),
        ({"ECONOMICS_MODE": "firm"}, "ECONOMICS_MODE: Input should be 'hard' or 'soft'"),
        ({"ECONOMICS_PROBLEMS": "many"}, "ECONOMICS_PROBLEMS: Input should be a valid integer"),
        ({"ECONOMICS_TOTAL_BUDGET": "5"}, "a budget of 5 tokens is less than min_tokens"),
        ({"ECONOMICS_CORPUS": "{source"}, "is not a YAML value"),
        ({"ECONOMICS_ENVIRONMENT": "{}"}, "ECONOMICS_ENVIRONMENT names no setting"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            config_from_environment(variables)


def test_every_setting_has_one_variable() -> None:
    shared = EconomicsConfig.model_fields.keys() & EconomicsServerConfig.model_fields.keys()
    assert shared == set()


def test_the_guard_lets_only_sound_frames_through() -> None:
    for text, code in (
        ('{"type": "state"}', None),
        ('{"type": "step", "data": {"response": "\\ud83d\\ude00"}}', None),
        (None, "INVALID_JSON"),
        ("{", "INVALID_JSON"),
        ("[" * 5000, "INVALID_JSON"),
        ("[]", "VALIDATION_ERROR"),
        ('{"a": "\\udc00"}', "VALIDATION_ERROR"),
        ('{"\\udc00": 1}', "VALIDATION_ERROR"),
        ('{"a": ' + "[" * 40 + "]" * 40 + "}", "VALIDATION_ERROR"),
        ('{"a": "' + "x" * 200 + '"}', "VALIDATION_ERROR"),
    ):
        refusal = refuse(text, max_characters=200 if text and "xx" in text else 100_000)
        assert (refusal and refusal.code) == code, text


def test_an_error_frame_explains_and_does_not_echo() -> None:
    errors = [{"type": "t", "loc": ["data", "x"], "msg": "Wrong", "input": "y" * 9999, "url": "u"}]
    frame = {"type": "error", "data": {"message": "Invalid", "code": "C", "errors": errors}}
    tidied = json.loads(tidy_error(json.dumps(frame)))["data"]
    assert tidied == {
        "message": "Invalid: data.x: Wrong",
        "code": "C",
        "errors": [{"type": "t", "loc": ["data", "x"], "msg": "Wrong"}],
    }


@pytest.mark.slow
def test_a_killed_grading_process_is_replaced() -> None:
    grader = BoundedGrader(processes=1)
    assert grader(GradingRequest(r"\boxed{1+x}", "x+1")) is Verdict.RIGHT
    start = time.monotonic()
    endless = r"\boxed{\sum_{n=1}^{1000000000} n^{n} + x^{x^{x}}}"
    assert grader(GradingRequest(endless, "x+1")) is not Verdict.RIGHT
    deadline = start + 60
    while time.monotonic() < deadline:
        asked = time.monotonic()
        if grader(GradingRequest(r"\boxed{1+x}", "x+1")) is Verdict.RIGHT:
            return
        assert time.monotonic() - asked < 5
    raise AssertionError("no grading process came back")


def test_a_grading_process_that_cannot_start_is_tried_again_until_it_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter(
        [RlsysError("the grading process ended while it started"), OSError("no memory")]
    )

    def compare(process: GradingProcess, answer: str, gold: str) -> Verdict:
        for failure in failures:
            raise failure
        return compare_hard(process, answer, gold)

    monkeypatch.setattr(grading, "compare_hard", compare)
    monkeypatch.setattr(grading, "RESTART_PAUSE_S", 0.0)
    grader = BoundedGrader(processes=1)
    request = GradingRequest(r"\boxed{1+x}", "x+1")
    assert grader(request) is Verdict.INVALID
    deadline = time.monotonic() + 60
    while (verdict := grader(request)) is Verdict.INVALID and time.monotonic() < deadline:
        pass
    assert verdict is Verdict.RIGHT
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "the grading process ended while it started",
        "no memory",
    ]
