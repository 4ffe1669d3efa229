"""Fitting a readout: C chosen on held-out training images, then all training images fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from probe.data.label_head import listed
from probe.data.labels import NAMED_ONLY
from probe.data.preprocess import describe
from probe.data.source import Source
from probe.errors import DataError, UsageError
from probe.families.base import packages
from probe.loading import required_preprocess
from probe.numerics.logistic import Candidate, best, candidates, fit_logistic, held_out
from probe.plan import versions
from probe.readout.features import Features, Pool, choose_pool, feature_site, read_features
from probe.readout.file import Readout
from probe.types import LoadedModel

GRID = tuple(10.0**power for power in range(-4, 3))
POOLED: dict[Pool, str] = {
    "class": "class-token features",
    "mean": "mean-pooled patch features",
    "both": "class-token and mean-pooled patch features",
}


def fit_readout(
    model: LoadedModel,
    train: Source,
    *,
    pool: str | None = None,
    batch_size: int = 32,
    workers: int = 0,
    seed: int = 0,
    holdout: float = 0.2,
    grid: Sequence[float] = GRID,
    progress: Callable[[int], None] = lambda images: None,
) -> Readout:
    """Fit a multinomial logistic regression on the pooled features of `train`.

    Features are standardised. C is the one of `grid` that is most accurate on a held-out part of
    `train` (the smallest among equals); the readout is then fitted on all of it. A fit that did
    not converge, and a C at an end of the grid, are said in `meta["notes"]`.

    Args:
        model: the loaded model; it must carry a preprocessing.
        train: training images with labels; never those that accuracy is measured on.
        pool: `class`, `mean` or `both`; None for the class token where there is one, else the mean.
        batch_size: images per forward pass.
        workers: processes that decode images.
        seed: seed of the held-out part, which is stratified by class.
        holdout: share of each class that is held out, in (0, 1).
        grid: values of C, positive; C is the inverse strength of the L2 penalty.
        progress: called with the number of images that have just been read.

    Raises:
        DataError: if there are no labels, one class only, or a class with a single image.
        UsageError: if an option is out of range, or the model does not have that pool.
        AnatomyError: if the model has no features for a readout.
    """
    chosen = choose_pool(model, pool)
    _check_options(holdout, grid)
    if train.class_names is None and train.kind in NAMED_ONLY:
        raise _no_labels(train)
    found = read_features(
        model, train, chosen, batch_size=batch_size, workers=workers, progress=progress
    )
    names, targets, labelled = class_targets(train, found)
    features = found.values[labelled].astype(np.float64)
    out = held_out(targets, holdout, seed)
    tried = candidates(features, targets, out, grid)
    winner = best(tried)
    fit = fit_logistic(features, targets, winner.c)
    correct = int(np.sum(fit.logits(features).argmax(axis=1) == targets))
    data = {
        "name": train.name,
        "kind": train.kind,
        "fingerprint": train.fingerprint,
        "total": train.total,
        "split": train.split,
        "images": len(targets),
        "unlabelled": int(np.sum(~labelled)),
        "unreadable": found.unreadable,
    }
    fitted = {
        "features": POOLED[chosen],
        "classes": len(names),
        "seed": seed,
        "holdout": holdout,
        "held_out": int(out.sum()),
        "candidates": [asdict(one) for one in tried],
        "c": winner.c,
        "held_out_correct": winner.correct,
        "held_out_accuracy": winner.accuracy,
        "training_correct": correct,
        "training_accuracy": correct / len(targets),
        "iterations": fit.iterations,
        "converged": fit.converged,
        "constant_features": fit.constant,
        "notes": [
            *_left_out(data),
            *_few_classes(train, names),
            *_about_c(tried, winner, fit.converged),
        ],
    }
    used = _versions() | packages(model.family, model.module) | dict(train.packages)
    return Readout(
        weight=torch.from_numpy(fit.weight).float(),
        bias=torch.from_numpy(fit.bias).float(),
        mean=torch.from_numpy(fit.mean).float(),
        std=torch.from_numpy(fit.std).float(),
        pool=chosen,
        class_names=names,
        meta=_of_model(model)
        | fitted
        | {"data": data, "fitted": _sentence(data, fitted), "versions": used},
    )


def _of_model(model: LoadedModel) -> dict[str, Any]:
    parameter = next(model.module.parameters())
    return {
        "resolved": model.identity.resolved,
        "revision": model.identity.revision,
        "weights": model.identity.weights,
        "family": model.family,
        "options": dict(model.spec.options),
        "image_size": list(model.anatomy.image_size),
        "preprocess": describe(required_preprocess(model)),
        "module": feature_site(model).module,
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "device": parameter.device.type,
    }


def _sentence(data: Mapping[str, Any], fitted: Mapping[str, Any]) -> str:
    split = f" ({data['split']})" if data["split"] else ""
    return (
        f"logistic regression (scikit-learn {version('scikit-learn')}, multinomial, L2, lbfgs) on "
        f"standardised {fitted['features']} of {data['images']} images of '{data['name']}'{split} "
        f"in {fitted['classes']} classes; C = {fitted['c']:g}, the best of "
        f"{len(fitted['candidates'])} on {fitted['held_out']} of these images held out (accuracy "
        f"{fitted['held_out_accuracy']:.3f}, seed {fitted['seed']}), then fitted on all of them"
    )


def _versions() -> dict[str, str]:
    return versions() | {"scikit-learn": version("scikit-learn")}


def class_targets(
    source: Source, found: Features
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """The classes that occur, int64 targets into them, and which images (bool) have a label.

    Classes keep the order of the source's class names; text without class names is sorted.

    Raises:
        DataError: if the labels cannot be classes of a readout.
    """
    labels = [label for label in found.labels if label is not None]
    if not labels:
        raise _no_labels(source)
    classes = _classes(source, set(labels))
    number = {label: index for index, label in enumerate(classes)}
    targets = np.array([number[label] for label in labels], dtype=np.int64)
    counts = np.bincount(targets)
    names = tuple(classes.values())
    if len(names) < 2:
        raise DataError(
            f"'{source.name}' has one class ('{names[0]}'), and a readout tells classes apart; add "
            "images of others"
        )
    single = [name for name, count in zip(names, counts, strict=True) if count < 2]
    if single:
        raise DataError(
            f"classes with a single image cannot be held out and fitted ({listed(single)}); raise "
            "--limit, add images, or leave them out"
        )
    return names, targets, np.array([label is not None for label in found.labels])


def _classes(source: Source, seen: set[int | str]) -> dict[int | str, str]:
    """The name of each label that occurs, in the order of the classes."""
    numbers = sorted(label for label in seen if isinstance(label, int))
    texts = sorted(label for label in seen if isinstance(label, str))
    if numbers and texts:
        raise DataError(
            f"'{source.name}' mixes whole numbers and text as labels ({numbers[0]}, "
            f"'{texts[0]}'); give it one kind"
        )
    names = source.class_names
    if names is None:
        if numbers and numbers != list(range(len(numbers))):
            raise DataError(
                f"'{source.name}' labels its images {listed(numbers)} without class names; a "
                "readout needs names, or each of 0, 1, 2 ... up to the last class"
            )
        return {label: str(label) for label in numbers or texts}
    outside = [label for label in numbers if not 0 <= label < len(names)]
    if outside or texts:
        raise DataError(
            f"label {listed([*outside, *texts])} of '{source.name}' is outside its {len(names)} "
            "class names; correct the data"
        )
    return {label: names[label] for label in numbers}


def _no_labels(source: Source) -> DataError:
    return DataError(
        f"'{source.name}' has no labels to fit a readout to; give a folder with one folder per "
        "class, or a data set with a label column"
    )


def _left_out(data: Mapping[str, Any]) -> list[str]:
    counts = {kind: data[kind] for kind in ("unlabelled", "unreadable") if data[kind]}
    return [f"{count} {kind} training images were left out" for kind, count in counts.items()]


def _few_classes(source: Source, names: Sequence[str]) -> list[str]:
    total = len(source.class_names or names)
    if len(names) == total:
        return []
    # Evenly spread images of a data set in cyclic order can miss most of its classes.
    return [
        f"the training images hold {len(names)} of the {total} classes of '{source.name}', and the "
        "readout knows no others; another --limit may reach all"
    ]


def _check_options(holdout: float, grid: Sequence[float]) -> None:
    if not 0 < holdout < 1:
        raise UsageError(f"the held-out share must lie between 0 and 1, got {holdout!r}")
    if not grid or not all(math.isfinite(c) and c > 0 for c in grid):
        raise UsageError(f"every C must be a positive number, got {list(grid)}")


def _about_c(tried: Sequence[Candidate], winner: Candidate, converged: bool) -> list[str]:
    notes = []
    if not converged:
        notes.append(
            f"the readout's fit at C = {winner.c:g} stopped before it converged; a smaller C, or "
            "more images, would settle it"
        )
    unsettled = [f"{one.c:g}" for one in tried if not one.converged]
    if unsettled:
        notes.append(f"when C was chosen, fits did not converge at C = {', '.join(unsettled)}")
    if len(tried) > 1 and winner in (tried[0], tried[-1]):
        end = "smallest" if winner is tried[0] else "largest"
        notes.append(
            f"the readout's C = {winner.c:g} is the {end} that was tried, so a better one may lie "
            "beyond"
        )
    return notes
