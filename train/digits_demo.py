"""The model behind `make demo`: a small ViT, trained on scikit-learn's digits in about a minute.

    python -m train.digits_demo --out runs/demo

writes `runs/demo/digits-vit` in timm's folder format, so that `probe ssdc runs/demo/digits-vit`
loads it as any checkpoint. Digits are 8 x 8 pixels, enlarged to 32 x 32 and cut into 8 x 8 patches.
They are shifted at random while training, so that a token's place says little of its content and
what the model knows of position comes from its position table.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from safetensors.torch import save
from torch import Tensor, nn

from probe.data.builtin import DIGIT_NAMES, Digits
from probe.data.preprocess import normalise, to_model_size
from probe.errors import ProbeError
from probe.store import check_writable, write_atomically
from probe.types import Preprocess

ARCHITECTURE = "vit_tiny_patch16_224"
SIDE = 32
PREPROCESS = Preprocess(
    size=(SIDE, SIDE),
    resize=("short", SIDE),
    crop=(SIDE, SIDE),
    interpolation="bilinear",
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    source="checkpoint",
)


@dataclass(frozen=True)
class Settings:
    """Everything that decides the weights. `shift` is in pixels, `warmup` a share of the steps."""

    steps: int = 400
    batch: int = 64
    lr: float = 2e-3
    position_lr_factor: float = 8.0
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    warmup: float = 0.05
    clip: float = 1.0
    smoothing: float = 0.1
    shift: int = 6
    seed: int = 0
    patch: int = 4
    width: int = 64
    depth: int = 6
    heads: int = 2

    def model_args(self) -> dict[str, Any]:
        """Arguments of the timm architecture."""
        return {
            "img_size": SIDE,
            "patch_size": self.patch,
            "embed_dim": self.width,
            "depth": self.depth,
            "num_heads": self.heads,
        }

    def fingerprint(self) -> str:
        """Hash of the settings, the architecture and the training images."""
        images = Digits(split="train").fingerprint
        text = json.dumps([asdict(self), ARCHITECTURE, SIDE, images], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def train(settings: Settings, report: Callable[[str], None]) -> nn.Module:
    """A trained model, in eval mode. The global random state is left as it was."""
    pixels, labels = images_of("train")
    rng = np.random.Generator(np.random.PCG64(settings.seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = build(settings)
        optimiser, schedule = optimisation(model, settings)
        loss_of = nn.CrossEntropyLoss(label_smoothing=settings.smoothing)
        model.train()
        for step, rows in enumerate(batches(len(labels), settings, rng), start=1):
            by = rng.integers(-settings.shift, settings.shift + 1, (2, len(rows)))
            shifted = shift(pixels[rows], by)
            loss = loss_of(model(normalised(shifted)), torch.from_numpy(labels[rows]))
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimiser.step()
            schedule.step()
            if step % 100 == 0 or step == settings.steps:
                report(f"step {step} of {settings.steps}: loss {loss.item():.3f}")
    return model.eval()


def build(settings: Settings) -> nn.Module:
    """The untrained model, from the global random state.

    timm starts linear layers at a standard deviation of 0.02, which suits wide models; at this
    width the blocks learn faster from Xavier's initialisation.
    """
    model: nn.Module = timm.create_model(
        ARCHITECTURE, num_classes=len(DIGIT_NAMES), **settings.model_args()
    )
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    return model


def optimisation(
    model: nn.Module, settings: Settings
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
    """AdamW with a warm-up and a cosine to zero.

    Matrices decay; vectors and the class token do not, and neither does the position table, which
    has a learning rate of its own.
    """
    table, decay, rest = [], [], []
    for name, parameter in model.named_parameters():
        if name == "pos_embed":
            table.append(parameter)
        elif parameter.ndim >= 2 and name != "cls_token":
            decay.append(parameter)
        else:
            rest.append(parameter)
    optimiser = torch.optim.AdamW(
        [
            {"params": decay, "weight_decay": settings.weight_decay},
            {"params": rest, "weight_decay": 0.0},
            {
                "params": table,
                "weight_decay": 0.0,
                "lr": settings.lr * settings.position_lr_factor,
            },
        ],
        lr=settings.lr,
        betas=settings.betas,
    )
    warmup = max(1, round(settings.warmup * settings.steps))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, settings.steps - warmup)))

    return optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, factor)


def batches(n: int, settings: Settings, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """`steps` batches of row numbers; every epoch is a fresh permutation, its rest left out."""
    done = 0
    while done < settings.steps:
        order = rng.permutation(n)
        for start in range(0, n - settings.batch + 1, settings.batch):
            if done == settings.steps:
                return
            yield order[start : start + settings.batch]
            done += 1


def shift(pixels: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Images (B, side, side, 3) moved down by `by[0]` and right by `by[1]` pixels, zeros behind."""
    margin = int(np.abs(by).max(initial=0))
    side = pixels.shape[1]
    padded = np.pad(pixels, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    rows = margin - by[0][:, None] + np.arange(side)
    cols = margin - by[1][:, None] + np.arange(side)
    image = np.arange(len(pixels))[:, None, None]
    return padded[image, rows[:, :, None], cols[:, None, :]]


def images_of(split: str) -> tuple[np.ndarray, np.ndarray]:
    """uint8 (n, side, side, 3) at model resolution, and int64 labels (n,)."""
    source = Digits(split=split)
    items = [source.read(position) for position in range(len(source))]
    pixels = np.stack([to_model_size(item.image, PREPROCESS) for item in items])
    return pixels, np.array([item.label for item in items], dtype=np.int64)


def normalised(pixels: np.ndarray) -> Tensor:
    """The model's input, float32 (B, 3, side, side)."""
    return normalise(torch.from_numpy(pixels), PREPROCESS, torch.float32, "cpu")


def correct(model: nn.Module, split: str) -> tuple[int, int]:
    """How many images of a part the model names rightly, and how many there are."""
    pixels, labels = images_of(split)
    with torch.inference_mode():
        parts = [model(normalised(part)).argmax(1) for part in np.array_split(pixels, 4)]
    return int((torch.cat(parts).numpy() == labels).sum()), len(labels)


def config(settings: Settings) -> dict[str, Any]:
    """`config.json` of timm's folder format."""
    return {
        "architecture": ARCHITECTURE,
        "num_classes": len(DIGIT_NAMES),
        "num_features": settings.width,
        "global_pool": "token",
        "model_args": settings.model_args(),
        "label_names": list(DIGIT_NAMES),
        "pretrained_cfg": {
            "input_size": [3, SIDE, SIDE],
            "fixed_input_size": True,
            "interpolation": PREPROCESS.interpolation,
            "crop_pct": 1.0,
            "crop_mode": "center",
            "mean": list(PREPROCESS.mean),
            "std": list(PREPROCESS.std),
            "num_classes": len(DIGIT_NAMES),
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            "license": "mit",
        },
    }


def make(folder: Path, settings: Settings, report: Callable[[str], None]) -> dict[str, Any]:
    """Train into `folder` unless the same settings already did; the content of `training.json`.

    `training.json` is written last, so a run that was cut short is not taken for a finished one.

    Raises:
        StoreError: if the folder cannot be written.
    """
    fingerprint = settings.fingerprint()
    done = finished(folder, fingerprint)
    if done is not None:
        report(f"{folder} holds this model already; remove it to train again")
        return done
    check_writable(folder)
    (folder / "training.json").unlink(missing_ok=True)
    start = time.perf_counter()
    model = train(settings, report)
    result: dict[str, Any] = {"fingerprint": fingerprint, "settings": asdict(settings)}
    for split in ("validation", "test"):
        right, images = correct(model, split)
        result[split] = {"correct": right, "images": images}
    weights = save(dict(model.state_dict()))
    result["weights"] = f"sha256:{hashlib.sha256(weights).hexdigest()}"
    write_atomically(folder / "model.safetensors", weights)
    write_atomically(folder / "config.json", json.dumps(config(settings), indent=2) + "\n")
    write_atomically(folder / "training.json", json.dumps(result, indent=2) + "\n")
    report(f"trained in {time.perf_counter() - start:.0f} s")
    return result


def finished(folder: Path, fingerprint: str) -> dict[str, Any] | None:
    """What `training.json` says, if it and the weights beside it come from these settings."""
    try:
        result: dict[str, Any] = json.loads((folder / "training.json").read_text("utf-8"))
        config_there = (folder / "config.json").is_file()
        digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None
    same = result.get("fingerprint") == fingerprint and config_there
    return result if same and result.get("weights") == f"sha256:{digest}" else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: `--out FOLDER`. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m train.digits_demo", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), metavar="FOLDER")
    folder = parser.parse_args(arguments).out / "digits-vit"

    def report(line: str) -> None:
        print(line, flush=True)

    try:
        result = make(folder, Settings(), report)
    except ProbeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    right, images = result["test"]["correct"], result["test"]["images"]
    report(f"{folder}: {right} of {images} test images right ({right / images:.1%})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
