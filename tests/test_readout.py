"""Readouts: features of every family, fits that equal scikit-learn's, and what is refused."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from probe.data.memory import InMemory
from probe.data.open import open_data
from probe.data.preprocess import describe, normalise
from probe.data.source import Label
from probe.errors import AnatomyError, DataError, UsageError
from probe.hooks import observe
from probe.interventions import permute_patches, rpi_permutations, scale_positions
from probe.loading import load_model
from probe.readout import (
    Readout,
    choose_pool,
    fit_readout,
    load_readout,
    pooled_features,
    save,
    score,
    with_readout,
)
from probe.types import Identity, LoadedModel, ModelSpec, Permutation
from tests.families.tiny import MAKERS, Watch, fresh, images_for
from tests.small_runs import pictures, ready

COLOURS = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200], [180, 180, 40]])
NAMES = ("ant", "bee", "cow", "dog")


class Named(InMemory):
    """Pictures in memory whose labels index class names, as those of a folder do."""

    def __init__(self, images: Any, labels: Any, names: tuple[str, ...], **options: Any) -> None:
        super().__init__(images, labels, **options)
        self.class_names, self.label_kind = names, "folder"


def coloured(labels: list[int], seed: int = 0) -> list[np.ndarray]:
    """Noise with the colour of its class over it: separable in almost any feature."""
    shades = [COLOURS[label][None, None] for label in labels]
    noise = pictures(len(labels), seed=seed)
    return [(0.25 * n + 0.75 * s).astype(np.uint8) for n, s in zip(noise, shades, strict=True)]


def planted(each: int = 8, classes: int = 3, seed: int = 0, **options: Any) -> Named:
    labels = [index % classes for index in range(each * classes)]
    return Named(coloured(labels, seed), labels, NAMES[:classes], **options)


def by_hand(model: LoadedModel, images: list[np.ndarray]) -> np.ndarray:
    """Class tokens of a timm ViT, through the library's own function."""
    assert model.preprocess is not None
    pixels = normalise(torch.from_numpy(np.stack(images)), model.preprocess, torch.float32, "cpu")
    module: Any = model.module
    with torch.no_grad():
        return np.asarray(module.forward_features(pixels)[:, 0])


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return ready("vit")


@pytest.fixture(scope="module")
def fitted(model: LoadedModel) -> Readout:
    return fit_readout(model, planted())


def last_tokens(model: LoadedModel, images: Tensor) -> Tensor:
    """The last tokens (B, tokens, C) as the library itself gives them out."""
    module: Any = model.module
    if model.family.startswith("timm"):
        if model.family == "timm_pit":  # it gives out prefix tokens alone
            patches = module.patch_embed(images) + module.pos_embed
            prefix = module.cls_token.expand(len(images), -1, -1)
            patches, prefix = module.transformers((patches, prefix))
            return torch.cat([prefix, patches.flatten(2).mT], dim=1)
        tokens = module.forward_features(images)
        site = model.anatomy.features
        if site is not None and tuple(tokens.shape[2:]) == (site.grid.rows, site.grid.cols):
            return tokens.flatten(2).mT
        return tokens.flatten(1, 2) if tokens.ndim == 4 else tokens
    body = module.base_model
    body = getattr(module, "vision_model", module) if body is module else body
    body = module if model.family == "hf_rotary" else body  # whose base comes before the last norm
    found: list[Tensor] = []
    hook = body.register_forward_hook(lambda _m, _a, out: found.append(out.last_hidden_state))
    model.forward(images)
    hook.remove()
    return found[-1]


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_features_are_the_last_tokens_of_every_family(name: str) -> None:
    model = fresh(name)
    site, images = model.anatomy.features, images_for(model)
    if site is None:
        with pytest.raises(AnatomyError, match=f"family {model.family} declares no last tokens"):
            pooled_features(model, images, "mean")
        return
    watch = Watch(model.module)
    with torch.no_grad():
        tokens = last_tokens(model, images)
        prefix = tokens.shape[1] - site.grid.tokens
        mean = tokens[:, prefix:].mean(dim=1)
        torch.testing.assert_close(pooled_features(model, images, "mean"), mean)
        has_class = "no_class" not in name and getattr(model.module, "cls_token", 0) is not None
        has_class &= prefix > 0
        assert choose_pool(model) == ("class" if has_class else "mean")
        if has_class:
            both = torch.cat([tokens[:, 0], mean], dim=1)
            torch.testing.assert_close(pooled_features(model, images), tokens[:, 0])
            torch.testing.assert_close(pooled_features(model, images, "both"), both)
        else:
            for pool in ("class", "both"):
                with pytest.raises(UsageError, match=r"has no class token .* choose --pool mean$"):
                    pooled_features(model, images, pool)
    assert watch.changes() == []


