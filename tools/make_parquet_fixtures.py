"""Makes tests/data_files/parquet: Parquet files as pyarrow writes them, for tests in C++.

./dev python tools/make_parquet_fixtures.py
"""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data_files" / "parquet"


def write_rows():
    """Columns of every type that rows may have; tests/data/row_parquet_test.cpp has the same formulas."""
    n = range(50)
    tags = [None if i % 9 == 7 else [f"t{j}" for j in range(i % 4)] for i in n]
    columns = {
        "nested": pa.array([{"a": i, "b": [i, i]} for i in n]),
        "delay": pa.array([None if i % 11 == 6 else float(i) for i in n], pa.float64()),
        "flag": pa.array([i % 2 == 1 for i in n]),
        "small": pa.array([i % 5 - 2 for i in n], pa.int8()),
        "number": pa.array([i * 1000003 - 7 for i in n], pa.int64()),
        "real": pa.array([None if i % 13 == 5 else float("nan") if i % 13 == 4 else i / 4 for i in n], pa.float32()),
        "city": pa.array([None if i % 10 == 3 else f"city {i % 6}" for i in n]),
        "kind": pa.array([None if i % 7 == 2 else f"kind {i % 3}" for i in n]).dictionary_encode(),
        "tags": pa.array(tags, pa.list_(pa.string())),
        "tag_weights": pa.array([None if t is None else [j + 0.5 for j in range(len(t))] for t in tags]),
        "ids": pa.array([list(range(i % 3)) for i in n], pa.large_list(pa.int32())),
        "pair": pa.array([[i, i + 1] for i in n], pa.list_(pa.int64(), 2)),
        "day": pa.array(list(n), pa.date32()),
    }
    table = pa.table(columns)
    pq.write_table(table, FOLDER / "rows.parquet", row_group_size=20)
    pq.write_table(table, FOLDER / "rows_plain.parquet", row_group_size=20, use_dictionary=False)
    # A dictionary that grows too large within a row group gives way to plain pages.
    small = {"dictionary_pagesize_limit": 24, "data_page_size": 32, "write_batch_size": 4}
    pq.write_table(table, FOLDER / "rows_fallback.parquet", row_group_size=20, **small)
    # Codes of three bits for five words, in bytes that a test can change.
    bare = pa.table({"flag": [i % 2 for i in n], "city": [f"city {i % 5}" for i in n]})
    pq.write_table(bare, FOLDER / "bare.parquet", compression="none")
    # Few bytes beside the structures, for mutations of them.
    few = table.select(["flag", "small", "real", "city", "tags"]).slice(2, 6).replace_schema_metadata()
    pq.write_table(few, FOLDER / "few.parquet", row_group_size=3, compression="none", store_schema=False)


def write_ids():
    """A table as pandas writes it to Parquet and to CSV, and lists as pyarrow and a text with separators have them."""
    frame = pd.DataFrame(
        {
            "y": [True, False, True, False, True, False],
            "member": [True, False, False, True, True, False],
            "maybe": pd.array([True, None, False, True, None, False], dtype="boolean"),
            "shop": [7, None, 9, 7, 0, 12],
            "city": ["a", "", None, "b", "", "a"],
            "far": [1.5, 1e39, -1e39, 3.4e38, None, 0],
        }
    )
    frame.to_parquet(FOLDER / "ids.parquet", index=False)
    frame.to_csv(FOLDER / "ids.csv", index=False)
    lists = {
        "words": [["a", "b"], ["a", "", "b"], None, ["c"]],
        "truths": [[True], [False, True], None, [True, True]],
        "shops": [[7.0, 9.0], [0.0], None, [12.0]],
    }
    flag = [1, 0, 1, 0]
    pq.write_table(pa.table({"y": flag, **lists}), FOLDER / "id_lists.parquet")
    texts = {name: ["|".join(map(str, row or [])) for row in column] for name, column in lists.items()}
    pd.DataFrame({"y": flag, **texts}).to_csv(FOLDER / "id_lists.csv", index=False)


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    texts = [None if i % 7 == 3 else "" if i % 7 == 5 else f"row {i} \u00e9\n" * (i % 4 + 1) for i in range(50)]
    nested = [{"a": i, "b": [i, i]} for i in range(50)]
    for name, kind in (("string", pa.string()), ("large_string", pa.large_string())):
        table = pa.table({"nested": nested, "number": list(range(50)), "text": pa.array(texts, kind)})
        pq.write_table(table, FOLDER / f"{name}.parquet", row_group_size=20)
    dictionary = pa.table({"text": pa.array(texts).dictionary_encode()})
    pq.write_table(dictionary, FOLDER / "dictionary.parquet")
    write_rows()
    write_ids()


if __name__ == "__main__":
    main()
