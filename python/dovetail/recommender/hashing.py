"""XXH64 with seed 0 (xxHash specification 0.1.1): the key of an id's text, as dovetail/base/hash.h makes it."""

import functools
import struct

_MASK = (1 << 64) - 1
_PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_P1, _P2, _P3, _P4, _P5 = _PRIMES


def _rotate(x, bits):
    return ((x << bits) | (x >> (64 - bits))) & _MASK


def _round(lane, word):
    return _rotate((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _stripes(data):
    lanes = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
    end = len(data) // 32 * 32
    for words in struct.iter_unpack("<4Q", data[:end]):
        lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
    found = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
    for lane in lanes:
        found = ((found ^ _round(0, lane)) * _P1 + _P4) & _MASK
    return found, data[end:]


@functools.lru_cache(maxsize=1 << 20)
def xxh64(data: bytes) -> int:
    found, rest = _stripes(data) if len(data) >= 32 else (_P5, data)
    found = (found + len(data)) & _MASK
    while len(rest) >= 8:
        found = (_rotate(found ^ _round(0, int.from_bytes(rest[:8], "little")), 27) * _P1 + _P4) & _MASK
        rest = rest[8:]
    if len(rest) >= 4:
        found = (_rotate(found ^ (int.from_bytes(rest[:4], "little") * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        rest = rest[4:]
    for byte in rest:
        found = _rotate(found ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    found = (found ^ found >> 33) * _P2 & _MASK
    found = (found ^ found >> 29) * _P3 & _MASK
    return found ^ found >> 32
