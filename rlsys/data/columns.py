"""Which columns of a row are likely meant, where the named ones are missing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Final

import yaml

from rlsys.config.reading import parse_value
from rlsys.data.cells import Row, value_at
from rlsys.errors import DataError

_CHATS: Final = ("messages", "conversations", "conversation")
LIKELY: Final[dict[str, tuple[str, ...]]] = {
    "problem_column": (
        *("problem", "question", "prompt", "query", "instruction", "input", "problem_text"),
        *("question_text", "text", *_CHATS),
    ),
    "answer_column": (
        *("answer", "final_answer", "reward_model.ground_truth", "ground_truth", "gold", "target"),
        *("expected_answer", "gold_answer", "correct_answer", "answers", "label", "solution"),
        *("output", "response", "completion", *_CHATS),
    ),
    "prompt_column": (
        *("problem", "prompt", "question", "query", "instruction", "input", *_CHATS),
    ),
    "response_column": (
        *("response", "completion", "output", "solution", "generation", "answer", *_CHATS),
    ),
    "chosen_column": ("chosen", "chosen_response", "preferred", "response_chosen"),
    "rejected_column": ("rejected", "rejected_response", "dispreferred", "response_rejected"),
    "id_column": ("id", "uid", "uuid", "unique_id", "problem_id", "extra_info.index", "index"),
    "difficulty_column": ("difficulty", "level"),
    "tolerance_column": ("error", "tolerance", "precision"),
}
"""Setting to the names that data sets give such a column, the likeliest first."""

_MOST_SHOWN: Final = 20
"""Columns named in a refusal."""


def guess_column(values: Mapping[str, object], setting: str) -> str | None:
    """Return the likely column of a row for a setting such as `answer_column`, or None.

    Upper and lower case do not count. Example: {"Question": "1+1?", "gold": "2"} has "Question" for
    `problem_column` and "gold" for `answer_column`.
    """
    names = {name.lower(): name for name in reversed(list(leaf_columns(values)))}
    return next((names[name] for name in LIKELY[setting] if name in names), None)


def leaf_columns(values: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yield the columns of a row, those inside an object by their dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaf_columns(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def no_column(row: Row, wanted: Mapping[str, str], key: str) -> DataError:
    """Return the refusal of a row that lacks one of the `wanted` columns (setting to column).

    It lists the columns that there are and proposes `key`.setting=column words where it can.
    """
    missing = {s: column for s, column in wanted.items() if not value_at(row.values, column)[0]}
    names = list(dict.fromkeys(" ".join(n.split()) for n in leaf_columns(row.values)))
    more = f" and {len(names) - _MOST_SHOWN} more" * (len(names) > _MOST_SHOWN)
    words = [
        setting_word(f"{key}.{setting}", guess)
        for setting in missing
        if (guess := guess_column(row.values, setting)) is not None
    ]
    settings = " and ".join(f"{key}.{setting}" for setting in missing)
    remedy = f"try {' '.join(words)}" if words else f"name the right one with {settings}"
    return DataError(
        f"{row.place}: no column {' and no column '.join(map(repr, missing.values()))} among "
        f"{', '.join(names[:_MOST_SHOWN]) or 'none at all'}{more}; {remedy}"
    )


def plain_word(setting: str, value: object) -> str:
    """Return the `key=value` word that sets a value, the text in quotes where YAML needs them."""
    try:
        plain = isinstance(value, str) and parse_value(value) == value
    except yaml.YAMLError:
        plain = False
    return f"{setting}={value if plain else json.dumps(value, ensure_ascii=False)}"


def setting_word(setting: str, value: object) -> str:
    """Return the `key=value` word as a shell takes it.

    Example: setting_word("data.train.limit", 8) == "data.train.limit=8"
    """
    return shlex.quote(plain_word(setting, value))
