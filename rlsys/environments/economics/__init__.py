"""Ten problems, one token budget: an episodic environment, in process or served as OpenEnv.

Reading order: rewards -> counting -> budget -> questions -> sampler -> episode -> environment ->
client and server. Everything up to `episode` runs without OpenEnv, which takes seconds to import;
hence the lazy names here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlsys.environments.economics.client import EconomicsClient
    from rlsys.environments.economics.config import EconomicsConfig
    from rlsys.environments.economics.environment import EconomicsEnvironment

__all__ = ["EconomicsClient", "EconomicsConfig", "EconomicsEnvironment"]


def __getattr__(name: str) -> Any:
    match name:
        case "EconomicsClient":
            from rlsys.environments.economics.client import EconomicsClient

            return EconomicsClient
        case "EconomicsConfig":
            from rlsys.environments.economics.config import EconomicsConfig

            return EconomicsConfig
        case "EconomicsEnvironment":
            from rlsys.environments.economics.environment import EconomicsEnvironment

            return EconomicsEnvironment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
