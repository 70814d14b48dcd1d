"""A Ray cluster of several nodes on one machine: every node has namespaces of its own.

A node has its own network (an address, a link that can be cut), processes, host name, /dev/shm and
/tmp/ray, and shares all other folders with the machine. The nodes are connected by a bridge. The
machine itself has an address on it, so jobs are submitted from outside:

    this process ── veth ── bridge ── veth ── node 1 (head)
                              ├────── veth ── node 2
                              └────── veth ── node 3

No namespace has a name. The kernel removes each one together with its last process, and it kills
these processes when this one ends, so nothing is left behind even after kill -9 of a test.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
BIN: Final = Path(sys.executable).parent
START_SECONDS: Final = 120.0
GCS_PORT: Final = 6379
DASHBOARD_PORT: Final = 8265
TOKEN: Final = "of-a-test"
PR_SET_PDEATHSIG: Final = 1

START: Final = """
set -e
hostname {name}
ip link set lo up
mount -t tmpfs -o size=1g tmpfs /dev/shm
mount --bind {folder}/ray /tmp/ray
mount --bind {folder}/hosts /etc/hosts
until ip -4 address show dev eth0 2>/dev/null | grep -q inet; do sleep 0.05; done
exec {ray} start {words} --block > {folder}/ray.log 2>&1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """What a node offers."""

    name: str
    cpus: int
    labels: Mapping[str, str] = field(default_factory=dict)


