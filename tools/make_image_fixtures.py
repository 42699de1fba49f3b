"""Makes tests/data_files/images: PNG and JPEG files as Pillow writes them, and expected.safetensors with their pixels.

pip install --target DIR pillow && PYTHONPATH=DIR ./dev python tools/make_image_fixtures.py

expected.safetensors has for each file NAME.rgb and NAME.gray, (channels, height, width) uint8, by Pillow's convert. For
masks it has NAME.mask, (height, width): the stored samples.
"""

import pathlib
import struct
import zlib

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data_files" / "images"
HEIGHT, WIDTH = 13, 18


def pixels(channels: int, seed: int) -> np.ndarray:
    """A smooth image with some noise: JPEG keeps both."""
    random = np.random.default_rng(seed)
    y, x, c = np.mgrid[:HEIGHT, :WIDTH, :channels]
    wave = 128 + 90 * np.sin(y / 3 + c) * np.cos(x / 4 - c) + random.normal(0, 8, y.shape)
    return wave.clip(0, 255).astype(np.uint8)


def png_of_16_bits(path: pathlib.Path, samples: np.ndarray) -> None:
    """Writes (H, W, 3) uint16, which Pillow does not."""
    raw = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", samples.shape[1], samples.shape[0], 16, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    expected = {}
    rgb, rgba, gray = (Image.fromarray(pixels(n, n).squeeze()) for n in (3, 4, 1))
    palette = rgb.quantize(11)
    images = {
        "rgb.png": (rgb, {}),
        "rgba.png": (rgba, {}),
        "gray.png": (gray, {}),
        "gray_alpha.png": (gray.convert("LA"), {}),
        "bits.png": (gray.convert("1"), {}),
        "palette.png": (palette, {"bits": 4}),
        "transparent.png": (palette, {"bits": 4, "transparency": 3}),
        "rgb.jpg": (rgb, {"quality": 90}),
        "full_colour.jpg": (rgb, {"quality": 95, "subsampling": 0}),
        "progressive.jpg": (rgb, {"quality": 80, "progressive": True}),
        "gray.jpg": (gray, {"quality": 90}),
        "cmyk.jpg": (rgb.convert("CMYK"), {"quality": 90}),
    }
    for name, (image, options) in images.items():
        image.save(FOLDER / name, **options)
        if name == "cmyk.jpg":
            continue  # refused
        read = Image.open(FOLDER / name)
        expected[f"{name}.rgb"] = np.asarray(read.convert("RGB")).transpose(2, 0, 1).copy()
        expected[f"{name}.gray"] = np.asarray(read.convert("RGB").convert("L"))[None].copy()
    for name in ("gray.png", "palette.png"):
        expected[f"{name}.mask"] = np.asarray(Image.open(FOLDER / name)).astype(np.uint8)
    wide = np.random.default_rng(16).integers(0, 65536, (HEIGHT, WIDTH, 3))
    png_of_16_bits(FOLDER / "wide.png", wide)
    expected["wide.png.rgb"] = ((wide * 255 + 32767) // 65535).astype(np.uint8).transpose(2, 0, 1).copy()
    save_file(expected, FOLDER / "expected.safetensors")


if __name__ == "__main__":
    main()
