"""An exported recommender as a module: its tables, and the dense part that reads their rows."""

import json
import pathlib
from typing import NamedTuple

import torch
import torch.nn.functional as F
from dovetail.recommender.features import (
    Bags,
    dense_columns,
    encode_dense,
    encode_feature,
    feature_name,
    scale_dense,
)
from dovetail.recommender.layers import Inputs, Shape, make_dense_part
from dovetail.recommender.storage import read_safetensors
from torch import Tensor, nn

FORMAT, VERSION = "dovetail.recommender", 1
_SIGN = -(1 << 63)  # x ^ _SIGN orders int64 as if they had no sign


def _is_unpooled(feature: dict) -> bool:
    return feature.get("pooling") == "none"


class CoAction(NamedTuple):
    item: dict
    sequence: dict

    def table(self, suffix: str) -> str:
        return f"{feature_name(self.item)}*{feature_name(self.sequence)}.{suffix}"


class Recommender(nn.Module):
    """An exported recommender: embedding tables, and the dense part that reads their rows. Made by :func:`load`.

    Args:
        spec: content of ``recommender.json``.

    Attributes:
        tasks: the tasks of the columns of the output: one entry of ``rows.label`` each.
        table_names: names of the tables.
        tables: rows of each table in the order of ``table_names``: parameters (rows, dim) float32. A table without a
            fixed vocabulary begins with a row of zeros, which unknown keys read.
        keys: keys (rows - 1) int64 of each table without a fixed vocabulary, by name.
    """

    def __init__(self, spec: dict):
        super().__init__()
        config = spec["config"]
        self.config, rows = config["recommender"], config["rows"]
        self.features, self.tasks, self.step = rows["sparse"], rows["label"], spec["step"]
        self.pooling = config["embedding"]["pooling"]
        self.dense = dense_columns(rows, spec["dense_scales"])
        reads_events = self.config["model"] in ("din", "dien", "can")
        self.sequences = [f for f in self.features if f["sequence"] and reads_events]
        self.singles = [f for f in self.features if f not in self.sequences]
        self.co_actions = self._co_actions() if self.config["model"] == "can" else []
        self.table_names = self._table_names()
        self.tables = nn.ParameterList(nn.Parameter(torch.empty(0)) for _ in self.table_names)
        self.keys: dict[str, Tensor] = {}  # keys of tables without a fixed vocabulary, in ascending unsigned order
        # Without pooling, each place of a bag is an embedding of its own.
        places = [f for f in self.singles for _ in range(f["max_length"] if _is_unpooled(f) else 1)]
        names = [feature_name(f) for f in places]
        targets = [names.index(f["table"]) if f["table"] in names else -1 for f in self.sequences]
        dims = [f.get("dim") or self.config["dim"] for f in places]
        self.model = make_dense_part(
            self.config, Shape(len(self.dense), dims, len(self.tasks), targets, len(self.co_actions))
        )

    def _co_actions(self) -> list[CoAction]:
        by_name = {feature_name(f): f for f in self.features}
        given = [[part.strip() for part in text.split("*")] for text in self.config["co_action"]]
        shared = [(f["table"], feature_name(f)) for f in self.sequences if f["table"]]
        return [CoAction(by_name[item], by_name[sequence]) for item, sequence in given or shared]

    def _table_names(self) -> list[str]:
        own = [feature_name(f) for f in self.features if not f["table"]]
        wide = [f"{name}.wide" for name in own] if self.config["model"] in ("wide_deep", "deepfm") else []
        pairs = [pair.table(suffix) for suffix in ("micro", "input") for pair in self.co_actions]
        return own + wide + pairs

    def encode(self, columns: dict[str, list]) -> dict[str, Tensor | Bags]:
        """Convert columns of plain values to the inputs of :meth:`forward`.

        Args:
            columns: lists of equal length by column name, as from ``pyarrow.Table.to_pydict()``. None is missing.

        Returns:
            Dense columns as (rows) float64, NaN where missing; sparse features as :class:`Bags`.

        Raises:
            KeyError: a column is missing.
            ValueError: an id is out of range or has the wrong type, or weights do not fit the ids.
        """
        encoded = {dense["column"]: encode_dense(columns[dense["column"]]) for dense in self.dense}
        return encoded | {feature_name(f): encode_feature(columns, f) for f in self.features}

    def forward(self, columns: dict[str, Tensor | Bags]) -> Tensor:
        """Score rows.

        Args:
            columns: dense columns (rows), NaN where missing, and sparse features as :class:`Bags`, by name.

        Returns:
            Log-odds (rows, tasks) float32; ``sigmoid`` makes them probabilities.
        """
        numbers = [scale_dense(columns[dense["column"]].double(), dense) for dense in self.dense]
        samples = len(columns[feature_name(self.features[0])].offsets) - 1
        device = self.tables[0].device
        dense = torch.stack(numbers, 1).to(device) if numbers else torch.empty(samples, 0, device=device)
        features = [self._looked_up(f, self._table_of(f), columns) for f in self.singles]
        inputs = Inputs(dense, torch.cat(features, 1))
        if self.config["model"] in ("wide_deep", "deepfm"):
            wide = [self._looked_up(f, self._table_of(f) + ".wide", columns) for f in self.singles]
            inputs = inputs._replace(wide=torch.cat(wide, 1))
        return self.model(self._with_events(inputs, columns) if self.sequences else inputs)

    def _with_events(self, inputs: Inputs, columns: dict) -> Inputs:
        length = self.sequences[0]["max_length"]
        events = [self._events(self._table_of(f), columns[feature_name(f)], length) for f in self.sequences]
        lengths = columns[feature_name(self.sequences[0])].offsets.diff()
        mask = torch.arange(length) < lengths[:, None]
        micro = [self._pooled(pair.item, pair.table("micro"), columns) for pair in self.co_actions]
        read = [
            self._events(pair.table("input"), columns[feature_name(pair.sequence)], length) for pair in self.co_actions
        ]
        mask = mask.to(inputs.features.device)
        return inputs._replace(events=torch.stack(events, 2), mask=mask, micro=micro, micro_inputs=read)

    def _table_of(self, feature: dict) -> str:
        return feature["table"] or feature_name(feature)

    def _rows(self, table: str) -> Tensor:
        return self.tables[self.table_names.index(table)]

    def _places(self, table: str, values: Tensor) -> Tensor:
        """The rows of ids."""
        if table not in self.keys:
            return values
        known, asked = self.keys[table] ^ _SIGN, values ^ _SIGN
        place = torch.searchsorted(known, asked)
        found = torch.cat([known, known.new_zeros(1)])[place] == asked
        return torch.where(found & (place < len(known)), place + 1, 0)

    def _looked_up(self, feature: dict, table: str, columns: dict) -> Tensor:
        """(rows, dim), or (rows, max_length * dim) of a feature whose rows stand side by side."""
        if not _is_unpooled(feature):
            return self._pooled(feature, table, columns)
        return self._events(table, columns[feature_name(feature)], feature["max_length"]).flatten(1)

    def _pooled(self, feature: dict, table: str, columns: dict) -> Tensor:
        """(rows, dim): the sum or mean of each bag's rows times their weights; zero for an empty bag."""
        weight, bags = self._rows(table), columns[feature_name(feature)]
        values, offsets = self._places(table, bags.values).to(weight.device), bags.offsets.to(weight.device)
        weights = None if bags.weights is None else bags.weights.to(weight.device)
        pooled = F.embedding_bag(
            values, weight, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True
        )
        mean = (feature.get("pooling") or self.pooling) == "mean"
        return pooled / offsets.diff().clamp(min=1)[:, None] if mean else pooled

    def _events(self, table: str, bags: Bags, length: int) -> Tensor:
        """(rows, length, dim): the row of each event; zero where there is none."""
        weight = self._rows(table)
        lengths = bags.offsets.diff()
        sample = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        place = torch.arange(len(bags.values)) - bags.offsets[sample]
        rows = F.embedding(self._places(table, bags.values).to(weight.device), weight)
        if bags.weights is not None:
            rows = rows * bags.weights.to(weight.device)[:, None]
        events = rows.new_zeros(len(lengths), length, weight.shape[1])
        return events.index_put((sample.to(weight.device), place.to(weight.device)), rows)

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take the tensors of ``model.safetensors``, by name. Weights of dien's auxiliary loss are skipped."""
        dense = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
        self.model.load_state_dict({n: t for n, t in dense.items() if not n.startswith("auxiliary.")})
        for i, name in enumerate(self.table_names):
            rows = tensors[f"embedding.{name}.weight"].float()
            if f"embedding.{name}.keys" in tensors:
                self.keys[name] = tensors[f"embedding.{name}.keys"]
                rows = torch.cat([rows.new_zeros(1, rows.shape[1]), rows])
            self.tables[i] = nn.Parameter(rows)


def load(folder: str | pathlib.Path) -> Recommender:
    """Load an export of ``dovetail export RUN --out FOLDER``, in evaluation mode on the CPU.

    Args:
        folder: the folder of the export.

    Raises:
        FileNotFoundError: the folder has no ``recommender.json``.
        ValueError: the export has another version, or its tensors are not the ones it was written with (SHA-256).
    """
    path = pathlib.Path(folder) / "recommender.json"
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there; write it with: dovetail export RUN --out {folder}")
    spec = json.loads(path.read_text())
    if (spec.get("format"), spec.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"{path} is not a {FORMAT} of version {VERSION}; export the run again")
    model = Recommender(spec)
    model.load_tensors(read_safetensors(path.parent / spec["tensors"]["file"], spec["tensors"]["sha256"]))
    return model.eval()
