"""What every block of settings is made of."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """A frozen block of settings that refuses keys it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True
    )


def check_budgets(budgets: tuple[int, ...], place: str) -> None:
    """Raise ValueError unless `budgets` is a non-empty strictly increasing tuple."""
    if not budgets or any(a >= b for a, b in pairwise(budgets)):
        raise ValueError(f"{place} {list(budgets)} must be increasing, for instance [16, 32, 64]")
