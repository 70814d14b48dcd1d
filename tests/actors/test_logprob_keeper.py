"""Log-probs that stay on the card: which ones a request gets, and what happens to its slot."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from actors.logprob_keeper import LEFT_PER_SLOT, LogprobKeeper
from actors.sampled_logprobs import LogprobFetcher, Span, sampled_logprobs
from rlsys.errors import EngineError
from rlsys.types import Floats, GenerationRequest

SLOTS, LENGTH = 2, 8


class Runner:
    """What the keeper uses of vLLM's second model runner."""

    def __init__(self, device: str = "cpu") -> None:
        self.req_states = SimpleNamespace(
            max_num_reqs=SLOTS,
            max_model_len=LENGTH,
            device=torch.device(device),
            index_to_req_id={},
            max_seq_len=np.full(SLOTS, LENGTH),
        )
        self.sampler: object
        self.removed: list[str] = []

    def _remove_request(self, request_id: str) -> bool:
        self.removed.append(request_id)
        return True

    def add(self, keeper: LogprobKeeper, slot: int, request_id: str, prompt: int = 2) -> None:
        self.req_states.index_to_req_id[slot] = request_id
        keeper.add_request(slot, prompt, SimpleNamespace(logprobs=0))


def keeper_of(runner: Runner) -> LogprobKeeper:
    """A keeper whose sampler returns the log-probs that it is given as logits."""

    class Sampler:
        sampling_states = "vLLM's"

        def add_request(self, *_: object) -> None: ...

        def __call__(self, logits: torch.Tensor, _batch: object) -> SimpleNamespace:
            return SimpleNamespace(logprobs_tensors=SimpleNamespace(logprobs=logits))

    runner.sampler = Sampler()
    return LogprobKeeper(runner)


def step(
    keeper: LogprobKeeper, slots: list[int], positions: list[int], values: list[float]
) -> object:
    device = keeper._logprobs_SL.device
    batch = SimpleNamespace(
        positions=torch.tensor(positions, device=device),
        logits_indices=torch.arange(len(positions), device=device),
        idx_mapping=torch.tensor(slots, dtype=torch.int32, device=device),
    )
    logprobs = torch.tensor(values, device=device)[:, None]
    return keeper(logprobs, batch).logprobs_tensors


def take(keeper: LogprobKeeper, *spans: tuple[str, int, int]) -> list[float]:
    values = np.frombuffer(keeper.take([Span(*span) for span in spans]), np.float32)
    return [round(float(v), 3) for v in values]


def test_two_requests_in_swapped_rows_get_their_own_logprobs() -> None:
    runner = Runner()
    keeper = keeper_of(runner)
    runner.add(keeper, 1, "7-aaaaaaaa")
    runner.add(keeper, 0, "0_8-bbbbbbbb")
    assert step(keeper, [1, 0], [1, 1], [-0.1, -0.5]) is None  # nothing is left for vLLM to send
    step(keeper, [0, 1], [2, 2], [-0.6, -0.2])

    assert take(keeper, ("7", 2, 4), ("0_8", 2, 4)) == [-0.1, -0.2, -0.5, -0.6]
    assert keeper.sampling_states == "vLLM's"


def test_a_slot_is_used_again_before_its_logprobs_are_fetched() -> None:
    runner = Runner()
    keeper = keeper_of(runner)
    runner.add(keeper, 0, "1-aaaaaaaa")
    step(keeper, [0], [1], [-0.1])
    runner._remove_request("1-aaaaaaaa")
    runner.add(keeper, 0, "2-bbbbbbbb")
    step(keeper, [0], [1], [-0.9])

    assert take(keeper, ("1", 2, 3)) == [-0.1]
    assert take(keeper, ("2", 2, 3)) == [-0.9]
    assert runner.removed == ["1-aaaaaaaa"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_row_is_fetched_while_the_card_still_has_to_copy_it() -> None:
    runner = Runner("cuda")
    keeper = keeper_of(runner)
    for number in range(20):
        runner.add(keeper, 0, f"{number}-aaaaaaaa")
        step(keeper, [0], [1], [-0.1 * number])
        torch.cuda.synchronize()  # the token is known
        torch.cuda._sleep(100_000_000)  # the step that runs now
        runner._remove_request(f"{number}-aaaaaaaa")
        assert take(keeper, (f"{number}", 2, 3)) == [round(-0.1 * number, 3)]


def test_a_preempted_request_keeps_what_it_had_in_another_slot() -> None:
    runner = Runner()
    keeper = keeper_of(runner)
    runner.add(keeper, 0, "1-aaaaaaaa")
    step(keeper, [0], [1], [-0.1])
    runner._remove_request("1-aaaaaaaa")
    runner.add(keeper, 1, "1-aaaaaaaa", prompt=2)
    step(keeper, [1], [2], [-0.2])

    assert take(keeper, ("1", 2, 4)) == [-0.1, -0.2]


def test_a_token_that_was_never_sampled_here_is_nan() -> None:
    runner = Runner()
    keeper = keeper_of(runner)
    runner.add(keeper, 0, "1-aaaaaaaa")
    step(keeper, [0], [1], [-0.1])
    assert np.isnan(take(keeper, ("1", 2, 4))[1])


def test_rows_of_aborted_requests_do_not_grow_without_end() -> None:
    runner = Runner()
    keeper = keeper_of(runner)
    for number in range(100):
        runner.add(keeper, 0, f"{number}-aaaaaaaa")
        runner._remove_request(f"{number}-aaaaaaaa")
    assert len(keeper._places) == LEFT_PER_SLOT * SLOTS
    take(keeper, ("99", 2, 3))  # the newest are kept


def request(n: int = 1) -> GenerationRequest:
    return GenerationRequest(
        token_ids=np.arange(3, dtype=np.int32),
        n=n,
        max_tokens=4,
        stop_token_ids=(),
        temperature=1.0,
        seed=0,
    )


def output(*lengths: int) -> SimpleNamespace:
    return SimpleNamespace(
        request_id="5",
        outputs=[SimpleNamespace(index=i, token_ids=[0] * n) for i, n in enumerate(lengths)],
    )


def test_fetches_that_wait_together_share_one_call() -> None:
    calls: list[list[Span]] = []

    async def worker(spans: Sequence[Span]) -> bytes:
        calls.append(list(spans))
        await asyncio.sleep(0)
        return b"".join(np.full(s.stop - s.start, s.start, np.float32).tobytes() for s in spans)

    async def run() -> list[list[Floats]]:
        fetcher = LogprobFetcher(worker)
        one = sampled_logprobs(request(), output(2), fetcher)
        two = sampled_logprobs(request(n=2), output(1, 3), fetcher)
        return list(await asyncio.gather(one, two))

    (one,), two = asyncio.run(run())
    assert calls == [[Span("5", 3, 5), Span("0_5", 3, 4), Span("1_5", 3, 6)]]
    assert one.shape == (2, 1)
    assert [rows.shape for rows in two] == [(1, 1), (3, 1)]


def test_a_missing_logprob_and_a_dead_worker_are_errors_of_the_request() -> None:
    async def missing(spans: Sequence[Span]) -> bytes:
        return np.full(spans[0].stop - spans[0].start, np.nan, np.float32).tobytes()

    async def dead(_spans: Sequence[Span]) -> bytes:
        raise EngineError("engine 0 died")

    for worker, words in ((missing, "without a log-prob"), (dead, "engine 0 died")):
        with pytest.raises(EngineError, match=words):
            asyncio.run(sampled_logprobs(request(), output(2), LogprobFetcher(worker)))
