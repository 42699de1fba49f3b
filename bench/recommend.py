"""Recommenders against logistic regression and gradient boosting on the same features: AUC on the last tenth of rows.

usage: ./dev bench recommend [CONFIG ...] [--models NAME,...] [--seeds N] [--jobs N] [--out runs/recommend]
                             [--set KEY=VALUE] [--result FILE]

Trains every model on every config (configs/flights.toml, whose data tools/flights.py writes first, and
configs/adult.toml where data/adult.tsv is there) from every seed. Beside them, in the same run and on the same rows,
scikit-learn's LogisticRegression (dense columns scaled, one column for each id that training has) and
HistGradientBoostingClassifier (dense columns as they are, ids as categories, those beyond the 254 most frequent of a
feature together). Claims: the best model's mean AUC over the seeds is at least 0.650 on the flights and 0.920 on adult.
Exit code 1 when one does not hold. Runs that are there already are kept.
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

MODELS = ["wide_deep", "deepfm", "dlrm", "dcnv2"]
CLAIMS = {"flights": 0.650, "adult": 0.920}
DEFAULTS = [ROOT / "configs/flights.toml", ROOT / "configs/adult.toml"]


class Table:
    """The rows of a config as numbers and categories, split as the engine splits them."""

    def __init__(self, config: pathlib.Path):
        rows = tomllib.loads(config.read_text())["rows"]
        files = [ROOT / name for name in rows["files"]]
        frame = pd.concat([self.read(file) for file in files], ignore_index=True)
        self.held_out = int(len(frame) * rows.get("validation_fraction", 0.1))
        column, _, threshold = rows["label"].partition(">")
        value = pd.to_numeric(frame[column.strip()])
        here = value.notna().to_numpy()
        label = (value > float(threshold)) if threshold else value
        is_train = np.arange(len(frame)) < len(frame) - self.held_out
        self.train, self.test = is_train & here, ~is_train & here
        self.label = label.to_numpy(float)
        self.dense = self.dense_columns(frame, rows.get("dense", []))
        self.ids = frame_of_ids(frame, rows.get("sparse", []))

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


def logistic_regression(table: Table) -> float:
    scaler = StandardScaler().fit(table.dense[table.train])
    encoder = OneHotEncoder(handle_unknown="ignore").fit(table.ids[table.train])

    def features(rows: np.ndarray) -> sparse.csr_matrix:
        return sparse.hstack([scaler.transform(table.dense[rows]), encoder.transform(table.ids[rows])]).tocsr()

    model = LogisticRegression(max_iter=300).fit(features(table.train), table.label[table.train])
    return roc_auc_score(table.label[table.test], model.decision_function(features(table.test)))


def gradient_boosting(table: Table, seed: int) -> float:
    columns = [table.dense]
    for name in table.ids:
        frequent = table.ids[name][table.train].value_counts().index[:254]
        codes = table.ids[name].map({value: code for code, value in enumerate(frequent)})
        columns.append(codes.fillna(len(frequent)).to_numpy(float)[:, None])
    x = np.column_stack(columns)
    categorical = np.arange(x.shape[1]) >= table.dense.shape[1]
    model = HistGradientBoostingClassifier(categorical_features=categorical, random_state=seed)
    model.fit(x[table.train], table.label[table.train])
    return roc_auc_score(table.label[table.test], model.decision_function(x[table.test]))


def prepare(configs: list[pathlib.Path]) -> list[pathlib.Path]:
    found = []
    for config in configs:
        if config == DEFAULTS[0]:
            subprocess.run([sys.executable, ROOT / "tools/flights.py"], cwd=ROOT, check=True)
        files = tomllib.loads(config.read_text())["rows"]["files"]
        missing = [name for name in files if not (ROOT / name).exists()]
        if missing and config == DEFAULTS[1]:
            print(f"adult: left out, there is no {missing[0]} (the UCI Adult table as TSV)")
            continue
        found.append(config)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", type=pathlib.Path, default=DEFAULTS)
    parser.add_argument("--models", type=lambda text: text.split(","), default=MODELS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; they share the cores")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/recommend")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--result", type=pathlib.Path, help="write the figures here (JSON)")
    options = parser.parse_args()
    options.out = options.out.resolve()

    holds, results, machine = True, {}, None
    for config in prepare([config.resolve() for config in options.configs]):
        seeds = range(1, options.seeds + 1)
        plan = [(model, seed) for model in options.models for seed in seeds]

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
        auc = {m: [read_lines(folders[m, s], "metrics.jsonl")[-1]["auc"] for s in seeds] for m in options.models}
        begin = time.monotonic()
        table = Table(config)
        auc["logistic regression"] = [logistic_regression(table)]
        auc["gradient boosting"] = [gradient_boosting(table, seed) for seed in seeds]
        print(
            f"{config.stem}: {table.train.sum()} rows, {table.test.sum()} held out; "
            f"peers {time.monotonic() - begin:.0f} s"
        )
        for name, values in auc.items():
            print(f"  {name:20} {np.mean(values):.4f}  ({', '.join(f'{v:.4f}' for v in values)})")
        best = max(options.models, key=lambda m: np.mean(auc[m]))
        ours, theirs = np.mean(auc[best]), max(np.mean(auc[p]) for p in ["logistic regression", "gradient boosting"])
        print(f"  {best} {'beats' if ours > theirs else 'does NOT beat'} both peers by {ours - theirs:+.4f}")
        if config.stem in CLAIMS:
            reached = ours >= CLAIMS[config.stem]
            holds &= bool(reached)
            print(f"  at least {CLAIMS[config.stem]:.3f}: {'holds' if reached else 'does NOT hold'}")
        results[config.stem] = {"auc": auc, "rows": int(table.train.sum()), "held_out": int(table.test.sum())}
    if options.result:
        record = {"results": results, "settings": options.set, "machine": machine, "holds": holds}
        options.result.write_text(json.dumps(record, indent=2) + "\n")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
