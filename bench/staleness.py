"""AUC on flights against the batch size, and against late updates, as in asynchronous training with a parameter server.

usage: ./dev bench staleness [--seeds N] [--samples N] [--batches 256,1024,...] [--delays 0,1,4,...] [--result FILE]

Uses the rows, the split and the features of configs/flights.toml. The default is one pass over the training rows, so
that every arm learns from the same samples. A Wide & Deep model: dovetail.embedding.EmbeddingCollection with row-wise
Adagrad, dense layers of PyTorch with Adam. Both learning rates grow as the square root of the batch.

Batch: synchronous updates. Delay k: the gradient of step s is computed with the weights that step s sees. It is
applied after step s + k, to tables and layers alike, in the order of steps. This equals k + 1 workers that take
turns; k = 0 is synchronous.
"""

import argparse
import collections
import json
import pathlib
import sys

import dovetail.embedding
import numpy as np
import torch
from recommend import DEFAULTS, Table, prepare
from sklearn.metrics import roc_auc_score
from torch import nn

BASE_BATCH, DIM = 1024, 16


class Rows:
    """Numbers and ids as tensors; ids that training rows do not have share row 0 of their table."""

    def __init__(self, table: Table):
        self.vocabularies = []
        codes = []
        for name in table.ids:
            words = table.ids[name][table.train].unique()
            self.vocabularies.append(len(words) + 1)
            codes.append(
                table.ids[name].map({word: i + 1 for i, word in enumerate(words)}).fillna(0).to_numpy(np.int64)
            )
        ids = np.column_stack(codes)
        mean, deviation = table.dense[table.train].mean(0), table.dense[table.train].std(0)
        dense = ((table.dense - mean) / np.maximum(deviation, 1e-9)).astype(np.float32)
        self.train = [torch.from_numpy(x[table.train]) for x in (ids, dense, table.label.astype(np.float32))]
        self.test = [torch.from_numpy(x[table.test]) for x in (ids, dense, table.label.astype(np.float32))]


class WideAndDeep(nn.Module):
    def __init__(self, rows: Rows, lr: float, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        tables, features = [], {}
        for kind, dim in (("deep", DIM), ("wide", 1)):
            for i, count in enumerate(rows.vocabularies):
                tables.append(dovetail.embedding.Table(f"{kind}{i}", count, dim))
                features[f"{kind}{i}"] = f"{kind}{i}"
        self.embeddings = dovetail.embedding.EmbeddingCollection(tables, features, "rowwise_adagrad", lr=lr, seed=seed)
        self.columns = DIM * len(rows.vocabularies)
        inputs = self.columns + rows.train[1].shape[1]
        self.tower = nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        twice = torch.cat([ids.t(), ids.t()]).reshape(-1)
        return self.embeddings(twice, torch.arange(twice.numel() + 1))

    def forward(self, embedded: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        deep, wide = embedded[:, : self.columns], embedded[:, self.columns :]
        return self.tower(torch.cat([dense, deep], 1)).squeeze(1) + wide.sum(1)


def train(rows: Rows, batch: int, delay: int, samples: int, seed: int) -> float:
    scale = (batch / BASE_BATCH) ** 0.5
    model = WideAndDeep(rows, 0.02 * scale, seed)
    parameters = list(model.tower.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-3 * scale)
    order = np.random.default_rng(seed)
    late: collections.deque = collections.deque()

    def apply_oldest() -> None:
        embedded, of_rows, of_layers = late.popleft()
        embedded.backward(of_rows)  # the tables' update
        for parameter, gradient in zip(parameters, of_layers, strict=True):
            parameter.grad = gradient
        optimizer.step()

    def batches():
        while True:
            shuffled = torch.from_numpy(order.permutation(len(rows.train[2])))
            yield from shuffled[: len(shuffled) // batch * batch].split(batch)

    for step, index in zip(range(samples // batch), batches(), strict=False):
        ids, dense, label = (x[index] for x in rows.train)
        embedded = model.lookup(ids)
        leaf = embedded.detach().requires_grad_()
        loss = nn.functional.binary_cross_entropy_with_logits(model(leaf, dense), label)
        of_rows, *of_layers = torch.autograd.grad(loss, [leaf, *parameters])
        late.append((embedded, of_rows, of_layers))
        if step >= delay:
            apply_oldest()
    while late:
        apply_oldest()
    ids, dense, label = rows.test
    with torch.no_grad():
        return float(roc_auc_score(label, model(model.lookup(ids), dense)))


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=0, help="of a run; 0: as many as there are training rows")
    parser.add_argument("--batches", type=numbers, default=[64, 256, 1024, 4096, 16384])
    parser.add_argument("--delays", type=numbers, default=[0, 1, 4, 16, 64])
    parser.add_argument("--result", type=pathlib.Path, help="write the figures here (JSON)")
    options = parser.parse_args()
    rows = Rows(Table(prepare([DEFAULTS[0]])[0]))
    samples = options.samples or len(rows.train[2])
    arms = [(batch, 0) for batch in options.batches] + [(BASE_BATCH, delay) for delay in options.delays]
    auc = {}
    for batch, delay in dict.fromkeys(arms):
        auc[batch, delay] = [train(rows, batch, delay, samples, seed) for seed in range(1, options.seeds + 1)]
        values = ", ".join(f"{v:.4f}" for v in auc[batch, delay])
        print(f"batch {batch:6}, {delay:3} steps late: AUC {np.mean(auc[batch, delay]):.4f}  ({values})", flush=True)
    if options.result:
        arms = [{"batch": batch, "delay": delay, "auc": values} for (batch, delay), values in auc.items()]
        options.result.write_text(json.dumps({"samples": samples, "arms": arms}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
