"""Write the budget card and the README of an exported folder."""

from __future__ import annotations

import os
from pathlib import Path

from rlsys.config import DialogueSection, HubData, RunConfig
from rlsys.reporting.metrics_file import METRICS, read_evaluations
from rlsys.serving.card import CARD, BudgetCard, budget_card, write_card
from rlsys.serving.readme import README, model_card
from rlsys.tokenization.tokenizer import load_tokenizer
from rlsys.training.durable import replace_file


def write_run_card(config: RunConfig, folder: Path) -> BudgetCard:
    """Write the card of a finished run to the exported `folder`, from its last evaluation.

    An evaluation of an earlier step says nothing about the exported weights, so it is left out.
    """
    last = [e for e in read_evaluations(config.run_dir / METRICS) if e.step == config.steps]
    card = budget_card(config, load_tokenizer(str(folder)), last[-1].numbers if last else None)
    train = config.data.train
    from_hub = isinstance(train, HubData) and not isinstance(config.environment, DialogueSection)
    text = model_card(
        card,
        hub_model="/" in card.base_model and not os.path.exists(card.base_model),
        hub_data=[train.name] if from_hub and isinstance(train, HubData) else [],
    )
    replace_file(folder / CARD, write_card(card))
    replace_file(folder / README, text)
    return card
