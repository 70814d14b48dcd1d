"""The economics environment as an application of Ray Serve: several replicas, one address.

KubeRay's RayService names `application` (cluster/kubernetes/environments). On any Ray cluster:

    serve run rlsys.launch.environment_service:application max_sessions=128

One process without Ray is `rlsys serve-env`.
"""

from __future__ import annotations

import json

from fastapi import FastAPI
from ray import serve

from rlsys.config import EconomicsServerConfig
from rlsys.config.loading import load_config
from rlsys.errors import ConfigError


def application(settings: dict[str, object]) -> serve.Application:
    """Return the Serve application for `settings`: those of `rlsys serve-env`, by dotted key.

    A session is one WebSocket, and Serve keeps a WebSocket on the replica that accepted it. So each
    replica has `max_sessions` sessions of its own. Sessions over plain HTTP need one replica.

    Raises ConfigError for unknown settings, and for host and port, which belong to Serve.

    Example: application({"max_sessions": 128, "environment.mode": "soft"})
    """
    for place in ("host", "port"):
        if place in settings:
            raise ConfigError(
                f"{place} {settings[place]!r} has no effect behind Ray Serve; leave it out, and "
                "set http_options of the Serve configuration"
            )
    # `serve run` gives every value as text, a Serve configuration gives numbers as numbers.
    words = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in settings.items()
    ]
    config = load_config(None, words, EconomicsServerConfig)

    def build() -> FastAPI:
        from rlsys.environments.economics.server.application import create_economics_app

        return create_economics_app(config)

    server = serve.ingress(build)()
    return serve.deployment(server, name="EconomicsServer").bind()
