"""Retries of a command: which exit codes get one, and what a signal does."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import wait_until

from rlsys.launch import attempts
from rlsys.launch.attempts import Attempts
from rlsys.signals import STOP_SIGNALS


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No pause between attempts, and the handlers of the test process are put back."""
    monkeypatch.setattr(attempts, "PAUSE_SECONDS", 0.0)
    before = {sign: signal.getsignal(sign) for sign in STOP_SIGNALS}
    yield
    for sign, handler in before.items():
        signal.signal(sign, handler)


def test_which_ends_are_retried(tmp_path: Path) -> None:
    """Each attempt takes the next end from the list; `-9` kills itself."""
    for ends, retries, code, told in (
        ("0", 3, 0, 0),
        ("2 0", 3, 2, 0),
        ("130 0", 3, 130, 0),
        ("1 0", 3, 0, 1),
        ("1 -9 0", 3, 0, 2),
        ("-9 1 0", 1, 1, 1),
        ("-9 0", 0, 137, 0),
    ):
        file = tmp_path / "ends"
        file.write_text(ends)
        script = (
            f"file={file}; set -- $(cat $file); next=$1; shift; echo $* > $file; "
            '[ "$next" = -9 ] && kill -9 $$; exit $next'
        )
        sentences: list[str] = []
        assert Attempts(["bash", "-c", script], sentences.append).run(retries) == code, ends
        assert len(sentences) == told, ends
    assert "exit code 137 and is started again" in _told("-9 0", tmp_path)


def _told(ends: str, tmp_path: Path) -> str:
    (tmp_path / "once").write_text("")
    script = f"[ -e {tmp_path}/once ] && rm {tmp_path}/once && kill -9 $$; exit 0"
    sentences: list[str] = []
    assert Attempts(["bash", "-c", script], sentences.append).run(1) == 0
    return " ".join(sentences)


RUNNER = """
import sys
from rlsys.launch.attempts import Attempts
raise SystemExit(Attempts(["bash", "-c", sys.argv[1]], print).run(5))
"""


def test_a_signal_reaches_the_child_and_ends_the_retries(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'exit 7' TERM; touch {ready}; while :; do sleep 0.05; done"
    process = subprocess.Popen([sys.executable, "-c", RUNNER, script])
    assert wait_until(ready.exists, 60)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 130


def test_the_child_is_told_to_stop_when_its_parent_is_killed(tmp_path: Path) -> None:
    pid, saved = tmp_path / "pid", tmp_path / "saved"
    script = f"trap 'touch {saved}; exit' TERM; echo $$ > {pid}; while :; do sleep 0.05; done"
    process = subprocess.Popen([sys.executable, "-c", RUNNER, script])
    assert wait_until(lambda: pid.exists() and bool(pid.read_text()), 60)
    process.kill()
    process.wait()
    assert wait_until(saved.exists, 30)