def test_other_precision_still_gives_float32(model: LoadedModel) -> None:
    half = ready("vit")
    half.module.bfloat16()
    images = images_for(model)
    with torch.no_grad():
        exact = pooled_features(model, images, "both")
        found = pooled_features(half, images.bfloat16(), "both")
    assert found.dtype == torch.float32
    assert found[:, 32:].unique().numel() > 90  # the mean was not rounded to bfloat16's 8 bits
    torch.testing.assert_close(found, exact, atol=0.1, rtol=0)


def test_pools_that_cannot_be_had(model: LoadedModel) -> None:
    with pytest.raises(UsageError) as error:
        choose_pool(model, "meen")
    assert str(error.value) == "--pool takes class, mean, both; got 'meen'. Did you mean mean?"
    bare = replace(model, anatomy=replace(model.anatomy, features=None))
    with pytest.raises(
        AnatomyError, match=r"^family timm_vit declares no last tokens for timm:tim"
    ):
        choose_pool(bare)
    assert model.anatomy.features is not None
    idle = replace(model.anatomy.features, module="head_drop")
    with pytest.raises(AnatomyError, match="at 'head_drop' have shape"), torch.no_grad():
        pooled_features(
            replace(model, anatomy=replace(model.anatomy, features=idle)), images_for(model)
        )
    silent = replace(model, forward=lambda images: images)
    with pytest.raises(
        AnatomyError, match=r"^module 'norm' never ran, so there are no last tokens"
    ):
        pooled_features(silent, images_for(model))


def test_the_fit_equals_a_pipeline_of_scikit_learn(model: LoadedModel, fitted: Readout) -> None:
    train, test = planted(), planted(seed=9)
    c = fitted.meta["c"]
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=2000))
    labels = [train.read(position).label for position in range(len(train))]
    pipeline.fit(by_hand(model, list(train._images)).astype(np.float64), labels)
    features = by_hand(model, list(test._images))
    expected = pipeline.decision_function(features.astype(np.float64))
    found = fitted.logits(torch.from_numpy(features))
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, expected, atol=1e-6, rtol=1e-5)
    assert score(model, fitted, test).correct == len(test)


def test_the_record_says_how_it_was_fitted(model: LoadedModel, fitted: Readout) -> None:
    meta, train = fitted.meta, planted()
    assert (meta["resolved"], meta["weights"]) == ("timm:timm_vit", "random:0")
    assert (meta["family"], meta["image_size"], meta["module"]) == ("timm_vit", [32, 32], "norm")
    assert model.preprocess is not None
    assert meta["preprocess"] == describe(model.preprocess)
    assert (meta["dtype"], meta["device"], meta["seed"]) == ("float32", "cpu", 0)
    assert meta["data"] == {
        "name": "memory", "kind": "memory", "fingerprint": train.fingerprint, "total": 24,
        "split": None, "images": 24, "unlabelled": 0, "unreadable": 0,
    }  # fmt: skip
    assert [one["c"] for one in meta["candidates"]] == [10.0**p for p in range(-4, 3)]
    assert meta["held_out"] == 6
    winner = next(one for one in meta["candidates"] if one["c"] == meta["c"])
    top = max(one["correct"] for one in meta["candidates"])
    assert winner["correct"] == top == meta["held_out_correct"]
    assert meta["c"] == min(one["c"] for one in meta["candidates"] if one["correct"] == top)
    assert (meta["training_accuracy"], meta["converged"]) == (1.0, True)
    assert meta["versions"].keys() >= {"scikit-learn", "torch", "probe"}
    assert meta["fitted"].endswith(
        "multinomial, L2, lbfgs) on standardised class-token features of 24 images of 'memory' in "
        f"3 classes; C = {meta['c']:g}, the best of 7 on 6 of these images held out (accuracy "
        f"{meta['held_out_accuracy']:.3f}, seed 0), then fitted on all of them"
    )


