"""Writes tests/data_files/mx/cases.txt: blocks, their scale and their codes, by exact rational arithmetic.

Run from the repository root: ./dev python tools/make_mx_fixtures.py

Only the two definitions under test round; numbers are fractions. A scale is found by trying every power of two. An
element is the nearest of all numbers of its format. One case per line:

    format scale_mode non_finite input,input,... scale code,code,...

with inputs as the bits of a float32, everything in hexadecimal.
"""

import random
import struct
from fractions import Fraction
from functools import cache
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "tests" / "data_files" / "mx" / "cases.txt"

# name: exponent bits, mantissa bits, codes at the top that are no numbers
FORMATS = {"e4m3": (4, 3, 1), "e5m2": (5, 2, 4), "e3m2": (3, 2, 0), "e2m3": (2, 3, 0), "e2m1": (2, 1, 0)}
MODES = ["round_up", "floor", "ceil", "even"]
NAN, INFINITY = 0x7FC00000, 0x7F800000


def power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def from_bits(bits: int) -> Fraction | None:
    """The number a float32 is; None for NaN and infinity."""
    field, fraction = bits >> 23 & 0xFF, bits & 0x7FFFFF
    if field == 255:
        return None
    number = Fraction(fraction) * power(-149) if field == 0 else (fraction + 2**23) * power(field - 150)
    return -number if bits >> 31 else number


def to_bits(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


@cache
def numbers(name: str) -> list[Fraction]:
    """The number of each magnitude code, in order."""
    if name == "mxint8":
        return [Fraction(k, 64) for k in range(128)]
    exponent_bits, mantissa_bits, special = FORMATS[name]
    bias = 2 ** (exponent_bits - 1) - 1
    found = []
    for code in range(2 ** (exponent_bits + mantissa_bits) - special):
        field, low = divmod(code, 2**mantissa_bits)
        if field == 0:
            found.append(low * power(1 - bias - mantissa_bits))
        else:
            found.append((2**mantissa_bits + low) * power(field - bias - mantissa_bits))
    return found


def floor_log2(x: Fraction) -> int:
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    return exponent if power(exponent) <= x else exponent - 1


def scale_exponent(amax: Fraction, name: str, mode: str) -> int:
    if amax == 0:
        return -127
    largest = numbers(name)[-1]
    emax = floor_log2(largest)
    if mode == "round_up":
        exponent = next((e for e in range(-127, 128) if amax <= largest * power(e)), 127)
        return exponent
    if mode == "ceil":
        exponent = floor_log2(amax) + (amax != power(floor_log2(amax)))
    elif mode == "even":
        mantissa_bits = 6 if name == "mxint8" else FORMATS[name][1]
        unit = power(floor_log2(amax) - mantissa_bits)
        exponent = floor_log2((amax / unit + Fraction(1, 2)).__floor__() * unit)
    else:
        exponent = floor_log2(amax)
    return min(max(exponent - emax, -127), 127)


def magnitude_code(x: Fraction, name: str) -> int:
    """The code of the nearest number, of two as near the even one; the largest for whatever is beyond it."""
    table = numbers(name)
    x = min(x, table[-1])
    return min(range(len(table)), key=lambda code: (abs(table[code] - x), code % 2))


def code_of(bits: int, exponent: int, name: str) -> int:
    number = from_bits(bits)
    magnitude = len(numbers(name)) - 1 if number is None else magnitude_code(abs(number) / power(exponent), name)
    if not bits >> 31:
        return magnitude
    if name == "mxint8":
        return -magnitude & 0xFF
    return magnitude | 1 << sum(FORMATS[name][:2])


def quantize(inputs: list[int], name: str, mode: str, non_finite: str) -> tuple[int, list[int]]:
    values = [from_bits(bits) for bits in inputs]
    if non_finite == "poison" and None in values:
        return 255, [0] * len(inputs)
    amax = max((abs(value) for value in values if value is not None), default=Fraction(0))
    exponent = scale_exponent(amax, name, mode)
    return exponent + 127, [code_of(bits, exponent, name) for bits in inputs]


def near(rng: random.Random, bits: int) -> int:
    """Returns these bits or the bits of a neighbour, with either sign."""
    magnitude = min(max((bits & 0x7FFFFFFF) + rng.choice([-1, 0, 0, 1]), 0), 0x7F7FFFFF)
    return magnitude | rng.choice([0, 1 << 31])


def exact_bits(number: Fraction) -> int:
    return to_bits(float(number)) if number < power(128) else 0x7F7FFFFF


def adversarial(rng: random.Random, name: str) -> list[int]:
    """A block whose maximum is where scales change, and whose elements are where codes do."""
    table = numbers(name)
    exponent = rng.choice([rng.randint(-149, -120), rng.randint(-40, 40), rng.randint(100, 125), 0])
    top = near(rng, exact_bits(rng.choice([table[-1], power(floor_log2(table[-1])), table[-2]]) * power(exponent)))
    block = [top]
    for _ in range(rng.randint(0, 7)):
        code = rng.randrange(len(table) - 1)
        number = rng.choice([table[code], (table[code] + table[code + 1]) / 2]) * power(exponent)
        block.append(near(rng, exact_bits(number)))
    rng.shuffle(block)
    return block


def random_block(rng: random.Random) -> list[int]:
    kind = rng.randrange(4)
    if kind == 0:
        return [rng.getrandbits(23) | rng.choice([0, 1 << 31]) for _ in range(rng.randint(1, 4))]
    if kind == 1:
        return [to_bits(rng.gauss(0, 1)) for _ in range(rng.randint(1, 32))]
    block = [rng.getrandbits(32) for _ in range(rng.randint(1, 6))]
    if kind == 2:
        block = [bits & ~(1 << 30) for bits in block]
    return block


def all_cases():
    rng = random.Random(20250608)
    for name in [*FORMATS, "mxint8"]:
        for mode in MODES:
            for _ in range(50):
                yield name, mode, "poison", adversarial(rng, name)
            for _ in range(20):
                yield name, mode, rng.choice(["poison", "saturate"]), random_block(rng)
            for special in [NAN, INFINITY, NAN | 1 << 31, INFINITY | 1 << 31]:
                for non_finite in ["poison", "saturate"]:
                    yield name, mode, non_finite, [special, *adversarial(rng, name)[:2]]


def main() -> None:
    lines = []
    for name, mode, non_finite, inputs in all_cases():
        scale, codes = quantize(inputs, name, mode, non_finite)
        texts = [",".join(f"{bits:x}" for bits in inputs), f"{scale:x}", ",".join(f"{code:x}" for code in codes)]
        lines.append(" ".join([name, mode, non_finite, *texts]))
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text("\n".join(lines) + "\n")
    print(f"{FILE}: {len(lines)} cases, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
