"""Where vLLM puts the sockets that an engine leaves behind when it is killed."""

from __future__ import annotations

import os
from types import SimpleNamespace
from unittest import mock

import pytest
import ray

from actors.vllm_settings import use_socket_folder_of_ray


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("/tmp/ray/session_2026-01-01/sockets", "/tmp/ray/session_2026-01-01/sockets"),
        ("/" + "f" * 70, None),  # with vLLM's own names, Linux would refuse such a path
        (None, None),
    ],
)
def test_sockets_lie_beside_those_of_ray(
    monkeypatch: pytest.MonkeyPatch, folder: str | None, expected: str | None
) -> None:
    node = SimpleNamespace(get_sockets_dir_path=lambda: folder) if folder else None
    monkeypatch.setattr(ray._private.worker, "_global_node", node)
    with mock.patch.dict(os.environ):
        os.environ.pop("VLLM_RPC_BASE_PATH", None)
        use_socket_folder_of_ray()
        assert os.environ.get("VLLM_RPC_BASE_PATH") == expected
