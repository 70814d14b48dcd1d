"""The detector against a scripted engine: what it asks, reads and survives."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from scripted import sample
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlsys.config import ChunkingConfig, DetectorConfig
from rlsys.errors import EngineError, ModelError
from rlsys.reflection.detector import (
    Detection,
    ReflectionDetector,
    SampledThought,
    detection_counts,
)
from rlsys.sft.tiny_model import CHARACTERS, tiny_tokenizer
from rlsys.tokenization.decoding import token_texts
from rlsys.types import Candidates, Completion, GenerationRequest, Outcome

TINY = tiny_tokenizer()
STEPS = ChunkingConfig(separator="(?=[;?])", most=1)
COMPACT = DetectorConfig(layout="compact", chunking=STEPS)


def bytes_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte."""
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


def chat_tokenizer() -> PreTrainedTokenizerFast:
    """Characters, but the labels of the text layout are one token each, as in language models."""
    names = ("<unk>", "<eos>", *CHARACTERS)
    core = Tokenizer(models.BPE({n: i for i, n in enumerate(names)}, [], unk_token="<unk>"))
    core.decoder = decoders.Fuse()
    core.add_tokens([AddedToken(t, normalized=False) for t in (" Think", " Result")])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        eos_token="<eos>",
        chat_template="{{ 'User: ' + messages[0]['content'] + '\\nAssistant: ' }}",
        clean_up_tokenization_spaces=False,
    )


@dataclass
class Scripted:
    """An engine that writes fixed replies, each to the end of its turn.

    Every token is sure but labels, which have 0.9.
    """

    tokenizer: PreTrainedTokenizerFast
    replies: Sequence[str | Exception]
    labels: tuple[str, str]
    requests: list[GenerationRequest] = field(default_factory=list)

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Completion]]:
        return [[self._next(r)] for r in requests]

    def _next(self, request: GenerationRequest) -> Completion:
        reply = self.replies[len(self.requests)]
        self.requests.append(request)
        if isinstance(reply, Exception):
            raise reply
        pair = [self.tokenizer.convert_tokens_to_ids(label) for label in self.labels]
        script = self.tokenizer(reply, add_special_tokens=False)["input_ids"]
        written = sample(request, [*script, self.tokenizer.eos_token_id])
        ids = written.token_ids
        others = [pair[1 - pair.index(i)] if i in pair else 0 for i in ids.tolist()]
        sure = np.where(np.isin(ids, pair), 0.9, 0.999)
        return replace(
            written,
            logprobs=np.log(sure).astype(np.float32),
            candidates=Candidates(
                np.stack([ids, np.array(others, np.int32)], axis=1),
                np.log(np.stack([sure, 1 - sure], axis=1)).astype(np.float32),
            ),
        )


def tiny_detector(
    *replies: str | Exception, max_length: int = 1024, until_first: bool = False
) -> ReflectionDetector:
    return ReflectionDetector(
        Scripted(TINY, replies, ("T", "R")),
        TINY,
        COMPACT,
        max_length=max_length,
        policy_texts=lambda ids: token_texts(TINY, ids),
        until_first=until_first,
    )


def asked(detector: ReflectionDetector) -> list[GenerationRequest]:
    engine = detector._generator
    assert isinstance(engine, Scripted)
    return engine.requests


def thought(text: str, problem: str = "3+8-2") -> SampledThought:
    ids = TINY(text, add_special_tokens=False)["input_ids"]
    return SampledThought(problem, np.array(ids, np.int32))


def detect(detector: ReflectionDetector, *thoughts: SampledThought) -> list[Detection]:
    return asyncio.run(detector.detect(thoughts))


def test_the_tiny_model_is_asked_in_characters_and_read() -> None:
    detector = tiny_detector("T[2].R[3].T[4].R")
    (found,) = detect(detector, thought("3+8=11;11-2=9?3+8=11;11-2=9"))
    (request,) = asked(detector)
    assert TINY.decode(request.token_ids) == (
        "<bos>3+8-2\n[1]3+8=11[2];11-2=9[3]?3+8=11[4];11-2=9=<think>[1]."
    )
    assert (request.n, request.temperature, request.top_logprobs) == (1, 0.0, 5)
    assert request.stop_token_ids == (TINY.eos_token_id,)
    assert request.max_tokens == 2 * len("T[2].R[3].T[4].R ")
    assert found.outcome is Outcome.READ
    assert found.reading is not None
    np.testing.assert_allclose(found.reading.probabilities_N, [0.1, 0.9, 0.1, 0.9], atol=1e-6)
    assert found.kept_tokens("first") == len("3+8=11;11-2=9")
    assert found.kept_tokens("normal") == len("3+8=11;11-2=9?3+8=11")


