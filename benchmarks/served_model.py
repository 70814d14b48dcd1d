"""Start vLLM's OpenAI-compatible server on the CPU, with given arguments, and stop it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

from actors.vllm_settings import engine_environment

PACKAGES: Final = ("prometheus_fastapi_instrumentator", "model_hosting_container_standards")
"""Packages that vLLM's server imports and its engine does not."""
START_S: Final = 400.0
CPU_ARGUMENTS: Final = (
    *("--max-model-len", "512", "--kv-cache-memory-bytes", str(64 << 20), "--block-size", "32"),
    *("--max-num-batched-tokens", "4096", "--no-enable-chunked-prefill", "--enforce-eager"),
)
"""How rlsys starts its own engines on the CPU (actors.vllm_settings)."""


@contextmanager
def served(folder: Path, arguments: Sequence[str]) -> Iterator[str]:
    """Yield the base URL of a server for `folder`, which it serves under the name `model`.

    Raises RuntimeError with the end of the server's output if it does not start.
    """
    with tempfile.TemporaryFile("w+") as output:
        port = _free_port()
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(folder), "--served-model-name", "model"]
        command += ["--host", "127.0.0.1", "--port", str(port), *CPU_ARGUMENTS, *arguments]
        environment = os.environ | engine_environment(on_gpu=False, threads=1)
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            _wait(process, f"http://127.0.0.1:{port}/health")
            yield f"http://127.0.0.1:{port}/v1"
        except RuntimeError as error:
            output.seek(0)
            raise RuntimeError(f"{error}: {output.read()[-2000:]}") from error
        finally:
            process.terminate()
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with exit code {process.returncode}")
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError(f"the server did not start within {START_S:.0f} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
