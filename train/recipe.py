"""Recipes: one YAML file per variant, everything that decides the weights but the seed.

The five files of a recipe differ in `variant` alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from probe.errors import UsageError, did_you_mean
from probe.families.controlled import Network, Variant, check_variant
from probe.yaml_file import explain, plain, read_yaml, refused
from train.sections import STRICT, Augment, Data, Image, Keep, Model, Training


class Recipe(BaseModel):
    """One variant of one recipe."""

    model_config = STRICT
    schema_: Annotated[int, Field(alias="schema", ge=1, le=1)]
    variant: Variant
    data: Data
    image: Image
    augment: Augment
    model: Model
    train: Training
    keep: Keep

    @model_validator(mode="after")
    def _buildable(self) -> Recipe:
        """Refuse sizes that do not fit together before any image is decoded."""
        try:
            self.network(2)
        except UsageError as error:
            raise ValueError(str(error)) from error
        return self

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
    tree = recipe.describe()
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {change}: write KEY=VALUE, such as train.lr=1e-3")
        if key == "variant":
            raise UsageError(f"--set {change}: name the variant as the argument of probe train")
        *path, last = key.split(".")
        node: Any = tree
        for part in path:
            node = node.get(part) if isinstance(node, dict) else None
        if not isinstance(node, dict) or last not in node:
            near = did_you_mean(key, _keys(tree)) or f" Keys: {', '.join(_keys(tree))}"
            raise UsageError(f"--set {change}: a recipe has no key '{key}'.{near}")
        try:
            if text and (strange := refused(text)) is not None:
                raise UsageError(
                    f"--set {change}: {strange[0]} are not allowed; write a plain value"
                )
            node[last] = plain(YAML().load(text)) if text else None
        except (YAMLError, ValueError) as error:
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
