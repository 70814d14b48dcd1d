"""The server's configuration from environment variables, as containers and Spaces set them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from rlsys.environments.economics.config import EconomicsConfig, EconomicsServerConfig
from rlsys.errors import ConfigError

PREFIX = "ECONOMICS_"


def config_from_environment(variables: Mapping[str, str]) -> EconomicsServerConfig:
    """Return the configuration that `ECONOMICS_<SETTING>` variables give; blank ones say nothing.

    A setting is a field of EconomicsServerConfig or of EconomicsConfig, its value YAML.
    Raises ConfigError for an unknown setting or a wrong value.

    Example: {"ECONOMICS_MODE": "soft", "ECONOMICS_CORPUS": "{source: datasets, prod: true}"}
    """
    server: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    for variable in sorted(variables):
        text = variables[variable].strip()
        if not variable.startswith(PREFIX) or not text:
            continue
        setting = variable.removeprefix(PREFIX).lower()
        if setting in EconomicsConfig.model_fields:
            environment[setting] = _value(variable, text)
        elif setting in EconomicsServerConfig.model_fields and setting != "environment":
            server[setting] = _value(variable, text)
        else:
            raise ConfigError(f"{variable} names no setting; docs/economics.md lists them all")
    tree = json.dumps({**server, "environment": environment}, default=str)
    try:
        return EconomicsServerConfig.model_validate_json(tree, strict=True)
    except ValidationError as error:
        lines = []
        for detail in error.errors(include_url=False):
            path = [str(part) for part in detail["loc"] if part != "environment"]
            variable = PREFIX + path[0].upper() if path else f"{PREFIX}..."
            lines.append(f"{variable}: {'.'.join([*path[1:], detail['msg']])}")
        raise ConfigError("\n".join(lines)) from None


def _value(variable: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"{variable}={text!r} is not a YAML value; quote the text") from None
