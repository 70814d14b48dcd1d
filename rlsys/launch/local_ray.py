"""A Ray of one machine that answers this machine and this run only.

Whoever reaches Ray's ports can run code as the user, unless Ray asks for a token. So a local Ray
listens at the loopback address, and every call needs the secret of the session.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

AUTH_VARIABLES: Final = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")


@contextmanager
def closed_to_others() -> Iterator[None]:
    """Give the local Ray that is started in the block its address and its secret.

    The secret is an environment variable of the run's processes, which only their user can read. A
    RAY_AUTH_MODE that the user has set stays as it is.
    """
    from ray._private import ray_constants

    before = {name: os.environ.get(name) for name in AUTH_VARIABLES}
    clusters = ray_constants.ENABLE_RAY_CLUSTER
    # Ray has no option for the loopback address: it replaces 127.0.0.1 by the address of the
    # machine, except where this is False, as on macOS.
    ray_constants.ENABLE_RAY_CLUSTER = False
    if before["RAY_AUTH_MODE"] is None:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    _read_again()
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _read_again()


def _read_again() -> None:
    """Let Ray read its variables: it keeps what they were when it was imported."""
    import ray

    raylet: Any = ray._raylet
    # In this order: a thread of an old session may ask for the token in between, and Ray aborts the
    # process if it then wants a token that is gone.
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
