"""Top-1 on one part of the data, counted over images."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from probe.data.preprocess import normalise
from probe.types import Preprocess
from train.parts import Part


def count_correct(
    model: nn.Module, part: Part, preprocess: Preprocess, device: torch.device, batch: int = 256
) -> int:
    """How many images of the part the model, in eval mode meanwhile, names rightly."""
    was_training = model.training
    model.eval()
    right = 0
    with torch.inference_mode():
        for first in range(0, len(part), batch):
            rows = part.rows[first : first + batch]
            pixels = torch.from_numpy(np.ascontiguousarray(part.images[rows]))
            logits = model(normalise(pixels, preprocess, torch.float32, device))
            found = logits.argmax(dim=1).cpu().numpy()
            right += int((found == part.labels[first : first + batch]).sum())
    model.train(was_training)
    return right
