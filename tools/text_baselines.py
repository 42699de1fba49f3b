"""Compresses a prepared folder's held-out text with simple compressors. Prints nats per byte.

    ./dev python tools/text_baselines.py FOLDER [--json]

The compressors are zlib -9 on the held-out text alone, and a 5-gram model of bytes trained on the training text. The
model predicts a byte from the previous four: interpolated modified Kneser-Ney, Chen and Goodman 1999. A language
model that was worth its training is below the 5-gram model.
"""

import argparse
import json
import math
import sys
import time
import zlib
from pathlib import Path

import numpy as np

ORDER = 5
HEADER_BYTES = 64  # header size of a token shard; see docs/data.md


def token_bytes(folder, tokenizer):
    """The bytes of every token id; nothing for the end of a document and other control tokens."""
    if tokenizer["kind"] == "bytes":
        return [bytes([b]) for b in range(256)] + [b""]
    if tokenizer["kind"] == "bpe":
        return bpe_token_bytes(json.loads((folder / tokenizer["file"]).read_text()))
    raise SystemExit(f"error: {folder} is tokenized by {tokenizer['kind']}; prepare it with bytes or bpe")


def bpe_token_bytes(description):
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    byte_of = {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}
    vocabulary = description["model"]["vocab"]
    added = {token["content"]: token for token in description["added_tokens"]}
    size = 1 + max([*vocabulary.values(), *(token["id"] for token in added.values())])
    table = [b""] * size
    for spelling, index in vocabulary.items():
        if spelling not in added:
            table[index] = bytes(byte_of[c] for c in spelling)
    for content, token in added.items():
        table[token["id"]] = b"" if token["special"] else content.encode()
    return table


def text_of(folder, manifest, split):
    """The split's text as an array of bytes, its documents one after the other."""
    pieces = token_bytes(folder, manifest["tokenizer"])
    lengths = np.array([len(piece) for piece in pieces])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    alphabet = np.frombuffer(b"".join(pieces), np.uint8)
    width = np.uint16 if len(pieces) <= 65536 else np.uint32
    texts = []
    for shard in manifest[split]["shards"]:
        tokens = np.fromfile(folder / shard["file"], width, offset=HEADER_BYTES)
        # Each byte's place in `alphabet`: its token's start, plus how far into the token it is.
        length = lengths[tokens]
        ends = np.cumsum(length)
        inside = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - length, length)
        texts.append(alphabet[np.repeat(starts[tokens], length) + inside])
    return np.concatenate(texts)


def ngram_codes(text, order):
    """The byte n-grams of the text as numbers, first byte highest."""
    codes = np.zeros(len(text) - order + 1, np.uint64)
    for i in range(order):
        codes = (codes << np.uint64(8)) | text[i : len(text) - order + 1 + i]
    return codes


def discounts(counts):
    """Chen and Goodman's D1, D2, D3+ for n-grams seen once, twice and more often."""
    n = [int(np.count_nonzero(counts == c)) for c in range(1, 5)]
    y = n[0] / max(n[0] + 2 * n[1], 1)
    estimate = [c + 1 - (c + 2) * y * n[c + 1] / max(n[c], 1) for c in range(3)]
    return np.array([0.0, *(min(max(d, 0.05), c + 0.95) for c, d in enumerate(estimate))])


def lookup(keys, values, wanted):
    """values[i] where keys[i] (sorted) is wanted, else 0."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)


class KneserNey:
    """Byte n-grams of orders 1 to ORDER. Lower orders count in how many contexts an n-gram was seen, not how often."""

    def __init__(self, text):
        codes = ngram_codes(text, ORDER)
        codes.sort()
        self.levels = {}
        grams, counts = self.run_lengths(codes)
        for order in range(ORDER, 0, -1):
            self.levels[order] = self.level(grams, counts)
            if order > 1:
                suffixes = grams & np.uint64((1 << (8 * (order - 1))) - 1)
                suffixes.sort()
                grams, counts = self.run_lengths(suffixes)

    @staticmethod
    def run_lengths(codes):
        first = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
        return codes[first], np.diff(np.append(first, len(codes)))

    @staticmethod
    def level(grams, counts):
        """Per n-gram its discounted probability; per context the weight it leaves to the order below."""
        discount = discounts(counts)[np.minimum(counts, 3)]
        contexts = grams >> np.uint64(8)
        first = np.flatnonzero(np.concatenate([[True], contexts[1:] != contexts[:-1]]))
        totals = np.add.reduceat(counts, first)
        size = np.diff(np.append(first, len(grams)))
        return {
            "grams": grams,
            "probability": (counts - discount) / np.repeat(totals, size),
            "contexts": contexts[first],
            "rest": np.add.reduceat(discount, first) / totals,
        }

    def nats(self, text):
        """Sum over the text of -log p(byte | up to ORDER - 1 bytes before it)."""
        total = 0.0
        for begin in range(0, len(text), 1 << 20):  # bounds memory
            # Bytes before the text's first ones do not exist: those are predicted by shorter contexts.
            context = max(0, begin - (ORDER - 1))
            total += self.nats_of(text[context : begin + (1 << 20)], begin - context)
        return total

    def nats_of(self, text, skip):
        probability = np.full(len(text), 1 / 256)
        for order in range(1, ORDER + 1):
            if len(text) < order:
                break
            level = self.levels[order]
            codes = ngram_codes(text, order)
            contexts = codes >> np.uint64(8)
            rest = lookup(level["contexts"], level["rest"], contexts)
            known = rest > 0
            own = lookup(level["grams"], level["probability"], codes)
            tail = probability[order - 1 :]
            probability[order - 1 :] = np.where(known, own + rest * tail, tail)
        return float(-np.log(probability[skip:]).sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="made by `dovetail prepare`")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    if not (arguments.folder / "manifest.json").exists():
        sys.exit(f"error: {arguments.folder} is not a prepared folder\nhelp: dovetail prepare")
    begin = time.monotonic()
    manifest = json.loads((arguments.folder / "manifest.json").read_text())
    train = text_of(arguments.folder, manifest, "train")
    held_out = text_of(arguments.folder, manifest, "validation")
    if len(train) < ORDER or len(held_out) == 0:
        sys.exit(f"error: {arguments.folder} has too little text for baselines")
    compressed = len(zlib.compress(held_out.tobytes(), 9)) * 8 * math.log(2) / len(held_out)
    modelled = KneserNey(train).nats(held_out) / len(held_out)
    seconds = time.monotonic() - begin
    if arguments.json:
        print(
            json.dumps({"zlib_9": compressed, "ngram_5": modelled, "held_out_bytes": len(held_out), "seconds": seconds})
        )
        return
    print(f"baselines on {len(held_out) / 1e6:.1f} MB held out, in nats per byte ({seconds:.0f} s)")
    print(f"  zlib -9        {compressed:.3f}")
    print(f"  5-gram model   {modelled:.3f}   (bytes, modified Kneser-Ney)")


if __name__ == "__main__":
    main()
