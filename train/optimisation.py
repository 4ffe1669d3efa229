"""Which parameters learn how fast, the learning rate over the steps, and the averaged weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from probe.families.controlled import TABLE
from train.sections import Training


def optimiser(model: nn.Module, how: Training) -> torch.optim.Optimizer:
    """Adam or AdamW. A learned position table has a rate of its own; see `Training`."""
    table, decayed, rest = [], [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        matrix = parameter.ndim >= 2 and name != "cls_token"
        if name == TABLE:
            table.append(parameter)
        elif matrix or how.decay == "all":
            decayed.append(parameter)
        else:
            rest.append(parameter)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[how.optimizer]
    groups = [
        {"params": decayed, "weight_decay": how.weight_decay, "factor": 1.0},
        {"params": rest, "weight_decay": 0.0, "factor": 1.0},
        {
            "params": table,
            "weight_decay": how.weight_decay if how.decay == "all" else 0.0,
            "factor": how.position_lr_factor,
        },
    ]
    used = [group for group in groups if group["params"]]
    return kind(used, lr=how.lr, betas=how.betas, fused=True)


def set_rate(optimizer: Any, how: Training, step: int, steps: int) -> float:
    """Set the learning rates of a step, counted from 0; returns that of most parameters."""
    rate = how.lr * rate_factor(how, step, steps)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]
    return rate


def rate_factor(how: Training, step: int, steps: int) -> float:
    """Linear warm-up, then a cosine to zero or a constant; 0..1."""
    warmup = round(how.warmup * steps)
    if step < warmup:
        return (step + 1) / warmup
    if how.schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def averaged(model: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average of the weights."""
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
