"""A zoo of small untrained models, and how tests of commands over it read what is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.cli.command import invoke, only_line

# Ten classes for the digits; positions: a table, none, biases that start at zero, a bounded bias.
ZOO = """
schema: 1
models:
  ten: {source: "timm:test_vit", options: {depth: 3, num_classes: 10}}
  other: {source: "timm:test_vit2", options: {depth: 3, num_classes: 10}}
  headless: {source: "timm:test_vit", options: {depth: 3, num_classes: 0}}
  thousand: {source: "timm:test_vit", options: {depth: 3}}
  unplaced: {source: "timm:test_vit", options: {depth: 3, num_classes: 10, pos_embed: none}}
  zero:
    source: timm:beit_base_patch16_224
    options: {depth: 2, embed_dim: 32, num_heads: 2, num_classes: 10}
  bounded:
    source: timm:swinv2_tiny_window8_256
    options: {embed_dim: 16, depths: [1, 1], num_heads: [2, 2], window_size: 4, num_classes: 10}
  rotary:
    source: timm:vit_small_patch16_rope_224.naver_in1k
    options: {depth: 2, embed_dim: 32, num_heads: 2, num_classes: 10}
"""
COMMON = ["--zoo", "zoo.yaml", "--random-init", "--image-size", "32"]
DIGITS = [*COMMON, "--data", "digits", "--limit", "12"]
SCALAR = {"value", "low", "high", "reason"}


def write_zoo(folder: Path) -> None:
    (folder / "zoo.yaml").write_text(ZOO)


def as_json(command: str, *arguments: str) -> Any:
    """The only result that `--json -` prints, which is all it prints."""
    found = invoke(command, *arguments, "--json", "-")
    assert found.exit_code == 0, found.stderr
    assert found.stderr == ""
    assert found.stdout.isascii()
    assert "NaN" not in found.stdout
    envelope = json.loads(found.stdout)
    assert set(envelope) == {"schema", "results", "failures"}
    assert (envelope["schema"], envelope["failures"]) == (1, [])
    (result,) = envelope["results"]
    return result


def refused(code: int, command: str, *arguments: str) -> str:
    """The one line that a command ends with."""
    return only_line(invoke(command, *arguments), code)


def image_folder(folder: Path, classes: dict[str, int]) -> Path:
    """One folder per class with so many pictures in it, 40 x 40 px."""
    rng = np.random.default_rng(0)
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            coarse = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8).repeat(10, 0).repeat(10, 1)
            Image.fromarray(coarse).save(folder / name / f"{number}.png")
    return folder
