from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from probe.data.decode import decode, to_rgb
from probe.errors import UnreadableImage


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(data: bytes) -> np.ndarray:
    image = decode(data, "x")
    assert image.mode == "RGB"
    return np.asarray(image)


def grey(values: list[list[int]]) -> np.ndarray:
    return np.repeat(np.array(values, dtype=np.uint8)[:, :, None], 3, axis=2)


SIXTEEN = np.array([[0, 128, 129], [257, 32896, 65535]], dtype=np.uint16)
EIGHT = grey([[0, 0, 1], [1, 128, 255]])


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_grey_is_divided_by_257_never_clipped(kind: str) -> None:
    np.testing.assert_array_equal(pixels(encoded(Image.fromarray(SIXTEEN), kind)), EIGHT)


def test_16_bit_big_endian_and_32_bit_containers() -> None:
    data = encoded(Image.fromarray(SIXTEEN), "TIFF", big_tiff=False)
    big = Image.frombytes("I;16B", (3, 2), SIXTEEN.astype(">u2").tobytes())
    np.testing.assert_array_equal(np.asarray(to_rgb(big, "x")), EIGHT)
    wide = Image.fromarray(SIXTEEN.astype(np.int32))
    assert wide.mode == "I"
    np.testing.assert_array_equal(pixels(encoded(wide, "TIFF")), EIGHT)
    assert Image.open(io.BytesIO(data)).mode.startswith("I;16")


def test_16_bit_pgm() -> None:
    data = b"P5 3 2 65535\n" + SIXTEEN.astype(">u2").tobytes()
    np.testing.assert_array_equal(pixels(data), EIGHT)


def test_16_bit_grey_with_a_transparent_value() -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        crc = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in SIXTEEN)
    data = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 3, 2, 16, 0, 0, 0, 0))
        + chunk(b"tRNS", struct.pack(">H", 32896))
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    np.testing.assert_array_equal(pixels(data), grey([[0, 0, 1], [1, 255, 255]]))


@pytest.mark.parametrize("value", [-1, 65536])
def test_32_bit_values_without_an_agreed_range_are_refused(value: int) -> None:
    image = Image.fromarray(np.full((2, 2), value, dtype=np.int32))
    with pytest.raises(UnreadableImage, match=r"'a.tif': 32-bit pixels outside 0..65535"):
        decode(encoded(image, "TIFF"), "a.tif")


def test_floating_point_is_refused() -> None:
    image = Image.fromarray(np.full((2, 2), 0.5, dtype=np.float32))
    with pytest.raises(UnreadableImage, match="floating point pixels have no agreed range"):
        decode(encoded(image, "TIFF"), "a.tif")


def test_one_bit_and_grey() -> None:
    bits = Image.fromarray(np.array([[0, 255], [255, 0]], dtype=np.uint8)).convert("1")
    np.testing.assert_array_equal(pixels(encoded(bits, "PNG")), grey([[0, 255], [255, 0]]))
    plain = Image.fromarray(np.array([[3, 200]], dtype=np.uint8))
    np.testing.assert_array_equal(pixels(encoded(plain, "PNG")), grey([[3, 200]]))


def test_cmyk() -> None:
    ink = Image.fromarray(
        np.array([[[0, 0, 0, 0], [255, 0, 0, 0], [0, 255, 255, 0], [9, 9, 9, 255]]], np.uint8),
        mode="CMYK",
    )
    expected = [[[255, 255, 255], [0, 255, 255], [255, 0, 0], [0, 0, 0]]]
    np.testing.assert_array_equal(pixels(encoded(ink, "TIFF")), expected)
    flat = Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    # An Adobe JPEG stores inverted ink; what comes back is cyan, not red.
    got = pixels(encoded(flat, "JPEG", quality=100)).astype(int)
    assert np.abs(got - [0, 255, 255]).max() <= 2


