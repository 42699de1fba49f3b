"""Runs that begin from another run (`run.start_from`): tables and dense weights by name.

The expected tensors are taken from the checkpoint files by NumPy.
"""

import json
import random

import numpy as np
import pytest
from cli import dovetail
from safetensors.numpy import load_file
from test_days import CONFIG as DAYS_CONFIG
from test_days import by_day, lines_of, write_days
from test_recommender import DYNAMIC_MODELS, MODELS, write_config, write_rows
from tiny_run import make_workspace
from tiny_run import train as train_tiny

CONFIG = """
[run]
device = "cpu"
threads = 1
[recommender]
model = "wide_deep"
dim = 4
deep = [8, 6]
[rows]
files = ["rows.tsv"]
label = "clicked"
dense = [{ columns = ["price"], transform = "standard", missing = "mean" }]
sparse = [
  { columns = ["user"], num_rows = 20 },
  { columns = ["item"], ids = "integer", num_rows = 30 },
]
[embedding]
lr = 0.05
[optimizer]
lr = 1e-2
[train]
steps = 40
batch = 32
[schedule]
decay = "constant"
[precision]
recipe = "fp32"
[checkpoint]
every_steps = "end"
[eval]
every_steps = 0
[log]
tensorboard = false
"""
CITY = '  { columns = ["city"], num_rows = 11 },\n'
STILL = ["embedding.lr=1e-30", "optimizer.lr=1e-30", "optimizer.weight_decay=0", "train.steps=1"]
"""Settings of a run whose only step changes no weight: the rates are below half a unit of any."""


def write_clicks(path, price=20.0):
    draw = random.Random(3)
    lines = ["user\titem\tcity\tprice\tage\tclicked"]
    for i in range(800):
        user, item = draw.randrange(40), (i * 7 + draw.randrange(3)) % 30
        clicked = int(draw.random() < (0.9 if (user + item) % 2 else 0.1))
        lines.append(
            f"u{user}\t{item}\tc{draw.randrange(9)}\t{draw.gauss(price, 5):.3f}\t{draw.randrange(90)}\t{clicked}"
        )
    path.write_text("\n".join(lines) + "\n")


def changed(*pairs):
    text = CONFIG
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


ADDED = ("]\n[embedding]", CITY + "]\n[embedding]")


def train(folder, run, text=CONFIG, settings=(), code=0):
    (folder / f"{run}.toml").write_text(text)
    words = [word for setting in (f"run.folder={run}", *settings) for word in ("--set", setting)]
    return dovetail("train", f"{run}.toml", *words, folder=folder, code=code).stderr


def start(folder, run, text=CONFIG, settings=(), of="old", code=0):
    return train(folder, run, text, (f"run.start_from={of}", *settings), code)


def newest(run):
    return max((run / "checkpoints").glob("step-*"))


def state(run):
    return json.loads((newest(run) / "manifest.json").read_text())["state"]


def tensors(run):
    found = {}
    for path in newest(run).glob("*.safetensors"):
        found |= load_file(path)
    return found


def record(run):
    return json.loads((run / "start.json").read_text())


def last_figures(run):
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return {key: value for key, value in line.items() if key in record_keys(line)}


