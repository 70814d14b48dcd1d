"""From a configuration to a finished run: the only place that knows Ray, actors and learner.

train      inputs checked -> Ray -> learner and engines -> first sync -> loop -> export -> table
evaluate   inputs checked -> Ray -> engines -> anytime curve
sft        rows -> Ray -> learner -> steps on response tokens -> export
"""

from rlsys.orchestration.launch.supervised import sft
from rlsys.orchestration.launch.training import evaluate, train

__all__ = ["evaluate", "sft", "train"]
