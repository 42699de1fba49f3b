"""Parquet files that pyarrow writes, and how pyarrow reads them back, for parquet_oracle_test.cpp.

python parquet_oracle.py FOLDER

Writes <case>.parquet and <case>.json: the columns of each row group. A number or a text is itself, a missing value
null, bytes are their latin-1 text.
"""

import itertools
import json
import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS, GROUP = 700, 300
CODECS = ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]
ENCODINGS = {
    "dictionary": {},
    "plain": {"use_dictionary": False},
    # The dictionary grows too large within a row group and gives way to plain pages.
    "fallback": {"dictionary_pagesize_limit": 200, "data_page_size": 128, "write_batch_size": 16},
    "delta": {
        "use_dictionary": False,
        "column_encoding": {
            "int64": "DELTA_BINARY_PACKED",
            "int32": "DELTA_BINARY_PACKED",
            "text": "DELTA_BYTE_ARRAY",
            "bytes": "DELTA_LENGTH_BYTE_ARRAY",
            "double": "BYTE_STREAM_SPLIT",
            "float": "BYTE_STREAM_SPLIT",
        },
    },
}


def make_table():
    draw = random.Random(5)

    def some(make, missing=0.2):
        return [None if draw.random() < missing else make() for _ in range(ROWS)]

    def text():
        return draw.choice(["", "a", "été", "word", "a longer text"]) + str(draw.randrange(30))

    columns = {
        f"int{b}": pa.array(some(lambda b=b: draw.randrange(-(2 ** (b - 1)), 2 ** (b - 1))), f"int{b}")
        for b in (8, 16, 32, 64)
    }
    columns |= {f"uint{b}": pa.array(some(lambda b=b: draw.randrange(2**b)), f"uint{b}") for b in (8, 16, 32)}
    columns["uint64"] = pa.array(some(lambda: draw.randrange(2**63)), pa.uint64())
    columns |= {
        "float": pa.array(some(lambda: draw.randrange(-999, 999) / 8), pa.float32()),
        "double": pa.array(some(lambda: draw.gauss(0, 1e9)), pa.float64()),
        "bool": pa.array(some(lambda: draw.random() < 0.5)),
        "text": pa.array(some(text)),
        "large_text": pa.array(some(text), pa.large_string()),
        "bytes": pa.array(some(lambda: draw.randbytes(draw.randrange(4))), pa.binary()),
        "codes": pa.array(some(text)).dictionary_encode(),
        "full": pa.array(some(text, missing=0)),
        "full_int": pa.array(some(lambda: draw.randrange(9), missing=0), pa.int32()),
        "empty": pa.array([None] * ROWS, pa.string()),
        "half_empty": pa.array([None] * (ROWS // 2) + [3] * (ROWS - ROWS // 2), pa.int64()),
        "ints": pa.array(some(lambda: [draw.randrange(5) for _ in range(draw.randrange(4))]), pa.list_(pa.int64())),
        "texts": pa.array(some(lambda: [draw.choice([None, "x", "yy"]) for _ in range(draw.randrange(4))])),
    }
    return pa.table(columns)


def plain(value):
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return [plain(part) for part in value] if isinstance(value, list) else value


def main():
    folder, table = Path(sys.argv[1]), make_table()
    for codec, version, (encoding, options) in itertools.product(CODECS, ["1.0", "2.0"], ENCODINGS.items()):
        name = f"{codec}-v{version[0]}-{encoding}"
        path = folder / f"{name}.parquet"
        pq.write_table(table, path, row_group_size=GROUP, compression=codec, data_page_version=version, **options)
        file = pq.ParquetFile(path)
        assert file.metadata.row_group(0).column(0).compression == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())
        groups = [file.read_row_group(g).to_pydict() for g in range(file.num_row_groups)]
        found = [{column: plain(values) for column, values in group.items()} for group in groups]
        path.with_suffix(".json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
