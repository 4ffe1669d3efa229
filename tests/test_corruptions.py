from __future__ import annotations

import importlib.metadata
import io
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.ndimage
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from probe.corruptions import Corruption, parse, suite
from probe.corruptions.imagenet_c import NAMES
from probe.corruptions.kinds import KINDS, Kind, Parameter
from probe.data.preprocess import named_preprocess, to_model_size
from probe.errors import CorruptionError, UsageError

Image8 = np.ndarray
TRUNCATED = "gaussian_blur(sigma=2.5,kernel=5)"
RANDOM = {
    *("gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur"),
    *("snow", "frost", "fog", "elastic_transform"),
}


def noise(*shape: int, seed: int = 0) -> Image8:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)


def scene(height: int, width: int) -> Image8:
    """Smooth waves with one hard edge, in colour."""
    y, x = np.mgrid[:height, :width]
    waves = [128 + 100 * np.sin(x / 9 + c) * np.cos(y / (5 + c)) for c in range(3)]
    image = np.stack(waves, axis=-1)
    image[:, width // 2 :] *= 0.5
    return image.astype(np.uint8)


def by_scipy(image: Image8, sigma: float, radius: int) -> np.ndarray:
    """float64, per channel, borders mirrored without repeating the outermost pixel."""
    channels = [
        scipy.ndimage.gaussian_filter(
            image[..., c].astype(np.float64), sigma=sigma, radius=radius, mode="mirror"
        )
        for c in range(3)
    ]
    return np.stack(channels, axis=-1)


def by_pillow(image: Image8, quality: int) -> Image8:
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="JPEG", quality=quality)
    return np.asarray(Image.open(file).convert("RGB"))


def values(parameter: Parameter) -> st.SearchStrategy[int | float]:
    if parameter.whole:
        whole = st.integers(int(parameter.low), int(parameter.high))
        return whole.filter(lambda v: v % 2 == 1) if parameter.odd else whole
    return st.floats(parameter.low, parameter.high)


@st.composite
def corruptions(draw: st.DrawFn) -> Corruption:
    kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    return Corruption(kind.name, tuple((p.name, draw(values(p))) for p in kind.parameters))


@given(corruptions(), st.randoms(use_true_random=False), st.sampled_from(["", " ", "\t "]))
def test_canonical_text_reads_back_in_any_order_and_spacing(
    corruption: Corruption, order: object, space: str
) -> None:
    assert parse(str(corruption)) == corruption
    assert str(parse(str(corruption))) == str(corruption)
    shuffled = list(corruption.params)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    inner = f"{space},{space}".join(f"{name}{space}={space}{value}" for name, value in shuffled)
    assert parse(f"{space}{corruption.name}{space}({space}{inner}{space}){space}") == corruption


