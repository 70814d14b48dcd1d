"""Every command in the manual is carried out as far as it goes without a GPU, a cluster or a hub.

The words of a command are read by the program that takes them: rlsys, Ray, Make, or a script of
benchmarks/. Settings are loaded and checked; a dry run and `rlsys config` are run as they stand.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rlsys.assets import shipped_config
from rlsys.cli.app import app
from rlsys.config.evaluation_sets import SetsConfig
from rlsys.config.loading import load_config
from rlsys.config.sft import SftConfig

ROOT = Path(__file__).parents[1]
FOLDERS = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "benchmarks/**/*.md", "cluster/**/*.md")
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SHELL = {"", "bash", "sh", "console"}
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")
VARIABLE = re.compile(r'^(\w+)="(.*)"$', re.MULTILINE)
PROGRAMS = ("rlsys", "python", "ray", "make")
PLACEHOLDERS = re.compile(
    r"CONFIG\.yaml|\[key\.path=value\]\.\.\.|\.\.\.|my\.yaml|\bsft\.yaml|/shared/run\.yaml"
)
"""Words that stand for something of the reader's own; such a command cannot be carried out."""


@dataclass(frozen=True)
class Documented:
    """A command and the page that shows it."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def documented() -> Iterator[Documented]:
    """Every command in a fenced block, without its comment and its variables."""
    for page in sorted({page for folder in FOLDERS for page in ROOT.glob(folder)}):
        blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
        for block in (text for language, text in blocks if language in SHELL):
            joined = block.replace("\\\n", " ")
            for name, value in VARIABLE.findall(joined):
                joined = joined.replace(f"${name}", value)
            for line in joined.splitlines():
                if PLACEHOLDERS.search(line) or "batch.problem=32" in line or ": " in line[:8]:
                    continue
                words = _words(line)
                if words and words[0] in PROGRAMS:
                    yield Documented(str(page.relative_to(ROOT)), tuple(words))


def _words(line: str) -> list[str]:
    """The words of one command; the first one of several in a line."""
    try:
        words = shlex.split(line.strip().removeprefix("$ "), comments=True)
    except ValueError:
        return []  # a picture or prose
    while words and ASSIGNMENT.fullmatch(words[0]):
        words.pop(0)
    ends = [i for i, word in enumerate(words) if word in {"|", "&&", ";", ">", "&"}]
    return words[: ends[0]] if ends else words


COMMANDS = list(documented())


def test_the_manual_shows_commands() -> None:
    assert len(COMMANDS) > 80


@pytest.mark.parametrize("page", sorted({command.page for command in COMMANDS}))
def test_commands_of_a_page(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for command in COMMANDS:
        if command.page == page:
            print(command)  # names it, should it fail
            carry_out(list(command.words))


def carry_out(words: list[str]) -> None:
    """Raise whatever error the words of one command lead to."""
    match words:
        case ["rlsys", ("train" | "plan") as verb, file, *rest]:
            _read_rlsys([verb, file, *rest])
            load_config(shipped_config(file) or Path(file), _settings(rest))
            if "--dry-run" in rest:
                _run_rlsys(words[1:])
        case ["rlsys", "sft", file, *rest]:
            load_config(Path(file), _settings(rest), SftConfig)
        case ["rlsys", "eval", "sets", file, *rest]:
            load_config(shipped_config(file) or Path(file), _settings(rest), SetsConfig)
        case ["rlsys", "config", *_]:
            _run_rlsys(words[1:])
        case ["rlsys", *rest]:
            _read_rlsys(rest)
        case ["ray", *rest]:
            _read_ray(rest)
        case ["make", target]:
            assert re.search(f"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case ["python", "-c", code]:
            if "open(" not in code:  # of a file of the reader's own
                subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
        case ["python", script, *rest]:
            options = {word.split("=")[0] for word in rest if word.startswith("--")}
            assert options <= _options(ROOT / script)
        case _:
            raise AssertionError(f"no test for {shlex.join(words)}")


def _settings(words: list[str]) -> list[str]:
    """Those of the words that are `key.path=value`."""
    return [word for word in words if "=" in word and not word.startswith("-")]


def _run_rlsys(words: list[str]) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output


def _options(script: Path) -> set[str]:
    """The options that a script names, or one of the modules beside it that it imports."""
    source = script.read_text()
    for name in re.findall(r"^from (\w+) import", source, re.MULTILINE):
        beside = script.with_name(f"{name}.py")
        source += beside.read_text() if beside.is_file() else ""
    return set(re.findall(r'"(--[\w-]+)"', source))


def _read_rlsys(words: list[str]) -> None:
    """Let the command line read the words, as it does before it runs a command."""
    command = typer.main.get_command(app)
    with command.make_context("rlsys", words) as context:
        _read_rest(command, context, [*context._protected_args, *context.args])


def _read_rest(command: Any, context: Any, words: list[str]) -> None:
    """Read the words of a subcommand; Ray and Typer have classes of their own for commands."""
    while hasattr(command, "resolve_command") and words:
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
        context = command.make_context(name, words, parent=context)
        words = [*context._protected_args, *context.args]


def _read_ray(words: list[str]) -> None:
    from ray.scripts.scripts import cli

    own = words[: words.index("--")] if "--" in words else words
    with cli.make_context("ray", [*own, "--", "true"] if own != words else own) as context:
        _read_rest(cli, context, [*context._protected_args, *context.args])
    if own != words:
        inner = words[words.index("--") + 1 :]
        assert inner[0] == "rlsys"
        _read_rlsys(inner[1:])
