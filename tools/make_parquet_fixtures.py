"""Makes tests/data_files/parquet: Parquet files as pyarrow writes them, for tests in C++.

./dev python tools/make_parquet_fixtures.py
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data_files" / "parquet"


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    texts = [None if i % 7 == 3 else "" if i % 7 == 5 else f"row {i} \u00e9\n" * (i % 4 + 1) for i in range(50)]
    nested = [{"a": i, "b": [i, i]} for i in range(50)]
    for name, kind in (("string", pa.string()), ("large_string", pa.large_string())):
        table = pa.table({"nested": nested, "number": list(range(50)), "text": pa.array(texts, kind)})
        pq.write_table(table, FOLDER / f"{name}.parquet", row_group_size=20)
    dictionary = pa.table({"text": pa.array(texts).dictionary_encode()})
    pq.write_table(dictionary, FOLDER / "dictionary.parquet")


if __name__ == "__main__":
    main()
