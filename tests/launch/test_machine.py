"""Machine habits: what surrounds a run is right, or one sentence says what to change."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from rlsys.config import RunConfig
from rlsys.doctor import Status, check_surroundings
from rlsys.errors import ResourceError
from rlsys.launch import machine, session
from rlsys.launch.machine import check_machine, tidy_variables
from rlsys.launch.preflight import check_shared_memory

VARIABLES = (
    *("RAY_ADDRESS", "RAY_TMPDIR", "TMPDIR", "XDG_CACHE_HOME", "RAY_USE_TLS"),
    *("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"),
)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variables of a shell that has set nothing."""
    for name in (*VARIABLES, *machine.PROXIES, "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def head() -> Iterator[str]:
    """A gRPC server, which is what the head of a Ray cluster is for the probe."""
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None)


@contextmanager
def listener(answer: bytes | None) -> Iterator[str]:
    """Something else than Ray: a server with one answer to everything, or a silent one."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def serve() -> None:
            silent = []
            with suppress(OSError):  # the test has ended
                while True:
                    connection, _ = server.accept()
                    if answer is None:
                        silent.append(connection)
                        continue
                    with connection:
                        connection.sendall(answer)

        pool.submit(serve)
        yield "{}:{}".format(*server.getsockname())
        server.shutdown(socket.SHUT_RDWR)


class AsksForToken(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers calls that show the token `secret`, as the head of a Ray cluster does."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        right = ("authorization", "Bearer secret") in details.invocation_metadata

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            if not right:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


def refusal() -> str:
    with pytest.raises(ResourceError) as caught:
        check_machine()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_address_of_a_cluster_that_answers(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (head, f"ray://{head}", f" {head} "):
        monkeypatch.setenv("RAY_ADDRESS", address)
        check_machine()
        assert os.environ["RAY_ADDRESS"] == address.strip()  # Ray reads it as it stands
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(machine, "_cluster_here", lambda: head)
    check_machine()


def test_a_cluster_that_asks_for_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, [AsksForToken()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        assert "it asks for another token, like the private Ray of another run" in refusal()
        monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
        assert "give RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" in refusal()
        monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
        check_machine()
        monkeypatch.delenv("RAY_AUTH_TOKEN")
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("secret\n")
        check_machine()
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        assert "another token" in refusal()
        monkeypatch.delenv("RAY_AUTH_MODE")
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
        assert "another token" in refusal()
        monkeypatch.setenv("RAY_AUTH_MODE", "k8s")  # then Ray has a token of its own way
        check_machine()
        server.stop(None)


def test_blank_variables_count_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in machine.BLANK_MEANS_UNSET:
        monkeypatch.setenv(name, " ")
    check_machine()
    assert not {*machine.BLANK_MEANS_UNSET} & {*os.environ}


def test_addresses_that_no_run_can_join(monkeypatch: pytest.MonkeyPatch) -> None:
    for address, *expected in (
        ("127.0.0.1:1", "no Ray cluster answers", "Connection refused", "unset RAY_ADDRESS"),
        ("no-such-host.invalid:6379", "no Ray cluster answers", "unset RAY_ADDRESS"),
        ("http://head:8265", "URL of a dashboard", "rlsys submit CONFIG.yaml --address http://h"),
        ("https://head", "URL of a dashboard", "rlsys submit"),
        ("head", "no address of a Ray cluster", "HOST:6379"),
        ("head:port", "no address of a Ray cluster"),
        ("head:99999", "no address of a Ray cluster"),
        ("head:6379/x", "no address of a Ray cluster"),
        ("tcp://head:6379", "no address of a Ray cluster"),
        (":6379", "no address of a Ray cluster"),
        ("true", "no address of a Ray cluster"),
    ):
        monkeypatch.setenv("RAY_ADDRESS", address)
        sentence = refusal()
        for part in (repr(address), *expected):
            assert part in sentence, (address, sentence)


def test_an_address_where_something_else_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CONNECT_SECONDS", 2.0)
    for answer, expected in (
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "something else than Ray"),
        (b"", "something else than Ray"),
        (None, "no answer within 2 s"),
    ):
        with listener(answer) as address:
            monkeypatch.setenv("RAY_ADDRESS", address)
            began = time.monotonic()
            assert expected in refusal()
            assert time.monotonic() - began < 30


def test_auto_where_no_cluster_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ray._private import services

    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # where Ray notes the address of a cluster
    monkeypatch.setattr(services, "find_gcs_addresses", lambda: set())
    assert "no Ray cluster runs on this machine" in refusal()
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    sentence = refusal()
    assert "'auto' (here 127.0.0.1:1) (Connection refused)" in sentence


def test_folders_that_ray_cannot_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = Path("/tmp") / f"rlsys-{os.getpid()}"
    blocked.write_text("")
    try:
        for name in ("RAY_TMPDIR", "TMPDIR"):
            monkeypatch.setenv(name, str(blocked))
            assert "is no folder" in refusal()
            monkeypatch.setenv(name, "/tmp/" + "x" * 40)
            sentence = refusal()
            assert f"{name} '/tmp/xxx" in sentence
            assert "has 45 bytes" in sentence
            assert "RAY_TMPDIR=/tmp" in sentence
            monkeypatch.delenv(name)
    finally:
        blocked.unlink()


def test_the_longest_folder_that_is_accepted_gives_sockets_that_can_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/" + "x" * 80)
    room = int(refusal().split("at most ")[1].split()[0])
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/".ljust(room, "x"))
    check_machine()
    session = f"session_{time.strftime('%Y-%m-%d_%H-%M-%S')}_123456_{os.getpid()}"
    path = f"{os.environ['RAY_TMPDIR']}/ray/{session}/sockets/plasma_store"
    assert len(path) == machine.LONGEST_SOCKET_PATH


def test_a_home_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/proc/home")
    check_machine()
    warning = str(machine.unwritable_cache())
    assert "'/proc/home/.cache' cannot be written (/proc: " in warning
    assert "XDG_CACHE_HOME=/tmp/cache" in warning
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert machine.unwritable_cache() is None
    assert not (tmp_path / "cache").exists()


def test_a_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    tidy_variables()
    assert "no_proxy" not in os.environ
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "example.com, localhost")
    monkeypatch.setenv("NO_PROXY", "example.org")
    tidy_variables()
    tidy_variables()
    hosts = "example.com,localhost,example.org,127.0.0.1,::1"
    assert [os.environ["no_proxy"], os.environ["NO_PROXY"]] == [hosts, hosts]


def test_weights_that_do_not_fit_into_shared_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = RunConfig()
    free = 64 << 20
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    check_shared_memory(config, tmp_path)
    free = 1 << 20
    with pytest.raises(ResourceError, match=r"--shm-size=8g, or set sync.transport=object_store"):
        check_shared_memory(config, tmp_path)
    elsewhere = RunConfig.model_validate({"sync": {"transport": "object_store"}})
    check_shared_memory(elsewhere, tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    check_shared_memory(config, tmp_path)


def test_gpus_that_others_use_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, 14, 81559'\necho '1, 60000, 81559'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "60000 of the 81559 MiB of GPU 1" in str(machine.busy_cards())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert machine.busy_cards() is None


def test_the_doctor_shows_the_same_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    monkeypatch.setenv("HOME", "/proc/home")
    found = {finding.check: finding for finding in check_surroundings()}
    assert found["RAY_ADDRESS"].status is Status.FAIL
    assert found["RAY_ADDRESS"].remedy.startswith("use `rlsys submit CONFIG.yaml")
    assert "Ray's sockets" not in found  # those of the cluster
    assert found["cache folder"].status is Status.WARN
    assert found["cache folder"].remedy.startswith("set HOME or XDG_CACHE_HOME")
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert {f.status for f in check_surroundings() if f.check != "cache folder"} == {Status.OK}


def test_a_cluster_that_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refuse(**options: object) -> None:
        raise ray.exceptions.AuthenticationError("Token is missing\n")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(session, "check_machine", lambda: None)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    sentence = r"at RAY_ADDRESS 'head:6379' refuses .*RAY_AUTH_TOKEN"
    with pytest.raises(ResourceError, match=sentence), session.ray_session(RunConfig()):
        pass


def test_a_proxy_is_no_cluster_and_an_older_ray_is_one() -> None:
    """A proxy accepts connections to any address; other versions of Ray may not know the call."""
    refused = machine._refusal("UNIMPLEMENTED", "Received http2 header with status: 404")
    assert refused == machine.NOT_RAY
    assert machine._refusal("UNIMPLEMENTED", "") is None
