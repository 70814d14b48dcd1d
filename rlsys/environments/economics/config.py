"""Settings of the environment (rlsys.config.economics, beside all others) and of its server."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from rlsys.config.base import Section
from rlsys.config.economics import (
    METAMATH_TYPES,
    NUMINA_TYPE,
    ArithmeticCorpus,
    Corpus,
    DatasetsCorpus,
    EconomicsConfig,
    Table,
)

__all__ = [
    "METAMATH_TYPES",
    "NUMINA_TYPE",
    "ArithmeticCorpus",
    "Corpus",
    "DatasetsCorpus",
    "EconomicsConfig",
    "EconomicsServerConfig",
    "Table",
]


class EconomicsServerConfig(Section):
    """The environment served over HTTP and WebSocket."""

    environment: EconomicsConfig = EconomicsConfig()
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    max_sessions: PositiveInt = 64
    """Sessions at once; the next one is told so and closed."""
    idle_timeout_s: PositiveFloat = 900.0
    """A session that sends nothing for so long is closed."""
    max_frame_characters: PositiveInt = 1024 * 1024
    """Longer messages are answered with an error; several times as long, the socket is closed."""
