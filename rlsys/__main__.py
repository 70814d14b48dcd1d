"""`python -m rlsys` is `rlsys`."""

from rlsys.cli import main

main()
