"""What a run needs and how long its steps take, computed from its configuration alone.

shape                   parameters, FLOPs and cache bytes of a model, from its config.json
cards                   memory and speed of GPUs
workload                tokens of an episode and of a training step, rows of the learner
activations             bytes per token that a layer keeps for its backward pass
attention               seconds of attention, by its two kernels
logprob_head            bytes, FLOPs and traffic of the learner's log-prob head
memory                  bytes on a card, part by part
layout                  which process runs on which card
places                  the memory of every card
gradient_checkpointing  how many layers are computed again, so that the learner fits
time                    seconds of a training step, part by part, and what bounds each
plan                    all of it for one configuration
remedies                the nearest settings that fit
report                  the plan as tables

Nothing here starts Ray, vLLM or DeepSpeed, or needs a GPU.
"""
