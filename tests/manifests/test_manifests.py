"""Manifests and rendered overlays: valid, and in agreement with configs/, images and pyproject.

Schemas: KubeRay's from its CRDs (../shared/kuberay, or the folder in RLSYS_KUBERAY_CRDS), those of
Kubernetes from the package kubernetes-validate. kubectl renders the overlays.
"""

import copy
import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement

from cluster.rules import broken_rules
from rlsys.config.loading import load_config
from rlsys.launch.resources import bundles, check_resources, placed_bundles

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "cluster" / "kubernetes"
RENDERED = [
    *("base", "job", "cluster", "environments", "overlays/one-node", "overlays/two-nodes"),
    *("overlays/many-nodes", "overlays/spot-workers", "overlays/kueue", "overlays/volcano"),
    "../kind",
]
CRDS = Path(os.environ.get("RLSYS_KUBERAY_CRDS", ROOT.parent / "shared" / "kuberay"))
NO_SCHEMA = {"ResourceFlavor", "ClusterQueue", "LocalQueue", "Queue"}
"""Kinds of Kueue and Volcano, of which no package has the schemas."""
KUBERNETES = "1.33"
IMAGES = {
    "registry.example.com/rlsys:0.1.0-gpu": "gpu",
    "registry.example.com/rlsys:0.1.0-environments": "environments",
    "rlsys:cpu": "cpu",
}

Tree = dict[str, Any]


@functools.cache
def rendered(folder: str) -> list[Tree]:
    """The manifests of a kustomization."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl renders the overlays and is not installed")
    done = subprocess.run(
        [kubectl, "kustomize", FOLDER / folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def the(kind: str, folder: str) -> Tree:
    (found,) = (manifest for manifest in rendered(folder) if manifest["kind"] == kind)
    return copy.deepcopy(found)


@functools.cache
def crd_schema(kind: str) -> Tree:
    """The schema of a KubeRay kind, which refuses unknown fields as `kubectl --validate` does."""
    if not CRDS.is_dir():
        pytest.skip(f"no CRDs of KubeRay in {CRDS}; RLSYS_KUBERAY_CRDS names their folder")
    text = (CRDS / f"ray.io_{kind.lower()}s.yaml").read_text()
    crd = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = (v for v in crd["spec"]["versions"] if v["name"] == "v1")
    schema: Tree = version["schema"]["openAPIV3Schema"]
    # The CRD leaves metadata to the API server; the generated one here is a plain object.
    schema["properties"]["metadata"] = {"type": "object"}
    closed: Tree = strict(schema)
    return closed


def strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
    with_fields = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if with_fields and not open_ended and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed


def faults(manifest: Tree) -> Iterator[str]:
    """What the schema of a manifest's kind refuses."""
    if manifest["apiVersion"] == "ray.io/v1":
        for error in jsonschema.Draft202012Validator(crd_schema(manifest["kind"])).iter_errors(
            manifest
        ):
            yield f"{error.json_path}: {error.message[:200]}"
    elif manifest["kind"] not in NO_SCHEMA:
        validate = pytest.importorskip("kubernetes_validate")
        try:
            validate.validate(manifest, KUBERNETES, strict=True)
        except validate.ValidationError as error:
            yield f"{manifest['kind']}: {error.message}"


def test_rendered_overlays_are_valid() -> None:
    wrong = [
        f"{folder}: {fault}"
        for folder in RENDERED
        for manifest in rendered(folder)
        for fault in [*faults(manifest), *broken_rules(manifest)]
    ]
    assert wrong == []


def test_a_wrong_field_is_found() -> None:
    job = the("RayJob", "job")
    job["spec"]["backofLimit"] = 3
    job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] = "two"
    found = sorted(faults(job))
    assert ["'two'" in found[0], "'backofLimit' was unexpected" in found[1]] == [True, True]
    volume = the("PersistentVolumeClaim", "base")
    volume["spec"]["accessModes"] = "ReadWriteMany"
    assert len(list(faults(volume))) == 1


def test_every_file_is_used() -> None:
    used = set()
    for place in FOLDER.rglob("kustomization.yaml"):
        tree = yaml.safe_load(place.read_text())
        names = [*tree["resources"], *(patch["path"] for patch in tree.get("patches", []))]
        used |= {place, *((place.parent / name).resolve() for name in names)}
        assert str(place.parent.relative_to(FOLDER)) in RENDERED
    queues = {FOLDER / "overlays" / name / "queue.yaml" for name in ("kueue", "volcano")}
    assert set(FOLDER.rglob("*.yaml")) == {p for p in used if p.is_file()} | queues
    for queue in queues:
        assert {m["kind"] for m in yaml.safe_load_all(queue.read_text())} <= NO_SCHEMA


def test_cluster_and_job_have_the_same_pods() -> None:
    cluster = the("RayCluster", "cluster")["spec"]
    job = the("RayJob", "job")["spec"]["rayClusterSpec"]
    assert cluster.pop("enableInTreeAutoscaling") is True
    assert cluster.pop("autoscalerOptions")["version"] == "v2"
    assert cluster["workerGroupSpecs"][0].pop("maxReplicas") == 4
    assert job["workerGroupSpecs"][0].pop("maxReplicas") == 1
    assert cluster == job


