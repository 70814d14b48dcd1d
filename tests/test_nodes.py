"""Runs on a cluster whose nodes leave and join: real Ray nodes, all on this machine.

Seeds are per request, so a synchronous run ends with the same weights whatever its nodes do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from commands import Command
from tiny_run import CONFIG as TINY
from tiny_run import weights

pytestmark = [pytest.mark.slow, pytest.mark.chaos, pytest.mark.timeout(600)]

NOTICE_S = 20.0
JOIN_S = 60.0
CONFIG: dict[str, Any] = TINY | {
    "steps": 40,
    "cluster": {role: {"labels": {"role": role}} for role in ("learner", "engines", "services")},
}


class Nodes:
    """A cluster of this machine. Its head node has the services; `add` adds a node for others."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 2, "labels": {"role": "services"}}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = str(self._cluster.address)

    def add(self, role: str) -> Any:
        """Add a node with room for one engine or one rank."""
        return self._cluster.add_node(num_cpus=1, labels={"role": role})

    def kill(self, node: Any) -> None:
        """As a machine that loses its power."""
        self._cluster.remove_node(node, allow_graceful=False)

    def drain(self, node: Any) -> None:
        """As a cloud that will take a preemptible machine away."""
        import ray
        from ray.core.generated import autoscaler_pb2

        reason = autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
        deadline_ms = int((time.time() + NOTICE_S) * 1000)
        client: Any = ray._raylet.GcsClient(address=self.address)
        accepted, why = client.drain_node(node.node_id, reason, "a notice", deadline_ms)
        assert accepted, why

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    cluster = Nodes()
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The weights that a run without faults ends with."""
    folder = tmp_path_factory.mktemp("undisturbed")
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in CONFIG.items() if k != "cluster"}))
    command = Command(folder / "run", "train", path)
    try:
        assert command.wait() == 0, command.output
    finally:
        command.kill_all()
    return weights(command)


class Run:
    """A run in the cluster."""

    def __init__(self, tmp_path: Path, nodes: Nodes, *overrides: str) -> None:
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(CONFIG))
        address = {"RAY_ADDRESS": nodes.address}
        self.command = Command(tmp_path / "run", "train", path, *overrides, variables=address)

    def __enter__(self) -> Command:
        return self.command

    def __exit__(self, *error: object) -> None:
        print(self.command.output)
        self.command.kill_all()


def ends_as(command: Command, expected: dict[str, Any]) -> None:
    assert command.wait() == 0, command.output
    assert [row["step"] for row in command.steps()] == list(range(1, CONFIG["steps"] + 1))
    found = weights(command)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)


def serves_again(command: Command, times: int) -> float:
    """Return after how many seconds an engine had come back so often."""
    began = time.monotonic()
    while command.output.count("serves again with the weights") < times:
        assert time.monotonic() - began < JOIN_S, command.output
        time.sleep(0.1)
    return time.monotonic() - began


def test_an_engine_leaves_a_node_that_is_drained_for_one_that_joined(
    tmp_path: Path, nodes: Nodes, undisturbed: dict[str, Any]
) -> None:
    nodes.add("learner")
    first = nodes.add("engines")
    with Run(tmp_path, nodes, "generation.restarts=0") as command:
        command.wait_for_step(2)
        nodes.add("engines")
        nodes.drain(first)
        command.wait_for("engine 0 stands on a node that is drained; it is started on another")
        print(f"left and served again in {serves_again(command, 1):.1f} s")
        ends_as(command, undisturbed)


def test_the_node_of_the_only_engine_fails_and_another_joins(
    tmp_path: Path, nodes: Nodes, undisturbed: dict[str, Any]
) -> None:
    nodes.add("learner")
    first = nodes.add("engines")
    with Run(tmp_path, nodes) as command:
        command.wait_for_step(2)
        killed = time.monotonic()
        nodes.kill(first)
        command.wait_for("engine 0 waits for a node")
        print(f"noticed after {time.monotonic() - killed:.1f} s")
        nodes.add("engines")
        print(f"served {serves_again(command, 1):.1f} s after a node joined")
        ends_as(command, undisturbed)


def test_two_engines_and_one_node_that_is_drained_without_another(
    tmp_path: Path, nodes: Nodes, undisturbed: dict[str, Any]
) -> None:
    nodes.add("learner")
    first, _ = nodes.add("engines"), nodes.add("engines")
    with Run(tmp_path, nodes, "generation.engines=2") as command:
        command.wait_for_step(2)
        nodes.drain(first)
        command.wait_for("waits for a node with room for it")
        step = command.steps()[-1]["step"]
        command.wait_for_step(step + 2)
        nodes.add("engines")
        print(f"served {serves_again(command, 1):.1f} s after a node joined")
        ends_as(command, undisturbed)


def test_the_learner_leaves_a_node_that_is_drained(
    tmp_path: Path, nodes: Nodes, undisturbed: dict[str, Any]
) -> None:
    first = nodes.add("learner")
    nodes.add("engines")
    with Run(tmp_path, nodes, "checkpoint.every=1000") as command:
        command.wait_for_step(2)
        nodes.add("learner")
        nodes.drain(first)
        command.wait_for("the learner is started again and goes on after step")
        assert "learner rank 0 stands on a node that is drained" in command.output
        ends_as(command, undisturbed)