def record_keys(line):
    return {"validation_loss", "validation_samples", "auc", "normalized_entropy", "calibration", "gauc", "tasks"} & set(
        line
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the run `old`, whose tables have all updated rows."""
    folder = tmp_path_factory.mktemp("start")
    write_clicks(folder / "rows.tsv")
    train(folder, "old")
    assert not any(name.endswith(".rows") for name in tensors(folder / "old")), "rows that were never updated"
    return folder


@pytest.mark.parametrize("model", MODELS)
def test_without_a_change_the_first_figures_are_the_last_ones_of_the_other_run(tmp_path, model):
    write_rows(tmp_path / "rows.tsv")
    dtypes = {"wide_deep": "bf16", "deepfm": "mxfp8"}
    write_config(tmp_path, model, "sum", dtypes.get(model, "fp32"), model in DYNAMIC_MODELS)
    text = (tmp_path / f"{model}.toml").read_text()
    train(tmp_path, "old", text)
    log = start(tmp_path, "new", text, ["train.steps=1"])
    made = record(tmp_path / "new")
    assert made["validation"] == last_figures(tmp_path / "old")
    assert made["validation"]["validation_loss"] < 2
    assert not made["tables"]["new"] and not made["tables"]["left_out"] and not made["tables"]["changed"]
    assert not made["parameters"]["new"] and not made["parameters"]["left_out"]
    tables, parameters = len(made["tables"]["loaded"]), len(made["parameters"]["loaded"])
    assert f"start from old at step 30: {tables} of {tables} tables and {parameters} of {parameters} dense" in log


def test_a_feature_more_leaves_rows_and_layers_as_they_were(folder):
    log = start(folder, "added", changed(ADDED), STILL)
    train(folder, "fresh", changed(ADDED), STILL)
    old, new, fresh = (tensors(folder / run) for run in ("old", "added", "fresh"))
    begun = {"deep.0.weight"}
    made = record(folder / "added")
    assert made["tables"] == {
        "loaded": ["user", "item", "user.wide", "item.wide"],
        "changed": [],
        "new": ["city", "city.wide"],
        "left_out": [],
    }
    assert made["parameters"]["new"] == [{"name": "deep.0.weight", "why": "its shape was 8x9, is 8x13"}]
    parameters = {name.removeprefix("model.") for name in new if name.startswith("model.")}
    assert set(made["parameters"]["loaded"]) | begun == parameters
    for name in made["parameters"]["loaded"]:
        assert (new[f"model.{name}"] == old[f"model.{name}"]).all(), name
    for name in begun:
        assert (new[f"model.{name}"] == fresh[f"model.{name}"]).all(), name
    for name in ("user", "item", "user.wide", "item.wide"):
        assert (new[f"embedding.{name}.weight"] == old[f"embedding.{name}.weight"]).all(), name
        assert (new[f"embedding.{name}.state"] >= old[f"embedding.{name}.state"]).all(), name
        assert (new[f"embedding.{name}.state"] == old[f"embedding.{name}.state"]).any(), name
    assert (new["embedding.city.weight"] == fresh["embedding.city.weight"]).all()
    for words in ("new tables: city, city.wide", "new parameter deep.0.weight: its shape was 8x9, is 8x13"):
        assert words in log


def test_a_feature_less_is_left_out_by_name(folder):
    text = changed(('  { columns = ["user"], num_rows = 20 },\n', ""))
    log = start(folder, "less", text, STILL)
    assert "tables left out: user, user.wide" in log
    assert record(folder / "less")["parameters"]["new"][0]["why"] == "its shape was 8x9, is 8x5"


def test_features_in_another_order_do_not_read_each_others_weights(folder):
    user, item = CONFIG.splitlines(keepends=True)[13:15]
    assert "user" in user and "item" in item
    start(folder, "order", changed((user + item, item + user)), STILL)
    made = record(folder / "order")
    assert [note["name"] for note in made["parameters"]["new"]] == ["deep.0.weight"]
    assert "other inputs" in made["parameters"]["new"][0]["why"]
    assert set(made["tables"]["loaded"]) == {"user", "item", "user.wide", "item.wide"}


def test_a_larger_table_of_integer_ids_keeps_its_rows(folder):
    text = changed(('"integer", num_rows = 30', '"integer", num_rows = 50'))
    log = start(folder, "larger", text, STILL)
    train(folder, "larger_fresh", text, STILL)
    old, new, fresh = (tensors(folder / run) for run in ("old", "larger", "larger_fresh"))
    numbers = new.get("embedding.item.rows", np.arange(50))
    weight = fresh_rows(fresh, "item", 50)
    weight[numbers] = new["embedding.item.weight"]
    assert (weight[:30] == old["embedding.item.weight"]).all()
    assert (numbers[:30] == range(30)).all()
    assert record(folder / "larger")["validation"] == last_figures(folder / "old")
    assert "table item: its 30 rows became 50" in log


def fresh_rows(fresh, table, rows):
    weight = np.zeros((rows, fresh[f"embedding.{table}.weight"].shape[1]), np.float32)
    numbers = fresh.get(f"embedding.{table}.rows", np.arange(rows))
    weight[numbers] = fresh[f"embedding.{table}.weight"]
    return weight


def test_hashed_ids_keep_their_rows_in_a_table_that_is_a_multiple(folder):
    text = changed(('["user"], num_rows = 20', '["user"], num_rows = 60'))
    start(folder, "multiple", text, STILL)
    old, new = tensors(folder / "old"), tensors(folder / "multiple")
    for part in ("user", "user.wide"):
        weight, before = new[f"embedding.{part}.weight"], old[f"embedding.{part}.weight"]
        assert weight.shape[0] == 60
        for row in range(60):
            assert (weight[row] == before[row % 20]).all()
    assert record(folder / "multiple")["validation"] == last_figures(folder / "old")


def test_row_numbers_become_the_keys_of_a_table_without_a_vocabulary(folder):
    text = changed(('"integer", num_rows = 30', '"integer", max_rows = 40'))
    log = start(folder, "keys", text, STILL)
    old, new = tensors(folder / "old"), tensors(folder / "keys")
    assert (new["embedding.item.keys"] == range(30)).all()
    assert (new["embedding.item.weight"] == old["embedding.item.weight"]).all()
    assert (new["embedding.item.last_step"] >= 40).all() and (new["embedding.item.last_step"] <= 41).all()
    assert record(folder / "keys")["validation"] == last_figures(folder / "old")
    assert "table item: its 30 rows became keys, at most 40" in log


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam", "momentum"])
@pytest.mark.parametrize("kept", ["keep", "new"])
def test_optimizer_state_is_kept_or_new(tmp_path, optimizer, kept):
    """Bias corrections included: one step from the state in the files, by the formulas of the papers."""
    write_clicks(tmp_path / "rows.tsv")
    settings = [f"embedding.optimizer={optimizer}"]
    train(tmp_path, "old", settings=settings)
    start(tmp_path, "new", settings=[*settings, f"run.start_optimizer={kept}", "train.steps=1"])
    old, new = tensors(tmp_path / "old"), tensors(tmp_path / "new")
    assert state(tmp_path / "new")["updates"] == (41 if kept == "keep" else 1)
    # AdamW of the dense part in float64. The gradient is what the first moment took up.
    for name in [name for name in old if name.startswith("model.")]:
        part = name.removeprefix("model.")
        m, v, w = (old[f"{kind}{part}"].astype(float) for kind in ("optimizer.m.", "optimizer.v.", "model."))
        if kept == "new":
            m, v = 0 * m, 0 * v
        t = 41 if kept == "keep" else 1
        gradient = (new[f"optimizer.m.{part}"].astype(float) - 0.9 * m) / 0.1
        v = 0.95 * v + 0.05 * gradient**2
        assert np.allclose(new[f"optimizer.v.{part}"], v, rtol=1e-3, atol=1e-9)
        m = new[f"optimizer.m.{part}"].astype(float)
        w = w - 1e-2 * (0.1 if w.ndim == 2 else 0) * w
        w = w - 1e-2 * (m / (1 - 0.9**t)) / (np.sqrt(new[f"optimizer.v.{part}"] / (1 - 0.95**t)) + 1e-8)
        assert np.allclose(new[name], w, rtol=1e-5, atol=1e-6), part
    # Rows that the step did not read, or all of them if the rule changes each element alone.
    for table in ("user", "item"):
        before, after = old[f"embedding.{table}.state"], new[f"embedding.{table}.state"]
        still = (new[f"embedding.{table}.weight"] == old[f"embedding.{table}.weight"]).all(axis=1)
        if still.any():
            assert (after[still] == (before[still] if kept == "keep" else 0)).all()
        if optimizer == "rowwise_adagrad" and kept == "keep":
            assert (after >= before).all()
    if optimizer == "adam":
        before, after = old["embedding.user.state"].astype(float), new["embedding.user.state"].astype(float)
        if kept == "new":
            before = 0 * before
        t = 41 if kept == "keep" else 1
        moved = (new["embedding.user.weight"] != old["embedding.user.weight"]).all(axis=1)
        assert moved.sum() > 5
        m, v = after[moved, :4], after[moved, 4:]
        gradient = (m - 0.9 * before[moved, :4]) / 0.1
        assert np.allclose(v, 0.999 * before[moved, 4:] + 0.001 * gradient**2, rtol=1e-3, atol=1e-10)
        step = 0.05 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8)
        expected = old["embedding.user.weight"][moved] - step
        assert np.allclose(new["embedding.user.weight"][moved], expected, rtol=1e-4, atol=1e-6)


def test_a_new_layer_has_its_own_bias_correction(folder):
    """A layer that begins at update 40 takes first steps of the size that AdamW's first steps have."""
    start(folder, "corrected", changed(ADDED), ["train.steps=1", "optimizer.betas=[0.9,0.999]"])
    train(folder, "before", changed(ADDED), [*STILL, "optimizer.betas=[0.9,0.999]"])
    new, before = tensors(folder / "corrected"), tensors(folder / "before")
    assert state(folder / "corrected")["started"]["updates_before"] == {"deep.0.weight": 40}
    m, v = (new[f"optimizer.{moment}.deep.0.weight"].astype(float) for moment in "mv")
    w = before["model.deep.0.weight"].astype(float)
    w = w - 1e-2 * 0.1 * w - 1e-2 * (m / 0.1) / (np.sqrt(v / 0.001) + 1e-8)
    assert np.abs(m).max() > 0
    assert np.allclose(new["model.deep.0.weight"], w, rtol=1e-4, atol=1e-6)


def test_a_table_with_another_optimizer_begins_its_state(folder):
    override = '[{ tables = ["user"], optimizer = "adam", lr = 1e-30 }]'
    log = start(folder, "switched", CONFIG, [*STILL, f"embedding.override={override.replace(' = ', '=')}"])
    old, new = tensors(folder / "old"), tensors(folder / "switched")
    assert (new["embedding.user.weight"] == old["embedding.user.weight"]).all()
    assert new["embedding.user.state"].shape == (20, 8)
    assert (np.abs(new["embedding.user.state"]).max(axis=1) < 0.1).all()
    assert "table user: its optimizer was rowwise_adagrad, is adam: new state" in log


def test_scales_of_known_columns_are_the_other_runs(folder):
    write_clicks(folder / "dear.tsv", price=900.0)
    text = changed(
        ('{ columns = ["price"]', '{ columns = ["age", "price"]'),
        ('"rows.tsv"', '"dear.tsv"'),
    )
    start(folder, "dear", text, STILL)
    old, new = state(folder / "old")["dense_scales"], state(folder / "dear")["dense_scales"]
    ages = [float(line.split("\t")[4]) for line in (folder / "dear.tsv").read_text().splitlines()[1:]][:720]
    assert new[1] == old[0]
    assert new[0]["column"] == "age"
    assert new[0]["mean"] == pytest.approx(np.mean(ages), rel=1e-12)
    assert {note["name"] for note in record(folder / "dear")["parameters"]["new"]} == {"wide.weight", "deep.0.weight"}


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_resumed_run_goes_on_to_the_same_bits(folder, dynamic):
    text = changed(ADDED)
    if dynamic:
        train(folder, "old_dynamic", dynamic_text(CONFIG))
        text = dynamic_text(text)
    of = "old_dynamic" if dynamic else "old"
    name = f"resume{dynamic:d}"
    start(folder, f"{name}_whole", text, ["train.steps=30"], of)
    start(folder, f"{name}_parts", text, ["train.steps=15"], of)
    log = start(folder, f"{name}_parts", text, ["train.steps=30"], of)
    assert "resuming" in log and "start from" not in log
    whole, parts = tensors(folder / f"{name}_whole"), tensors(folder / f"{name}_parts")
    assert whole.keys() == parts.keys()
    for tensor, value in whole.items():
        assert (value == parts[tensor]).all(), tensor
    error = start(folder, f"{name}_parts", text, ["train.steps=40"], "added", code=2)
    assert f'run.start_from was "{of}", is "added"' in error


def dynamic_text(text):
    rules = '[embedding.dynamic]\neviction = "age"\nmax_age = 4\nevict_steps = 3\n'
    return (
        text.replace('["user"], num_rows = 20', '["user"], max_rows = 40')
        .replace('"integer", num_rows = 30', '"integer", max_rows = 25')
        .replace("[optimizer]", rules + "[optimizer]")
    )


def test_keys_go_on_to_age(folder):
    """A key's last step counts from the other run's first step, and so does the clock of the tables."""
    text = dynamic_text(CONFIG)
    train(folder, "old_ages", text)
    start(folder, "ages", text, STILL, "old_ages")
    old, new = tensors(folder / "old_ages"), tensors(folder / "ages")
    before = dict(zip(old["embedding.user.keys"], old["embedding.user.last_step"], strict=True))
    after = dict(zip(new["embedding.user.keys"], new["embedding.user.last_step"], strict=True))
    assert state(folder / "ages")["started"]["table_steps"] == 40
    same = [key for key in after if after[key] != 41]
    assert len(same) > 3
    assert all(after[key] == before[key] for key in same)


def test_from_a_run_that_began_from_another(folder):
    start(folder, "second", changed(ADDED), ["train.steps=5"])
    start(folder, "third", changed(ADDED), ["train.steps=1"], "second")
    assert record(folder / "third")["validation"] == last_figures(folder / "second")
    assert state(folder / "third")["started"] == {"table_steps": 45, "updates_before": {"deep.0.weight": 40}}
    assert state(folder / "third")["updates"] == 46


def test_a_checkpoint_and_deltas_can_be_named(folder):
    settings = ["checkpoint.every_steps=4", "checkpoint.full_every=4", "checkpoint.keep=9", "train.steps=14"]
    train(folder, "deltas", settings=[*settings, "train.batch=8"])
    for step in (8, 12):
        of = f"deltas/checkpoints/step-{step:08}"
        start(folder, f"delta{step}", settings=STILL, of=of)
        train(folder, f"until{step}", settings=["train.batch=8", f"train.steps={step}"])
        until, new = tensors(folder / f"until{step}"), tensors(folder / f"delta{step}")
        for name in ("user", "item", "user.wide"):
            rows = {}
            for found in (until, new):
                weight = found[f"embedding.{name}.weight"]
                numbers = found.get(f"embedding.{name}.rows", np.arange(len(weight)))
                rows[id(found)] = {n: row.tobytes() for n, row in zip(numbers.tolist(), weight, strict=True)}
            assert len(rows[id(until)]) > 5
            assert all(rows[id(new)][n] == row for n, row in rows[id(until)].items())


REFUSED = {
    "dim": ([("dim = 4", "dim = 8")], ['table "user": its dim was 4, is 8', 'table "item": its dim was 4, is 8']),
    "not a multiple": (
        [('["user"], num_rows = 20', '["user"], num_rows = 50')],
        ['table "user": it had num_rows = 20, has 50', "Use a multiple of 20", 'table "user.wide"'],
    ),
    "fewer rows": ([('"integer", num_rows = 30', '"integer", num_rows = 29')], ['table "item"', "rows would be lost"]),
    "too few keys": (
        [('"integer", num_rows = 30', '"integer", max_rows = 29')],
        ['table "item": it had num_rows = 30, has max_rows = 29'],
    ),
    "keys of hashed ids": (
        [('["user"], num_rows = 20', '["user"], max_rows = 20')],
        ['table "user": it had num_rows = 20, has max_rows: the keys of its hashed ids are not known'],
    ),
    "another kind of ids": (
        [('["item"], ids = "integer"', '["item"]')],
        ['table "item": its ids were "integer", are "hash"'],
    ),
    "row_dtype": ([("lr = 0.05", 'lr = 0.05\nrow_dtype = "bf16"')], ['embedding.row_dtype was "fp32", is "bf16"']),
    "nothing alike": (
        [('["user"]', '["city"]'), ('["item"], ids', '["age"], ids')],
        ["its tables are called user, item, user.wide, item.wide, and the tables of this run city, age,"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_tables_that_cannot_be_kept_are_named(folder, case):
    pairs, words = REFUSED[case]
    error = start(folder, f"refused {case}", changed(*pairs), STILL, code=2)
    assert 'run.start_from = "old"' in error
    for word in words:
        assert word in error


def test_max_rows_do_not_become_num_rows(folder):
    train(folder, "only_keys", dynamic_text(CONFIG))
    error = start(folder, "no_keys", CONFIG, STILL, "only_keys", code=2)
    assert 'table "user": it had max_rows, has num_rows = 20: its ids have no fixed rows' in error
    assert "rows.sparse.name" in error


def test_what_is_no_other_run_is_refused(folder):
    (folder / "empty").mkdir(exist_ok=True)
    for of, words in (
        ("absent", "absent does not exist"),
        ("empty", "empty holds no checkpoint"),
        ("own", "is in this run's own folder"),
        ("own/checkpoints/step-00000040", "is in this run's own folder"),
    ):
        error = start(folder, "own", CONFIG, STILL, of, code=2)
        assert words in error
    error = train(folder, "kept", settings=["run.start_optimizer=new"], code=2)
    assert "run.start_optimizer does nothing" in error


def test_a_changed_config_in_an_old_folder_names_the_features(folder):
    train(folder, "changed", settings=["train.steps=2"])
    first = CONFIG.splitlines(keepends=True)[13]
    error = train(folder, "changed", changed((first, CITY + first)), ["train.steps=2"], code=2)
    assert "holds another run at step 2: rows.sparse.city was absent, is there\n" in error
    assert 'run.start_from = "changed"' in error
    error = train(folder, "changed", changed((first, "")), ["train.steps=2"], code=2)
    assert "rows.sparse.user was there, is absent\n" in error
    second = CONFIG.splitlines(keepends=True)[14]
    error = train(folder, "changed", changed((first + second, second + first)), ["train.steps=2"], code=2)
    assert "rows.sparse was in the order user, item, is in the order item, user\n" in error
    error = train(folder, "changed", changed(("num_rows = 20", "num_rows = 40")), ["train.steps=2"], code=2)
    assert "rows.sparse.user.num_rows was 20, is 40\n" in error
    error = train(folder, "changed", changed(('["price"]', '["age", "price"]')), ["train.steps=2"], code=2)
    assert "rows.dense.age was absent, is there\n" in error


def test_day_by_day_the_first_day_is_measured_too(tmp_path):
    write_days(tmp_path, [64, 64, 64])
    (tmp_path / "run.toml").write_text(DAYS_CONFIG)
    dovetail(*by_day("all", [1, 2, 3]), folder=tmp_path)
    dovetail(*by_day("until", [1, 2]), folder=tmp_path)
    write_days(tmp_path, [64, 64, 64])
    (tmp_path / "day4.tsv").write_text((tmp_path / "day3.tsv").read_text().replace("11\tu", "12\tu"))
    dovetail(*by_day("next", [3, 4], **{"run.start_from": "until"}), folder=tmp_path)
    measured = [line for line in lines_of(tmp_path / "next") if "day" in line]
    expected = [line for line in lines_of(tmp_path / "all") if line.get("day") == "11"]
    assert [line["day"] for line in measured] == ["11", "12"]
    for key in ("validation_loss", "auc", "validation_samples"):
        assert measured[0][key] == expected[0][key]


def test_a_run_of_another_kind_is_refused(folder):
    gpt = make_workspace(folder / "gpt")
    assert train_tiny(gpt, "run", train__steps=2, schedule__warmup_steps=0).returncode == 0
    error = start(folder, "of_gpt", CONFIG, STILL, "gpt/run", code=2)
    assert 'run.start_from = "gpt/run" holds a GPT ([model]), but this run trains a recommender' in error
