"""What the network is asked for: labels, smoothed, and mixed between images by timm."""

from __future__ import annotations

from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from torch import Tensor, nn

from probe.errors import UsageError
from train.draws import number, seeded_globals
from train.recipe import Recipe


class Objective:
    """Mixup or CutMix of a batch, where a recipe has one, and the loss that belongs to it."""

    def __init__(self, recipe: Recipe, classes: int, seed: int) -> None:
        """Choose the loss: cross-entropy with label smoothing, or with soft targets."""
        how, smoothing = recipe.augment, recipe.train.label_smoothing
        self.seed = seed
        self._mixup: Mixup | None = None
        self._loss: nn.Module = nn.CrossEntropyLoss(label_smoothing=smoothing)
        if how.mixup or how.cutmix:
            self._mixup = Mixup(
                how.mixup, how.cutmix, label_smoothing=smoothing, num_classes=classes
            )
            self._loss = SoftTargetCrossEntropy()

    def mixed(self, pixels: Tensor, labels: Tensor, when: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Images and targets: classes (B,), or soft targets (B, classes). `when` seeds the draw.

        Raises:
            UsageError: if images are to be mixed in pairs and one is left over.
        """
        if self._mixup is None:
            return pixels, labels
        if len(pixels) % 2:
            raise UsageError(
                f"mixup and CutMix pair the images of a forward pass, and {len(pixels)} is odd; "
                "change --set train.batch or train.accumulate, or the number of processes"
            )
        with seeded_globals(number(self.seed, "mix", *when)):
            return self._mixup(pixels, labels)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """The mean loss of a batch."""
        return self._loss(logits, target)
