"""Rules for KubeRay manifests that no schema catches (KubeRay 1.7, Kueue, and those of rlsys).

    kubectl kustomize cluster/kubernetes/job | python cluster/rules.py

prints one line for every broken rule, and exits with 1 if there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import yaml

Tree = dict[str, Any]
"""A parsed manifest, or a part of one."""

RAY_RESOURCES = ("num-cpus", "num-gpus", "memory", "resources")
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_WORKER_GROUPS = 17
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"


def broken_rules(manifest: Tree) -> list[str]:
    """Return one sentence for every rule that a manifest breaks.

    Kinds other than RayCluster, RayJob and RayService have no rules here.
    """
    spec = manifest.get("spec", {})
    labels = manifest.get("metadata", {}).get("labels", {})
    match manifest.get("kind"):
        case "RayCluster":
            return [*_cluster(spec), *_queue(labels, spec)]
        case "RayService":
            return list(_cluster(spec.get("rayClusterConfig", {})))
        case "RayJob":
            cluster = spec.get("rayClusterSpec", {})
            rules = [*_job(spec), *_retries(spec), *_submission(spec)]
            if cluster:
                rules += [*_cluster(cluster), *_graceful_end(cluster), *_queue(labels, cluster)]
            if KUEUE_QUEUE in labels and not spec.get("shutdownAfterJobFinishes"):
                rules.append("Kueue needs shutdownAfterJobFinishes: true")
            return rules
    return []


def _job(spec: Tree) -> Iterator[str]:
    shutdown = bool(spec.get("shutdownAfterJobFinishes"))
    if spec.get("ttlSecondsAfterFinished") and not shutdown:
        yield "ttlSecondsAfterFinished needs shutdownAfterJobFinishes: true"
    if spec.get("suspend") and not shutdown:
        yield "suspend needs shutdownAfterJobFinishes: true"
    strategy = spec.get("deletionStrategy", {})
    if shutdown and strategy.get("deletionRules"):
        yield "deletionRules exclude shutdownAfterJobFinishes: true"
    scaled = spec.get("rayClusterSpec", {}).get("enableInTreeAutoscaling")
    policies = [rule.get("policy") for rule in strategy.get("deletionRules", [])]
    if scaled and "DeleteWorkers" in policies:
        yield "the policy DeleteWorkers excludes enableInTreeAutoscaling"
    if bool(spec.get("rayClusterSpec")) == bool(spec.get("clusterSelector")):
        yield "a RayJob has either rayClusterSpec or clusterSelector"


def _retries(spec: Tree) -> Iterator[str]:
    retries = spec.get("backoffLimit", 0) > 0
    if retries and spec.get("clusterSelector"):
        yield "backoffLimit above 0 excludes clusterSelector: a retry makes a new cluster"
    if retries and spec.get("submissionMode") == "InteractiveMode":
        yield "backoffLimit above 0 excludes submissionMode InteractiveMode"
    fixed = any(word.startswith("run_dir=") for word in spec.get("entrypoint", "").split())
    if retries and not fixed:
        yield "backoffLimit above 0 needs run_dir=... in the entrypoint, or a retry starts anew"


def _submission(spec: Tree) -> Iterator[str]:
    if spec.get("submissionMode") != "SidecarMode":
        return
    for field in ("submitterPodTemplate", "submitterConfig", "clusterSelector"):
        if spec.get(field):
            yield f"submissionMode SidecarMode excludes {field}"
    head = spec.get("rayClusterSpec", {}).get("headGroupSpec", {})
    if _pod(head).get("restartPolicy", "Never") != "Never":
        yield "submissionMode SidecarMode wants restartPolicy Never or unset on the head"


def _cluster(spec: Tree) -> Iterator[str]:
    scaled = bool(spec.get("enableInTreeAutoscaling"))
    version = spec.get("autoscalerOptions", {}).get("version")
    groups = _groups(spec)
    for name, group in groups.items():
        set_by_start = [key for key in RAY_RESOURCES if group.get("rayStartParams", {}).get(key)]
        if set_by_start and group.get("resources"):
            yield f"group {name}: resources are in rayStartParams and in resources; use one"
        if "labels" in group.get("rayStartParams", {}):
            yield f"group {name}: rayStartParams has labels; use the field labels of the group"
        restart = _pod(group).get("restartPolicy", "Never")
        if scaled and version == "v2" and restart != "Never":
            yield f"group {name}: autoscaler v2 wants restartPolicy Never or unset"
    for name, group in list(groups.items())[1:]:
        low, high = group.get("minReplicas"), group.get("maxReplicas")
        if not scaled and (low is None or high is None):
            yield f"group {name}: without autoscaling both minReplicas and maxReplicas are needed"
        if low is not None and high is not None and low > high:
            yield f"group {name}: minReplicas {low} is more than maxReplicas {high}"
        if scaled and group.get("suspend"):
            yield f"group {name}: suspend excludes enableInTreeAutoscaling"
    if spec.get("authOptions", {}).get("mode") == "token" and _older(spec, (2, 52)):
        yield "authOptions.mode token needs rayVersion 2.52 or later"
    if version == "v2" and not scaled:
        yield "autoscalerOptions.version v2 needs enableInTreeAutoscaling: true"


def _graceful_end(spec: Tree) -> Iterator[str]:
    """Yield what would let a pod end before the run has written its checkpoint."""
    for name, group in _groups(spec).items():
        pod = _pod(group)
        container = pod.get("containers", [{}])[0]
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        grace = pod.get("terminationGracePeriodSeconds", 30)
        if not hook:
            yield f"group {name}: without a preStop hook the pod ends during a training step"
        elif float(hook[-1]) >= grace:
            yield f"group {name}: the hook waits {hook[-1]} s, the pod gets only {grace} s"
        wait = {e["name"]: e.get("value") for e in container.get("env", [])}.get(STOP_WAIT)
        if name == "head" and wait is None:
            yield f"group head: without {STOP_WAIT} a deleted RayJob is killed after 3 s"
        elif name == "head" and float(wait or 0) >= grace:
            yield f"group head: {STOP_WAIT} {wait} is not below the {grace} s of the pod"


def _queue(labels: Tree, cluster: Tree) -> Iterator[str]:
    groups = len(cluster.get("workerGroupSpecs", []))
    if KUEUE_QUEUE in labels and groups > KUEUE_WORKER_GROUPS:
        yield f"Kueue takes at most {KUEUE_WORKER_GROUPS} worker groups, here are {groups}"


def _groups(spec: Tree) -> dict[str, Tree]:
    """Return the head group, then the worker groups, by name."""
    workers = {group["groupName"]: group for group in spec.get("workerGroupSpecs", [])}
    return {"head": spec.get("headGroupSpec", {}), **workers}


def _pod(group: Tree) -> Tree:
    pod: Tree = group.get("template", {}).get("spec", {})
    return pod


def _older(spec: Tree, version: tuple[int, int]) -> bool:
    major, minor, *_ = str(spec.get("rayVersion", "0.0")).split(".")
    return (int(major), int(minor)) < version


def main() -> None:
    """Check the manifests on standard input."""
    lines = [
        f"{manifest['kind']} {manifest['metadata']['name']}: {rule}"
        for manifest in yaml.safe_load_all(sys.stdin)
        if manifest
        for rule in broken_rules(manifest)
    ]
    print("\n".join(lines), end="\n" if lines else "")
    sys.exit(int(bool(lines)))


if __name__ == "__main__":
    main()
