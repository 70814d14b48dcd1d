"""Stop signals, and sessions of child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rlsys.signals import STOP_SIGNALS, children_in_own_session, interrupt_on_signals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Put the handlers of the test process back."""
    before = {sign: signal.getsignal(sign) for sign in STOP_SIGNALS}
    yield
    for sign, handler in before.items():
        signal.signal(sign, handler)


@pytest.mark.parametrize("sign", STOP_SIGNALS)
def test_every_stop_signal_interrupts(sign: signal.Signals) -> None:
    interrupt_on_signals()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(sign)


def test_a_closed_terminal_is_ignored_under_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupt_on_signals()
    signal.raise_signal(signal.SIGHUP)


def test_children_leave_the_session_only_inside_the_block() -> None:
    def session() -> int:
        code = "import os; print(os.getsid(0), os.getpid())"
        found = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            preexec_fn=lambda: None,  # as Ray has one
        )
        session, pid = map(int, found.stdout.split())
        return 0 if session == pid else session

    assert session() == os.getsid(0)
    with children_in_own_session():
        assert session() == 0
    assert session() == os.getsid(0)
