"""Draw images of discs, boxes and triangles, to try vision models on.

usage: python tools/shapes.py FOLDER [--count 400] [--size 64] [--seed 0]

- FOLDER/images/0000.png, ...: images with up to three shapes on a noisy ground
- FOLDER/masks/0000.png, ...: their masks: 0 ground, 1 disc, 2 box, 3 triangle
- FOLDER/classes/{disc,box,triangle}/0000.png, ...: images with one shape
"""

import argparse
import pathlib
import struct
import zlib

import numpy as np

SHAPES = ("disc", "box", "triangle")


def write_png(path: pathlib.Path, pixels: np.ndarray) -> None:
    """Writes an (H, W) or (H, W, 3) uint8 array."""
    height, width = pixels.shape[:2]
    rows = pixels.reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), rows], 1).tobytes()

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def draw(random: np.random.Generator, size: int, shapes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns an image with these shapes, one over the other, and its mask."""
    image = random.integers(0, 256, 3)[None, None] + random.normal(0, 20, (size, size, 3))
    mask = np.zeros((size, size), np.uint8)
    y, x = np.mgrid[:size, :size]
    for shape in shapes:
        radius = random.uniform(size / 8, size / 4)
        dy, dx = y - random.uniform(radius, size - radius), x - random.uniform(radius, size - radius)
        inside = (
            dy**2 + dx**2 < radius**2,
            np.maximum(abs(dy), abs(dx)) < 0.9 * radius,
            (dy < radius) & (2 * abs(dx) < dy + radius),
        )[shape]
        image[inside] = random.integers(0, 256, 3) + random.normal(0, 20, (int(inside.sum()), 3))
        mask[inside] = shape + 1
    return image.clip(0, 255).astype(np.uint8), mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=400, help="images of each kind")
    parser.add_argument("--size", type=int, default=64, help="pixels of a side")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    folders = {name: options.folder / name for name in ("images", "masks")}
    folders |= {name: options.folder / "classes" / name for name in SHAPES}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    for number in range(options.count):
        name = f"{number:04}.png"
        image, mask = draw(random, options.size, list(random.integers(0, 3, random.integers(1, 4))))
        write_png(folders["images"] / name, image)
        write_png(folders["masks"] / name, mask)
        kind = number % len(SHAPES)
        write_png(folders[SHAPES[kind]] / name, draw(random, options.size, [kind])[0])


if __name__ == "__main__":
    main()
