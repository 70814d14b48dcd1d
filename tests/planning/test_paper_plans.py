"""The runs of configs/paper fit the cards that their files name, by the plan."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
from paper_page import PAPER, REFLECTION, ROOT, SFT, variants

from rlsys.config import SftConfig
from rlsys.config.loading import load_config
from rlsys.config.reflection import ReflectionConfig
from rlsys.launch.preflight import check_batch, check_shares
from rlsys.planning.cards import CARDS, GIB
from rlsys.planning.memory import EngineNeeds, LearnerNeeds, engine_memory, learner_memory, total
from rlsys.planning.shape import shape_of
from rlsys.planning.workload import EpisodeTree, LearnerRows

GIB_80 = CARDS["h100"].memory_gib


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/paper_plans.py: the sizes of the models, and the cards of the runs."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("paper_plans")


def test_every_run_fits_the_cards_that_its_file_names(plans: ModuleType) -> None:
    for hardware in plans.HARDWARE:
        text = (PAPER / hardware.file).read_text(encoding="utf-8")
        header = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
        # `16 of both` stands for learner.ranks=16 generation.engines=16.
        both = {"learner.ranks=16", "generation.engines=16"} == {*hardware.words}
        assert ("16 of both" in header) if both else all(w in header for w in hardware.words)
        config = load_config(PAPER / hardware.file, hardware.words)
        check_shares(config)
        check_batch(config)
        assert plans.plan(config, hardware.card).faults == (), hardware
    for file in ("brpo_8k.yaml", "brpo_16k.yaml", "rearl.yaml"):
        for name, words in variants(file).items():
            config = load_config(PAPER / file, words)
            assert plans.plan(config, "h100").faults == (), name


def test_supervised_runs_and_engines_of_labelling_fit_cards_of_80_gib(plans: ModuleType) -> None:
    for file in SFT:
        config = load_config(PAPER / file, [], SftConfig)
        most: int = getattr(config.data, "max_tokens", 0)
        tree = EpisodeTree(prompt=0, thought=most * (1 + (config.data.source == "preferences")))
        learner, shape = config.learner, shape_of(plans.SETTINGS[config.model.path])
        assert learner.lora is not None
        assert tree.tokens <= learner.row_tokens
        rows = LearnerRows(
            row_tokens=learner.row_tokens, rows=1, passes=1, rows_per_pass=1, trees_per_row=1
        )
        needs = LearnerNeeds(
            shape=shape,
            itemsize=2,
            trained=shape.lora_parameters(learner.lora),
            zero_stage=learner.zero_stage,
            ranks=learner.ranks,
            rows=rows,
            predicted=tree.sampled,
            checkpointed=shape.layers * bool(learner.gradient_checkpointing),
            compiled=learner.compile,
            logits_chunk=learner.logits_chunk,
            reference=False,
            kept_for_sync=0,
        )
        assert learner_memory(needs).peak / GIB < 0.9 * GIB_80, file
    labelling = load_config(PAPER / REFLECTION, [], ReflectionConfig)
    assert labelling.teacher.type == "engine"
    for model, wanted in (
        (labelling.policy, labelling.generation),
        (labelling.teacher.model, labelling.teacher.generation),
    ):
        engine = engine_memory(
            EngineNeeds(
                shape=shape_of(plans.shape_sizes(model.path)),
                itemsize=2,
                tensor_parallel=wanted.tensor_parallel,
                max_sequences=wanted.max_sequences,
                longest=12_000,
                cache_bytes=None,
                utilization=wanted.gpu_memory_utilization,
                device_memory=CARDS["h100"].memory,
                graphs=True,
                received=0,
                cache_itemsize=2,
                batch_tokens=8192,
            )
        )
        assert total(engine.parts) < CARDS["h100"].memory
        assert engine.streams >= 8
