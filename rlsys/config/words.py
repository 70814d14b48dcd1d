"""The words of a command line that set keys: `key.path=value`, and what users type instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from rlsys.config.explain import ConfigPath
from rlsys.config.reading import parse_value, yaml_reason
from rlsys.errors import ConfigError

EXAMPLE = "for instance batch.problems=16"


def parse_words(words: Sequence[str]) -> list[tuple[ConfigPath, Any]]:
    """Path and value of every setting in `words`, in their order.

    `--key=value`, `--key value` and Hydra's `+key=value` are read as `key=value`.

    Raises ConfigError for a word that sets nothing, and for a value that is not YAML.
    """
    settings = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word.startswith("--") and "=" not in word:
            if not waiting or "=" in waiting[0] or waiting[0].startswith("--"):
                raise ConfigError(
                    f"'{word}' is no option of this command, and no setting without a value; "
                    f"--help lists the options, and a setting is key.path=value, {EXAMPLE}"
                )
            word = f"{word}={waiting.pop(0)}"
        settings.append(_parse_word(word))
    return settings


def _parse_word(word: str) -> tuple[ConfigPath, Any]:
    key, equals, text = word.partition("=")
    if key.startswith("~"):
        raise ConfigError(
            f"'{word}' cannot remove a key; set another value, or {key[1:]}=null if it may be null"
        )
    key = key.strip().removeprefix("--").lstrip("+")
    path = tuple(key.split("."))
    if not equals or not all(path):
        raise ConfigError(f"'{word}' must be key.path=value, {EXAMPLE}")
    try:
        # A shell eats the quotes of key="" and key=" ", so blanks are text; `null` says None.
        return path, parse_value(text) if text.strip() else text
    except yaml.YAMLError as error:
        raise ConfigError(
            f"the value of '{word}' is not valid YAML ({yaml_reason(error)}); put text in quotes"
        ) from None