@given(corruptions(), corruptions())
def test_texts_and_slugs_tell_corruptions_apart(one: Corruption, other: Corruption) -> None:
    assert (str(one) == str(other)) == (one == other) == (one.slug == other.slug)
    assert set(one.slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.")


@pytest.mark.parametrize(
    ("written", "text", "slug"),
    [
        ("jpeg(quality=5)", "jpeg(quality=5)", "jpeg_q5"),
        (" jpeg ( quality = 05 ) ", "jpeg(quality=5)", "jpeg_q5"),
        ("gaussian_blur(kernel=5, sigma=2.50)", TRUNCATED, "gaussian_blur_s2.5_k5"),
        ("true_gaussian_blur(sigma=2)", "true_gaussian_blur(sigma=2)", "true_gaussian_blur_s2"),
        ("true_gaussian_blur(sigma=2.0)", "true_gaussian_blur(sigma=2)", "true_gaussian_blur_s2"),
        ("true_gaussian_blur(sigma=25e-1)", "true_gaussian_blur(sigma=2.5)", None),
        ("defocus_blur(severity=3)", "defocus_blur(severity=3)", "defocus_blur_3"),
    ],
)
def test_one_canonical_text(written: str, text: str, slug: str | None) -> None:
    assert str(parse(written)) == text
    assert slug is None or parse(written).slug == slug


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jpg(quality=5)", "unknown corruption 'jpg'. Did you mean jpeg?"),
        ("JPEG(quality=5)", "unknown corruption 'JPEG'. Did you mean jpeg?"),
        (
            "gausian_blur(sigma=1)",
            "unknown corruption 'gausian_blur'. Did you mean gaussian_blur, ",
        ),
        ("qqqq(a=1)", "unknown corruption 'qqqq'. There are: jpeg, gaussian_blur, true_gaussian_"),
        (
            "jpeg(qualty=5)",
            "jpeg has no parameter 'qualty'. Did you mean quality? It takes quality "
            "(a whole number from 1 to 100)",
        ),
        (
            "gaussian_blur(sigma=2.5,kernel_size=5)",
            "gaussian_blur has no parameter 'kernel_size'. Did you mean kernel? It takes sigma "
            "(a number from 0.1 to 64), kernel (an odd whole number from 3 to 255)",
        ),
        ("jpeg(quality=0)", "quality of jpeg must be a whole number from 1 to 100, got '0'"),
        ("jpeg(quality=101)", "quality of jpeg must be a whole number from 1 to 100, got '101'"),
        ("jpeg(quality=5.0)", "quality of jpeg must be a whole number from 1 to 100, got '5.0'"),
        ("jpeg(quality=)", "quality of jpeg must be a whole number from 1 to 100, got ''"),
        (
            "gaussian_blur(sigma=2.5,kernel=4)",
            "kernel of gaussian_blur must be an odd whole number from 3 to 255, got '4'",
        ),
        (
            "gaussian_blur(sigma=nan,kernel=5)",
            "sigma of gaussian_blur must be a number from 0.1 to 64, got 'nan'",
        ),
        (
            "true_gaussian_blur(sigma=-1)",
            "sigma of true_gaussian_blur must be a number from 0.1 to 64, got '-1.0'",
        ),
        ("fog(severity=6)", "severity of fog must be a whole number from 1 to 5, got '6'"),
        ("jpeg", "jpeg needs quality (a whole number from 1 to 100), such as jpeg(quality=5)"),
        ("jpeg()", "jpeg needs quality (a whole number from 1 to 100), such as jpeg(quality=5)"),
        (
            "gaussian_blur(sigma=2.5)",
            "gaussian_blur needs kernel (an odd whole number from 3 to 255), such as "
            "gaussian_blur(sigma=2.5,kernel=5)",
        ),
        ("jpeg(5)", "jpeg: '5' is not PARAMETER=VALUE; write it as jpeg(quality=5)"),
        ("jpeg(quality=5,)", "jpeg: '' is not PARAMETER=VALUE; write it as jpeg(quality=5)"),
        ("jpeg(quality=5,quality=6)", "jpeg: quality stands there twice; give it once"),
        ("jpeg(quality=5", "'jpeg(quality=5' is no corruption; write NAME(PARAMETER=VALUE,...)"),
        ("", "'' is no corruption; write NAME(PARAMETER=VALUE,...), such as jpeg(quality=5)"),
    ],
)
def test_bad_texts_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_bad_parameters_from_python_are_refused() -> None:
    for value in (True, "5", 5.0, np.int64(5), None):
        with pytest.raises(UsageError, match="quality of jpeg must be a whole number"):
            Corruption("jpeg", (("quality", value),))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"write gaussian_blur as .* in order"):
        Corruption("gaussian_blur", (("kernel", 5), ("sigma", 2.5)))
    with pytest.raises(UsageError, match="write jpeg as"):
        Corruption("jpeg", (("quality", 5), ("colour", 1)))
    assert Corruption("true_gaussian_blur", (("sigma", 2),)) == parse(
        "true_gaussian_blur(sigma=2.0)"
    )


