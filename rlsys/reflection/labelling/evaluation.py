"""Evaluate the reflection model without training: its labels, and the answers after its cuts.

Thoughts are cut by the rule of a strength, and the policy answers from each cut. Accuracy and
tokens are compared with those of the whole thoughts.

The baseline is a cut that ignores the content of the thought. It keeps a fixed share of all thought
tokens: one of the configured ratios, or the share that a strength has kept. The second kind shows
whether a strength chooses better cuts, or only shorter thoughts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple, get_args

import numpy as np

from rlsys.algorithms.reflection import ChunkedThought, Strength, fixed_ratio_cuts
from rlsys.algorithms.reflection.detection import SURE
from rlsys.reflection.detector import (
    Detection,
    Detector,
    SampledThought,
    detection_counts,
    first_result,
)
from rlsys.reflection.labelling.responses import AnswerFrom, Policy, Thought
from rlsys.reflection.labelling.rows import LabelledThought
from rlsys.types import Verdict

STRENGTHS: Final[tuple[Strength, ...]] = get_args(Strength)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionScores:
    """Agreement of the reflection model with the teacher; thoughts without chunks are left out."""

    thoughts: int
    chunks: int
    accuracy: float
    """Share of chunks with the label of the teacher."""
    all_think: float
    """The accuracy of a model that labels every chunk `Think`."""
    first_accuracy: float
    """Share of thoughts with the same first result chunk as the teacher's, or none in both."""
    first_of_answered: float
    """The same share, over the thoughts in which the teacher found a result chunk."""
    precision: float
    """Share of true results among the chunks labelled `Result`; 0 if there are none."""
    recall: float
    """Share of chunks labelled `Result` among the true results; 0 if there are none."""


