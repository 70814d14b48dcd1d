"""What is refused of a reflection model, and where its engines go, before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from rlsys.config import RunConfig
from rlsys.errors import ConfigError, ModelError, RlsysError
from rlsys.launch.inputs import check_inputs
from rlsys.launch.resources import (
    check_shares,
    engine_bundle,
    placed_bundles,
    reflection_bundle,
    reflection_shares_policy_card,
)
from rlsys.launch.room import Bundle


def config(
    revision: dict[str, Any] | None, *, think_end: str = "</think>", **sections: Any
) -> RunConfig:
    environment = {
        "type": "reflection",
        "budget": 64,
        "answer_tokens": 6,
        "closing": "",
        "think_end": think_end,
        "revision": revision,
    }
    data = {
        "train": {"source": "arithmetic", "size": 8},
        "evaluation": {"source": "arithmetic", "size": 4, "held_out": True},
        "prompt": {"max_tokens": 32},
    }
    algorithm = {"method": "rea"}
    return RunConfig.model_validate(
        {"environment": environment, "algorithm": algorithm, "data": data} | sections
    )


def reader(path: str = "tiny", layout: str = "compact", **generation: Any) -> dict[str, Any]:
    return {
        "model": {"path": path},
        "detector": {"layout": layout},
        "generation": generation,
    }


def test_a_reader_that_can_be_asked() -> None:
    inputs = check_inputs(config(reader()))
    assert inputs.reflection_length == 1024
    # prompt, thought, end of thought, header (which is one token), answer
    assert inputs.longest_sequence == 32 + 64 + 1 + 1 + 6


def test_originals_alone_need_no_reader() -> None:
    assert check_inputs(config(None)).reflection_length is None


def test_what_cannot_be_asked_is_one_sentence() -> None:
    cases: list[tuple[RunConfig, type[RlsysError], str]] = [
        (
            config(reader("runs/no/such")),
            ModelError,
            "model folder 'runs/no/such' does not exist; correct environment.revision.model.path",
        ),
        (
            config(reader(layout="text")),
            ModelError,
            "its probability cannot be read; set detector.layout to 'compact'",
        ),
        (
            config(None, think_end="→"),
            ModelError,
            "environment.think_end '→' cannot be written with tokenizer",
        ),
        (
            config({"model": {"path": "tiny", "max_length": 4096}}),
            ModelError,
            "environment.revision.model.max_length 4096 is more than the 1024 positions of "
            "environment.revision.model.path 'tiny'; lower it",
        ),
    ]
    for asked, kind, sentence in cases:
        with pytest.raises(kind) as caught:
            check_inputs(asked)
        assert sentence in str(caught.value), sentence
        assert "\n" not in str(caught.value), sentence


def test_on_the_cpu_readers_have_bundles_of_their_own() -> None:
    asked = config(reader(engines=2, cpus_per_engine=3), generation={"engines": 2})
    assert placed_bundles(asked) == [
        Bundle("learner rank 1 of 1", 1, 0),
        Bundle("engine 1 of 2", 1, 0),
        Bundle("engine 2 of 2", 1, 0),
        Bundle("reflection engine 1 of 2", 3, 0),
        Bundle("reflection engine 2 of 2", 3, 0),
    ]
    assert [engine_bundle(asked, i) for i in range(2)] == [1, 2]
    assert [reflection_bundle(asked, i) for i in range(2)] == [3, 4]


def test_a_part_of_a_card_is_beside_the_engine() -> None:
    cases: list[tuple[float, float, float, list[tuple[str, float, float]], tuple[int, int]]] = [
        # Rank, engine and reader on one card.
        (0.4, 0.4, 0.2, [("shared GPU 1 of 1", 3, 1)], (0, 0)),
        # A rank with a card of its own; engine and reader share the other one.
        (1, 0.6, 0.2, [("learner rank 1 of 1", 1, 1), ("engine 1 of 1", 2, 0.8)], (1, 1)),
        # Apart.
        (
            0.4,
            0.4,
            1,
            [("shared GPU 1 of 1", 2, 1), ("reflection engine 1 of 1", 1, 1)],
            (0, 1),
        ),
    ]
    for rank, engine, part, bundles, places in cases:
        where = (rank, engine, part)
        asked = config(
            reader(gpus_per_engine=part),
            learner={"gpus_per_rank": rank},
            generation={"gpus_per_engine": engine},
        )
        check_shares(asked)
        assert reflection_shares_policy_card(asked) == (part < 1), where
        placed = placed_bundles(asked)
        assert [(b.name, b.cpus) for b in placed] == [(name, cpus) for name, cpus, _ in bundles], (
            where
        )
        assert [b.gpus for b in placed] == pytest.approx([gpus for _, _, gpus in bundles]), where
        assert (engine_bundle(asked, 0), reflection_bundle(asked, 0)) == places, where


@pytest.mark.parametrize(
    ("generation", "sentence"),
    [
        ({"gpus_per_engine": 0.3}, "add up to 1.1"),
        ({"gpus_per_engine": 0.1, "engines": 2}, "share GPUs in pairs; lower it"),
        ({"gpus_per_engine": 2}, "revision.generation.gpus_per_engine 2 does not match"),
    ],
)
def test_shares_that_no_card_has(generation: dict[str, Any], sentence: str) -> None:
    asked = config(
        reader(**generation),
        learner={"gpus_per_rank": 0.4},
        generation={"gpus_per_engine": 0.4},
    )
    with pytest.raises(ConfigError) as caught:
        check_shares(asked)
    assert sentence in str(caught.value)


def test_methods_and_environments_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"'brpo' does not fit environment.type 'reflection'"):
        config(None, algorithm={"method": "brpo"})
    with pytest.raises(
        ValueError, match=r"'rea' does not fit environment.type 'anytime'; use 'brpo'"
    ):
        RunConfig.model_validate({"algorithm": {"method": "rea"}})
