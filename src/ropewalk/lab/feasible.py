"""Whether a run can begin: what would otherwise come out after minutes of training, and leave half a run behind."""

from __future__ import annotations

import importlib

import torch

from ropewalk.lab.goals import Goal
from ropewalk.lab.settings import Settings


def feasible(settings: Settings, goal: Goal) -> None:
    """See that there are the device, the package that checkpoints need, and enough text for a batch and a check.

    Args:
        settings: of the run.
        goal: what `settings.make_goal()` made.

    Raises:
        ValueError: what is missing.
        ModuleNotFoundError: safetensors is not installed.
    """
    importlib.import_module("safetensors")
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no GPU that this torch can use; give device cpu")
    form, length = settings.chosen_form(), settings.length
    goal.draw(settings.seed, 0, batch=1, length=length, form=form)
    held = goal.held_out("validation", length=length, tokens=settings.validation_tokens, batch=1, form=form)
    if next(held, None) is None:
        raise ValueError(f"the validation part of this text is too short for a length of {length}")
