"""Ten problems that share one token budget: an environment for this process or an OpenEnv server.

This folder is the game. `server/` serves it, `benchmark/` compares agents on it; the game imports
neither. Reading order: rewards, counting, budget, questions, sampler, episode, environment. The
names below load lazily because `environment` and `client` import OpenEnv, which takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlsys.config.economics import EconomicsConfig
    from rlsys.environments.economics.client import EconomicsClient
    from rlsys.environments.economics.environment import EconomicsEnvironment

__all__ = ["EconomicsClient", "EconomicsConfig", "EconomicsEnvironment"]


def __getattr__(name: str) -> object:
    match name:
        case "EconomicsClient":
            from rlsys.environments.economics.client import EconomicsClient

            return EconomicsClient
        case "EconomicsConfig":
            from rlsys.config.economics import EconomicsConfig

            return EconomicsConfig
        case "EconomicsEnvironment":
            from rlsys.environments.economics.environment import EconomicsEnvironment

            return EconomicsEnvironment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
