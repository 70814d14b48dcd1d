"""The calculator agent: arithmetic that executes nothing, and an episode with a tool call."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from agent_play import TOKENIZER, Engine, play
from typer.testing import CliRunner

from examples.calculator.calculator import evaluate, use_tool
from rlsys.cli.app import app
from rlsys.types import Kind, Problem, Verdict

ROOT = Path(__file__).parents[2]
AGENT = "examples.calculator.calculator:solve"


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import paths are looked up in the current directory too."""
    monkeypatch.chdir(ROOT)


def test_expressions_are_computed_exactly() -> None:
    cases = {
        "3+8-2": 9,
        " (3 + 8) / 2 ": Fraction(11, 2),
        "-2*-3": 6,
        "-" * 199 + "1": -1,
        "0.1+0.2": Fraction(3, 10),
        "2*(3*(4))": 24,
    }
    for text, value in cases.items():
        assert evaluate(text) == value, text
    assert use_tool("calculator", '{"expression": "7/2"}') == "7/2"


def test_everything_else_is_a_sentence_and_nothing_is_executed() -> None:
    hostile = (
        *("__import__('os').system('true')", "9**9**9", "1/0", "x", "True+1", "1j", "'a'*3"),
        *("[1]", "1 if 1 else 2", "1;2", "", "1" * 201, "(" * 150, "1e999999"),
    )
    for text in hostile:
        with pytest.raises((ValueError, SyntaxError, ArithmeticError, MemoryError)):
            evaluate(text)
    for name, arguments in (
        ("calculator", '{"expression": "1/0"}'),
        ("calculator", '{"expression": 3}'),
        ("calculator", "{}"),
        ("calculator", json.dumps({"expression": "*".join(["9e300"] * 28)})),  # too many digits
        ("shell", '{"expression": "1"}'),
    ):
        assert use_tool(name, arguments).startswith("error: ")


def test_a_tool_call_is_answered_and_only_what_was_sampled_is_trained() -> None:
    call = '{"name": "calculator", "arguments": {"expression": "3+8-2"}}'

    def write(prompt: str) -> str:
        if prompt.endswith("9\n<think>"):
            return "</think>\\boxed{9}"
        return f"1;</think><tool_call>{call}</tool_call>"

    problem = Problem(id="p", text="3+8-2", answer="9")
    group, _ = play(Engine(write), problem, agent=AGENT, budget=200)
    for episode in group.episodes:
        assert episode.verdicts.tolist() == [Verdict.RIGHT]
        assert episode.scores.tolist() == [1.0]
        assert episode.agent == (2, 1, None)
        kinds = [segment.kind for segment in episode.segments]
        assert kinds == [Kind.PROMPT, Kind.ANSWER, Kind.OBSERVATION, Kind.ANSWER]
        assert TOKENIZER.decode(episode.segments[2].token_ids) == "9\n<think>"


def test_the_dry_run_of_the_example_passes() -> None:
    words = ["train", "examples/calculator/calculator.yaml", "environment.budget=512", "--dry-run"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "training and 64 held-out problems" in shown.output
