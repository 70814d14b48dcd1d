"""Where processes may stand, how weights get there, and what a node must have; without Ray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlsys.config import ClusterConfig, NodesConfig, RunConfig
from rlsys.doctor import Status
from rlsys.errors import ConfigError
from rlsys.launch.cluster_doctor import NodeFacts, clock_finding, node_findings
from rlsys.launch.node_checks import NeededModel, difference, model_files, needed_models
from rlsys.launch.placement import NodeState, _missing, _without_gpus
from rlsys.launch.resources import check_shares, placed_bundles, service_bundles, transport_of
from rlsys.launch.room import Bundle, Room, labels_match, unplaced
from rlsys.network import interface_variables


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate(sections)


def node(name: str, cpus: float, gpus: float = 0.0) -> NodeState:
    resources = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
    labels = {"ray.io/node-id": name}
    return NodeState(name, f"{name} (10.0.0.1)", "10.0.0.1", labels, resources, resources)


def test_label_selectors_mean_what_they_mean_to_ray() -> None:
    cases: list[tuple[dict[str, str], dict[str, str], bool]] = [
        ({}, {}, True),
        ({"zone": "a"}, {"zone": "a"}, True),
        ({"zone": "a"}, {"zone": "b"}, False),
        ({"zone": "a"}, {}, False),
        ({"zone": "!a"}, {}, True),
        ({"zone": "!a"}, {"zone": "a"}, False),
        ({"zone": "in(a, b)"}, {"zone": "b"}, True),
        ({"zone": "!in(a,b)"}, {"zone": "b"}, False),
        ({"zone": "a", "disk": "ssd"}, {"zone": "a"}, False),
    ]
    for wanted, labels, expected in cases:
        assert labels_match(wanted, labels) is expected, (wanted, labels)


def test_bundles_carry_the_nodes_of_their_role() -> None:
    run = config(
        cluster={
            "learner": {"labels": {"role": "learner"}},
            "engines": {"resources": {"slot": 1}},
            "services": {"labels": {"role": "cpu"}},
        }
    )
    learner, engine = placed_bundles(run)
    assert str(learner) == "learner rank 1 of 1 {CPU: 1} on a node with role=learner"
    assert engine.resources == {"CPU": 1.0, "slot": 1.0}
    assert {bundle.nodes.labels["role"] for bundle in service_bundles(run)} == {"cpu"}


def test_a_shared_gpu_needs_what_both_roles_need() -> None:
    shares = {"learner": {"gpus_per_rank": 0.5}, "generation": {"gpus_per_engine": 0.5}}
    both = {
        "learner": {"labels": {"zone": "a"}, "resources": {"slot": 1}},
        "engines": {"labels": {"disk": "ssd"}, "resources": {"slot": 1}},
    }
    (shared,) = placed_bundles(config(**shares, cluster=both))
    assert shared.nodes == NodesConfig(labels={"zone": "a", "disk": "ssd"}, resources={"slot": 2.0})
    for cluster, words in (
        ({"layout": "split"}, "cluster.layout 'split'"),
        ({"learner": {"labels": {"z": "a"}}, "engines": {"labels": {"z": "b"}}}, "'z'"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_shares(config(**shares, cluster=cluster))


def test_a_bundle_takes_labels_and_custom_resources_into_account() -> None:
    slot = NodesConfig(labels={"zone": "a"}, resources={"slot": 1})
    wanted = [Bundle("one", 1, 0, slot), Bundle("two", 1, 0, slot)]
    rooms = [Room.of({"CPU": 8, "slot": 5}), Room.of({"CPU": 8, "slot": 1}, {"zone": "a"})]
    assert [bundle.name for bundle in unplaced(wanted, rooms)] == ["two"]


def test_services_avoid_nodes_with_gpus_if_the_others_have_room() -> None:
    wanted = [Bundle("environment actor 1 of 1", 1, 0)]
    gpu = node("gpu", 8, 4)
    (away,) = _without_gpus(wanted, [gpu, node("cpu", 8)])
    assert away.nodes.labels == {"ray.io/node-id": "!in(gpu)"}
    assert _without_gpus(wanted, [gpu]) == wanted
    assert _without_gpus(wanted, [gpu, node("small", 0.5)]) == wanted


def test_the_line_about_missing_resources() -> None:
    wanted = [Bundle(f"engine {i} of 2", 1, 1) for i in (1, 2)]
    busy = node("b", 4)._replace(free={"CPU": 1.0})
    assert _missing(wanted, [node("a", 4, 1), busy]) == (
        "registered a (10.0.0.1) {CPU: 4, GPU: 1}; b (10.0.0.1) {CPU: 4, GPU: 0}, "
        "free {CPU: 4, GPU: 1}; {CPU: 1, GPU: 0}, missing engine 2 of 2 {CPU: 1, GPU: 1}"
    )


def test_the_transport_follows_from_the_places() -> None:
    gpu: dict[str, Any] = {"learner": {"gpus_per_rank": 1}, "generation": {"gpus_per_engine": 1}}
    half = {"learner": {"gpus_per_rank": 0.5}, "generation": {"gpus_per_engine": 0.5}}
    mixed = {"learner": {"gpus_per_rank": 1}}
    cases: list[tuple[dict[str, Any], bool, str]] = [
        ({}, True, "shm"),
        ({}, False, "object_store"),
        (mixed, True, "shm"),
        (mixed, False, "object_store"),
        (gpu, True, "nccl"),
        (gpu, False, "nccl"),
        (half, True, "ipc"),
        (half, False, "ipc"),  # several nodes, but every pair is on one card
        ({"sync": {"transport": "object_store"}}, True, "object_store"),
    ]
    for sections, one_node, expected in cases:
        assert transport_of(config(**sections), one_node=one_node) == expected, sections
    with pytest.raises(ConfigError, match=r"sync\.transport 'shm' .* several nodes"):
        transport_of(config(sync={"transport": "shm"}), one_node=False)


def test_the_interface_of_rays_address_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"eth0": "10.0.0.1", "ib0": "10.1.0.1"}
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert interface_variables("10.1.0.1", found) == {"GLOO_SOCKET_IFNAME": "ib0"}
    assert interface_variables("10.2.0.1", found) == {}


def test_a_model_that_differs_is_one_sentence() -> None:
    here = {"config.json": 10, "model.safetensors": 4000}
    folder = NeededModel("model.path", "/m")
    said = difference(folder, "b", here, {})
    assert said.startswith("model.path '/m' does not exist on node b, or is empty there;")
    said = difference(folder, "b", here, here | {"model.safetensors": 3999})
    assert "model.safetensors has 3,999 bytes there and 4,000" in said
    hub = NeededModel("distillation.teacher.path", "some/teacher")
    said = difference(hub, "b", {"config.json": 10}, {})
    assert "distillation.teacher.path 'some/teacher' is neither in the cache of node b" in said
    assert "give the node access to the hub" in said


def test_every_model_is_looked_for_where_it_is_loaded(tmp_path: Path) -> None:
    teacher = config(
        algorithm={"method": "distill"},
        distillation={"teacher": {"path": "tiny-reflection"}},
        environment={"type": "anytime", "budgets": [64], "answers": 1},
    )
    revised = config(
        algorithm={"method": "rea"},
        environment={"type": "reflection", "revision": {"model": {"path": "tiny-reflection"}}},
    )
    keys = {
        name: [model.key for model in needed_models(run, [bundle])]
        for name, run, bundle in (
            ("rank", teacher, "learner rank 1 of 1"),
            ("shared card", teacher, "shared GPU 1 of 1"),
            ("engine", teacher, "engine 1 of 1"),
            ("environment", revised, "environment actor 1 of 1"),
        )
    }
    policy, taught = "model.path", "distillation.teacher.path"
    assert keys == {
        "rank": [policy, taught],
        "shared card": [policy, taught],
        "engine": [policy],
        "environment": [policy, "environment.revision.model.path"],
    }
    (tmp_path / "config.json").write_text("{}")
    assert model_files(str(tmp_path)) == {"config.json": 2}
    assert model_files(str(tmp_path / "none")) == {}
    assert "model.safetensors" in model_files("tiny")


def test_a_model_on_the_hub_is_looked_for_by_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def unreachable(name: str, file: str) -> str:
        raise OSError(f"{name}/{file}")

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    assert model_files("some/model") == {}
    found = str(tmp_path / "config.json")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: found)
    assert model_files("some/model") == {"config.json": 2}


HERE = NodeFacts(
    versions={"python": "3.11.7", "ray": "2.60.0", "torch": "2.13.0", "rlsys": "1"},
    models={"model.path": {"config.json": 10}},
    missing_data=(),
    run_dir="shared",
    shared_memory_gib=8.0,
    cards=(),
    interfaces={"eth0": "10.0.0.1"},
    variables={},
)


def test_what_the_doctor_finds_on_a_node() -> None:
    cases: list[tuple[dict[str, Any], str, Status, str]] = [
        ({}, "versions", Status.OK, "ray 2.60.0"),
        ({"versions": HERE.versions | {"ray": "2.55.0"}}, "versions", Status.FAIL, "(here 2.60.0)"),
        ({"versions": HERE.versions | {"torch": "2.11.0"}}, "versions", Status.WARN, "2.11.0"),
        ({"models": {"model.path": {}}}, "paths", Status.FAIL, "does not exist"),
        ({"run_dir": "apart"}, "paths", Status.WARN, "another folder"),
        ({"run_dir": "not writable"}, "paths", Status.FAIL, "cannot be written"),
        ({"missing_data": ("/data",)}, "paths", Status.WARN, "/data is not there"),
        ({"shared_memory_gib": 0.1}, "shared memory", Status.WARN, "0.1 GiB"),
        ({"cards": ("H200", "H200")}, "GPUs", Status.OK, "H200, H200"),
        ({"interfaces": {"eth1": "10.9.0.1"}}, "network", Status.WARN, "none of: eth1 10.9.0.1"),
        ({"variables": {"GLOO_SOCKET_IFNAME": "ib0"}}, "network", Status.WARN, "ib0"),
    ]
    models = [NeededModel("model.path", "/models/mine")]
    for change, check, status, words in cases:
        there = replace(HERE, **change)
        findings = node_findings(RunConfig(), models, node("a", 1), there, HERE)
        found = {finding.check.removeprefix("a (10.0.0.1) "): finding for finding in findings}
        assert (found[check].status, words in found[check].seen) == (status, True), change
    assert clock_finding("a", 5.0, 0.1).status is Status.WARN
    assert clock_finding("a", 5.0, 4.5).status is Status.OK  # the error is too large to tell


def test_the_defaults_ask_for_nothing() -> None:
    assert ClusterConfig().layout == "shared"
    assert all(not bundle.nodes.labels for bundle in placed_bundles(RunConfig()))
