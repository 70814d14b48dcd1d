"""Entry points of containers: `uvicorn server.app:app`, or the command `server`.

Both read ECONOMICS_* variables. `rlsys serve-env` reads a YAML file and the command line instead.
"""

from __future__ import annotations

import os

from rlsys.environments.economics.server.application import create_economics_app, serve
from rlsys.environments.economics.server.settings import config_from_environment

app = create_economics_app(config_from_environment(os.environ))


def main() -> None:
    """Serve on ECONOMICS_HOST and ECONOMICS_PORT."""
    serve(config_from_environment(os.environ))