def test_notes_on_the_grid_on_convergence_and_on_what_is_missing(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: list[Label] = [0, 1, None] * 6
    source = Named(coloured([0, 1, 0] * 6), labels, NAMES)
    meta = fit_readout(model, source, grid=(1e-3, 1.0)).meta
    assert meta["c"] == 1e-3
    assert meta["data"]["unlabelled"] == 6
    assert meta["notes"] == [
        "6 unlabelled training images were left out",
        "the training images hold 2 of the 4 classes of 'memory', and the readout knows no "
        "others; another --limit may reach all",
        "the readout's C = 0.001 is the smallest that was tried, so a better one may lie beyond",
    ]
    monkeypatch.setattr("probe.numerics.logistic.MAX_ITERATIONS", 1)
    meta = fit_readout(model, planted(), grid=(1.0,)).meta
    assert meta["converged"] is False
    assert meta["notes"] == [
        "the readout's fit at C = 1 stopped before it converged; a smaller C, or more images, "
        "would settle it",
        "when C was chosen, fits did not converge at C = 1",
    ]


def test_two_classes_and_labels_without_class_names(model: LoadedModel) -> None:
    numbers = [1, 0] * 8
    found = fit_readout(model, InMemory(coloured(numbers), numbers))
    assert found.class_names == ("0", "1")
    assert found.weight.shape == (2, 32)
    texts = [NAMES[number] for number in numbers]
    by_text = fit_readout(model, InMemory(coloured(numbers), texts))
    assert by_text.class_names == ("ant", "bee")
    assert torch.equal(by_text.weight, found.weight)
    assert (
        score(model, by_text, InMemory(coloured([1, 1, 0], 4), ["bee", "bee", "ant"])).correct == 3
    )
    assert score(model, found, InMemory(coloured([1, 1, 0], 4), [1, 1, 0])).correct == 3


def test_other_data_maps_by_name_whatever_its_order(model: LoadedModel, fitted: Readout) -> None:
    assert fitted.class_names == ("ant", "bee", "cow")
    colours = [2, 1, 2, 2]  # cow, bee, cow, cow
    right = score(model, fitted, Named(coloured(colours, 3), [0, 1, 0, 0], ("cow", "bee")))
    assert asdict(right) == {
        "correct": 4, "images": 4, "classes": 2, "unlabelled": 0, "unreadable": 0,
    }  # fmt: skip
    wrong = score(model, fitted, Named(coloured(colours, 3), [1, 0, 1, None], ("cow", "bee")))
    assert (wrong.correct, wrong.images, wrong.unlabelled) == (0, 3, 1)
    with pytest.raises(DataError, match=r"^the readout has no class for elk of 'memory'; fit it"):
        score(model, fitted, Named(coloured(colours), [0, 1, 0, 0], ("cow", "elk")))
    with pytest.raises(DataError, match=r"^'memory' has no labels to count right answers by$"):
        score(model, fitted, Named(coloured([0]), [None], ("ant", "bee", "cow")))


def test_the_interval_of_an_accuracy_is_wilsons(model: LoadedModel, fitted: Readout) -> None:
    labels = [0, 1, 2, 0, 1]
    found = score(model, fitted, Named(coloured([0, 1, 2, 0, 2], 3), labels, NAMES[:3]))
    accuracy = found.accuracy()
    interval = binomtest(4, 5).proportion_ci(0.95, method="wilson")
    assert accuracy.value == 0.8
    assert (accuracy.low, accuracy.high) == pytest.approx((interval.low, interval.high))
    z, p, n = 1.959963984540054, 0.8, 5
    half = z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    assert (accuracy.low, accuracy.high) == pytest.approx((centre - half, centre + half))


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        ([0] * 4, ("ant", "bee"), "'memory' has one class ('ant'), and a readout tells classes ap"),
        ([0, 0, 0, 1], NAMES, "classes with a single image cannot be held out and fitted (bee); "),
        ([None] * 4, NAMES, "'memory' has no labels to fit a readout to; give a folder with one"),
        (None, None, "'memory' has no labels to fit a readout to; give a folder with one folder"),
        ([0, 0, 7, 7], NAMES, "label 7 of 'memory' is outside its 4 class names; correct the data"),
        ([1, 1, 3, 3], None, "'memory' labels its images 1, 3 without class names; a readout need"),
        ([0, 0, "a", "a"], None, "'memory' mixes whole numbers and text as labels (0, 'a'); give"),
    ],
)
def test_labels_that_no_readout_can_have(
    model: LoadedModel, labels: Any, names: Any, message: str
) -> None:
    images = coloured([0, 1, 2, 3])
    source = InMemory(images, labels) if names is None else Named(images, labels, names)
    with pytest.raises(DataError) as error:
        fit_readout(model, source)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_photos_are_refused_before_a_forward_pass(model: LoadedModel) -> None:
    def never(_images: Tensor) -> None:
        raise AssertionError

    with pytest.raises(
        DataError, match=r"^'photos' has no labels to fit a readout to; give a fold"
    ):
        fit_readout(replace(model, forward=never), open_data("photos"))


