"""Columns of a table as model inputs, by the run's config: numbers scaled, ids hashed, lists cut."""

import math
import re
from typing import Any, NamedTuple

import torch
from dovetail.recommender.hashing import xxh64
from torch import Tensor

_CROSS = b"\x1f"


class Bags(NamedTuple):
    """Ids of one feature. Row b has the ids ``values[offsets[b]:offsets[b + 1]]``."""

    #: (N) int64: rows of the feature's table, or 64-bit keys if it has no fixed vocabulary (``num_rows = 0``).
    values: Tensor
    #: (rows + 1) int64, ascending from 0 to N.
    offsets: Tensor
    #: (N) float32: weight of each id; None weighs each 1.
    weights: Tensor | None = None


def feature_name(feature: dict) -> str:
    return feature["name"] or "_x_".join(feature["columns"])


def dense_columns(rows: dict, scales: list[dict]) -> list[dict]:
    """One entry a column, in the order of the model: column, missing, transform, mean, deviation."""
    columns = [
        {"column": column, "missing": entry["missing"], "transform": entry["transform"]}
        for entry in rows["dense"]
        for column in entry["columns"]
    ]
    if [c["column"] for c in columns] != [s["column"] for s in scales]:
        raise ValueError("recommender.json: dense_scales are not of the columns of rows.dense; export the run again")
    return [{**scale, **column} for scale, column in zip(scales, columns, strict=True)]


def scale_dense(numbers: Tensor, column: dict) -> Tensor:
    """Raw numbers (rows) float64, NaN where missing, to what the model reads, float32."""
    if column["transform"] == "log1p":
        numbers = numbers.clamp(min=0).log1p()
    filled = numbers.nan_to_num(nan=column["mean"] if column["missing"] == "mean" else 0.0)
    if column["transform"] == "standard":
        filled = (filled - column["mean"]) / (column["deviation"] or 1.0)
    return filled.float()


def _is_missing(value: Any) -> bool:
    return value is None or value in ("", b"") or value != value


def _text(value: Any, what: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int):
        return str(value).encode()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value)).encode()
    raise ValueError(f"{what}: {value!r} is no id; give a text or an integer")


def _integer(value: Any, what: str) -> int:
    text = value if isinstance(value, str) else _text(value, what).decode()
    if text in ("True", "true", "TRUE", "False", "false", "FALSE"):
        return int(text.lower() == "true")
    if not re.fullmatch(r"-?[0-9]+(\.0+)?", text):
        raise ValueError(f"{what}: {value!r} is not an integer")
    return int(text.partition(".")[0])


def _values(cell: Any, separator: str) -> list:
    if isinstance(cell, str) and separator:
        return cell.split(separator)
    return list(cell) if isinstance(cell, list | tuple) else [cell]


def _row_of_text(text: bytes, feature: dict) -> int:
    key = xxh64(text)
    if feature["num_rows"]:
        return key % feature["num_rows"]
    return key - (1 << 64) if key >> 63 else key


def _row_of(value: Any, feature: dict) -> int:
    name, num_rows = feature_name(feature), feature["num_rows"]
    if _is_missing(value):
        raise ValueError(f"{name}: an id of the list is missing")
    if feature["ids"] == "hash":
        return _row_of_text(_text(value, name), feature)
    row = _integer(value, name)
    if num_rows and not 0 <= row < num_rows:
        raise ValueError(f"{name}: the id {value} is out of range; the table has {num_rows} rows")
    return row


def _cross(cells: tuple, feature: dict) -> list[int]:
    if any(map(_is_missing, cells)) and feature["missing"] != "value":
        return _missing(feature)
    texts = [b"" if _is_missing(cell) else _text(cell, feature_name(feature)) for cell in cells]
    return [_row_of_text(_CROSS.join(texts), feature)]


def _missing(feature: dict) -> list[int]:
    if feature["missing"] == "bad_row":
        raise ValueError(f"{feature_name(feature)}: the id is missing")
    return [_row_of_text(b"", feature)] if feature["missing"] == "value" else []


def _ids(cells: tuple, feature: dict) -> list[int]:
    if len(cells) > 1:
        return _cross(cells, feature)
    if _is_missing(cells[0]):
        return _missing(feature)
    return [_row_of(value, feature) for value in _values(cells[0], feature["separator"])]


def _kept(items: list, feature: dict) -> list:
    length = feature["max_length"]
    if not length:
        return items
    return items[-length:] if feature["keep"] == "last" else items[:length]


def encode_feature(columns: dict[str, list], feature: dict) -> Bags:
    """Cells are texts, numbers, booleans, lists of these, or None. An empty text and a NaN are missing, too."""
    values, offsets, weights = [], [0], []
    for row, cells in enumerate(zip(*(columns[c] for c in feature["columns"]), strict=True)):
        ids = _ids(cells, feature)
        if feature["weights"]:
            cell = columns[feature["weights"]][row]
            given = [] if _is_missing(cell) else [float(w) for w in _values(cell, feature["separator"])]
            if len(given) != len(ids):
                raise ValueError(f"{feature_name(feature)}: {len(given)} weights for {len(ids)} ids in row {row}")
            weights += _kept(given, feature)
        values += _kept(ids, feature)
        offsets.append(len(values))
    found = torch.tensor(weights, dtype=torch.float32) if feature["weights"] else None
    return Bags(torch.tensor(values, dtype=torch.int64), torch.tensor(offsets), found)


def encode_dense(cells: list) -> Tensor:
    """Numbers (rows) float64; None is NaN."""
    return torch.tensor([math.nan if c is None or c == "" else float(c) for c in cells], dtype=torch.float64)