def test_suites() -> None:
    assert [str(c) for c in suite("paper")] == ["jpeg(quality=5)", TRUNCATED]
    assert [str(c) for c in suite("default")] == [
        *("jpeg(quality=5)", TRUNCATED, "true_gaussian_blur(sigma=2.5)")
    ]
    whole = [str(c) for c in suite("imagenet-c")]
    assert len(whole) == len(set(whole)) == 75
    assert whole[:6] == [
        *(f"gaussian_noise(severity={s})" for s in range(1, 6)),
        "shot_noise(severity=1)",
    ]
    with pytest.raises(UsageError) as caught:
        suite("imagenet_c")
    assert str(caught.value) == (
        "unknown suite 'imagenet_c' (there are: paper, default, imagenet-c). Did you mean "
        "imagenet-c?"
    )


def test_effective_sigmas() -> None:
    truncated, true = parse(TRUNCATED), parse("true_gaussian_blur(sigma=2.5)")
    assert truncated.effective_sigma == pytest.approx(1.3345, abs=5e-5)
    assert true.effective_sigma == pytest.approx(2.5, rel=2e-3)
    assert (truncated.kernel, true.kernel) == (5, 21)
    for text in ("jpeg(quality=5)", "defocus_blur(severity=3)"):
        assert (parse(text).effective_sigma, parse(text).kernel) == (None, None)


@given(st.floats(1, 64))
def test_the_true_blur_has_the_sigma_it_says(sigma: float) -> None:
    corruption = parse(f"true_gaussian_blur(sigma={sigma})")
    assert corruption.effective_sigma == pytest.approx(sigma, rel=2e-3)


@pytest.mark.parametrize(
    ("text", "sigma", "radius"),
    [
        (TRUNCATED, 2.5, 2),
        ("gaussian_blur(sigma=0.7,kernel=3)", 0.7, 1),
        ("gaussian_blur(sigma=9,kernel=25)", 9, 12),
        ("true_gaussian_blur(sigma=2.5)", 2.5, 10),
        ("true_gaussian_blur(sigma=1.1)", 1.1, 5),
    ],
)
@pytest.mark.parametrize("size", [(224, 224), (96, 64), (7, 3), (1, 30), (2, 1)])
def test_blurs_equal_scipy_within_one_grey_level(
    text: str, sigma: float, radius: int, size: tuple[int, int]
) -> None:
    for image in (noise(*size), scene(*size), np.full((*size, 3), 200, np.uint8)):
        blurred = parse(text).apply(image, 0, 0)
        assert np.abs(blurred - by_scipy(image, sigma, radius)).max() <= 0.5001


def test_a_blur_keeps_constants_and_treats_channels_alone() -> None:
    for text in (TRUNCATED, "true_gaussian_blur(sigma=2.5)"):
        for level in (0, 1, 254, 255):
            flat = np.full((40, 30, 3), level, np.uint8)
            assert (parse(text).apply(flat, 0, 0) == level).all()
        red = noise(40, 30)
        red[..., 1:] = 0
        assert parse(text).apply(red, 0, 0)[..., 1:].max() == 0


def test_the_truncated_blur_is_torchvisions() -> None:
    from torchvision.transforms.v2.functional import gaussian_blur

    image = noise(64, 48)
    theirs = gaussian_blur(torch.from_numpy(image).permute(2, 0, 1), [5, 5], [2.5, 2.5])
    ours = parse(TRUNCATED).apply(image, 0, 0).astype(int)
    assert np.abs(ours - theirs.permute(1, 2, 0).numpy()).max() <= 1


def test_blur_acts_after_the_resize() -> None:
    preprocess = replace(named_preprocess("imagenet", (224, 224)), interpolation="bilinear")
    large = noise(750, 1000)
    small = to_model_size(Image.fromarray(large), preprocess)
    after = parse(TRUNCATED).apply(small, 0, 0)
    before = to_model_size(Image.fromarray(parse(TRUNCATED).apply(large, 0, 0)), preprocess)
    assert after.std() == pytest.approx(4.95, abs=0.1)
    assert before.std() == pytest.approx(11.3, abs=0.2)


