"""The runs of benchmarks/plan_check.py load and fit the cards that they are made for."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from rlsys.config import RunConfig
from rlsys.config.loading import load_config
from rlsys.planning.cards import CARDS
from rlsys.planning.plan import Shapes, plan_run
from rlsys.planning.shape import shape_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_runs_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("plan_check")
    sizes = importlib.import_module("speed_model").SHAPES
    for name, run in script.RUNS.items():
        shape = {"model_type": "qwen2", "tie_word_embeddings": True, **sizes[run.shape]}
        config = load_config(None, [*script.COMMON, *run.settings], RunConfig)
        plan = plan_run(config, Shapes(policy=shape_of(shape)), CARDS["h100"])
        assert plan.faults == (), name
