"""`rlsys data`: show the problems that a run would read from files, before training on them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from rlsys.cli.common import sentences, terminal
from rlsys.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text
    from transformers import PreTrainedTokenizerBase

    from rlsys.config import FileData, HubData, PromptConfig
    from rlsys.data.problems import ProblemSet
    from rlsys.tokenization.prompts import PromptRenderer
    from rlsys.types import Problem

SHOWN: Final = 3
"""Number of problems that are shown, and of gold answers that are listed."""

_SPECIAL: Final = "bold magenta"
"""Style of special tokens."""

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE... [key.path=value]...",
        help="Files, folders, globs or URLs, and settings as for `rlsys train`: "
        "data.train.answer_column=gold, or model.path=MODEL to show whole prompts.",
    ),
]


def data(words: Words) -> None:
    """Show the problems that a run would read from files, and the settings for that run."""
    with sentences():
        from rlsys.config import ArithmeticData, CountdownData, RunConfig
        from rlsys.config.loading import load_config
        from rlsys.data.problems import load_problem_set
        from rlsys.data.report import first_row, guessed_columns

        overrides = _overrides(words)
        config = load_config(None, overrides, RunConfig)
        source, prompt = config.data.train, config.data.prompt
        if isinstance(source, ArithmeticData | CountdownData):
            raise ConfigError(
                "'rlsys data' was given no file; name one, or set data.train.source=hub and "
                "data.train.name on the command line"
            )
        row = first_row(source)
        values: Mapping[str, object] = {} if row is None else row.values
        given = {word.partition("=")[0].removeprefix("data.train.") for word in overrides}
        guesses = guessed_columns(source, values)
        source = source.model_copy(
            update={name: column for name, column in guesses.items() if name not in given}
        )
        loaded = load_problem_set(source, "data.train")
        renderer = None
        if any(word.startswith("model.path=") for word in overrides):
            renderer = _renderer(config.model.path, prompt)
        console = terminal()
        _print_rows(console, source, values, loaded)
        _print_problems(console, loaded.problems, prompt, renderer)
        _print_lengths(console, loaded.problems, prompt, renderer)
        _print_golds(console, loaded.problems)
        _print_words(console, source, overrides)


def _overrides(words: Sequence[str]) -> list[str]:
    """Return the `key=value` settings; file names are turned into settings."""
    from rlsys.data.columns import plain_word

    settings = [word for word in words if _is_setting(word)]
    paths = [word for word in words if word not in settings]
    if paths:
        settings += ["data.train.source=file", plain_word("data.train.path", paths)]
    return settings


def _is_setting(word: str) -> bool:
    key, equals, _ = word.partition("=")
    dotted = all(part.isidentifier() for part in key.split(".")) and "." in key
    return bool(equals) and dotted and not os.path.exists(word)


def _renderer(model: str, prompt: PromptConfig) -> _Renderer:
    from rlsys.tokenization.prompts import PromptRenderer
    from rlsys.tokenization.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model)
    return _Renderer(tokenizer, PromptRenderer(tokenizer, prompt))


class _Renderer(NamedTuple):
    """Renders a problem as the prompt tokens of a model."""

    tokenizer: PreTrainedTokenizerBase
    renderer: PromptRenderer

    def length(self, problem: Problem) -> int:
        return len(self.renderer.render(problem))

    def shown(self, problem: Problem) -> Text:
        """Return the prompt with its special tokens in colour."""
        from rich.text import Text

        from rlsys.tokenization.decoding import token_texts

        ids = self.renderer.render(problem).tolist()
        special = {*self.tokenizer.all_special_ids, *self.tokenizer.added_tokens_decoder}
        prompt = Text()
        for token, text in zip(ids, token_texts(self.tokenizer, ids), strict=True):
            prompt.append(text, _SPECIAL if token in special else None)
        return prompt


def _print_rows(
    console: Console, source: FileData | HubData, values: Mapping[str, object], loaded: ProblemSet
) -> None:
    from rich.table import Table
    from rich.text import Text

    from rlsys.data.cells import shortened, value_at
    from rlsys.data.columns import leaf_columns
    from rlsys.data.report import described_files

    for line in described_files(source):
        console.print(Text(line), soft_wrap=True)
    console.print(
        f"problems: {len(loaded.problems):,}"
        + f", {loaded.unanswered:,} rows without an answer skipped" * bool(loaded.unanswered),
        highlight=False,
    )
    settings = [
        *("problem_column", "answer_column", "id_column", "difficulty_column", "tolerance_column")
    ]
    table = Table(title="Columns")
    for heading in ("column", "first row", "read as"):
        table.add_column(heading)
    named = [column for name in settings if (column := getattr(source, name)) is not None]
    for column in dict.fromkeys((*leaf_columns(values), *named)):
        _, value = value_at(values, column)
        read_as = ", ".join(name for name in settings if getattr(source, name) == column)
        table.add_row(Text(column), Text(shortened(value)), read_as)
    console.print(table)


def _print_problems(
    console: Console, problems: Sequence[Problem], prompt: PromptConfig, renderer: _Renderer | None
) -> None:
    from rich.text import Text

    from rlsys.grading.golds import read_gold

    for problem in problems[:SHOWN]:
        console.rule(Text(problem.id), align="left")
        if renderer is None:
            text = Text(prompt.template.replace("{problem}", problem.text))
        else:
            text = renderer.shown(problem)
        console.print(text, soft_wrap=True)
        gold = read_gold(problem.answer)
        within = "" if gold.tolerance is None else f"  within {float(gold.tolerance):g}"
        line = f"gold: {'  or  '.join(gold.answers)}{within}"
        console.print(Text(line, "green"), soft_wrap=True)
    console.rule()


def _print_lengths(
    console: Console, problems: Sequence[Problem], prompt: PromptConfig, renderer: _Renderer | None
) -> None:
    from rlsys.data.report import measure_lengths

    if renderer is None:
        unit, lengths = "characters", measure_lengths(problems, lambda p: len(p.text))
    else:
        unit = "tokens"
        lengths = measure_lengths(problems, renderer.length, prompt.max_tokens)
    line = (
        f"{'problem' if renderer is None else 'prompt'} length in {unit}: median "
        f"{lengths.median:,}, 90 % up to {lengths.p90:,}, 99 % up to {lengths.p99:,}, longest "
        f"{lengths.longest:,}"
    )
    if lengths.measured < len(problems):
        line += f" (of {lengths.measured:,} problems, evenly spread)"
    if lengths.too_long:
        line += (
            f"; {lengths.too_long:,} longer than data.prompt.max_tokens {prompt.max_tokens:,}, "
            "which a run drops"
        )
    console.print(line, highlight=False, soft_wrap=True)


def _print_golds(console: Console, problems: Sequence[Problem]) -> None:
    from rich.text import Text

    from rlsys.data.cells import shortened
    from rlsys.data.report import examine_golds

    report = examine_golds(problems)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in report.kinds.items())
    console.print(f"golds: {kinds}", highlight=False, soft_wrap=True)
    for problem in report.only_spelling[:SHOWN]:
        line = f"  only right in its own spelling: {problem.id} {shortened(problem.answer)}"
        console.print(Text(line, "yellow"), soft_wrap=True)
    if report.unchecked:
        console.print(f"  {report.unchecked:,} more expressions were not tried", highlight=False)


def _print_words(console: Console, source: FileData | HubData, overrides: Sequence[str]) -> None:
    from rich.text import Text

    from rlsys.data.report import training_words

    more = [shlex.quote(w) for w in overrides if w.startswith(("data.prompt.", "model."))]
    words = " ".join((*training_words(source), *more))
    console.print("to train on it:", highlight=False)
    console.print(Text(f"rlsys train CONFIG.yaml {words}", "bold"), soft_wrap=True)