@pytest.mark.parametrize("quality", [1, 5, 10, 75, 95, 100])
def test_jpeg_is_pillows_pixel_for_pixel(quality: int) -> None:
    for image in (noise(224, 224), scene(33, 50), noise(1, 1), noise(8, 7)):
        ours = parse(f"jpeg(quality={quality})").apply(image, 0, 0)
        assert np.array_equal(ours, by_pillow(image, quality))


def example_of(kind: Kind) -> Corruption:
    return parse(kind.example)


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_kind_is_a_function_of_image_seed_and_index(kind: Kind) -> None:
    corruption = example_of(kind)
    assert str(corruption) == kind.example
    images = np.stack([scene(48, 40), noise(48, 40), noise(48, 40, seed=1), scene(48, 40)])
    untouched = images.copy()
    np.random.seed(1)
    torch.manual_seed(1)
    whole, failures = corruption.apply_batch(images, 7, [10, 11, 12, 13])
    assert (whole.shape, whole.dtype, failures) == (images.shape, np.uint8, {})
    assert np.array_equal(images, untouched)
    assert all((result != image).any() for result, image in zip(whole, images, strict=True))
    np.random.seed(2)
    torch.manual_seed(2)
    backwards, _ = corruption.apply_batch(images[::-1], 7, np.array([13, 12, 11, 10]), threads=3)
    assert np.array_equal(backwards[::-1], whole)
    for row, index in enumerate((10, 11, 12, 13)):
        assert np.array_equal(corruption.apply(images[row], 7, index), whole[row])
    frozen = images[0].copy()
    frozen.setflags(write=False)
    assert np.array_equal(corruption.apply(frozen, 7, 10), whole[0])
    other_seed, other_index = corruption.apply(frozen, 8, 10), corruption.apply(frozen, 7, 11)
    same = np.array_equal(other_seed, whole[0]) and np.array_equal(other_index, whole[0])
    assert same == (kind.name not in RANDOM)


@pytest.mark.parametrize("name", NAMES)
def test_global_random_state_is_left_alone(name: str) -> None:
    np.random.seed(5)
    expected = np.random.random(3)
    np.random.seed(5)
    corruption = parse(f"{name}(severity=1)")
    drawn = []
    for index in range(3):
        corruption.apply(noise(32, 32), 0, index)
        drawn.append(np.random.random())
    assert np.array_equal(drawn, expected)


def test_the_global_generator_comes_back_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    import imagecorruptions.corruptions as package

    def broken(image: Image.Image, severity: int) -> None:
        np.random.random()
        raise ValueError("no fog today\nsecond line")

    monkeypatch.setattr(package, "fog", broken)
    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    with pytest.raises(CorruptionError) as caught:
        parse("fog(severity=2)").apply(noise(32, 32), 0, 9)
    assert str(caught.value) == (
        "fog(severity=2) failed on image 9: no fog today; leave that image out"
    )
    assert np.random.random() == expected


@pytest.mark.parametrize("corruption", suite("imagenet-c"), ids=str)
def test_imagenet_c_is_the_packages_own(corruption: Corruption) -> None:
    """With the same numbers drawn, `apply` gives what the package's `corrupt` gives."""
    from imagecorruptions import corrupt

    image, severity = scene(40, 56), dict(corruption.params)["severity"]
    ours = corruption.apply(image, 3, 4)
    key = [3, 4, zlib.crc32(str(corruption).encode())]
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))
    given = {}
    if corruption.name in ("impulse_noise", "glass_blur"):
        given["seed"] = int(generator.integers(2**32))
    before = np.random.mtrand.get_bit_generator()
    np.random.mtrand.set_bit_generator(generator.bit_generator)
    try:
        theirs = corrupt(image, severity, corruption.name, **given)
    finally:
        np.random.mtrand.set_bit_generator(before)
    assert np.array_equal(ours, theirs)


