"""The rules for manifests that no schema catches: one failing example for each."""

import copy
from collections.abc import Callable
from typing import Any

from cluster.rules import broken_rules

HOOK = {"preStop": {"exec": {"command": ["python", "stop_run.py", "head", "840"]}}}


def pod(**container: object) -> dict[str, Any]:
    return {
        "spec": {
            "terminationGracePeriodSeconds": 900,
            "containers": [{"lifecycle": HOOK} | container],
        }
    }


CLUSTER = {
    "rayVersion": "2.55.1",
    "authOptions": {"mode": "token"},
    "headGroupSpec": {
        "rayStartParams": {"num-cpus": "0"},
        "template": pod(env=[{"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": "840"}]),
    },
    "workerGroupSpecs": [
        {"groupName": "gpu", "minReplicas": 1, "maxReplicas": 1, "template": pod()},
    ],
}
JOB = {
    "kind": "RayJob",
    "metadata": {"name": "rlsys", "labels": {}},
    "spec": {
        "entrypoint": "rlsys train configs/demo.yaml run_dir=/runs/demo",
        "submissionMode": "K8sJobMode",
        "backoffLimit": 3,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 600,
        "rayClusterSpec": CLUSTER,
    },
}
SERVICE = {"kind": "RayService", "metadata": {"name": "x"}, "spec": {"rayClusterConfig": CLUSTER}}
WITHOUT_SHUTDOWN = {"shutdownAfterJobFinishes": False, "ttlSecondsAfterFinished": 0}
DELETE_WORKERS = {"deletionRules": [{"policy": "DeleteWorkers"}]}

Change = Callable[[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]], object]

# What is changed in (the spec of the job, its cluster, its head group, its worker group), and the
# words of the one rule that is then broken.
BROKEN: list[tuple[str, Change]] = [
    (
        "ttlSecondsAfterFinished needs shutdown",
        lambda job, cluster, head, gpu: job.update(shutdownAfterJobFinishes=False),
    ),
    (
        "suspend needs shutdown",
        lambda job, cluster, head, gpu: job.update(WITHOUT_SHUTDOWN, suspend=True),
    ),
    (
        "deletionRules exclude shutdown",
        lambda job, cluster, head, gpu: job.update(deletionStrategy=DELETE_WORKERS),
    ),
    (
        "DeleteWorkers excludes enableInTreeAutoscaling",
        lambda job, cluster, head, gpu: (
            job.update(WITHOUT_SHUTDOWN, deletionStrategy=DELETE_WORKERS),
            cluster.update(enableInTreeAutoscaling=True),
        ),
    ),
    ("either rayClusterSpec or", lambda job, cluster, head, gpu: job.pop("rayClusterSpec")),
    (
        "excludes clusterSelector: a retry",
        lambda job, cluster, head, gpu: (
            job.pop("rayClusterSpec"),
            job.update(clusterSelector={"ray.io/cluster": "rlsys"}),
        ),
    ),
    (
        "excludes submissionMode InteractiveMode",
        lambda job, cluster, head, gpu: job.update(submissionMode="InteractiveMode"),
    ),
    (
        "needs run_dir=",
        lambda job, cluster, head, gpu: job.update(entrypoint="rlsys train configs/demo.yaml"),
    ),
    (
        "SidecarMode excludes submitterPodTemplate",
        lambda job, cluster, head, gpu: job.update(
            submissionMode="SidecarMode", submitterPodTemplate=pod()
        ),
    ),
    (
        "SidecarMode excludes submitterConfig",
        lambda job, cluster, head, gpu: job.update(
            submissionMode="SidecarMode", submitterConfig={"backoffLimit": 1}
        ),
    ),
    (
        "SidecarMode excludes clusterSelector",
        lambda job, cluster, head, gpu: (
            job.pop("rayClusterSpec"),
            job.update(
                submissionMode="SidecarMode",
                backoffLimit=0,
                clusterSelector={"ray.io/cluster": "rlsys"},
            ),
        ),
    ),
    (
        "SidecarMode wants restartPolicy",
        lambda job, cluster, head, gpu: (
            job.update(submissionMode="SidecarMode"),
            head["template"]["spec"].update(restartPolicy="Always"),
        ),
    ),
    (
        "rayStartParams and in resources",
        lambda job, cluster, head, gpu: head.update(resources={"CPU": "0"}),
    ),
    (
        "rayStartParams has labels",
        lambda job, cluster, head, gpu: gpu.update(rayStartParams={"labels": "a=b"}),
    ),
    (
        "autoscaler v2 wants restartPolicy",
        lambda job, cluster, head, gpu: (
            cluster.update(enableInTreeAutoscaling=True, autoscalerOptions={"version": "v2"}),
            gpu["template"]["spec"].update(restartPolicy="Always"),
        ),
    ),
    ("both minReplicas and maxReplicas", lambda job, cluster, head, gpu: gpu.pop("maxReplicas")),
    ("minReplicas 2 is more", lambda job, cluster, head, gpu: gpu.update(minReplicas=2)),
    (
        "suspend excludes enableInTreeAutoscaling",
        lambda job, cluster, head, gpu: (
            cluster.update(enableInTreeAutoscaling=True),
            gpu.update(suspend=True),
        ),
    ),
    ("needs rayVersion 2.52", lambda job, cluster, head, gpu: cluster.update(rayVersion="2.9.1")),
    (
        "version v2 needs enableInTreeAutoscaling",
        lambda job, cluster, head, gpu: cluster.update(autoscalerOptions={"version": "v2"}),
    ),
    (
        "without a preStop hook",
        lambda job, cluster, head, gpu: gpu["template"]["spec"]["containers"][0].clear(),
    ),
    (
        "the hook waits 840 s",
        lambda job, cluster, head, gpu: gpu["template"]["spec"].pop(
            "terminationGracePeriodSeconds"
        ),
    ),
    (
        "killed after 3 s",
        lambda job, cluster, head, gpu: head["template"]["spec"]["containers"][0].pop("env"),
    ),
    (
        "RAY_JOB_STOP_WAIT_TIME_S 900 is not below",
        lambda job, cluster, head, gpu: head["template"]["spec"]["containers"][0]["env"][0].update(
            value="900"
        ),
    ),
]


