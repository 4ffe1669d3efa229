"""The checked-in list of timm's architectures against what timm has."""

from __future__ import annotations

import importlib
import inspect

import timm
from torch import nn

from probe.coverage.listed import read_listing


def model_classes() -> set[str]:
    """Every class that a module of `timm.models` defines and that makes features of an image.

    Base classes with an entry point of their own count, wrappers and parts do not.
    """
    found = set()
    for file in timm.list_modules():
        module = importlib.import_module(f"timm.models.{file}")
        for name, kind in inspect.getmembers(module, inspect.isclass):
            own = kind.__module__ == module.__name__ and issubclass(kind, nn.Module)
            if own and hasattr(kind, "forward_features") and hasattr(kind, "forward_intermediates"):
                found.add(name)
    return found


def test_every_model_class_of_timm_is_listed_once() -> None:
    listing = read_listing("timm")  # which refuses what is listed and excluded
    assert sorted(listing.architectures.keys() | listing.excluded.keys()) == sorted(model_classes())
