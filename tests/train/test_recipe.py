"""Recipes: the files that ship, what a file or `--set` may say, and what it decides."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.errors import UsageError
from probe.families.controlled import VARIANTS
from probe.types import Preprocess
from train.recipe import Recipe, changed, differing, load_recipe, recipes_folder

SHIPPED = ("cifar10", "digits", "imagenet100", "imagenet100-deit")


def leaves(tree: dict[str, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{inside}{key}.")
        else:
            yield f"{inside}{key}", value


def test_shipped_recipes() -> None:
    folders = [entry for entry in recipes_folder().iterdir() if entry.is_dir()]
    assert sorted(folder.name for folder in folders) == list(SHIPPED)
    for folder in folders:
        assert sorted(file.stem for file in folder.iterdir()) == sorted(VARIANTS)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_five_files_differ_in_the_variant_alone(name: str) -> None:
    found = {variant: load_recipe(name, variant).describe() for variant in VARIANTS}
    texts = {v: (recipes_folder() / name / f"{v}.yaml").read_text() for v in VARIANTS}
    for variant in VARIANTS[1:]:
        assert differing(found["ape"], found[variant]) == ["variant"]
        lines = zip(texts["ape"].splitlines(), texts[variant].splitlines(), strict=True)
        assert [pair for pair in lines if pair[0] != pair[1]] == [
            (
                texts["ape"].splitlines()[0],
                texts["ape"].splitlines()[0].replace("train ape", f"train {variant}"),
            ),
            ("variant: ape", f"variant: {variant}"),
        ]
    assert {variant: tree["variant"] for variant, tree in found.items()} == {v: v for v in VARIANTS}


def test_imagenet100_has_the_papers_hyperparameters() -> None:
    """arXiv 2606.00124: ViT-S/16 on ImageNet-100."""
    tree = load_recipe("imagenet100", "ape").describe()
    train, model = tree["train"], tree["model"]
    assert (model["patch_size"], model["width"], model["depth"], model["heads"]) == (16, 384, 12, 8)
    assert model["final_norm"] is False
    assert model["dropout"] == {"embedding": 0.15, "attention": 0.15, "mlp": 0.15}
    assert model["drop_path"] == 0.2
    # Its code starts the table at torch's Embedding default and linear layers at torch's default.
    assert (model["pos_init_std"], model["linear_init"]) == (1.0, "torch")
    assert (train["batch"], train["optimizer"], train["lr"]) == (128, "adam", 1e-3)
    assert (train["weight_decay"], train["betas"], train["epochs"]) == (0.05, [0.9, 0.999], 60)
    assert train["label_smoothing"] == 0.1
    assert (tree["image"]["size"], tree["image"]["resize"]) == (224, "squash")


def test_imagenet100_deit_is_a_modern_recipe() -> None:
    tree = load_recipe("imagenet100-deit", "ape").describe()
    train, augment = tree["train"], tree["augment"]
    assert (train["optimizer"], train["schedule"]) == ("adamw", "cosine")
    assert train["warmup"] > 0
    assert train["ema"] is not None
    assert augment["rand_augment"] == "rand-m9-mstd0.5-inc1"
    assert (augment["mixup"], augment["cutmix"]) == (0.8, 1.0)


@pytest.mark.parametrize(
    ("name", "variant", "message"),
    [
        (
            "digits",
            "rop",
            "unknown variant 'rop'. Did you mean rope, rpt? Variants: ape, spe, rope, none, rpt",
        ),
        (
            "digts",
            "ape",
            "there is no recipe 'digts' with a file ape.yaml. Did you mean digits? Recipes: "
            "cifar10, digits, imagenet100, imagenet100-deit, or a folder of your own",
        ),
        ("", "ape", "there is no recipe '' with a file ape.yaml. Recipes: cifar10, digits, "),
    ],
)
def test_unknown_names(name: str, variant: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe(name, variant)
    assert str(caught.value).startswith(message)


def own(tmp_path: Path, old: str = "", new: str = "", variant: str = "ape") -> Path:
    """A folder with the digits recipe, one line of it changed."""
    text = (recipes_folder() / "digits" / "ape.yaml").read_text()
    assert not old or text.count(old) == 1
    (tmp_path / f"{variant}.yaml").write_text(text.replace(old, new) if old else text)
    return tmp_path


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    folder = own(tmp_path, "  steps: 600\n", "  steps: 7\n")
    recipe = load_recipe(str(folder), "ape")
    assert recipe.train.steps == 7
    assert differing(recipe.describe(), load_recipe("digits", "ape").describe()) == ["train.steps"]
    with pytest.raises(UsageError, match=r"there is no recipe '.*' with a file rope\.yaml"):
        load_recipe(str(folder), "rope")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  lr: 2.0e-3\n", "  lrr: 2.0e-3\n", "unknown key 'lrr'. Did you mean lr?"),
        (
            "  shift: 6\n",
            "  zoom: 6\n",
            "unknown key 'zoom'. Known keys: stored, resized_crop, flip, shift, rand_augment, ",
        ),
        ("  depth: 6\n", "  depth: 6\n  dropout: {mlps: .1}\n", "unknown key 'mlps'. Did you mean"),
        ("  steps: 600\n", "  steps: 0\n", "'train.steps': input should be greater than or equal"),
        ("  steps: 600\n", "  steps: '600'\n", "'train.steps': input should be a valid integer"),
        ("  steps: 600\n", "  steps: true\n", "'train.steps': input should be a valid integer"),
        ("  steps: 600\n", "  steps: 10.5\n", "'train.steps': input should be a valid integer"),
        ("  lr: 2.0e-3\n", "  lr: fast\n", "'train.lr': input should be a valid number, got 'fast"),
        ("  lr: 2.0e-3\n", "  lr: .inf\n", "'train.lr': input should be a finite number, got inf"),
        (
            "  optimizer: adamw\n",
            "  optimizer: sgd\n",
            "'train.optimizer': input should be 'adam' or 'adamw', got 'sgd'",
        ),
        ("  betas: [0.9, 0.98]\n", "  betas: [0.9]\n", "'train.betas.1' is missing"),
        ("  betas: [0.9, 0.98]\n", "  betas: 0.9\n", "'train.betas': input should be a valid list"),
        ("  final_norm: true\n", "  final_norm: yes\n", "'model.final_norm': input should be a"),
        ("schema: 1\n", "schema: 2\n", "'schema': input should be less than or equal to 1, got 2"),
        ("variant: ape\n", "variant: abe\n", "'variant': input should be 'ape', 'spe', 'rope',"),
        ("variant: ape\n", "variant: rope\n", "the file is called ape.yaml, but trains rope"),
        (
            "  validation: validation\n",
            "  validation: 1.0\n",
            "'data.validation': give the name of a part, or a share above 0 and below 1, not 1.0",
        ),
        ("  validation: validation\n", "  validation: ''\n", "'data.validation': give the name of"),
        ("  validation: validation\n", "  validation: [a]\n", "'data.validation': give the name"),
        (
            "  shift: 6\n",
            "  resized_crop: [0.9, 0.1]\n",
            "'augment.resized_crop': give the smaller share first, not [0.9, 0.1]",
        ),
        ("  std: [0.5, 0.5, 0.5]\n", "  std: [0.5, 0.5, 0]\n", "'image.std.2': input should be gr"),
    ],
)
def test_faults_of_a_file_name_their_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    folder = own(tmp_path, old, new)
    changed_line = new.splitlines()[-1]
    line = (folder / "ape.yaml").read_text().splitlines().index(changed_line) + 1
    with pytest.raises(UsageError) as caught:
        load_recipe(str(folder), "ape")
    assert str(caught.value).startswith(f"{folder / 'ape.yaml'}:{line}: {message}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  steps: 600\n", "  steps: 600\n  epochs: 2\n", "'train': give either steps or epochs; "),
        ("  steps: 600\n", "", "'train': give either steps or epochs; --set train.steps= takes "),
        ("  steps: 600\n", "  steps: 600\n  accumulate: 3\n", "'train': accumulate must divide"),
        (
            "  patch_size: 4\n",
            "  patch_size: 5\n",
            "patches of 5 px do not fill images of 32 px; choose a patch size that divides the",
        ),
        (
            "  width: 64\n",
            "  width: 60\n",
            "a width of 60 cannot be cut into 2 heads of a multiple of 4 channels, which 2-D "
            "rotation needs; choose a multiple of 8",
        ),
    ],
)
def test_values_that_do_not_fit_together(tmp_path: Path, old: str, new: str, message: str) -> None:
    folder = own(tmp_path, old, new)
    lines = (folder / "ape.yaml").read_text().splitlines()
    line = lines.index("train:") + 1 if message.startswith("'train'") else 1
    with pytest.raises(UsageError) as caught:
        load_recipe(str(folder), "ape")
    assert str(caught.value).startswith(f"{folder / 'ape.yaml'}:{line}: {message}")


def test_set_lays_values_over_the_file() -> None:
    recipe = load_recipe(
        "digits",
        "rope",
        [
            "train.steps=10",
            "train.lr=1e-3",
            "train.betas=[0.5, 0.6]",
            "augment.flip=true",
            "data.validation=0.25",
            "data.source=./some=where",
            "keep.evaluate_every=",
            "model.dropout.mlp=0.1",
            "model.dropout={attention: 0.2}",
        ],
    )
    assert (recipe.train.steps, recipe.train.lr, recipe.train.betas) == (10, 1e-3, (0.5, 0.6))
    assert recipe.augment.flip is True
    assert (recipe.data.validation, recipe.data.source) == (0.25, "./some=where")
    assert recipe.keep.evaluate_every is None
    # The later change wins, and a section that is given whole has the defaults for the rest.
    assert recipe.model.dropout.model_dump() == {"embedding": 0.0, "attention": 0.2, "mlp": 0.0}
    assert differing(recipe.describe(), load_recipe("digits", "rope").describe()) == [
        "data.source",
        "data.validation",
        "augment.flip",
        "model.dropout.attention",
        "train.steps",
        "train.lr",
        "train.betas",
        "keep.evaluate_every",
    ]


def test_set_can_go_from_steps_to_epochs() -> None:
    recipe = load_recipe("digits", "ape", ["train.steps=", "train.epochs=2"])
    assert (recipe.train.steps, recipe.train.epochs) == (None, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.lr", "--set train.lr: write KEY=VALUE, such as train.lr=1e-3"),
        ("=3", "--set =3: write KEY=VALUE"),
        (
            "train.lrate=1",
            "--set train.lrate=1: a recipe has no key 'train.lrate'. Did you mean train.lr",
        ),
        ("lr=1", "--set lr=1: a recipe has no key 'lr'. "),
        ("train.lr.x=1", "--set train.lr.x=1: a recipe has no key 'train.lr.x'. Did you mean"),
        ("zzz=1", "--set zzz=1: a recipe has no key 'zzz'. Keys: schema, variant, data.source, "),
        ("train.lr=[1", "--set train.lr=[1: the value is no YAML"),
        ("train.lr=2001-99-99", "--set train.lr=2001-99-99: the value is no YAML"),
        ("train.lr=0", "--set train.lr=0: 'train.lr': input should be greater than 0, got 0"),
        ("train.epochs=3", "--set train.epochs=3: 'train': give either steps or epochs; "),
        ("model.width=60", "--set model.width=60: a width of 60 cannot be cut into 2 heads"),
        ("model.dropout.mlp=1", "--set model.dropout.mlp=1: 'model.dropout.mlp': input should be "),
        ("variant=rope", "--set variant=rope: name the variant as the argument of probe train"),
        ("schema=2", "--set schema=2: 'schema': input should be less than or equal to 1, got 2"),
    ],
)
def test_faults_of_set(change: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe("digits", "ape", [change])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


# A legal value beside the one of the digits recipe, for every key that can be set.
OTHER = {
    "data.source": "elsewhere",
    "data.train": "validation",
    "data.validation": "0.5",
    "data.test": "train",
    "data.classes": "some.txt",
    "image.size": "64",
    "image.resize": "squash",
    "image.interpolation": "bicubic",
    "image.mean": "[0, 0.5, 0.5]",
    "image.std": "[1, 0.5, 0.5]",
    "augment.stored": "40",
    "augment.resized_crop": "[0.5, 1]",
    "augment.flip": "true",
    "augment.shift": "5",
    "augment.rand_augment": "rand-m9",
    "augment.mixup": "0.1",
    "augment.cutmix": "0.1",
    "model.patch_size": "8",
    "model.width": "128",
    "model.depth": "5",
    "model.heads": "4",
    "model.mlp_ratio": "3",
    "model.final_norm": "false",
    "model.pos_init_std": "1",
    "model.linear_init": "torch",
    "model.rope_temperature": "10000",
    "model.dropout.embedding": "0.1",
    "model.dropout.attention": "0.1",
    "model.dropout.mlp": "0.1",
    "model.drop_path": "0.1",
    "train.steps": "601",
    "train.batch": "32",
    "train.optimizer": "adam",
    "train.lr": "1e-3",
    "train.position_lr_factor": "1",
    "train.betas": "[0.9, 0.99]",
    "train.weight_decay": "0",
    "train.decay": "all",
    "train.schedule": "constant",
    "train.warmup": "0",
    "train.clip": "2",
    "train.label_smoothing": "0",
    "train.ema": "0.9",
    "train.precision": "bf16",
    "train.accumulate": "2",
    "train.compile": "true",
    "keep.log_every": "21",
    "keep.save_every": "101",
    "keep.evaluate_every": "101",
    "keep.dtype": "float32",
}


def test_the_digest_covers_every_key() -> None:
    recipe = load_recipe("digits", "ape")
    settable = {key for key, _ in leaves(recipe.describe())} - {"schema", "variant"}
    assert settable == set(OTHER) | {"train.epochs"}
    digests = {key: changed(recipe, [f"{key}={value}"]).digest() for key, value in OTHER.items()}
    digests["train.epochs"] = changed(recipe, ["train.steps=", "train.epochs=1"]).digest()
    digests |= {variant: load_recipe("digits", variant).digest() for variant in VARIANTS}
    assert len(set(digests.values())) == len(digests)


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    recipe = load_recipe("digits", "ape")
    text = json.dumps(recipe.describe(), sort_keys=True)
    assert recipe.digest() == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    # Comments and defaults that are written out change nothing, nor does the way through JSON.
    folder = own(tmp_path, "  shift: 6\n", "  flip: false  # stays\n  shift: 6\n")
    assert load_recipe(str(folder), "ape").digest() == recipe.digest()
    assert Recipe.model_validate(json.loads(text)).digest() == recipe.digest()
    assert changed(recipe, ["train.lr=0.002"]).digest() == recipe.digest()


def test_differing_names_dotted_keys() -> None:
    one = {"a": {"b": 1, "c": 2}, "d": 3, "e": {"f": 1}}
    assert differing(one, {"a": {"b": 1, "c": 3}, "e": 1, "g": 0}) == ["a.c", "d", "e", "g"]
    assert differing(one, one) == []


@pytest.mark.parametrize(
    ("resize", "expected", "crop"),
    [("squash", ("squash", (40, 40)), None), ("short", ("short", 40), (40, 40)), ("none",) * 3],
)
def test_preprocessing_in_the_projects_terms(resize: str, expected: Any, crop: Any) -> None:
    image = load_recipe("digits", "ape", [f"image.resize={resize}"]).image
    none = resize == "none"
    assert image.preprocess(40) == Preprocess(
        size=(40, 40),
        resize=None if none else expected,
        crop=None if none else crop,
        interpolation="bilinear",
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        source="checkpoint",
    )
    assert image.preprocess().size == (32, 32)


def test_the_network_is_what_the_recipe_says() -> None:
    network = load_recipe(
        "digits", "ape", ["model.dropout={embedding: 0.1, attention: 0.2, mlp: 0.3}"]
    ).network(7)
    assert (network.image_size, network.patch_size, network.width) == (32, 4, 64)
    assert (network.depth, network.heads, network.classes) == (6, 2, 7)
    assert network.dropout == (0.1, 0.2, 0.3)
    assert (network.linear_init, network.pos_init_std, network.final_norm) == ("xavier", 0.02, True)
