"""`rlsys reflection`: bad input is one sentence before anything starts; a whole round for real."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import yaml
from chat_server import chat_server
from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.config import TraceHabits
from rlsys.config.loading import load_config
from rlsys.config.reflection import ReflectionConfig
from rlsys.reflection.labelling.journal import Journal
from rlsys.reflection.labelling.responses import Thought, thought_id
from rlsys.reflection.labelling.workspace import Workspace
from rlsys.sft.traces import draw_trace
from rlsys.tokenization.tokenizer import encode

run_cli = CliRunner()
CONFIG = Path(__file__).parents[2] / "configs" / "reflection_tiny.yaml"


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Writes the recipe of the tiny model for a few problems, with changes."""

    def write(**changes: Any) -> Path:
        tree = yaml.safe_load(CONFIG.read_text()) | {
            "run_dir": str(tmp_path / "run"),
            "problems": 6,
            "reflection_model": {"path": "tiny"},
            "measure": {"problems": 5, "ratios": [0.5]},
        }
        path = tmp_path / "reflection.yaml"
        path.write_text(yaml.safe_dump(tree | changes))
        return path

    return write


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(ray, "init", refuse)


def call(command: str, config: Path, *words: str) -> tuple[int, str, str]:
    result = run_cli.invoke(app, ["reflection", command, str(config), *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def refusal(command: str, config: Path, *words: str) -> str:
    code, _, error = call(command, config, *words)
    assert code == 2, error
    (line,) = error.splitlines()
    return line


@pytest.mark.usefixtures("no_ray")
def test_a_teacher_that_is_down_is_found_before_a_thought_is_sampled(
    config: Callable[..., Path],
) -> None:
    teacher = {"type": "endpoint", "base_url": "http://127.0.0.1:9/v1", "model": "m", "retries": 0}
    line = refusal("label", config(teacher=teacher))
    assert line.startswith("rlsys: teacher 'm' at http://127.0.0.1:9/v1 does not answer (")
    assert line.endswith(
        "start the server, or correct teacher.base_url, teacher.model or teacher.api_key_env"
    )


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"detector": {"layout": "verbose"}}, "detector.layout"),
        ({"detector": {"chunking": {"separator": "("}}}, "separator '(' is no regular expression"),
        ({"detector": {"chunking": {"least": 200}}}, "least 200 leaves no room below most 128"),
        ({"teacher": {"type": "oracle"}}, "teacher"),
        ({"measure": {"ratios": [1.5]}}, "measure.ratios"),
        ({"policy": {"path": "/nowhere"}}, "model folder '/nowhere' does not exist"),
        ({"reflection_model": {"path": "/nowhere"}}, "model folder '/nowhere' does not exist"),
        ({"thinker": 1}, "thinker"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    config: Callable[..., Path], changes: dict[str, Any], words: str
) -> None:
    assert words in refusal("eval", config(**changes))


@pytest.mark.usefixtures("no_ray")
def test_thoughts_longer_than_the_model_are_refused(config: Callable[..., Path]) -> None:
    line = refusal("label", config(), "environment.budgets=[2000]")
    assert "a thought of 2000 tokens" in line
    assert "lower environment.budgets" in line


@pytest.mark.usefixtures("no_ray")
def test_a_policy_that_cannot_end_a_thought_is_refused(config: Callable[..., Path]) -> None:
    line = refusal("label", config(), "environment.think_end=→")
    assert "'→' cannot be written" in line


@pytest.mark.usefixtures("no_ray")
def test_rows_want_labels_first(config: Callable[..., Path]) -> None:
    assert "labels.jsonl does not exist; run rlsys reflection label first" in refusal(
        "rows", config()
    )


def test_a_folder_that_cannot_be_written_is_one_sentence(
    config: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for command in ("label", "rows", "eval"):
        code, _, error = call(command, config(run_dir=str(tmp_path / "file" / "run")))
        assert code == 2
        assert "cannot be written" in error
        assert error.count("\n") == 1


def test_problems_that_are_left_out_are_counted(
    config: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [("1+1=", "2"), ("1+2=", None), ("1+" * 300 + "1=", "301"), ("1+3=", "4")]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"problem": p, "answer": a}) + "\n" for p, a in rows))
    train = {"source": "file", "path": str(file), "skip_unanswered": True}
    loaded = load_config(config(data={"train": train}), [], ReflectionConfig)
    told: list[str] = []
    problems = Workspace.load(loaded, 512).problems(held_out=False, tell=told.append)
    assert [problem.text for problem in problems] == ["1+1=", "1+3="]
    assert [line.split(" because ")[0] for line in told] == [
        "data.train: 1 rows are skipped",
        "data.train: 1 problems are dropped",
    ]


