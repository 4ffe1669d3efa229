"""`Corruption`: a kind of corruption with its parameters, its one text form, and how it is run."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe import plugins
from probe.corruptions.blur import effective_sigma
from probe.corruptions.imagenet_c import NAMES
from probe.corruptions.kinds import KINDS, Kind, Number
from probe.errors import CorruptionError, ProbeError, UsageError, did_you_mean

FORM = re.compile(r"\s*(?P<name>[^\s(),=]+)\s*(\((?P<arguments>[^()]*)\)\s*)?")


@dataclass(frozen=True)
class Corruption:
    """One corruption, ready to run. `str()` is its canonical text, `jpeg(quality=5)`.

    `params` holds every parameter of the kind, in the kind's order: there are no defaults.
    """

    name: str
    params: tuple[tuple[str, Number], ...]

    def __post_init__(self) -> None:
        """Hold `name` and `params` to what `KINDS` allows.

        Raises:
            UsageError: naming the parameter and its range, or the nearest name.
        """
        kind = _kind(self.name)
        given = dict(self.params)
        for parameter in kind.parameters:
            if parameter.name not in given:
                raise UsageError(
                    f"{self.name} needs {parameter.name} ({parameter.allowed}), such as "
                    f"{kind.example}"
                )
            value = given[parameter.name]
            if not parameter.allows(value):
                raise UsageError(_out_of_range(kind, parameter.name, value))
        if tuple(given) != tuple(parameter.name for parameter in kind.parameters):
            raise UsageError(f"write {self.name} as {kind.example}, with these parameters in order")

    def __str__(self) -> str:
        """The canonical text; whole values of decimal parameters are written without a point."""
        return f"{self.name}({','.join(f'{name}={_number(value)}' for name, value in self.params)})"

    @property
    def slug(self) -> str:
        """For columns and file names: `jpeg_q5`, `gaussian_blur_s2.5_k5`, `fog_3`."""
        parameters = _kind(self.name).parameters
        values = zip(parameters, self.params, strict=True)
        return "_".join([self.name, *(f"{p.short}{_number(value)}" for p, (_, value) in values)])

    @property
    def kernel(self) -> int | None:
        """Width of the Gaussian kernel in pixels; None as for `effective_sigma`."""
        taps = self._taps()
        return None if taps is None else len(taps)

    @property
    def effective_sigma(self) -> float | None:
        """Root of the kernel's second moment along one axis, in pixels at model resolution.

        None for what is no Gaussian blur: ImageNet-C's blurs are discs, streaks and scrambles.
        """
        taps = self._taps()
        return None if taps is None else effective_sigma(taps)

    @property
    def packages(self) -> dict[str, str]:
        """The package that adds this kind, with version and code; nothing for one of our own."""
        plugin = None if self.name in KINDS else _added().find(self.name)
        return {} if plugin is None else plugin.identity

    def require(self) -> None:
        """Fail now, not at the first image, when an optional package is missing.

        Raises:
            UsageError: naming the extra to install.
        """
        require = _kind(self.name).require
        if require is not None:
            require()

    def apply(self, image: NDArray[np.uint8], seed: int, index: int) -> NDArray[np.uint8]:
        """Corrupt one image, uint8 (H, W, 3) in and out; the input is left alone.

        Random numbers come from `Generator(PCG64(SeedSequence([seed, index, crc32(str(self))])))`,
        `index` being the image's place in the full sorted data set, so that neither the batch nor
        any global state matters.

        Raises:
            CorruptionError: if it fails on this image.
            UsageError: if the array is not such an image, or an optional package is missing.
        """
        _check(image, 3, "(height, width, 3)")
        sequence = np.random.SeedSequence([seed, index, zlib.crc32(str(self).encode())])
        generator = np.random.Generator(np.random.PCG64(sequence))
        try:
            result = _kind(self.name).apply(image, generator, **dict(self.params))
        except ProbeError:
            raise
        except Exception as error:
            # A library may raise anything on an odd image; the run goes on without that image.
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise CorruptionError(self._failed(index, lines[0])) from error
        if result.shape != image.shape or result.dtype != np.uint8:
            raise CorruptionError(self._failed(index, f"it gave {result.dtype} {result.shape}"))
        return result

    def apply_batch(
        self,
        images: NDArray[np.uint8],
        seed: int,
        indices: Sequence[int] | NDArray[np.int64],
        *,
        threads: int = 1,
    ) -> tuple[NDArray[np.uint8], dict[int, str]]:
        """`apply` on every image of uint8 (B, H, W, 3), whatever the number of threads.

        Returns:
            uint8 (B, H, W, 3), and {row: reason} of the images that failed. Their rows are black:
            leave them out of every condition.

        Raises:
            UsageError: as for `apply`.
        """
        _check(images, 4, "(images, height, width, 3)")
        if len(indices) != len(images):
            raise UsageError(f"{len(images)} images were given with {len(indices)} indices")
        result = np.zeros_like(images)

        def one(row: int) -> str | None:
            try:
                result[row] = self.apply(images[row], seed, int(indices[row]))
            except CorruptionError as error:
                return str(error)
            return None

        if threads > 1 and len(images) > 1:
            with ThreadPoolExecutor(threads) as pool:
                reasons = list(pool.map(one, range(len(images))))
        else:
            reasons = [one(row) for row in range(len(images))]
        return result, {row: why for row, why in enumerate(reasons) if why is not None}

    def _taps(self) -> NDArray[np.float64] | None:
        taps = _kind(self.name).taps
        return None if taps is None else taps(**dict(self.params))

    def _failed(self, index: int, reason: str) -> str:
        return f"{self} failed on image {index}: {reason}; leave that image out"


def parse(text: str) -> Corruption:
    """Read `NAME(PARAMETER=VALUE,...)`, in any order and spacing; nothing has a default.

    Raises:
        UsageError: if it is not of this form, or a name or value is not known or allowed.
    """
    match = FORM.fullmatch(text)
    if match is None:
        raise UsageError(
            f"'{text}' is no corruption; write NAME(PARAMETER=VALUE,...), such as jpeg(quality=5)"
        )
    kind = _kind(match["name"])
    given = _arguments(match["arguments"] or "", kind)
    ordered = [(p.name, given[p.name]) for p in kind.parameters if p.name in given]
    return Corruption(kind.name, tuple(ordered))


def _arguments(text: str, kind: Kind) -> dict[str, Number]:
    known = {parameter.name: parameter for parameter in kind.parameters}
    takes = ", ".join(f"{p.name} ({p.allowed})" for p in kind.parameters)
    given: dict[str, Number] = {}
    for part in text.split(",") if text.strip() else []:
        name, equals, written = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise UsageError(
                f"{kind.name}: '{part.strip()}' is not PARAMETER=VALUE; write it as {kind.example}"
            )
        if name not in known:
            near = did_you_mean(name.lower(), known)
            raise UsageError(f"{kind.name} has no parameter '{name}'.{near} It takes {takes}")
        if name in given:
            raise UsageError(f"{kind.name}: {name} stands there twice; give it once")
        value = known[name].read(written)
        if value is None:
            raise UsageError(_out_of_range(kind, name, written))
        given[name] = value
    return given


def suite(name: str) -> tuple[Corruption, ...]:
    """The corruptions of a named suite, in a fixed order.

    `paper` is JPEG at quality 5 and the truncated blur; `default` adds the true blur; `imagenet-c`
    is ImageNet-C's fifteen at severities 1 to 5.

    Raises:
        UsageError: if there is no such suite.
    """
    if name not in SUITES:
        raise UsageError(
            f"unknown suite '{name}' (there are: {', '.join(SUITES)})."
            f"{did_you_mean(name.lower(), SUITES)}"
        )
    return SUITES[name]()


def _paper() -> tuple[Corruption, ...]:
    return parse("jpeg(quality=5)"), parse("gaussian_blur(sigma=2.5,kernel=5)")


def _default() -> tuple[Corruption, ...]:
    return *_paper(), parse("true_gaussian_blur(sigma=2.5)")


def _imagenet_c() -> tuple[Corruption, ...]:
    return tuple(Corruption(name, (("severity", s),)) for name in NAMES for s in range(1, 6))


SUITES: Mapping[str, Callable[[], tuple[Corruption, ...]]] = {
    "paper": _paper,
    "default": _default,
    "imagenet-c": _imagenet_c,
}


def _kind(name: str) -> Kind:
    added = _added()
    if name in KINDS:
        return KINDS[name]
    plugin = added.find(name)
    if plugin is None:
        known = [*KINDS, *added.plugins]
        near = did_you_mean(name.lower(), known) or f" There are: {', '.join(known)}"
        raise UsageError(f"unknown corruption '{name}'.{near}")
    return plugin.load(Kind)


def _added() -> plugins.Registry:
    """What other packages add; each is imported when it is asked for."""
    return plugins.registry(plugins.CORRUPTIONS, frozenset(KINDS))


def _out_of_range(kind: Kind, name: str, value: object) -> str:
    allowed = next(p.allowed for p in kind.parameters if p.name == name)
    return f"{name} of {kind.name} must be {allowed}, got '{value}'"


def _number(value: Number) -> str:
    """The shortest text that reads back as `value`."""
    return repr(value).removesuffix(".0")


def _check(images: NDArray[np.uint8], axes: int, shape: str) -> None:
    if images.dtype != np.uint8 or images.ndim != axes or images.shape[-1] != 3:
        raise UsageError(
            f"a corruption takes uint8 {shape} before normalisation, got {images.dtype} "
            f"{images.shape}"
        )
