"""Which models of vLLM take new weights over the old ones, without a reload."""

from __future__ import annotations

import pytest
import torch

from actors.weight_receiver import overwritable

pytestmark = pytest.mark.slow


def layer(kind: type[torch.nn.Module] = torch.nn.Module, **attributes: object) -> torch.nn.Module:
    made = object.__new__(kind)
    torch.nn.Module.__init__(made)
    for name, value in attributes.items():
        object.__setattr__(made, name, value)
    return made


def test_only_what_vllm_leaves_as_loaded_is_overwritten() -> None:
    from vllm.model_executor.layers.attention import Attention, MLAAttention
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.quantization.fp8 import Fp8LinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
    from vllm.v1.attention.backend import AttentionImplBase

    class PlainImpl(AttentionImplBase):  # type: ignore[misc]
        pass

    class ConvertingImpl(PlainImpl):
        def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
            raise NotImplementedError

    class Converting(UnquantizedLinearMethod):  # type: ignore[misc]
        pass

    def method(kind: type[object]) -> object:
        return object.__new__(kind)

    plain = [
        layer(),
        layer(quant_method=method(UnquantizedLinearMethod)),
        layer(quant_method=method(UnquantizedEmbeddingMethod)),
        layer(Attention, impl=method(PlainImpl), quant_method=None),
    ]
    assert overwritable(torch.nn.ModuleList(plain))
    for other in [
        layer(quant_method=method(Fp8LinearMethod)),
        layer(quant_method=method(Converting)),
        layer(Attention, impl=method(ConvertingImpl), quant_method=None),
        layer(MLAAttention, impl=method(PlainImpl), quant_method=None),
    ]:
        assert not overwritable(torch.nn.ModuleList([*plain, other]))