def test_severities_of_imagenet_c_differ() -> None:
    image = scene(64, 64)
    for name in NAMES:
        results = [parse(f"{name}(severity={s})").apply(image, 0, 0) for s in range(1, 6)]
        assert len({result.tobytes() for result in results}) == 5


@pytest.fixture
def odd_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind that fails on dark images, and gives another shape for bright ones."""

    def odd(image: Image8, _: np.random.Generator) -> Image8:
        if image.max() == 0:
            raise ZeroDivisionError
        return image[1:] if image.min() == 255 else image

    monkeypatch.setitem(KINDS, "odd", Kind("odd", "odd()", (), odd))


@pytest.mark.usefixtures("odd_kind")
def test_images_that_fail_are_named_and_the_rest_goes_on() -> None:
    corruption = parse("odd")
    assert (str(corruption), corruption.slug) == ("odd()", "odd")
    grey = np.full((4, 5, 3), 9, np.uint8)
    images = np.stack([grey, grey * 0, grey, grey * 0 + 255])
    for threads in (1, 2):
        result, failures = corruption.apply_batch(images, 0, [4, 5, 6, 7], threads=threads)
        assert failures == {
            1: "odd() failed on image 5: ZeroDivisionError; leave that image out",
            3: "odd() failed on image 7: it gave uint8 (3, 5, 3); leave that image out",
        }
        assert np.array_equal(result[[0, 2]], images[[0, 2]])
        assert result[[1, 3]].max() == 0
    with pytest.raises(CorruptionError, match=r"odd\(\) failed on image 5: ZeroDivisionError"):
        corruption.apply(images[1], 0, 5)


def test_arrays_that_are_no_images_are_refused() -> None:
    jpeg = parse("jpeg(quality=5)")
    for wrong in (noise(4, 4).astype(np.float32), noise(4, 4)[..., 0], noise(2, 4, 4)):
        with pytest.raises(UsageError, match=r"takes uint8 \(height, width, 3\) before normali"):
            jpeg.apply(wrong, 0, 0)
    with pytest.raises(UsageError, match=r"takes uint8 \(images, height, width, 3\)"):
        jpeg.apply_batch(noise(4, 4), 0, [0])
    with pytest.raises(UsageError, match="2 images were given with 1 indices"):
        jpeg.apply_batch(noise(2, 4, 4), 0, [0])


def test_imagenet_c_refuses_small_images() -> None:
    with pytest.raises(CorruptionError, match=r"on image 3: ImageNet-C needs at least 32 pixels a"):
        parse("frost(severity=1)").apply(noise(31, 64), 0, 3)


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    fog, jpeg = parse("fog(severity=1)"), parse("jpeg(quality=5)")
    fog.require()

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", missing)
        jpeg.require()
        line = (
            "the ImageNet-C corruptions need an optional extra: pip install 'vit-probe[imagenet-c]'"
            " (imagecorruptions-imaug is not installed)"
        )
        for call in (fog.require, lambda: fog.apply_batch(noise(1, 32, 32), 0, [0], threads=2)):
            with pytest.raises(UsageError) as caught:
                call()
            assert str(caught.value) == line
    monkeypatch.setitem(sys.modules, "imagecorruptions.corruptions", None)
    with pytest.raises(UsageError, match="imagecorruptions-imaug cannot be imported, "):
        fog.require()


def test_parsing_imports_nothing_heavy() -> None:
    code = (
        "import sys; from probe.corruptions import parse, suite; suite('imagenet-c');"
        "parse('gaussian_blur(sigma=2.5,kernel=5)').effective_sigma;"
        "print(*sorted(set(sys.modules) & {'torch', 'scipy', 'cv2', 'imagecorruptions', 'numba'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).resolve().parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []
