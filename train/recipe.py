"""Recipes: one YAML file per variant, everything that decides the weights but the seed.

The five files of a recipe differ in `variant` alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from probe.errors import UsageError, did_you_mean
from probe.families.controlled import LinearInit, Network, Variant, check_variant
from probe.types import Preprocess
from probe.yaml_file import explain, plain, read_yaml

_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
Channels = tuple[Positive, Positive, Positive]


class Data(BaseModel):
    """Where images come from.

    `train`, `validation` and `test` are splits, or folders inside a folder. `validation` may be a
    share instead, 0..1, held out of each class of the training part by a fixed seed. `classes`
    chooses among the classes: the name of a shipped list, or a file with one class per line.
    """

    model_config = _STRICT
    source: Text
    train: Text
    validation: Text | Annotated[float, Field(gt=0, lt=1)]
    test: Text
    classes: Text | None = None


class Image(BaseModel):
    """How images reach the model: pixels, and mean and std for values in 0..1.

    `resize` is `squash` (both sides to `size`), `short` (short side, then the centre), or `none`
    (images have that size, others are refused).
    """

    model_config = _STRICT
    size: Count
    resize: Literal["squash", "short", "none"]
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"]
    mean: Channels
    std: Channels

    def preprocess(self, size: int | None = None) -> Preprocess:
        """The same in the project's terms, at another size in pixels if one is given."""
        side = size or self.size
        return Preprocess(
            size=(side, side),
            resize={"squash": ("squash", (side, side)), "short": ("short", side), "none": None}[
                self.resize
            ],
            crop=(side, side) if self.resize == "short" else None,
            interpolation=self.interpolation,
            mean=self.mean,
            std=self.std,
            source="checkpoint",
        )


class Augment(BaseModel):
    """What training does to an image, in this order; all seeded.

    `resized_crop` takes a crop of that share of the area, (low, high), from an image of `stored`
    pixels; `flip` mirrors half of the images; `shift` moves by up to so many pixels, black behind;
    `rand_augment` is timm's text for it; `mixup` and `cutmix` are timm's alphas, 0 for none.
    """

    model_config = _STRICT
    stored: Count | None = None
    resized_crop: tuple[Positive, Annotated[float, Field(gt=0, le=1)]] | None = None
    flip: bool = False
    shift: Annotated[int, Field(ge=0)] = 0
    rand_augment: Text | None = None
    mixup: Annotated[float, Field(ge=0)] = 0.0
    cutmix: Annotated[float, Field(ge=0)] = 0.0


class Dropout(BaseModel):
    """Dropout of tokens, of attention weights, and of what attention and MLP give."""

    model_config = _STRICT
    embedding: Share = 0.0
    attention: Share = 0.0
    mlp: Share = 0.0


class Model(BaseModel):
    """The network; see `probe.families.controlled.Network`."""

    model_config = _STRICT
    patch_size: Count
    width: Count
    depth: Count
    heads: Count
    mlp_ratio: Positive
    final_norm: bool
    pos_init_std: Annotated[float, Field(ge=0)]
    linear_init: LinearInit
    rope_temperature: Positive
    dropout: Dropout = Dropout()
    drop_path: Share = 0.0


class Training(BaseModel):
    """How weights are learnt. `steps` or `epochs`, a step being one update from `batch` images.

    `position_lr_factor` multiplies the learning rate of a learned position table. `decay` says what
    `weight_decay` shrinks: `matrices` (neither vectors, nor the class token, nor the table) or
    `all`. `warmup` is a share of the steps. `accumulate` cuts a batch into so many forward passes.
    """

    model_config = _STRICT
    steps: Count | None = None
    epochs: Count | None = None
    batch: Count
    optimizer: Literal["adam", "adamw"]
    lr: Positive
    position_lr_factor: Positive = 1.0
    betas: tuple[Share, Share]
    weight_decay: Annotated[float, Field(ge=0)]
    decay: Literal["matrices", "all"]
    schedule: Literal["cosine", "constant"]
    warmup: Share = 0.0
    clip: Positive | None = None
    label_smoothing: Share = 0.0
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    precision: Literal["no", "bf16", "fp16"] = "no"
    accumulate: Count = 1
    compile: bool = False

    @model_validator(mode="after")
    def _one_length(self) -> Training:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs")
        if self.batch % self.accumulate:
            raise ValueError("accumulate must divide batch")
        return self


