"""A real server of the economics environment in a process of its own, and its raw frames."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import requests
from openenv.validation import ExecResult, ProviderCapability
from websockets.sync.client import ClientConnection, connect

import rlsys.environments.economics as economics

FOLDER = Path(economics.__file__).parent


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Server:
    """A uvicorn process that serves `app` from an environment's folder, by default economics'."""

    def __init__(
        self,
        app: str = "server.app:app",
        log: IO[str] | None = None,
        folder: Path = FOLDER,
        port: int | None = None,
        **variables: str,
    ) -> None:
        port = port or free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-W", "ignore", "-m", "uvicorn", app, "--log-level", "warning"]
        command += ["--port", str(port)]
        environ = os.environ | variables
        self.process = subprocess.Popen(command, cwd=folder, env=environ, stderr=log)
        try:
            self._wait_until_healthy()
        except BaseException:
            self.stop()
            raise

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if requests.get(f"{self.url}/health", timeout=2).status_code == 200:
                    return
            except requests.RequestException:
                time.sleep(0.2)
        raise RuntimeError("the server did not become healthy")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def memory_mib(self) -> float:
        """Resident memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024


class Session:
    """A raw session: `ask(frame)` sends text or an object and returns the answer."""

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket

    def __call__(self, frame: object) -> Any:
        self.websocket.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))
        return json.loads(self.websocket.recv(timeout=120))


@contextmanager
def session(url: str, path: str = "/ws") -> Iterator[Session]:
    """A raw session that is open."""
    with connect(url.replace("http", "ws") + path, max_size=None, close_timeout=2) as websocket:
        yield Session(websocket)


def reset(ask: Session, **options: Any) -> Any:
    return ask({"type": "reset", "data": options})


def step(ask: Session, response: object, **metadata: Any) -> Any:
    return ask({"type": "step", "data": {"response": response, "metadata": metadata}})


def arithmetic(question: str) -> int:
    """The answer to a generated question."""
    signed = question.replace("-", "+-").split("+")
    return sum(int(term) for term in signed if term)


def code(answer: Any) -> Any:
    """The code of an error frame; None in any other."""
    return answer["data"].get("code")


class LocalProvider:
    """Lets OpenEnv's runtime graders examine a local process instead of a container."""

    name = "local-process"
    capabilities = frozenset({ProviderCapability.IMAGE_BUILD, ProviderCapability.EXEC})
    supported_network_modes = frozenset({"public"})

    def build(self, root: Path, execution: object) -> str:
        return "sha256:" + hashlib.sha256(str(root).encode()).hexdigest()

    def start(self, spec: object) -> "LocalSubject":
        return LocalSubject()


class LocalSubject(Server):
    """A server as the graders see one."""

    @property
    def base_url(self) -> str:
        return self.url

    def inspect(self) -> dict[str, int]:
        return {"pid": self.process.pid}

    def logs(self, max_bytes: int = 65536) -> str:
        return ""

    def exec(self, argv: Sequence[str], timeout_s: float) -> ExecResult:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s)
        return ExecResult(done.returncode, done.stdout, done.stderr, 0.0)