@pytest.mark.usefixtures("no_ray")
def test_a_teacher_that_answers_nothing_in_earnest_is_an_error(
    config: Callable[..., Path], tmp_path: Path
) -> None:
    with chat_server() as chat:
        chat.failing = lambda number, body: 500 if number > 1 else None
        teacher = {"type": "endpoint", "base_url": chat.base_url, "model": "m", "retries": 0}
        file = config(teacher=teacher, samples=1)
        place = Workspace.load(load_config(file, [], ReflectionConfig), 512)
        place.claim()
        journal = Journal(place.folder(held_out=False) / "thoughts.jsonl")
        for problem in place.problems(held_out=False):
            ids = np.array(encode(place.tokenizer, "3+8=11"), np.int32)
            thought = Thought(
                id=thought_id(problem, 0), problem=problem, token_ids=ids, closed=True
            )
            journal.append(thought.to_row())
        code, _, error = call("label", file)
    assert code == 1
    assert "6 thoughts have no labels (teacher 'm' at http" in error
    assert "run the same command again" in error


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_whole_round_with_real_engines(config: Callable[..., Path], tmp_path: Path) -> None:
    source = {"source": "arithmetic", "size": 6}
    # The defaults of an evaluation are other problems, so its seed and side are set as well.
    same = source | {"seed": 0, "held_out": False}
    data = {"train": source, "evaluation": same, "prompt": {"max_tokens": 32}}
    path = config(rows={"unanswered": True, "paths": True}, data=data, samples=1, cut_share=0.0)
    run = tmp_path / "run"
    for command in ("label", "rows"):
        code, _, error = call(command, path)
        assert code == 0, error
    thoughts, labels, rows, pairs = (
        [json.loads(line) for line in (run / name).open()]
        for name in ("thoughts.jsonl", "labels.jsonl", "rows/reflection.jsonl", "rows/pairs.jsonl")
    )
    assert [t["id"] for t in thoughts] == [row["id"] for row in labels]
    assert len(thoughts) == len(rows) == 6
    assert [row["response"].count("R") for row in rows] == [len(r["results"]) for r in labels]
    assert pairs
    for pair in pairs:
        assert len(pair["chosen"]) < len(pair["rejected"])
        assert pair["chosen"].endswith("}")
    # The same thoughts are measured, so that none need be sampled.
    (run / "evaluation").mkdir()
    (run / "evaluation" / "thoughts.jsonl").write_text((run / "thoughts.jsonl").read_text())
    code, output, error = call("eval", path)
    assert code == 0, error
    result = json.loads((run / "evaluation" / "result.json").read_text())
    # The policy was never trained to label: nothing readable, and every original is kept.
    assert result["counts"]["unreadable"] == 6
    original, normal = (
        next(row for row in result["revisions"] if row["cut"] == name)
        for name in ("original", "normal")
    )
    assert normal == original | {"cut": "normal"}
    assert "Revision alone" in output
    # A second call makes nothing again, and other settings do not mix with these.
    before = (run / "thoughts.jsonl").stat().st_mtime_ns
    assert call("label", path)[0] == 0
    assert (run / "thoughts.jsonl").stat().st_mtime_ns == before
    assert "contains thoughts or labels of another seed; restore the old value" in refusal(
        "label", path, "seed=5"
    )


@pytest.mark.slow
def test_the_model_that_ships_reads_written_traces(
    config: Callable[..., Path], tmp_path: Path
) -> None:
    """At least 95 % of the chunks of held-out traces, a fifth of which were cut off."""
    path = config(
        reflection_model={"path": "tiny-reflection"}, measure={"problems": 100, "ratios": [0.5]}
    )
    place = Workspace.load(load_config(path, [], ReflectionConfig), 512)
    rng = np.random.default_rng(5)
    (tmp_path / "run" / "evaluation").mkdir(parents=True)
    with (tmp_path / "run" / "evaluation" / "thoughts.jsonl").open("w") as file:
        for problem in place.problems(held_out=True):
            text = draw_trace(problem, rng, TraceHabits(check=0.3, slip=0.03)).thought
            ids = np.array(encode(place.tokenizer, text), np.int32)
            cut = rng.random() < 0.2
            kept = ids[: rng.integers(1, len(ids) + 1) if cut else None]
            known = Thought(
                id=thought_id(problem, 0), problem=problem, token_ids=kept, closed=not cut
            )
            file.write(json.dumps(known.to_row()) + "\n")
    code, _, error = call("eval", path)
    assert code == 0, error
    result = json.loads((tmp_path / "run" / "evaluation" / "result.json").read_text())
    assert result["counts"]["read"] == 100
    assert result["detection"]["accuracy"] >= 0.95
    assert result["detection"]["all_think"] < 0.8