def test_a_language_model_reads_what_another_tokenizer_wrote() -> None:
    policy, reader = bytes_tokenizer(), chat_tokenizer()
    pieces = ["Deux é.", "So x = 3.", "But 日 wait.", "Yes."]
    ids = policy("\n\n".join(pieces))["input_ids"]
    engine = Scripted(
        reader,
        [" Think\n\n[2]. Result\n\n[3]. Think\n\n[4]. Result"],
        (" Think", " Result"),
    )
    detector = ReflectionDetector(
        engine,
        reader,
        DetectorConfig(chunking=ChunkingConfig(most=1)),
        max_length=4096,
        policy_texts=lambda ids: token_texts(policy, ids),
    )
    (found,) = detect(detector, SampledThought("What is x?", np.array(ids, np.int32)))
    prompt = reader.decode(engine.requests[0].token_ids)
    assert "Question:\nWhat is x?\n" in prompt
    assert "**[2].** So x = 3.\n\n**[3].** But " in prompt
    assert prompt.endswith("\nAssistant: [1].")
    assert found.thought.texts == pieces
    kept = found.kept_tokens("first")
    # In bytes of the policy's tokenizer, not in characters of the reader's.
    assert kept == len("Deux é.\n\nSo x = 3.".encode())
    assert policy.decode(ids[:kept]) == "Deux é.\n\nSo x = 3."


def test_missing_and_doubled_labels_are_counted_and_shift_nothing() -> None:
    steps = "3+8=11;11-2=9?3+8=11;11-2=9"
    lacking, doubled = detect(
        tiny_detector("T[2].R[4].R", "T[2].T[2].R[3].T[4].R"), thought(steps), thought(steps)
    )
    assert lacking.reading is not None
    assert doubled.reading is not None
    np.testing.assert_allclose(lacking.reading.probabilities_N, [0.1, 0.9, 0, 0.9], atol=1e-6)
    np.testing.assert_allclose(doubled.reading.probabilities_N, [0.1, 0.1, 0.1, 0.9], atol=1e-6)
    counts = detection_counts([lacking, doubled])
    assert (counts["missing_labels"], counts["extra_labels"], counts["chunks"]) == (1, 1, 8)


def test_a_reply_may_end_at_its_first_result() -> None:
    steps = thought("3+8=11;11-2=9?3+8=11;11-2=9")
    short = tiny_detector("T[2].R", "T[2].T[3].T[4].T", "T[3].R", "", until_first=True)
    whole = tiny_detector("T[2].R[3].T[4].R")
    found, without, skipped, empty = detect(short, *[steps] * 4)
    (request, *_) = asked(short)
    assert request.stop_token_ids == (TINY.eos_token_id, TINY.convert_tokens_to_ids("R"))
    assert found.cut("first") == detect(whole, steps)[0].cut("first") == 1
    assert without.cut("first") == 3
    readings = [d.reading for d in (found, without, skipped) if d.reading is not None]
    assert [reading.missing for reading in readings] == [0, 0, 1]
    assert empty.outcome is Outcome.UNREADABLE


def test_what_cannot_be_read_keeps_the_original_and_is_counted() -> None:
    found = detect(
        tiny_detector("no labels", EngineError("engine 0 died"), "R", max_length=128),
        thought("3+8=11"),
        thought("3+8=11"),
        thought(""),
        thought("3+8=11" + ";11-2=9" * 12),
        thought("3+8=11"),
    )
    assert [d.outcome.value for d in found] == [
        *("unreadable", "failed", "empty", "too_long", "read")
    ]
    assert [d.kept_tokens("normal") for d in found] == [None, None, None, None, 0]
    counts = detection_counts(found)
    assert [counts[o] for o in Outcome] == [1, 1, 1, 1, 1]


def test_no_thoughts_ask_nothing() -> None:
    assert detect(tiny_detector()) == []


def test_an_engine_that_tells_no_candidates_is_an_error() -> None:
    class Silent(Scripted):
        def _next(self, request: GenerationRequest) -> Completion:
            return Completion(
                token_ids=np.zeros(1, np.int32),
                logprobs=np.zeros(1, np.float32),
                stopped=True,
                versions=(0, 0),
                engine=2,
            )

    detector = tiny_detector()
    detector._generator = Silent(TINY, [], ("T", "R"))
    with pytest.raises(EngineError, match=r"engine 2 returned no candidates, .* 5 per token"):
        detect(detector, thought("3+8=11"))


def test_labels_of_several_tokens_are_refused_at_the_start() -> None:
    with pytest.raises(ModelError, match=r"no single token for the label 'Think'"):
        ReflectionDetector(
            Scripted(TINY, [], ("T", "R")),
            TINY,
            DetectorConfig(layout="text"),
            max_length=1024,
            policy_texts=lambda ids: token_texts(TINY, ids),
        )
