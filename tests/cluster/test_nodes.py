"""Whole runs on three Ray nodes with networks of their own: learner, engines, environments.

The cluster starts once and serves all tests of this file in their order; the last one cuts the link
of a node and kills another.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import wait_until
from node_cluster import Node, NodeCluster, NodeSpec, node_cluster, why_not

from rlsys.assets import shipped_path
from rlsys.reporting.metrics_file import METRICS, read_rows

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(600)]

RUN_SECONDS = 240.0
NODES = [  # the first one is the head and runs the job's driver
    NodeSpec(name="services", cpus=2, labels={"role": "services"}),
    NodeSpec(name="learner", cpus=2, labels={"role": "learner"}),
    NodeSpec(name="engines", cpus=2, labels={"role": "engines"}),
]
CONFIG: dict[str, Any] = {
    "steps": 3,
    "data": {
        "train": {"source": "arithmetic", "size": 11},
        "evaluation": {"source": "arithmetic", "size": 4, "held_out": True},
    },
    "environment": {
        "budgets": [8, 24],
        "answers": 2,
        "answer_tokens": 6,
        "closing": "",
        "answer_header": "\n\n**Final Answer**\n\\boxed{",
    },
    "batch": {"problems": 2, "group_size": 4},
    "learner": {"row_tokens": 256, "optimizer": {"learning_rate": 1e-3}},
    "generation": {"kv_cache_mib": 32, "heartbeat_s": 10},
    "checkpoint": {"every": 1},
    "cluster": {
        "learner": {"labels": {"role": "learner"}},
        "engines": {"labels": {"role": "engines"}},
        "services": {"labels": {"role": "services"}},
    },
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    if reason := why_not():
        pytest.skip(reason)
    with node_cluster(NODES, tmp_path_factory.mktemp("nodes")) as started:
        yield started


@pytest.fixture(scope="module")
def config_file(cluster: NodeCluster) -> Path:
    path = cluster.folder / "run.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def steps(run_dir: Path) -> list[dict[str, Any]]:
    return [row for row in read_rows(run_dir / METRICS) if "loss" in row]


def own_disk(node: Node, folder: Path) -> None:
    """Put an empty disk over a folder, which only this node sees."""
    mounted = node.run("mount", "-t", "tmpfs", "tmpfs", str(folder))
    assert mounted.returncode == 0, mounted.stderr


def test_a_submitted_job_trains_on_three_nodes(cluster: NodeCluster, config_file: Path) -> None:
    run_dir = cluster.folder / "run"
    job = cluster.submit("rlsys", "train", config_file, f"run_dir={run_dir}")
    status = cluster.wait(job, RUN_SECONDS)
    output = cluster.logs(job)
    assert status == "SUCCEEDED", output
    assert [row["step"] for row in steps(run_dir)] == [1, 2, 3]
    # The canary: both ends compute the same log-probs, so the weights that arrived are equal.
    assert max(row["gap/canary"] for row in steps(run_dir)) < 1e-5
    assert "weights travel by object_store" in output
    places = {"learner": "learner rank 1", "engines": "engine 1", "services": "environment actor 1"}
    for name, process in places.items():
        assert re.search(rf"{name} \(10\.77\.\d+\.\d\): {process}", output), output


def test_what_is_missing_is_named_after_the_deadline(
    cluster: NodeCluster, config_file: Path
) -> None:
    run_dir = cluster.folder / "missing"
    words = ("cluster.wait_s=3", "cluster.engines.labels={role: engine}", f"run_dir={run_dir}")
    job = cluster.submit("rlsys", "train", config_file, *words)
    assert cluster.wait(job, RUN_SECONDS) == "FAILED"
    output = cluster.logs(job)
    assert "waiting for resources: registered" in output
    assert "learner (10.77." in output
    assert "after cluster.wait_s 3 s the cluster has no room" in output
    assert "engine 1 of 1 {CPU: 1} on a node with role=engine" in output


def test_a_model_that_a_node_lacks_is_named_before_an_engine_loads(
    cluster: NodeCluster, config_file: Path
) -> None:
    model = cluster.folder / "model"
    shutil.copytree(shipped_path("tiny"), model)
    own_disk(cluster.nodes["engines"], model)
    run_dir = cluster.folder / "lacking"
    job = cluster.submit("rlsys", "train", config_file, f"model.path={model}", f"run_dir={run_dir}")
    assert cluster.wait(job, RUN_SECONDS) == "FAILED"
    output = cluster.logs(job)
    named = (
        r"model.path '\S+/model' does not exist on node engines \(10\.77\.\d+\.\d\), or is empty"
    )
    assert re.search(named, output), output
    assert "copy the folder there, or give the absolute path" in output
    assert "Traceback" not in output
    assert not steps(run_dir)


def test_the_doctor_examines_every_node(cluster: NodeCluster, config_file: Path) -> None:
    words = (
        # No node has room for both ranks.
        *("learner.ranks=2", "learner.cpus_per_rank=1.5", "generation.cpus_per_engine=0.5"),
        "cluster.learner.labels={role: 'in(learner, engines)'}",
        f"run_dir={cluster.folder / 'doctor'}",
    )
    job = cluster.submit("rlsys", "doctor", "--cluster", config_file, *words)
    cluster.wait(job, RUN_SECONDS)
    output = cluster.logs(job)
    for name in ("learner", "engines", "services"):
        for check in ("versions", "paths", "clock", "network"):
            assert re.search(rf"ok {name} \(10\.77\.\d+\.\d\) {check}:", output), output
    assert "16 MiB over 2 ranks in" in output, output


def test_a_cut_link_and_a_killed_node_without_a_shared_disk(
    cluster: NodeCluster, config_file: Path
) -> None:
    disk = cluster.folder / "disk"
    disk.mkdir()
    run_dir = disk / "faults"
    own_disk(cluster.nodes["learner"], disk)
    job = cluster.submit("rlsys", "train", config_file, "steps=60", f"run_dir={run_dir}")

    def reaches(step: int) -> None:
        def done() -> bool:
            assert cluster.status(job) in ("PENDING", "RUNNING"), cluster.logs(job)
            return any(row["step"] >= step for row in steps(run_dir))

        assert wait_until(done, RUN_SECONDS, pause=1), cluster.logs(job)

    reaches(3)
    cluster.nodes["engines"].cut()
    cluster.add(NodeSpec(name="engines2", cpus=2, labels={"role": "engines"}))
    reaches(len(steps(run_dir)) + 5)
    assert "it is started again" in cluster.logs(job)
    assert "engine 0 serves again with the weights of version" in cluster.logs(job)
    cluster.nodes["learner"].kill()
    cluster.add(NodeSpec(name="learner2", cpus=2, labels={"role": "learner"}))
    own_disk(cluster.nodes["learner2"], disk)
    assert cluster.wait(job, RUN_SECONDS) == "SUCCEEDED", cluster.logs(job)
    # Once: the new rank is not started on the node that is lost.
    assert cluster.logs(job).count("the learner is started again and goes on after step") == 1
    # The first learner's disk is lost with it; its checkpoints are on the driver's node.
    assert (run_dir / "export" / "model.safetensors").is_file()
    assert [row["step"] for row in steps(run_dir)] == list(range(1, 61))
