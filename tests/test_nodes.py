"""Runs on a cluster whose nodes leave and join: real Ray nodes, all on this machine.

The head node has the learner and the services. An engine needs four cores, which only the other
nodes have. Seeds are per request, so a synchronous run ends with the same weights whatever its
engines' nodes do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Command
from tiny_run import CONFIG as TINY
from tiny_run import weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ENGINE_CPUS = 4
NOTICE_S = 20.0
CONFIG: dict[str, Any] = TINY | {
    "steps": 12,
    "generation": {"kv_cache_mib": 32, "cpus_per_engine": ENGINE_CPUS},
}


class Nodes:
    """A cluster of this machine, with a head node that has no room for an engine."""

    def __init__(self, head_cpus: int = 3) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": head_cpus})
        self.address = str(self._cluster.address)

    def add(self, cpus: int = ENGINE_CPUS) -> Any:
        return self._cluster.add_node(num_cpus=cpus)

    def kill(self, node: Any) -> None:
        """As a machine that loses its power."""
        self._cluster.remove_node(node, allow_graceful=False)

    def drain(self, node: Any) -> None:
        """As a cloud that will take a preemptible machine away."""
        from ray._raylet import GcsClient
        from ray.core.generated import autoscaler_pb2

        reason = autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
        deadline_ms = int((time.time() + NOTICE_S) * 1000)
        accepted, why = GcsClient(address=self.address).drain_node(
            node.node_id, reason, "a notice", deadline_ms
        )
        assert accepted, why

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    cluster = Nodes()
    yield cluster
    cluster.close()


def train(tmp_path: Path, nodes: Nodes, *overrides: str) -> Command:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    address = {"RAY_ADDRESS": nodes.address}
    return Command(tmp_path / "run", "train", path, *overrides, variables=address)


def test_an_engine_leaves_a_node_that_is_drained_and_follows_to_one_that_joins(
    tmp_path: Path, nodes: Nodes
) -> None:
    first = nodes.add()
    command = train(tmp_path, nodes)
    try:
        command.wait_for_step(2)
        second = nodes.add()
        nodes.drain(first)
        command.wait_for("engine 0 stands on a node that is drained; it is started on another")
        command.wait_for("engine 0 serves again")
        step = command.steps()[-1]["step"]
        command.wait_for_step(step + 2)
        nodes.kill(second)
        command.wait_for("engine 0 waits for a node")
        joined = time.monotonic()
        nodes.add()
        while command.output.count("engine 0 serves again") < 2:
            assert time.monotonic() - joined < 60
            time.sleep(0.2)
        assert command.wait() == 0, command.output
        assert [row["step"] for row in command.steps()] == list(range(1, CONFIG["steps"] + 1))
    finally:
        print(command.output)
        command.kill_all()
    assert weights(command)
