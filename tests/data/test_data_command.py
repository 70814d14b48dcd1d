"""`rlsys data`: what it prints, and that its words train on what it showed."""

import json
import shlex
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from rlsys.cli.app import app
from rlsys.config import RunConfig
from rlsys.config.loading import load_config
from rlsys.data.problems import load_problems


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["data", *map(str, words)])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stderr if code else result.stdout


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_columns_are_guessed_and_the_words_read_the_same(tmp_path: Path) -> None:
    path = write(
        tmp_path / "my rows.jsonl",
        {"Question": "1+2? [bold]", "meta": {"gold": 3}, "final_answer": ["3", r"\frac{6}{2}"]},
        {"Question": "Who?", "meta": {"gold": 3}, "final_answer": ["Ann"]},
        {"Question": "Is it?", "meta": {"gold": 3}, "final_answer": [None]},
    )
    assert "line 3: column 'final_answer'" in run(path, code=2)
    shown = run(path, "data.train.limit=2", "data.prompt.template='{problem} Think.'")
    assert f"JSON lines: {path}" in shown
    assert "1+2? [bold] Think." in shown
    assert r"gold: 3  or  \frac{6}{2}" in shown
    assert "golds: 1 several golds, any of them right, 1 word" in shown
    last = shlex.split(shown.splitlines()[-1])
    assert last[:3] == ["rlsys", "train", "CONFIG.yaml"]
    assert "data.prompt.template='{problem} Think.'" in last
    source = load_config(None, last[3:], RunConfig).data.train
    assert [problem.answer for problem in load_problems(source)] == ["3\x1f\\frac{6}{2}", "Ann"]


def test_golds_that_nothing_can_work_out_are_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        {"problem": "1?", "answer": "9^{9^{9}}"},
        {"problem": "2?", "answer": r"\sqrt{2}"},
        {"problem": "3?", "answer": "2"},
    )
    shown = run(path)
    assert "only right in its own spelling: row-0 '9^{9^{9}}'" in shown
    assert "1 number" in shown and "1 expression, compared by math-verify" in shown


def test_with_a_model_the_prompt_is_rendered(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"problem": "1+2", "answer": "3"})
    shown = run(path, "model.path=tiny", "data.prompt.max_tokens=5")
    assert "<bos>1+2=<think>" in shown
    assert "prompt length in tokens: median 6" in shown
    assert "1 longer than data.prompt.max_tokens 5" in shown


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    assert "does not exist" in run(tmp_path / "none.jsonl", code=2)
    assert "was given no file" in run("data.train.size=3", code=2)
    assert "unknown key" in run("a.jsonl", "data.train.colum=x", code=2)
    empty = write(tmp_path / "empty.jsonl")
    assert "is empty" in run(empty, code=2)
    path = write(tmp_path / "a.jsonl", {"x": 1})
    assert "no column 'problem' and no column 'answer' among x" in run(path, code=2)
