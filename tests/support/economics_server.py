"""A real server of the economics environment in a process of its own, and its raw frames."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import requests
from openenv.validation import ExecResult, ProviderCapability
from websockets.sync.client import connect

import rlsys.environments.economics as economics

FOLDER = Path(economics.__file__).parent


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A uvicorn process that serves `app` from an environment's folder, by default economics'."""

    def __init__(self, app="server.app:app", log=None, folder=FOLDER, port=None, **variables):
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

    def _wait_until_healthy(self):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if requests.get(f"{self.url}/health", timeout=2).status_code == 200:
                    return
            except requests.RequestException:
                time.sleep(0.2)
        raise RuntimeError("the server did not become healthy")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def memory_mib(self):
        """Resident memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024


@contextmanager
def session(url, path="/ws"):
    """A raw session: `ask(frame)` sends text or an object and returns the answer."""
    with connect(url.replace("http", "ws") + path, max_size=None, close_timeout=2) as websocket:

        def ask(frame):
            websocket.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))
            return json.loads(websocket.recv(timeout=30))

        ask.websocket = websocket
        yield ask


def reset(ask, **options):
    return ask({"type": "reset", "data": options})


def step(ask, response, **metadata):
    return ask({"type": "step", "data": {"response": response, "metadata": metadata}})


class LocalProvider:
    """Lets OpenEnv's runtime graders examine a local process instead of a container."""

    name = "local-process"
    capabilities = frozenset({ProviderCapability.IMAGE_BUILD, ProviderCapability.EXEC})
    supported_network_modes = frozenset({"public"})

    def build(self, root, execution):
        return "sha256:" + hashlib.sha256(str(root).encode()).hexdigest()

    def start(self, spec):
        return LocalSubject()


class LocalSubject(Server):
    """A server as the graders see one."""

    @property
    def base_url(self):
        return self.url

    def inspect(self):
        return {"pid": self.process.pid}

    def logs(self, max_bytes=65536):
        return ""

    def exec(self, argv, timeout_s):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s)
        return ExecResult(done.returncode, done.stdout, done.stderr, 0.0)
