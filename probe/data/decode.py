"""Image files to upright 8-bit RGB.

What is done, so that nothing is done silently: EXIF orientation is applied; 16-bit grey values are
divided by 257 and rounded (Pillow itself reads 16-bit colour PNGs by their high byte); transparent
pixels are laid over white; CMYK, palette, grey and 1-bit images are converted; of an animation the
first frame is taken. Colour profiles are ignored, as timm and transformers do. Refused: floating
point pixels and 32-bit integers above 65,535, which have no agreed range, and truncated files.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageOps

from probe.errors import UnreadableImage


def decode(data: bytes, name: str) -> Image.Image:
    """Decode one image file to RGB; `name` is used in errors.

    Raises:
        UnreadableImage: if the bytes are no image, a truncated one, one of a kind that has no
            agreed conversion, or larger than Pillow's limit against decompression bombs.
    """
    if not data:
        raise UnreadableImage(name, "the file is empty")
    try:
        image = Image.open(io.BytesIO(data))
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
    except Image.UnidentifiedImageError as error:
        raise UnreadableImage(name, "it is no image that Pillow knows") from error
    except Image.DecompressionBombError as error:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise UnreadableImage(
            name, f"it claims more than {limit:,} pixels, as decompression bombs do"
        ) from error
    except Exception as error:
        # Pillow's decoders raise almost anything on damaged files; each is one unreadable image.
        raise UnreadableImage(name, _line(error)) from error
    return to_rgb(image, name)


def to_rgb(image: Image.Image, name: str) -> Image.Image:
    """Convert a loaded image of any Pillow mode to RGB, as the module says.

    Raises:
        UnreadableImage: if its mode has no agreed conversion.
    """
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _from_16_bit(image, name)
    if image.mode == "F":
        raise UnreadableImage(name, "floating point pixels have no agreed range; save 8 or 16 bits")
    try:
        if image.has_transparency_data:
            straight = image.convert("LA") if image.mode == "La" else image
            rgba = straight.convert("RGBA")
            return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
        return image if image.mode == "RGB" else image.convert("RGB")
    except ValueError as error:
        raise UnreadableImage(name, _line(error)) from error


def _from_16_bit(image: Image.Image, name: str) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise UnreadableImage(name, "32-bit pixels outside 0..65535 have no agreed range")
    grey = ((values + 128) // 257).astype(np.uint8)
    key = image.info.get("transparency")
    if isinstance(key, int):
        grey[values == key] = 255
    return Image.fromarray(grey).convert("RGB")


def _line(error: Exception) -> str:
    """The first line of an error's text, or its kind when it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