def test_palette_with_and_without_transparency() -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.putdata([0, 1, 2])
    plain = [[[10, 20, 30], [40, 50, 60], [70, 80, 90]]]
    np.testing.assert_array_equal(pixels(encoded(image, "PNG")), plain)
    clear = [[[10, 20, 30], [255, 255, 255], [70, 80, 90]]]
    np.testing.assert_array_equal(pixels(encoded(image, "PNG", transparency=1)), clear)
    levels = pixels(encoded(image, "PNG", transparency=bytes([255, 0, 128]))).astype(int)
    np.testing.assert_array_equal(levels[0, :2], clear[0][:2])
    # 70 * 128/255 + 255 * 127/255 and so on.
    assert np.abs(levels[0, 2] - [162.1, 167.2, 172.2]).max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_alpha_is_laid_over_white(kind: str) -> None:
    values = np.array([[[9, 99, 199, 255], [9, 99, 199, 0], [9, 99, 199, 64]]], dtype=np.uint8)
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    got = pixels(encoded(Image.fromarray(values), kind, **options)).astype(float)
    alpha = values[..., 3:] / 255
    expected = values[..., :3] * alpha + 255 * (1 - alpha)
    np.testing.assert_array_equal(got[0, :2], expected[0, :2])
    assert np.abs(got - expected).max() <= 1


def test_grey_alpha_and_colour_key() -> None:
    values = np.array([[[7, 255], [7, 0]]], dtype=np.uint8)
    image = Image.fromarray(values, mode="LA")
    np.testing.assert_array_equal(pixels(encoded(image, "PNG")), grey([[7, 255]]))
    colour = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], dtype=np.uint8))
    keyed = encoded(colour, "PNG", transparency=(4, 5, 6))
    np.testing.assert_array_equal(pixels(keyed), [[[1, 2, 3], [255, 255, 255]]])


def test_premultiplied_alpha() -> None:
    image = Image.frombytes("La", (2, 1), bytes([0, 0, 7, 255]))
    np.testing.assert_array_equal(np.asarray(to_rgb(image, "x")), grey([[255, 7]]))


CORNERS = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
UPRIGHT = {
    1: CORNERS,
    2: CORNERS[:, ::-1],
    3: CORNERS[::-1, ::-1],
    4: CORNERS[::-1],
    5: CORNERS.T,
    6: np.rot90(CORNERS, -1),
    7: CORNERS[::-1, ::-1].T,
    8: np.rot90(CORNERS, 1),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "JPEG"])
def test_exif_orientation_is_applied_once(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    # Blocks of 16 pixels, so that JPEG keeps them apart.
    stored = Image.fromarray(np.kron(CORNERS, np.ones((16, 16), dtype=np.uint8)))
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(stored.convert("RGB"), kind, exif=exif, **options)
    got = pixels(data)[8::16, 8::16, 0].astype(int)
    assert got.shape == UPRIGHT[orientation].shape
    assert np.abs(got - UPRIGHT[orientation]).max() <= (4 if kind == "JPEG" else 0)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_animation_gives_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    np.testing.assert_array_equal(pixels(data), np.full((4, 4, 3), [255, 0, 0]))


@pytest.mark.parametrize("kind", ["JPEG", "PROGRESSIVE", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_truncated_files_are_unreadable(kind: str, share: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    if kind == "PROGRESSIVE":
        data = encoded(image, "JPEG", progressive=True)
    else:
        data = encoded(image, kind)
    assert decode(data, "x").size == (40, 40)
    with pytest.raises(UnreadableImage, match="cannot read image 'x'"):
        decode(data[: int(len(data) * share)], "x")


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "the file is empty"), (b"hello", "it is no image that Pillow knows")],
)
def test_no_image(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableImage) as error:
        decode(data, "dir/a.jpg")
    assert str(error.value) == f"cannot read image 'dir/a.jpg': {reason}; repair or remove it"


def test_decompression_bomb_is_one_line() -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        crc = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", 50000, 50000, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    with pytest.raises(UnreadableImage, match=r"'b.png': it claims more than 178,956,970 pixels"):
        decode(data, "b.png")


def test_other_colour_spaces() -> None:
    # L* 50.2 without colour is sRGB 119; YCbCr (76, 85, 255) is pure red to one level.
    np.testing.assert_array_equal(
        np.asarray(to_rgb(Image.new("LAB", (1, 1), (128, 128, 128)), "x")), grey([[119]])
    )
    red = np.asarray(to_rgb(Image.new("YCbCr", (1, 1), (76, 85, 255)), "x")).astype(int)
    assert np.abs(red - [255, 0, 0]).max() <= 1
