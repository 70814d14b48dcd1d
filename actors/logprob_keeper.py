"""Keeps the log-probs of sampled tokens on the card until their request has ended.

vLLM sends the log-probs of every step through its scheduler to the client and turns each of them
into Python objects, which costs more than the sampling itself. Here the sampler's output stops on
the card: one row per request, which the actor fetches once, as an array (actors.sampled_logprobs).

This needs vLLM's second model runner, whose slots do not move while a request runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch

from actors.sampled_logprobs import Span

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.worker.gpu.input_batch import InputBatch
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from vllm.v1.worker.gpu.sample.output import SamplerOutput

LEFT_PER_SLOT = 8
"""Rows of ended requests that are kept, per slot of the engine; further ones were aborted."""


class Kept(NamedTuple):
    """The log-probs of a request that has no slot any more."""

    row_L: torch.Tensor
    written: torch.cuda.Event | None
    """When the card has written the row; None where nothing runs ahead of the program."""


class LogprobKeeper:
    """Stands in for the sampler of vLLM's second model runner, and keeps what it must not send.

    Letters of shapes: S slots of the engine, L positions of a sequence, B rows of a step.
    """

    def __init__(self, runner: GPUModelRunner) -> None:
        """Put itself between `runner` and its sampler."""
        self._sampler = runner.sampler
        self._states = runner.req_states
        # The token after the last allowed one may be sampled, because the next step starts before
        # the result of this one is known; so there is one position more.
        self._logprobs_SL = torch.full(
            (self._states.max_num_reqs, self._states.max_model_len + 1),
            torch.nan,
            device=self._states.device,
        )
        self._places: dict[str, int | Kept] = {}
        """By request: its slot while it has one, then a copy of its row."""
        self._stream = torch.cuda.Stream() if self._logprobs_SL.is_cuda else None
        self._remove = runner._remove_request
        runner.sampler = self
        runner._remove_request = self._remove_request

    def __getattr__(self, name: str) -> object:
        """Everything but sampling is left to vLLM's sampler."""
        return getattr(self._sampler, name)

    def __call__(self, logits_BV: torch.Tensor, batch: InputBatch) -> SamplerOutput:
        """Sample, and store the log-probs instead of handing them on."""
        output = self._sampler(logits_BV, batch)
        tensors = output.logprobs_tensors
        if tensors is None:
            return output
        # The sampled token comes after the one whose logits these are. A prompt that is prefilled
        # in parts writes below its own length here, and nobody reads that.
        after_B = batch.positions[batch.logits_indices].long() + 1
        self._logprobs_SL[batch.idx_mapping.long(), after_B] = tensors.logprobs[:, 0]
        if tensors.logprobs.shape[1] == 1:  # otherwise a request wants candidates as well
            output.logprobs_tensors = None
        return output

    def add_request(self, slot: int, prompt_len: int, params: SamplingParams) -> None:
        """Give a request its slot; one that was preempted gets its log-probs back."""
        self._sampler.add_request(slot, prompt_len, params)
        name = _outer_name(self._states.index_to_req_id[slot])
        before = self._places.get(name)
        # NaN, so that a token without a log-prob is found when it is fetched.
        self._logprobs_SL[slot] = torch.nan
        if isinstance(before, Kept):
            self._logprobs_SL[slot, : len(before.row_L)] = before.row_L
        if params.logprobs is not None:
            self._places[name] = slot

    def _remove_request(self, request_id: str) -> bool:
        name = _outer_name(request_id)
        slot = self._places.get(name)
        if isinstance(slot, int):
            longest = int(self._states.max_seq_len[slot])
            row_L = self._logprobs_SL[slot, :longest].clone()
            # The card makes the copy after all steps that wait for it now.
            written = None if self._stream is None else torch.cuda.current_stream().record_event()
            self._places[name] = Kept(row_L, written)
            self._forget_aborted()
        removed: bool = self._remove(request_id)
        return removed

    def _forget_aborted(self) -> None:
        left = [name for name, place in self._places.items() if isinstance(place, Kept)]
        for name in left[: -LEFT_PER_SLOT * self._states.max_num_reqs]:
            del self._places[name]

    def take(self, spans: Sequence[Span]) -> bytes:
        """Return the float32 log-probs of spans of ended requests, one after the other."""
        rows = []
        # On a stream of its own the fetch does not wait for the step that runs now. The steps that
        # wrote into the slots are over, since the caller knows their tokens; copies of rows may
        # still be waiting for their turn.
        with self._fetching():
            for request, start, stop in spans:
                place = self._places.pop(request)
                if isinstance(place, Kept):
                    if place.written is not None:
                        place.written.wait()
                    rows.append(place.row_L[start:stop])
                else:
                    rows.append(self._logprobs_SL[place, start:stop])
            values: bytes = torch.cat(rows).cpu().numpy().tobytes()
        return values

    def _fetching(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _outer_name(request_id: str) -> str:
    """Return the name that the actor gave a request, without the suffix that vLLM adds.

    Example: _outer_name("0_17-1f3c9a02") is "0_17", the first sample of request 17
    """
    return request_id.rpartition("-")[0]
