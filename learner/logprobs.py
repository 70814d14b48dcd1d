"""Log-probs and entropies of packed rows.

DeepSpeed wraps a PolicyModel: the transformers model and the head that turns hidden states into
log-probs. The model stays as transformers made it: `policy.model` has the checkpoint's names,
except for projections that have an adapter (learner.weights translates those).

Letters of shapes: R rows, T tokens of a row, N wanted tokens, H hidden size,
V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from learner.attention import attention_implementation, tree_mask
from learner.gradient_checkpointing import checkpoint_layers
from learner.logprob_head import LogprobHead, matmul_float32
from learner.lora import add_adapters
from learner.paths import unpack_paths
from learner.sequence import SequenceGroup, shared_attention_implementation
from rlsys.config import LoraConfig
from rlsys.errors import ModelError
from rlsys.model_types import PACKED_TYPES, check_shared_rows, check_trainable, packs_trees

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


class PolicyModel(torch.nn.Module):  # type: ignore[misc]
    """A causal language model whose forward pass returns log-probs of packed rows.

    A model that cannot read packed trees reads their paths one by one (learner.paths).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        packed: bool | None = None,
        sequence: SequenceGroup | None = None,
    ) -> None:
        """`packed` None lets the settings of the model decide.

        With `sequence` every rank of that group gets the same rows, runs the model on its part of
        each row, and returns the log-probs of whole rows. The rows must be packed.
        """
        super().__init__()
        self.model = model
        self._sequence = sequence
        self._packed = packs_trees(model.config) if packed is None else packed
        self.head = LogprobHead(model.get_output_embeddings().weight)
        self.register_state_dict_post_hook(_leave_out_frozen)

    def forward(
        self,
        token_ids_RT: torch.Tensor,
        positions_RT: torch.Tensor,
        parents_RT: torch.Tensor,
        exits_RT: torch.Tensor,
        select_RT: torch.Tensor,
        *,
        temperature: float,
        chunk: int,
        selected_N: torch.Tensor | None = None,
        trunk: int = 0,
        entropy: bool = False,
        detach_entropy: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the log-prob of every selected token given its path, and the entropy there.

        Args:
            token_ids_RT, positions_RT, parents_RT, exits_RT: integers, fields of PackedRows. T is a
                multiple of the ranks that share a row.
            select_RT: bool, tokens whose log-prob is wanted; the others cost no logits.
            temperature: logits are divided by it before the softmax.
            chunk: tokens whose logits exist at once.
            selected_N: places of the selected tokens in the flat rows, without root tokens. They
                follow from `select_RT`, but to find them on a card is to wait for it.
            trunk: as learner.attention.tree_mask has it.
            entropy: whether to compute entropies too.
            detach_entropy: the entropies get no gradient, because no loss trains them.

        Returns:
            [R, T] float32 log-probs and entropies in nats, 0 where not selected and at root tokens
            (nothing predicts them); None in place of entropies that were not asked for.
        """
        tokens = token_ids_RT.shape[1]
        part = slice(0, tokens) if self._sequence is None else self._sequence.part(tokens)
        hidden_RTH, places_RT = self._hidden(
            token_ids_RT, positions_RT, parents_RT, exits_RT, select_RT, part, trunk
        )
        # A token is predicted by its predecessor on the path. After a branch that is not the token
        # before it in the row, so the shift by one of plain sequences would be wrong.
        # Its log-prob is computed by the rank that has the hidden state of the predecessor.
        own_RT = select_RT & (parents_RT >= part.start) & (parents_RT < part.stop)
        flat_N = selected_N
        if flat_N is None or self._sequence is not None:
            flat_N = own_RT.flatten().nonzero().squeeze(-1)
        width = part.stop - part.start
        before_N = (flat_N // tokens) * width + parents_RT.flatten()[flat_N] - part.start
        if places_RT is not None:
            before_N = places_RT.flatten()[before_N]
        logprobs_N, entropy_N = self.head(
            hidden_RTH.flatten(0, 1).index_select(0, before_N),
            token_ids_RT.flatten()[flat_N].long(),
            temperature=temperature,
            chunk=chunk,
            entropy=entropy,
            detach_entropy=detach_entropy,
            # Checkpoints are asked for where memory is scarce, and time is spent for it already.
            keep_slopes=not self.model.is_gradient_checkpointing,
        )
        # Spread out of place, so that the result depends on the parameters even if N is 0. A rank
        # with nothing to train then still runs the backward pass and its collectives.
        zeros = torch.zeros(token_ids_RT.numel(), device=hidden_RTH.device)

        def spread(values_N: torch.Tensor) -> torch.Tensor:
            values_RT = zeros.index_copy(0, flat_N, values_N).view(token_ids_RT.shape)
            return values_RT if self._sequence is None else self._sequence.join(values_RT, own_RT)

        return spread(logprobs_N), spread(entropy_N) if entropy else None

    def _hidden(
        self,
        token_ids_RT: torch.Tensor,
        positions_RT: torch.Tensor,
        parents_RT: torch.Tensor,
        exits_RT: torch.Tensor,
        select_RT: torch.Tensor,
        part: slice,
        trunk: int,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the last hidden states of `part` of every row.

        If the model reads paths, the states are those of the paths, and the second tensor holds the
        place of every token of the rows among them. It is None otherwise.
        """
        # Without the model's own head, whose logits [R, T, V] would be the largest tensor of all.
        if self._packed:
            packed = self.model.base_model(
                input_ids=token_ids_RT[:, part].long(),
                position_ids=positions_RT[:, part].long(),
                attention_mask=tree_mask(exits_RT, trunk),
                use_cache=False,
            )
            return packed.last_hidden_state, None
        token_ids_PL, places_RT = unpack_paths(token_ids_RT, parents_RT, exits_RT, select_RT)
        paths = self.model.base_model(input_ids=token_ids_PL.long(), use_cache=False)
        return paths.last_hidden_state, places_RT


def _leave_out_frozen(
    module: PolicyModel, state: dict[str, torch.Tensor], prefix: str, _local: object
) -> None:
    """Drop frozen weights from a state dict; they are those of the starting policy.

    DeepSpeed's own option removes a tied weight under the first of its names only.
    """
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            state.pop(prefix + name, None)


def load_policy(
    path: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    gradient_checkpointing: bool | int,
    compiled: bool = False,
    lora: LoraConfig | None = None,
    sequence: SequenceGroup | None = None,
) -> PolicyModel:
    """Load a checkpoint folder (or hub name) for training; code in that folder is never run.

    With `lora` its weights are frozen and adapters are trained in their place. With `compiled`
    torch.compile fuses the small kernels of every layer. `gradient_checkpointing` is that of
    learner.gradient_checkpointing.checkpoint_layers. With `sequence` the ranks of that group share
    every row.

    Raises:
        ConfigError: more layers are to be checkpointed than the model has.
        ModelError: the learner cannot train a model of this type, or cannot share its rows.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    check_trainable(config, path, "model.path")
    if sequence is not None:
        check_shared_rows(config, path, "model.path", sequence.size)
    _remove_dropout(config)
    packed = packs_trees(config)
    attention = None  # the fastest implementation that the model has
    if sequence is not None:
        attention = shared_attention_implementation(sequence)
    elif packed:
        attention = attention_implementation(device.type)
    model = AutoModelForCausalLM.from_pretrained(
        path,
        config=config,
        dtype=dtype,
        attn_implementation=attention,
        trust_remote_code=False,
    ).to(device)
    if not packed:
        _check_logits(model, path)
    if lora is not None:
        add_adapters(model, lora)
    checkpoint_layers(model, gradient_checkpointing)
    # Paths differ in length from step to step, and every length would be compiled.
    if compiled and packed:
        # Passes have code of their own with and without gradients, of one row and of several, with
        # a trunk and without, and again in a model with adapters or of frozen weights. Beyond
        # torch's limit of 8 they would not be compiled at all.
        torch._dynamo.config.recompile_limit = 64
        # Layer by layer: their code is the same, so one compilation serves all of them.
        for layer in model.base_model.layers:
            layer.compile()
    # transformers recomputes activations in training mode only.
    return PolicyModel(model.train(), sequence=sequence)


def _remove_dropout(config: PretrainedConfig) -> None:
    """Set every dropout rate to 0.

    With dropout the log-probs of two passes would differ, and the ratio to the sampling policy
    would not be 1 before the first step.
    """
    for name, value in config.to_dict().items():
        if ("dropout" in name or "pdrop" in name) and isinstance(value, float):
            setattr(config, name, 0.0)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _check_logits(model: PreTrainedModel, path: str) -> None:
    """Raise ModelError if the model's logits are more than hidden states times the embedding.

    PolicyModel computes logits in this way. Models of a type that was not tried may add a bias, a
    scale or a cap.
    """
    token_ids_1T = torch.arange(8, device=model.device)[None]
    logits_TV = model(input_ids=token_ids_1T, use_cache=False).logits[0].float()
    hidden_TH = model.base_model(input_ids=token_ids_1T, use_cache=False).last_hidden_state[0]
    ours_TV = matmul_float32(hidden_TH, model.get_output_embeddings().weight.T)
    # Half a percent: logits in bfloat16 are rounded by up to 0.4 %.
    if not torch.allclose(ours_TV, logits_TV, rtol=0.0, atol=0.005 * float(ours_TV.abs().max())):
        raise ModelError(
            f"model.path {path!r} of type {model.config.model_type!r} changes its logits after the "
            "output embedding, which the learner does not support; use another model, for instance "
            f"of type {', '.join(PACKED_TYPES[:3])}"
        )