def nodes(spec: Tree) -> list[dict[str, float]]:
    """Resources of every Ray node, as Ray counts those of its container."""
    found: list[dict[str, float]] = [
        {"CPU": float(spec["headGroupSpec"]["rayStartParams"]["num-cpus"])}
    ]
    for group in spec["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        node = {"CPU": float(limits["cpu"]), "GPU": float(limits.get("nvidia.com/gpu", 0))}
        found += [node] * group["replicas"]
    return found


def test_commands_fit_configurations_and_nodes() -> None:
    for folder in RENDERED:
        for manifest in rendered(folder):
            if manifest["kind"] != "RayJob":
                continue
            program, command, place, *words = manifest["spec"]["entrypoint"].split()
            assert (program, command) == ("rlsys", "train")
            name = place.removeprefix("/opt/rlsys/")  # the Dockerfile copies configs/ there
            config = load_config(ROOT / name, words)
            assert config.run_dir.is_relative_to("/runs")
            cluster = manifest["spec"]["rayClusterSpec"]
            check_resources(config, nodes(cluster))
            wanted = sum(bundle.gpus for bundle in placed_bundles(config))
            assert (folder, wanted) == (folder, sum(node.get("GPU", 0) for node in nodes(cluster)))
            cpus = sum(bundle.cpus for bundle in bundles(config))
            assert cpus <= sum(node["CPU"] for node in nodes(cluster))


def containers(tree: object) -> Iterator[Tree]:
    if isinstance(tree, dict):
        yield from tree.get("containers", [])
        for value in tree.values():
            yield from containers(value)
    elif isinstance(tree, list):
        for item in tree:
            yield from containers(item)


def test_images_and_ray_are_those_of_the_locks() -> None:
    for folder in RENDERED:
        for manifest in rendered(folder):
            for container in containers(manifest):
                lock = pins(IMAGES[container["image"]])
                mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
                assert "/dev/shm" in mounts
                assert "nvidia.com/gpu" not in container["resources"]["limits"] or "vllm" in lock
                versions = re.findall(r"'rayVersion': '([^']*)'", str(manifest))
                assert set(versions) == {lock["ray"]}


def pins(name: str) -> dict[str, str]:
    """Package to version in requirements/`name`.txt."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    lines = re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==(\S+)$", text, re.MULTILINE)
    return {package.lower().replace("_", "-").replace(".", "-"): v for package, v in lines}


def test_locks_of_the_images_fit_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    gpu = pins("gpu")
    dockerfile = (ROOT / "cluster" / "image" / "gpu.Dockerfile").read_text()
    (gpu["deepspeed"],) = re.findall(r"deepspeed==([\d.]+)", dockerfile)
    unfit = [
        str(wanted)
        for text in [*project["dependencies"], *extras["gpu"], *extras["env"]]
        if (wanted := Requirement(text)).name not in gpu or gpu[wanted.name] not in wanted.specifier
    ]
    assert unfit == []
    assert (gpu["torch"], gpu["vllm"]) == ("2.11.0", "0.24.0")
    # Objects travel between the two images.
    assert pins("environments").items() <= gpu.items()
    assert not {"torch", "vllm", "deepspeed"} & pins("environments").keys()
    bases = {
        line
        for file in (ROOT / "cluster" / "image").glob("*.Dockerfile")
        for line in file.read_text().splitlines()
        if line.startswith("FROM")
    }
    assert bases == {"FROM python:3.12-slim-bookworm"}


def test_the_linter_finds_nothing_in_the_dockerfiles() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    files = sorted((ROOT / "cluster").rglob("*.Dockerfile"))
    done = subprocess.run([linter, "--no-color", *files], capture_output=True, text=True)
    assert (len(files), done.stdout, done.returncode) == (3, "", 0)


def test_the_dockerfiles_copy_what_exists() -> None:
    for file in (ROOT / "cluster").rglob("*.Dockerfile"):
        for line in re.findall(r"^COPY (.*)$", file.read_text(), re.MULTILINE):
            *sources, _ = line.split()
            assert all((ROOT / source).exists() for source in sources), line


def test_commands_of_skypilot_and_of_the_guide_fit() -> None:
    sky = yaml.safe_load((ROOT / "cluster" / "skypilot" / "train.yaml").read_text())
    guide = (ROOT / "docs" / "clusters.md").read_text()
    text = (sky["run"] + guide).replace("\\\n", " ")
    text = text.replace('"$CONFIG"', sky["envs"]["CONFIG"]).replace(
        '"$HOME/runs/demo"', "runs/demo"
    )
    commands = re.findall(r"(?:rlsys train|rlsys submit|train\.sbatch) (configs/\S+)(.*)", text)
    gpus = []
    for name, rest in commands:
        words = [word for word in rest.split("#")[0].split() if "=" in word]
        config = load_config(ROOT / name, words)
        gpus.append(sum(bundle.gpus for bundle in placed_bundles(config)))
    # SkyPilot's H100:8, one machine, one GPU of the cluster, the dry run, two nodes of SLURM.
    assert sky["resources"]["accelerators"] == "H100:8"
    assert gpus == [8, 8, 1, 0, 16]
