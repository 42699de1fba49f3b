"""Recommenders against logistic regression and gradient boosting on the same features: AUC on the last tenth of rows.

usage: ./dev bench recommend [CONFIG ...] [--models NAME,...] [--seeds N] [--jobs N] [--out runs/recommend]
                             [--set KEY=VALUE] [--result FILE]

Trains every model on every config that it can learn from, from every seed. Configs: `configs/flights.toml`,
`flights_history.toml` and `flights_tasks.toml`, whose data `tools/flights.py` writes first. `configs/adult.toml` is
included if `data/adult.tsv` exists. Two models of scikit-learn run on the same rows, one for each label:

- LogisticRegression: dense columns are scaled, and each id in training has a column
- HistGradientBoostingClassifier: dense columns are unchanged and ids are categories. Ids beyond a feature's 254 most
  frequent ones share a category

Neither takes a sequence. They get its last id and its length instead. If it has at most 8 different ids in training,
they also get the share of each. The recommenders get the sequence itself (din, dien, can: event by event; the others:
the sum of its embeddings).

Claims: the best model's mean AUC over the seeds is at least 0.650 on the flights, with and without histories. It is
at least 0.920 on adult. Exit code 1 when one does not hold. Existing runs are kept.
"""

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import time
import tomllib

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from runs import ROOT, read_lines, read_machine, train_once

MODELS = ["wide_deep", "deepfm", "dlrm", "dcnv2", "mmoe"]
SEQUENCE_MODELS = ["din", "dien", "can"]
CLAIMS = {"flights": 0.650, "flights_history": 0.650, "adult": 0.920}
FLIGHTS = [ROOT / f"configs/{name}.toml" for name in ("flights", "flights_history", "flights_tasks")]
ADULT = ROOT / "configs/adult.toml"
MOST_SHARES = 8


class Table:
    """The rows of a config as numbers and categories, split as the engine splits them."""

    def __init__(self, config: pathlib.Path):
        rows = tomllib.loads(config.read_text())["rows"]
        files = [ROOT / name for name in rows["files"]]
        frame = pd.concat([self.read(file) for file in files], ignore_index=True)
        self.held_out = int(len(frame) * rows.get("validation_fraction", 0.1))
        self.labels = labels_of(rows)
        is_train = np.arange(len(frame)) < len(frame) - self.held_out
        known = {name: label_column(frame, name) for name in self.labels}
        self.label = {name: label for name, (label, _) in known.items()}
        self.train = {name: is_train & here for name, (_, here) in known.items()}
        self.test = {name: ~is_train & here for name, (_, here) in known.items()}
        entries = rows.get("sparse", [])
        shares, last = reduce_sequences(frame, [e for e in entries if e.get("sequence")], is_train)
        self.dense = np.column_stack([self.dense_columns(frame, rows.get("dense", [])), shares])
        self.ids = frame_of_ids(frame, [e for e in entries if not e.get("sequence")]).join(last)

    @staticmethod
    def read(file: pathlib.Path) -> pd.DataFrame:
        if file.suffix == ".parquet":
            return pd.read_parquet(file)
        return pd.read_csv(file, sep="\t" if file.suffix == ".tsv" else ",", keep_default_na=False, na_values=[""])

    @staticmethod
    def dense_columns(frame: pd.DataFrame, entries: list[dict]) -> np.ndarray:
        columns = []
        for entry in entries:
            for name in entry["columns"]:
                x = frame[name].to_numpy(float)
                columns.append(np.log1p(np.maximum(x, 0)) if entry.get("transform") == "log1p" else x)
        return np.nan_to_num(np.column_stack(columns)) if columns else np.zeros((len(frame), 0))


def labels_of(rows: dict) -> list[str]:
    return [rows["label"]] if isinstance(rows["label"], str) else rows["label"]


def label_column(frame: pd.DataFrame, text: str) -> tuple[np.ndarray, np.ndarray]:
    """The label of each row, and whether it is known."""
    column, _, threshold = text.partition(">")
    value = pd.to_numeric(frame[column.strip()])
    label = (value > float(threshold)) if threshold else value
    return label.to_numpy(float), value.notna().to_numpy()


def reduce_sequences(frame: pd.DataFrame, entries: list[dict], is_train: np.ndarray) -> tuple[np.ndarray, pd.DataFrame]:
    """Replaces the sequences of a row by numbers (length, shares of ids) and the last ids, "" if empty."""
    numbers, last = [], {}
    for entry in entries:
        (name,) = entry["columns"]
        events = [list(ids)[-entry["max_length"] :] for ids in frame[name]]
        lengths = np.array([len(ids) for ids in events], float)
        last[name] = [str(ids[-1]) if ids else "" for ids in events]
        if not numbers:
            numbers.append(lengths)
        kinds = sorted({str(i) for ids, train in zip(events, is_train, strict=True) if train for i in ids})
        for kind in kinds[: -1 if len(kinds) <= MOST_SHARES else 0]:
            count = np.array([sum(str(i) == kind for i in ids) for ids in events])
            numbers.append(count / np.maximum(lengths, 1))
    dense = np.column_stack(numbers) if numbers else np.zeros((len(frame), 0))
    return dense, pd.DataFrame(last, index=frame.index)


def frame_of_ids(frame: pd.DataFrame, entries: list[dict]) -> pd.DataFrame:
    """Single ids as text; lists are left out, which no peer takes."""
    ids = {}
    for entry in entries:
        parts = [frame[name] for name in entry["columns"]]
        if any(isinstance(part.iloc[0], (list, np.ndarray)) for part in parts) or "separator" in entry:
            continue
        texts = [part.astype("string").fillna("") for part in parts]
        ids["_x_".join(entry["columns"])] = texts[0] if len(texts) == 1 else texts[0].str.cat(texts[1:], sep="\x1f")
    return pd.DataFrame(ids)


