"""What every block of settings is made of."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

MAX_SEED: Final = 2**53 - 1
"""Largest seed of an episode: the largest integer that every JSON reader keeps exact."""

NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """A frozen block of settings that refuses keys it does not know, infinities and NaN.

    In paths `~` and `${NAME}` are expanded.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    @field_validator("*")
    @classmethod
    def _expand_paths(cls, value: object) -> object:
        match value:
            case Path():
                return Path(expand_path(str(value)))
            case tuple():
                return tuple(map(cls._expand_paths, value))
            case list():
                return [cls._expand_paths(item) for item in value]
            case _:
                return value


def expand_path(text: str) -> str:
    """`text` with the home folder for a leading `~` and environment variables for `${NAME}`.

    Raises ValueError: an unset variable, an unknown user, another way to write a variable.
    """

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if name not in os.environ:
            raise ValueError(
                f"{text!r} needs the environment variable {name}, which is not set; set it, or "
                "write its value in the place of ${" + name + "}"
            )
        return os.environ[name]

    if other := re.search(r"\$(?!\{\w+\})\{?(\w*)", text):
        name = other[1] or "NAME"
        raise ValueError(f"{text!r} has {other[0]!r}; write an environment variable as ${{{name}}}")
    expanded = os.path.expanduser(re.sub(r"\$\{(\w+)\}", value_of, text))
    if expanded.startswith("~"):
        raise ValueError(f"{text!r} is the home folder of no user; write the folder out, or ./~")
    return expanded


def check_budgets(budgets: tuple[int, ...], place: str) -> None:
    """Raise ValueError unless `budgets` is a non-empty strictly increasing tuple."""
    if not budgets or any(a >= b for a, b in pairwise(budgets)):
        raise ValueError(f"{place} {list(budgets)} must be increasing, for instance [16, 32, 64]")
