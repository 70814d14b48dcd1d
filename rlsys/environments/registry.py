"""Map `environment.type` to the class of the environment. Only this module lists the kinds."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from rlsys.config import RunConfig, plugins
from rlsys.environments.base import EnvironmentClass

BUILT_IN: Final = {
    "anytime": "rlsys.environments.anytime:AnytimeEnvironment",
    "reflection": "rlsys.reflection.environment:RevisionEnvironment",
    "economics": "rlsys.environments.economics.training:SharedBudgetEnvironment",
    "openenv": "rlsys.environments.openenv.environment:ServedEnvironment",
    "agent": "rlsys.environments.agent.environment:AgentEnvironment",
}
"""Kinds that ship with rlsys. Each class has its settings as `Config`, and the settings list the
methods that can train it. Any other `environment.type` is an import path: see rlsys.config.plugins.

The classes are imported by name and on demand: most of them need libraries that a run of another
kind does not use."""


def environment_class(config: RunConfig) -> type[EnvironmentClass]:
    """Return the class that `environment.type` names."""
    if outside := plugins.environment_class(config):
        return outside
    module, _, name = BUILT_IN[config.environment.type].partition(":")
    found: type[EnvironmentClass] = getattr(import_module(module), name)
    return found