class Node:
    """One running node."""

    def __init__(self, spec: NodeSpec, process: subprocess.Popen[bytes], switch: int) -> None:
        self.name = spec.name
        self._process = process
        self._switch = switch
        self._inner = _only_child(process.pid)

    def run(self, *words: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command on this node."""
        return subprocess.run(
            [*_enter(self._inner, "--net", "--mount", "--pid", "--uts"), *words],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=_environment(),
        )

    @property
    def alive(self) -> bool:
        """False once its first process has ended."""
        return self._process.poll() is None

    def cut(self) -> None:
        """Cut the link of the node: packets are lost without any error at either end."""
        self._link("down")

    def heal(self) -> None:
        """Connect the node again."""
        self._link("up")

    def kill(self) -> None:
        """End the node at once, with its raylet and all of its actors, as a power cut does."""
        # The first process of the namespace: the kernel kills all others with it.
        os.kill(self._inner, signal.SIGKILL)
        self._process.wait()

    def _link(self, state: str) -> None:
        _call(*_enter(self._switch, "--net"), "ip", "link", "set", self.name, state)


class NodeCluster:
    """A running cluster; the first node is the head."""

    def __init__(self, folder: Path) -> None:
        """Start the bridge alone; `folder` is for logs of the nodes."""
        self.nodes: dict[str, Node] = {}
        self.folder = folder
        self._subnet = f"10.77.{os.getpid() % 256}"
        self._switch = _start("unshare", "--net", "--fork", "--kill-child", "sleep", "infinity")
        _only_child(self._switch.pid)  # from here on it has a network of its own
        self._processes = [self._switch]
        _make_switch(self._switch.pid, f"{self._subnet}.254")

    @property
    def head_address(self) -> str:
        """Address of the head node."""
        return f"{self._subnet}.1"

    def add(self, spec: NodeSpec) -> None:
        """Start a node and connect it; it registers itself some seconds later."""
        address = f"{self._subnet}.{len(self.nodes) + 1}"
        head = None if not self.nodes else self.head_address
        process = _start_node(spec, self.folder / spec.name, address, head)
        self._processes.append(process)
        switch = self._switch.pid
        self.nodes[spec.name] = Node(spec, process, switch)
        _plug(spec.name, address, process.pid, switch, f"{self._subnet}.254")

    def close(self) -> None:
        """End every process."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    @property
    def dashboard(self) -> str:
        """Where jobs are submitted."""
        return f"http://{self.head_address}:{DASHBOARD_PORT}"

    def submit(self, *words: object) -> str:
        """Submit `words` as a job from outside the cluster; return its submission id."""
        job = f"job-{uuid.uuid4().hex[:8]}"
        command = [str(BIN / "ray"), "job", "submit", "--address", self.dashboard, "--no-wait"]
        done = subprocess.run(
            [*command, "--submission-id", job, "--", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=120,
            env=_environment(),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return job

    def status(self, job: str) -> str:
        """Return PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
        return str(self._ask(f"/api/jobs/{job}")["status"])

    def logs(self, job: str) -> str:
        """Return what the job has printed, in one line: terminals break lines anywhere."""
        return " ".join(self._ask(f"/api/jobs/{job}/logs")["logs"].split())

    def wait(self, job: str, seconds: float) -> str:
        """Return the final status of a job; one that runs longer fails the test."""
        end = time.monotonic() + seconds
        while (status := self.status(job)) in ("PENDING", "RUNNING"):
            if time.monotonic() > end:
                raise AssertionError(f"{job} still runs after {seconds:g} s:\n{self.logs(job)}")
            time.sleep(1)
        return status

    def _ask(self, path: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        request = urllib.request.Request(self.dashboard + path, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return dict(json.load(answer))


def why_not() -> str | None:
    """Return why this machine cannot run such a cluster, or None if it can."""
    for program in ("ip", "unshare", "nsenter", "mount"):
        if shutil.which(program) is None:
            return f"needs the program {program}"
    try:
        import ray.dashboard.optional_deps  # noqa: F401
    except ImportError as error:
        return f"needs Ray's dashboard: pip install 'ray[default]' ({error})"
    probe = "ip link add probe0 type veth peer name probe1 && mount -t tmpfs tmpfs /dev/shm"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "sh", "-c", probe],
        capture_output=True,
        text=True,
    )
    return f"cannot make namespaces: {done.stderr.strip()}" if done.returncode else None


@contextmanager
def node_cluster(specs: Sequence[NodeSpec], folder: Path) -> Iterator[NodeCluster]:
    """Start a cluster; end all of it when the block ends."""
    cluster = NodeCluster(folder)
    try:
        for spec in specs:
            cluster.add(spec)
        _wait_until_complete(cluster, len(specs))
        yield cluster
    finally:
        cluster.close()


def _start_node(
    spec: NodeSpec, folder: Path, address: str, head: str | None
) -> subprocess.Popen[bytes]:
    """Start the first process of a node; it waits for its link and then starts Ray.

    `head` is the address of the head node, None if this is to be the head.
    """
    (folder / "ray").mkdir(parents=True)
    Path("/tmp/ray").mkdir(exist_ok=True)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{address} {spec.name}\n")
    words = [f"--node-ip-address={address}", f"--num-cpus={spec.cpus}"]
    words += ["--object-store-memory=200000000", "--disable-usage-stats"]
    if spec.labels:
        labels = ",".join(f"{key}={value}" for key, value in spec.labels.items())
        words.append(f"--labels={labels}")
    if head is None:
        words += ["--head", f"--port={GCS_PORT}", "--dashboard-host=0.0.0.0"]
        words.append(f"--dashboard-port={DASHBOARD_PORT}")
    else:
        words.append(f"--address={head}:{GCS_PORT}")
    script = START.format(name=spec.name, folder=folder, ray=BIN / "ray", words=" ".join(words))
    spaces = ("--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc")
    process = _start("unshare", *spaces, "bash", "-c", script)
    _only_child(process.pid)  # from here on it has namespaces of its own
    return process


def _make_switch(switch: int, machine: str) -> None:
    """Make the bridge, and give this machine the address `machine` on it."""
    inside = _enter(switch, "--net")
    _call(*inside, "ip", "link", "add", "bridge0", "type", "bridge")
    _call(*inside, "ip", "link", "set", "bridge0", "up")
    outer = f"rlsys{os.getpid()}"
    link = ("type", "veth", "peer", "name", "machine", "netns", str(switch))
    _call("ip", "link", "add", outer, *link)
    _call("ip", "address", "add", f"{machine}/24", "dev", outer)
    _call("ip", "link", "set", outer, "up")
    _call(*inside, "ip", "link", "set", "machine", "master", "bridge0", "up")


def _plug(name: str, address: str, node: int, switch: int, machine: str) -> None:
    """Connect a node with the bridge."""
    inside, at_switch = _enter(node, "--net"), _enter(switch, "--net")
    link = ("type", "veth", "peer", "name", "eth0", "netns", str(node))
    _call(*at_switch, "ip", "link", "add", name, *link)
    _call(*at_switch, "ip", "link", "set", name, "master", "bridge0", "up")
    _call(*inside, "ip", "link", "set", "eth0", "up")
    # Without a default route, libraries that look for the machine's address find 127.0.0.1.
    _call(*inside, "ip", "address", "add", f"{address}/24", "dev", "eth0")
    _call(*inside, "ip", "route", "add", "default", "via", machine)


def _wait_until_complete(cluster: NodeCluster, count: int) -> None:
    """Return once all nodes are registered and the dashboard answers."""
    script = f"import ray; ray.init('{cluster.head_address}:{GCS_PORT}', log_to_driver=False);"
    script += "print(sum(n['Alive'] for n in ray.nodes()))"
    head = next(iter(cluster.nodes.values()))
    end = time.monotonic() + START_SECONDS
    while True:
        # The dashboard starts last.
        done = head.run(sys.executable, "-c", script) if _answers(cluster) else None
        if done is not None and done.stdout.strip() == str(count):
            return
        if time.monotonic() > end or not all(node.alive for node in cluster.nodes.values()):
            logs = [path.read_text() for path in cluster.folder.glob("*/ray.log")]
            shown = "" if done is None else done.stderr
            raise AssertionError("\n".join(["the cluster did not start:", shown, *logs]))
        time.sleep(0.5)


def _answers(cluster: NodeCluster) -> bool:
    try:
        with socket.create_connection((cluster.head_address, DASHBOARD_PORT), timeout=1):
            return True
    except OSError:
        return False


def _environment() -> dict[str, str]:
    """Environment of every process of the cluster."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    inherited = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    return inherited | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": path,
        "TMPDIR": "/tmp",
        # A node that does not answer is dead after some seconds, not after half a minute.
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "3000",
        "RAY_health_check_failure_threshold": "3",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
    }


def _start(*words: str) -> subprocess.Popen[bytes]:
    """Start a process that the kernel kills when this one ends."""

    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    return subprocess.Popen(words, env=_environment(), preexec_fn=die_with_parent)


def _only_child(process: int) -> int:
    """Return the child of a process, as soon as there is one."""
    children = Path(f"/proc/{process}/task/{process}/children")
    end = time.monotonic() + 10
    while not (found := children.read_text().split()):
        if time.monotonic() > end:
            raise AssertionError(f"process {process} has started nothing")
        time.sleep(0.01)
    return int(found[0])


def _enter(process: int, *spaces: str) -> tuple[str, ...]:
    return ("nsenter", "--target", str(process), *spaces)


def _call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"{' '.join(words)}: {done.stderr.strip()}")