def logistic_regression(table: Table, label: str) -> float:
    train, test, y = table.train[label], table.test[label], table.label[label]
    scaler = StandardScaler().fit(table.dense[train])
    encoder = OneHotEncoder(handle_unknown="ignore").fit(table.ids[train])

    def features(rows: np.ndarray) -> sparse.csr_matrix:
        return sparse.hstack([scaler.transform(table.dense[rows]), encoder.transform(table.ids[rows])]).tocsr()

    model = LogisticRegression(max_iter=300).fit(features(train), y[train])
    return roc_auc_score(y[test], model.decision_function(features(test)))


def gradient_boosting(table: Table, label: str, seed: int) -> float:
    train, test, y = table.train[label], table.test[label], table.label[label]
    columns = [table.dense]
    for name in table.ids:
        frequent = table.ids[name][train].value_counts().index[:254]
        codes = table.ids[name].map({value: code for code, value in enumerate(frequent)})
        columns.append(codes.fillna(len(frequent)).to_numpy(float)[:, None])
    x = np.column_stack(columns)
    categorical = np.arange(x.shape[1]) >= table.dense.shape[1]
    model = HistGradientBoostingClassifier(categorical_features=categorical, random_state=seed)
    model.fit(x[train], y[train])
    return roc_auc_score(y[test], model.decision_function(x[test]))


def models_of(config: pathlib.Path, wanted: list[str]) -> list[str]:
    """Returns the models that can learn from a config's rows."""
    rows = tomllib.loads(config.read_text())["rows"]
    if len(labels_of(rows)) > 1:
        able = ["mmoe"]
    else:
        able = MODELS + (SEQUENCE_MODELS if any(e.get("sequence") for e in rows["sparse"]) else [])
    return [model for model in able if model in wanted]


def auc_of(folder: pathlib.Path, label: str) -> float:
    last = read_lines(folder, "metrics.jsonl")[-1]
    return (last["tasks"][label] if "tasks" in last else last)["auc"]


def prepare(configs: list[pathlib.Path]) -> list[pathlib.Path]:
    if any(config in FLIGHTS for config in configs):
        subprocess.run([sys.executable, ROOT / "tools/flights.py"], cwd=ROOT, check=True)
    found = []
    for config in configs:
        files = tomllib.loads(config.read_text())["rows"]["files"]
        missing = [name for name in files if not (ROOT / name).exists()]
        if missing and config == ADULT:
            print(f"adult: left out, there is no {missing[0]} (the UCI Adult table as TSV)")
            continue
        found.append(config)
    return found


def report(config: pathlib.Path, auc: dict[str, list[float]], models: list[str]) -> bool:
    """Prints a label's figures; whether what is claimed of them holds."""
    for name, values in auc.items():
        print(f"  {name:20} {np.mean(values):.4f}  ({', '.join(f'{v:.4f}' for v in values)})")
    best = max(models, key=lambda m: np.mean(auc[m]))
    ours, theirs = np.mean(auc[best]), max(np.mean(auc[p]) for p in ["logistic regression", "gradient boosting"])
    print(f"  {best} {'beats' if ours > theirs else 'does NOT beat'} both peers by {ours - theirs:+.4f}")
    if config.stem not in CLAIMS:
        return True
    reached = bool(ours >= CLAIMS[config.stem])
    print(f"  at least {CLAIMS[config.stem]:.3f}: {'holds' if reached else 'does NOT hold'}")
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", type=pathlib.Path, default=[*FLIGHTS, ADULT])
    parser.add_argument("--models", type=lambda text: text.split(","), default=MODELS + SEQUENCE_MODELS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; they share the cores")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/recommend")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--result", type=pathlib.Path, help="write the figures here (JSON)")
    options = parser.parse_args()
    options.out = options.out.resolve()

    holds, results, machine = True, {}, None
    for config in prepare([config.resolve() for config in options.configs]):
        seeds, models = range(1, options.seeds + 1), models_of(config, options.models)
        if not models:
            continue
        plan = [(model, seed) for model in models for seed in seeds]

        def train(run: tuple[str, int], config: pathlib.Path = config) -> pathlib.Path:
            model, seed = run
            folder = options.out / f"{config.stem}-{model}-{seed}"
            # Keys of one model alone are refused by the others.
            settings = [f"recommender.model={model}", f"run.seed={seed}", *options.set]
            train_once(config, folder, settings, options.jobs)
            return folder

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            folders = dict(zip(plan, pool.map(train, plan), strict=True))
        machine = read_machine(folders[plan[0]])["machine"]
        begin = time.monotonic()
        table = Table(config)
        for label in table.labels:
            auc = {m: [auc_of(folders[m, s], label) for s in seeds] for m in models}
            auc["logistic regression"] = [logistic_regression(table, label)]
            auc["gradient boosting"] = [gradient_boosting(table, label, seed) for seed in seeds]
            name = config.stem if len(table.labels) == 1 else f"{config.stem}: {label}"
            rows, held_out = int(table.train[label].sum()), int(table.test[label].sum())
            print(f"{name}: {rows} rows, {held_out} held out")
            holds &= report(config, auc, models)
            results[name] = {"auc": auc, "rows": rows, "held_out": held_out}
        print(f"peers of {config.stem}: {time.monotonic() - begin:.0f} s")
    if options.result:
        record = {"results": results, "settings": options.set, "machine": machine, "holds": holds}
        options.result.write_text(json.dumps(record, indent=2) + "\n")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
