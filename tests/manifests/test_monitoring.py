"""Prometheus configuration and Grafana dashboard ask for metrics that exist."""

import json
import re
from pathlib import Path

import ray
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "cluster" / "monitoring"
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def documented(pattern: str) -> bool:
    """Whether a name of the pattern is in the tables of metrics in docs/operations.md."""
    name = pattern.replace("[0-9]+", "BUDGET")
    groups = re.sub(r"\((\w+)\|.*\)", r"\1", name)  # time/(a|b) stands for time/a
    return f"`{groups}`" in OPERATIONS


def test_every_panel_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    reporter = Path(ray.__file__).parent / "dashboard/modules/reporter/reporter_agent.py"
    known = reporter.read_text()
    gauges = (ROOT / "rlsys" / "launch" / "gauges.py").read_text()
    unknown = [
        name
        for expression in expressions
        for name in re.findall(r"\bray_(\w+)", expression)
        if f'"{name}"' not in (gauges if name.startswith("rlsys") else known)
    ]
    patterns = [
        part
        for expression in expressions
        for pattern in re.findall(r'metric=~"([^"]+)"', expression)
        for part in re.split(r"\|(?![^(]*\))", pattern)
    ]
    assert (len(panels), unknown) == (17, [])
    assert [pattern for pattern in patterns if not documented(pattern)] == []
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_prometheus_scrapes_plain_nodes_and_pods() -> None:
    (plain,), (kubernetes,) = (
        yaml.safe_load((FOLDER / name).read_text())["scrape_configs"]
        for name in ("prometheus.yaml", "prometheus-kubernetes.yaml")
    )
    (found,) = plain["file_sd_configs"]
    assert found == {"files": ["/tmp/ray/prom_metrics_service_discovery.json"]}
    pods = {tuple(rule.get("source_labels", [])): rule for rule in kubernetes["relabel_configs"]}
    assert pods["__meta_kubernetes_pod_label_ray_io_is_ray_node",]["regex"] == "yes"
    assert pods["__meta_kubernetes_pod_container_port_name",]["regex"] == "metrics"
