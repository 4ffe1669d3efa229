"""Redrawing what starts at zero or at one, so that random-weight models hide no fault."""

from __future__ import annotations

import torch
from torch import nn


def redraw(module: nn.Module, seed: int = 0) -> nn.Module:
    """Redraw, seeded and in place, every parameter that starts constant: zeros, ones, layer scales.

    Weights of norms and layer scales (1e-5 at the start) come from U(0.5, 1.5); biases, bias tables
    and position tables that start at zero from N(0, 0.2). Biases of attention by offset come from
    N(0, 1): where no skip goes around attention, weaker ones leave all tokens equal.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for owner in module.modules():
            norm = "Norm" in type(owner).__name__
            for name, parameter in owner.named_parameters(recurse=False):
                if parameter.numel() < 2 or parameter.min() != parameter.max():
                    continue
                start = float(parameter.flatten()[0])
                if (norm and name == "weight") or (start != 0 and parameter.ndim == 1):
                    parameter.uniform_(0.5, 1.5, generator=generator)
                elif start == 0:
                    spread = 1.0 if name == "attention_biases" else 0.2
                    parameter.normal_(0.0, spread, generator=generator)
    return module
