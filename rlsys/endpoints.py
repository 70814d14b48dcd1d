"""The client of OpenAI-compatible endpoints: language models as teachers and as agents."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rlsys.config_parts import EndpointSection
from rlsys.errors import ConfigError, ResourceError

if TYPE_CHECKING:
    from openai import AsyncOpenAI


def endpoint_client(config: EndpointSection) -> AsyncOpenAI:
    """Return a client that tries again by itself; nothing is asked yet.

    Raises:
        ResourceError: the client's package is not installed.
        ConfigError: the environment variable of the key is not set.
    """
    if find_spec("openai") is None:
        raise ResourceError("endpoints need openai; install it with pip install 'rlsys[eval]'")
    from openai import AsyncOpenAI

    return AsyncOpenAI(
        base_url=config.base_url,
        api_key=_key(config),
        timeout=config.timeout_s,
        max_retries=config.retries,  # pauses of 0.5 s, 1 s, 2 s, … up to 8 s between attempts
    )


def reason(error: Exception) -> str:
    """The error's kind and first line, with its cause where the error itself says little."""
    cause = f": {error.__cause__}" if error.__cause__ and str(error.__cause__) else ""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}{cause}"


def _key(config: EndpointSection) -> str:
    if config.api_key_env is None:
        return "none"  # the client insists on one
    if key := os.environ.get(config.api_key_env):
        return key
    raise ConfigError(
        f"environment variable {config.api_key_env}, the key of the endpoint {config.base_url}, is "
        "not set; export it, or correct api_key_env"
    )