class Keep(BaseModel):
    """What is written: metrics and resumable states every so many steps, weights in `dtype`."""

    model_config = _STRICT
    log_every: Count
    save_every: Count
    evaluate_every: Count | None = None
    dtype: Literal["float32", "float16"] = "float32"


class Recipe(BaseModel):
    """One variant of one recipe."""

    model_config = _STRICT
    schema_: Annotated[int, Field(alias="schema", ge=1, le=1)]
    variant: Variant
    data: Data
    image: Image
    augment: Augment
    model: Model
    train: Training
    keep: Keep

    def network(self, classes: int) -> Network:
        """The network that the recipe trains, for so many classes."""
        drop = self.model.dropout
        return Network(
            image_size=self.image.size,
            classes=classes,
            dropout=(drop.embedding, drop.attention, drop.mlp),
            **self.model.model_dump(exclude={"dropout"}),
        )

    def describe(self) -> dict[str, Any]:
        """The recipe as JSON values."""
        return self.model_dump(mode="json", by_alias=True)

    def digest(self) -> str:
        """Hash of everything in it."""
        text = json.dumps(self.describe(), sort_keys=True)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def recipes_folder() -> Path:
    """The folder of the recipes that ship."""
    return Path(str(resources.files("train"))) / "recipes"


def load_recipe(recipe: str, variant: str, changes: Sequence[str] = ()) -> Recipe:
    """The file of one variant, with `KEY=VALUE` changes laid over it.

    Args:
        recipe: the name of a shipped recipe, or a folder with a file per variant.
        variant: ape, spe, rope, none or rpt.
        changes: such as `train.steps=10`; values are YAML.

    Raises:
        UsageError: if there is no such recipe, variant or key, or a value does not fit.
    """
    check_variant(variant)
    folder = recipes_folder() / recipe
    if not folder.is_dir():
        folder = Path(recipe)
    path = folder / f"{variant}.yaml"
    if not path.is_file():
        known = sorted(entry.name for entry in recipes_folder().iterdir() if entry.is_dir())
        raise UsageError(
            f"there is no recipe '{recipe}' with a file {variant}.yaml."
            f"{did_you_mean(recipe, known)} Recipes: {', '.join(known)}, or a folder of your own"
        )
    file = read_yaml(path, "recipe", UsageError)
    found = file.checked(Recipe)
    if found.variant != variant:
        file.fail(("variant",), f"the file is called {variant}.yaml, but trains {found.variant}")
    return changed(found, changes) if changes else found


def changed(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """The recipe with `KEY=VALUE` changes.

    Raises:
        UsageError: if a key is unknown or a value does not fit.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    tree = recipe.describe()
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {change}: write KEY=VALUE, such as train.lr=1e-3")
        *path, last = key.split(".")
        node: Any = tree
        for part in path:
            node = node.get(part) if isinstance(node, dict) else None
        if not isinstance(node, dict) or last not in node:
            near = did_you_mean(key, _keys(tree)) or f" Keys: {', '.join(_keys(tree))}"
            raise UsageError(f"--set {change}: a recipe has no key '{key}'.{near}")
        try:
            node[last] = plain(YAML().load(text)) if text else None
        except YAMLError as error:
            raise UsageError(f"--set {change}: the value is no YAML") from error
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        _, message = explain(Recipe, error)
        raise UsageError(f"--set {' '.join(changes)}: {message}") from error


def differing(one: dict[str, Any], other: dict[str, Any], inside: str = "") -> list[str]:
    """Dotted keys at which two recipes, as `Recipe.describe` gives them, differ."""
    found = []
    for key in dict.fromkeys((*one, *other)):
        mine, theirs = one.get(key), other.get(key)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            found += differing(mine, theirs, f"{inside}{key}.")
        elif mine != theirs:
            found.append(f"{inside}{key}")
    return found


def _keys(tree: dict[str, Any], inside: str = "") -> list[str]:
    found = []
    for key, value in tree.items():
        found += _keys(value, f"{inside}{key}.") if isinstance(value, dict) else [f"{inside}{key}"]
    return found
