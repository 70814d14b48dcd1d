"""From `environment.type` to the class of the environment: the one place that tells kinds apart."""

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
}
"""Kinds that ship with rlsys. Each class names its settings (`Config`), and these name the methods
that train it. Any other `environment.type` is an import path: see rlsys.config.plugins."""


def environment_class(config: RunConfig) -> type[EnvironmentClass]:
    """Return the class that `environment.type` names."""
    if outside := plugins.environment_class(config):
        return outside
    module, _, name = BUILT_IN[config.environment.type].partition(":")
    found: type[EnvironmentClass] = getattr(import_module(module), name)
    return found
