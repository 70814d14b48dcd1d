"""The economics environment on a real Ray Serve: a session over WebSocket, and refused settings."""

from collections.abc import Iterator

import pytest
import requests
from economics_server import free_port, reset, session, step

pytest.importorskip("grpc_reflection", reason="needs the packages of ray[serve]")

import ray
from ray import serve

from rlsys.errors import ConfigError
from rlsys.launch.environment_service import application


def test_settings_are_checked() -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"port": 8001}, "port 8001 has no effect"),
        ({"max_session": 3}, "max_session"),
        ({"environment.mode": "hrad"}, "hrad"),
    ]
    for settings, words in cases:
        with pytest.raises(ConfigError, match=words):
            application(settings)


@pytest.fixture
def port() -> Iterator[int]:
    port = free_port()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield port
    finally:
        serve.shutdown()
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_session_on_a_replica(port: int) -> None:
    settings: dict[str, object] = {"max_sessions": "1", "environment.problems": 3}
    serve.run(application(settings), name="economics", route_prefix="/")
    url = f"http://127.0.0.1:{port}"
    assert requests.get(f"{url}/health", timeout=60).status_code == 200
    with session(url) as ask:
        assert reset(ask, seed=1)["data"]["observation"]["num_questions"] == 3
        assert step(ask, "\\boxed{1}")["type"] == "observation"