def test_one_example_for_every_rule() -> None:
    assert broken_rules(JOB) == broken_rules(SERVICE) == []
    wrong = {}
    for words, change in BROKEN:
        job = copy.deepcopy(JOB)
        spec: Any = job["spec"]
        cluster = spec["rayClusterSpec"]
        change(spec, cluster, cluster["headGroupSpec"], cluster["workerGroupSpecs"][0])
        rules = broken_rules(job)
        if len(rules) != 1 or words not in rules[0]:
            wrong[words] = rules
    assert wrong == {}


def test_queues_of_kueue() -> None:
    job: Any = copy.deepcopy(JOB)
    job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "rlsys"
    assert broken_rules(job) == []
    groups = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    groups += [{**groups[0], "groupName": f"gpu{i}"} for i in range(17)]
    job["spec"].update(WITHOUT_SHUTDOWN)
    assert [rule.split(":")[0] for rule in broken_rules(job)] == [
        "Kueue takes at most 17 worker groups, here are 18",
        "Kueue needs shutdownAfterJobFinishes",
    ]


def test_other_kinds_and_standalone_clusters() -> None:
    assert broken_rules({"kind": "PersistentVolumeClaim", "metadata": {"name": "x"}}) == []
    cluster: Any = copy.deepcopy(CLUSTER)
    del cluster["workerGroupSpecs"][0]["minReplicas"]
    for manifest in (
        {"kind": "RayCluster", "metadata": {"name": "x"}, "spec": cluster},
        {"kind": "RayService", "metadata": {"name": "x"}, "spec": {"rayClusterConfig": cluster}},
    ):
        assert [rule.split(",")[0] for rule in broken_rules(manifest)] == [
            "group gpu: without autoscaling both minReplicas and maxReplicas are needed"
        ]
