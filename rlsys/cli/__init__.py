"""The command line; `main` is the `rlsys` command."""

from rlsys.cli.app import main

__all__ = ["main"]