def detection_scores(
    detections: Sequence[Detection], results: Sequence[Sequence[int]]
) -> DetectionScores:
    """Compare detections with the result chunks of the teacher.

    Chunks of a thought without a detection count as `Think`.
    """
    predicted: list[bool] = []
    true: list[bool] = []
    firsts: list[bool] = []
    answered: list[bool] = []
    for detection, chunks in zip(detections, results, strict=True):
        count = len(detection.thought.chunks)
        if not count:
            continue
        reading = detection.reading
        probabilities_N = np.zeros(count) if reading is None else reading.probabilities_N
        predicted += (probabilities_N >= SURE).tolist()
        true += [chunk in chunks for chunk in range(count)]
        firsts.append(first_result(probabilities_N) == (min(chunks) if chunks else None))
        if chunks:
            answered.append(firsts[-1])
    pairs = list(zip(predicted, true, strict=True))
    both = sum(p and t for p, t in pairs)
    return DetectionScores(
        thoughts=len(firsts),
        chunks=len(pairs),
        accuracy=_share(sum(p == t for p, t in pairs), len(pairs)),
        all_think=_share(len(pairs) - sum(true), len(pairs)),
        first_accuracy=_share(sum(firsts), len(firsts)),
        first_of_answered=_share(sum(answered), len(answered)),
        precision=_share(both, sum(predicted)),
        recall=_share(both, sum(true)),
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionScores:
    """Accuracy and tokens of the answers after one kind of cut."""

    cut: str
    """`original`, `teacher`, a strength such as `normal`, or a baseline: `ratio 0.5` keeps half of
    all thought tokens, `as normal` keeps the share that `normal` has kept."""
    accuracy: float
    tokens: float
    """Mean tokens of a response: kept thought, forced tokens and answer."""
    token_ratio: float
    """Tokens in percent of the tokens of the originals."""
    thought_ratio: float
    """Kept thought tokens in percent of all thought tokens."""


class DetectorEvaluation(NamedTuple):
    """Result of `evaluate_detector`."""

    detection: DetectionScores
    counts: Mapping[str, int]
    """See `detection_counts`."""
    revisions: tuple[RevisionScores, ...]
    """One entry for each kind of cut."""

    def to_dict(self) -> dict[str, object]:
        """Return the result as values that JSON can store."""
        return {
            "detection": asdict(self.detection),
            "counts": dict(self.counts),
            "revisions": [asdict(r) for r in self.revisions],
        }


async def evaluate_detector(
    policy: Policy,
    detector: Detector,
    labelled: Sequence[LabelledThought],
    ratios: Sequence[float],
) -> DetectorEvaluation:
    """Detect and revise thoughts whose result chunks are known.

    Args:
        policy: the policy that sampled the thoughts; it answers from the cuts.
        detector: the reflection model.
        labelled: the thoughts, with the labels of the teacher.
        ratios: shares of all thought tokens that the baseline cuts keep.
    """
    thoughts = [item.thought for item in labelled]
    detections = await detector.detect(
        [SampledThought(t.problem.text, t.token_ids) for t in thoughts]
    )
    cuts = revision_cuts(labelled, detections, ratios)
    answers = await _answers(policy, thoughts, cuts)
    originals = answers["original"]
    revisions = tuple(
        _revision_scores(name, cuts[name], answers[name], originals, thoughts) for name in cuts
    )
    return DetectorEvaluation(
        detection_scores(detections, [item.results for item in labelled]),
        detection_counts(detections),
        revisions,
    )


def revision_cuts(
    labelled: Sequence[LabelledThought], detections: Sequence[Detection], ratios: Sequence[float]
) -> dict[str, list[int]]:
    """Return the kept tokens of every thought for each kind of cut, by the name of the kind."""
    whole = [len(item.thought.token_ids) for item in labelled]
    # The cut of the teacher shows what a detector without errors would reach.
    cuts = {"original": whole, "teacher": [item.known_tokens for item in labelled]}
    for strength in STRENGTHS:
        cuts[strength] = [
            _kept(detection, length, strength)
            for detection, length in zip(detections, whole, strict=True)
        ]
    shares = {f"ratio {ratio:g}": ratio for ratio in ratios}
    shares |= {f"as {strength}": _share(sum(cuts[strength]), sum(whole)) for strength in STRENGTHS}
    # Empty thoughts are left out: `fixed_ratio_cuts` needs at least one token per thought.
    nonempty = [i for i, length in enumerate(whole) if length]
    allowed = [boundaries(labelled[i].chunked, whole[i]) for i in nonempty]
    for name, share in shares.items():
        fixed = dict(zip(nonempty, fixed_ratio_cuts(allowed, share), strict=True))
        cuts[name] = [fixed.get(i, 0) for i in range(len(whole))]
    return cuts


def _kept(detection: Detection, length: int, strength: Strength) -> int:
    """Return the tokens kept of a thought of `length`; all of them for a cut after the last chunk.

    In training, such a cut drops the last piece, because a revision must differ from its original.
    If the answer was in that piece, the revision fails and its original replaces it. The evaluation
    has no such replacement, so dropping the answer would be counted against the reflection model.
    """
    cut = detection.cut(strength)
    if cut is None or cut == len(detection.thought.chunks) - 1:
        return length
    return detection.thought.kept_tokens(cut)


def boundaries(chunked: ChunkedThought, length: int) -> list[int]:
    """Return the token counts at which a baseline may cut: ends of pieces, and the length."""
    inner = {piece.token_end for piece in chunked.pieces[:-1]}
    return sorted({*inner, length})


async def _answers(
    policy: Policy, thoughts: Sequence[Thought], cuts: Mapping[str, Sequence[int]]
) -> dict[str, list[AnswerFrom]]:
    """Return the answer of every thought from every cut.

    Equal cuts of one thought are answered once. This saves work, and kinds of cuts that agree get
    exactly the same answer.
    """
    distinct = sorted({(i, kept) for row in cuts.values() for i, kept in enumerate(row)})
    answers = await policy.answer(
        [thoughts[i] for i, _ in distinct], [kept for _, kept in distinct]
    )
    by_cut = dict(zip(distinct, answers, strict=True))
    return {name: [by_cut[cut] for cut in enumerate(row)] for name, row in cuts.items()}


def _revision_scores(
    name: str,
    cuts: Sequence[int],
    answers: Sequence[AnswerFrom],
    originals: Sequence[AnswerFrom],
    thoughts: Sequence[Thought],
) -> RevisionScores:
    tokens, before = sum(a.tokens for a in answers), sum(a.tokens for a in originals)
    thought_tokens = sum(len(t.token_ids) for t in thoughts)
    return RevisionScores(
        cut=name,
        accuracy=_share(sum(a.verdict is Verdict.RIGHT for a in answers), len(answers)),
        tokens=_share(tokens, len(answers)),
        token_ratio=100.0 * _share(tokens, before),
        thought_ratio=100.0 * _share(sum(cuts), thought_tokens),
    )