def test_options_out_of_range(model: LoadedModel) -> None:
    for share in (0.0, 1.0, float("nan")):
        with pytest.raises(UsageError, match=r"^the held-out share must lie between 0 and 1, got"):
            fit_readout(model, planted(), holdout=share)
    for grid in ((), (1.0, 0.0), (float("inf"),)):
        with pytest.raises(UsageError, match=r"^every C must be a positive number, got"):
            fit_readout(model, planted(), grid=grid)


def test_features_that_are_no_numbers() -> None:
    broken = ready("vit")
    with torch.no_grad():
        broken.module.get_parameter("norm.weight")[3] = torch.nan
    with pytest.raises(
        DataError, match=r"^the features of 'image-0' are not finite; choose --dtyp"
    ):
        fit_readout(broken, planted())


def test_seed_and_batches(model: LoadedModel, fitted: Readout) -> None:
    steps: list[int] = []
    other = fit_readout(model, planted(), batch_size=5, progress=steps.append)
    assert steps == [5, 5, 5, 5, 4]
    torch.testing.assert_close(other.weight, fitted.weight, atol=1e-5, rtol=1e-4)
    labels = [index % 3 for index in range(24)]
    hard = Named(pictures(24), labels, NAMES[:3])
    counts = [
        [one["correct"] for one in fit_readout(model, hard, seed=seed).meta["candidates"]]
        for seed in (0, 0, 1)
    ]
    assert counts[0] == counts[1]
    assert counts[0] != counts[2]


def test_the_same_fit_gives_the_same_bytes_and_comes_back(
    model: LoadedModel, fitted: Readout, tmp_path: Path
) -> None:
    first, second = tmp_path / "a" / "one.safetensors", tmp_path / "two.safetensors"
    save(fitted, first)
    save(fit_readout(ready("vit"), planted()), second)
    assert first.read_bytes() == second.read_bytes()
    found = load_readout(first)
    for name in ("weight", "bias", "mean", "std"):
        assert torch.equal(getattr(found, name), getattr(fitted, name))
    assert (found.pool, found.class_names) == ("class", ("ant", "bee", "cow"))
    assert found.meta == fitted.meta
    assert found.sha256 == fitted.sha256
    save(found, second)
    assert second.read_bytes() == first.read_bytes()
    import hashlib

    assert found.sha256 == f"sha256:{hashlib.sha256(first.read_bytes()).hexdigest()}"
    save(replace(fitted, bias=fitted.bias + 1), second)
    assert load_readout(second).sha256 != found.sha256


