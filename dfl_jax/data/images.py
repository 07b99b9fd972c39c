"""Images as arrays of bytes, as all readers of images see them.

Axis letters: n images, S rows and columns of a square one.
"""

from typing import Any

import numpy as np

from dfl_jax.data.dataset import DataError
from dfl_jax.setting_error import SettingError

SIZES = (8, 1024)  # smallest and largest S
GREY = ('1', 'L', 'LA', 'La')  # Pillow's modes without colour
WHITE = 255
BLANK = 250  # from here on nothing shows on white
Image = Any  # PIL.Image.Image


def check_size(size: int) -> None:
    """Raises SettingError for an S out of `SIZES`."""
    if not SIZES[0] <= size <= SIZES[1]:
        text = f'image_size is {size}: use {SIZES[0]} to {SIZES[1]}'
        raise SettingError.of(text, image_size=size)


def pixels_of(image: Image, size: int | None = None) -> np.ndarray:
    """The pixels of an image of Pillow, [rows, columns, channels] uint8.

    One channel if the image has no colour, three otherwise (palettes, CMYK and other colour spaces
    become RGB). The image is turned as the Exif orientation of its file says, and laid on white
    where it is transparent, as programs show it. Then it is resized by Pillow's bilinear filter,
    which averages where it shrinks.

    size: S of the square that it becomes, whatever its shape; None keeps its own.

    Raises ValueError, one line, for pixels of more than 8 bits, and for a transparent image whose
    pixels differ, but are all white, or nearly, on white.
    """
    from PIL import ImageOps
    from PIL.Image import Resampling

    if image.mode.startswith(('I', 'F')):  # Pillow would clip them at 255
        raise ValueError('its pixels have more than 8 bits: convert them to 8')
    mode = 'L' if image.mode in GREY else 'RGB'
    transparent = image.has_transparency_data
    image = ImageOps.exif_transpose(image)
    if transparent:
        image = _on_white(image)
    image = image.convert(mode)
    if size is not None:
        image = image.resize((size, size), Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], -1)


def _on_white(image: Image) -> Image:
    """The image without its transparency."""
    from PIL import Image

    layers = image.convert('RGBA')
    ground = Image.new('RGBA', image.size, (WHITE,) * 4)
    shown = Image.alpha_composite(ground, layers).convert('RGB')
    differ = np.ptp(np.asarray(layers), axis=(0, 1)).any()
    if differ and np.asarray(shown).min() >= BLANK:
        raise ValueError(
            'it is transparent, and nothing of it shows on white: lay it on a background of '
            'another colour'
        )
    return shown


def channel_moments(images: np.ndarray, root: object) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation, [channels] float32, of each channel of uint8 images, scaled to [0, 1].

    In float64, of one image at a time to save memory.
    """
    mean = np.mean([image.mean((0, 1)) for image in images], axis=0)
    std = np.sqrt(np.mean([np.square(image - mean).mean((0, 1)) for image in images], axis=0))
    if not std.all():
        raise DataError(
            f'{root}: the {("red", "green", "blue")[std.argmin()]} channel does not vary over '
            f'{len(images)} training images: use others'
        )
    return (mean / 255).astype(np.float32), (std / 255).astype(np.float32)
