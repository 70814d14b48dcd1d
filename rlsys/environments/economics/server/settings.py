"""The server's configuration from environment variables, for containers and Spaces."""

from __future__ import annotations

from collections.abc import Mapping

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from rlsys.config.economics import EconomicsConfig, EconomicsServerConfig
from rlsys.config.loading import check_tree
from rlsys.config.reading import parse_value
from rlsys.errors import ConfigError

PREFIX = "ECONOMICS_"


def config_from_environment(variables: Mapping[str, str]) -> EconomicsServerConfig:
    """Return the configuration in the variables `ECONOMICS_<SETTING>`; blank ones are ignored.

    A setting is a field of EconomicsServerConfig or of EconomicsConfig. Its value is YAML, as on
    the command line, except that a text needs no quotes: `::` is a valid host.
    Raises ConfigError for an unknown setting or a wrong value.

    Example: {"ECONOMICS_MODE": "soft", "ECONOMICS_CORPUS": "{source: datasets, prod: true}"}
    """
    server: dict[str, object] = {}
    environment: dict[str, object] = {}
    for variable in sorted(variables):
        text = variables[variable].strip()
        if not variable.startswith(PREFIX) or not text:
            continue
        setting = variable.removeprefix(PREFIX).lower()
        if setting in EconomicsConfig.model_fields:
            environment[setting] = _value(variable, text, EconomicsConfig.model_fields[setting])
        elif setting in EconomicsServerConfig.model_fields and setting != "environment":
            server[setting] = _value(variable, text, EconomicsServerConfig.model_fields[setting])
        else:
            raise ConfigError(
                f"{variable} names no setting; EconomicsConfig in rlsys/config/economics.py lists "
                f"the settings of the environment, and {_server_settings()} are the server's"
            )
    try:
        return check_tree({**server, "environment": environment}, EconomicsServerConfig)
    except ValidationError as error:
        lines = []
        for detail in error.errors(include_url=False):
            path = [str(part) for part in detail["loc"] if part != "environment"]
            variable = PREFIX + path[0].upper() if path else f"{PREFIX}..."
            lines.append(f"{variable}: {'.'.join([*path[1:], detail['msg']])}")
        raise ConfigError("\n".join(lines)) from None


def _server_settings() -> str:
    fields = [name for name in EconomicsServerConfig.model_fields if name != "environment"]
    return ", ".join(PREFIX + name.upper() for name in fields)


def _value(variable: str, text: str, field: FieldInfo) -> object:
    optional = field.annotation == str | None
    # Fields of text take the value as it is, because YAML would read 12 or :: as something else.
    quoted = text[0] in "'\""
    null = optional and text in ("null", "~")
    if (optional or field.annotation is str) and not quoted and not null:
        return text
    try:
        return parse_value(text)
    except yaml.YAMLError:
        raise ConfigError(f"{variable}={text!r} is not a YAML value; quote the text") from None