def test_files_that_are_no_readout(fitted: Readout, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"

    def refused() -> str:
        with pytest.raises(UsageError) as error:
            load_readout(path)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert refused() == f"there is no readout file '{path}'; fit one with `probe readout`"
    path.write_text("no safetensors at all")
    assert refused().startswith(f"'{path}' cannot be read as a readout: ")
    save_file({"weight": torch.zeros(2, 3)}, path)
    assert refused() == f"'{path}' is a safetensors file, but no readout of `probe readout`"
    save(replace(fitted, bias=torch.zeros(5)), path)
    assert refused().startswith(f"'{path}' is a damaged readout ('bias' is torch.float32 (5,), not")
    save(replace(fitted, pool="max"), path)  # type: ignore[arg-type]
    assert refused() == f"'{path}' is a damaged readout (pool 'max'); fit it again"


def test_a_model_with_a_readout(model: LoadedModel, fitted: Readout) -> None:
    headed = with_readout(model, fitted)
    assert headed.classes == 3
    assert headed.predict is not None
    assert headed.module is model.module
    note, *others = headed.notes[len(model.notes) :]
    assert note == (
        f"classes come from a linear readout ({fitted.sha256[:19]}), not from a head of the model: "
        f"{fitted.meta['fitted']}"
    )
    assert others == fitted.meta["notes"]
    labels = [0, 1, 2, 2]
    assert model.preprocess is not None
    raw = torch.from_numpy(np.stack(coloured(labels, 3)))
    images = normalise(raw, model.preprocess, torch.float32, "cpu")
    layers: list[int] = []
    with torch.no_grad():
        with observe(
            model.module, model.anatomy.attn_in, lambda site, _: layers.append(site.layer)
        ):
            features = headed.forward(images)
        assert layers == [0, 1, 2]
        torch.testing.assert_close(features, pooled_features(model, images))
        logits = headed.predict(features)
        assert (logits.shape, logits.dtype) == ((4, 3), torch.float32)
        assert logits.argmax(dim=1).tolist() == labels
        drawn = rpi_permutations(model.anatomy.patches.grid, range(4), Permutation("image", 0))
        with permute_patches(headed, drawn), scale_positions(headed, 0.5):
            changed = headed.forward(images)
            expected = pooled_features(model, images)
        torch.testing.assert_close(changed, expected)
        assert (changed - features).abs().max() > 1e-3


def test_another_preprocessing_is_noted(model: LoadedModel, fitted: Readout) -> None:
    assert model.preprocess is not None
    other = replace(model, preprocess=replace(model.preprocess, source="half", std=(1.0, 1.0, 1.0)))
    assert with_readout(other, fitted).notes[-1] == (
        "the readout was fitted under other preprocessing, which costs accuracy (test, and now "
        "half)"
    )


def test_a_readout_of_another_model_is_refused(model: LoadedModel, fitted: Readout) -> None:
    def refused(other: LoadedModel, readout: Readout = fitted) -> str:
        with pytest.raises(UsageError) as error:
            with_readout(other, readout)
        return str(error.value)

    theirs = replace(model, identity=Identity("hf:other", None, "sha256:0123456789abcdef"))
    assert refused(theirs) == (
        "the readout was fitted for timm:timm_vit (random:0), not for hf:other "
        "(sha256:0123456789ab); fit one with `probe readout`"
    )
    same_seed = replace(model, identity=Identity("timm:vit_large", None, "random:0"))
    assert "not for timm:vit_large (random:0)" in refused(same_seed)
    elsewhere = replace(fitted, meta=dict(fitted.meta) | {"weights": "sha256:0123456789abcdef"})
    assert with_readout(theirs, elsewhere).classes == 3  # the same weights at another place
    wide = replace(model, anatomy=replace(model.anatomy, image_size=(32, 48)))
    assert refused(wide) == (
        "the readout was fitted at image size 32x32, but the model runs at 32x48; choose "
        "--image-size 32x32, or fit one with `probe readout`"
    )
    poolless = replace(ready("vit_no_class"), identity=model.identity)
    poolless = replace(poolless, anatomy=replace(poolless.anatomy, image_size=(32, 32)))
    assert "has no class token among its last tokens, so there is no --pool class" in refused(
        poolless
    )
    narrow = replace(fitted, mean=fitted.mean[:16], weight=fitted.weight[:, :16])
    message = r"^the readout takes 16 features per image, but the model gives 32; fit one for this"
    with pytest.raises(UsageError, match=message), torch.no_grad():
        with_readout(model, narrow).forward(images_for(model))


@pytest.mark.assets
@pytest.mark.slow
def test_dinov2_tells_the_classes_of_cifar_10_apart(assets: Path) -> None:
    """Measured: 0.55, of ten classes, from 30 images of each; chance is 0.1.

    Labels of this copy repeat every ten rows, so round limits would miss most classes.
    """
    spec = ModelSpec("dinov2", f"file:{assets / 'checkpoints' / 'dinov2-small-backbone'}")
    model = load_model(spec, image_size=(112, 112), preprocess="imagenet", device="cpu")
    data = str(assets / "data" / "cifar10")
    readout = fit_readout(model, open_data(data, split="train", limit=301))
    assert len(readout.class_names) == 10
    assert readout.meta["converged"] is True
    found = score(model, readout, open_data(data, split="test", limit=201))
    assert (found.images, found.classes) == (201, 10)
    assert found.correct / found.images > 0.45
