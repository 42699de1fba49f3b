"""Trained recommenders measured, exported and served: `dovetail eval`, `dovetail export`, `dovetail.recommender`."""

import csv
import json
import random

import dovetail as package
import pytest
import sklearn.metrics
import torch
from cli import dovetail, dovetail_json
from dovetail.recommender import features
from safetensors.torch import load_file

MODELS = ["wide_deep", "deepfm", "dlrm", "dcnv2", "din", "dien", "can", "mmoe"]
DYNAMIC_MODELS = ["deepfm", "din", "can", "mmoe"]  # tables without a fixed vocabulary; some ids have no row
ROWS = 900


def write_rows(path, rows=ROWS, seed=1, price=20.0):
    """Numbers that are missing, ids of every kind, weighted bags and two sequences of the same events."""
    draw = random.Random(seed)
    lines = ["user\titem\tslot\ttags\tshares\tseen\tlong\tprice\tage\tclicked\tbought"]
    for _ in range(rows):
        user, item, events = draw.randrange(30), draw.randrange(20), draw.randrange(5)
        tags = [f"t{draw.randrange(40)}" for _ in range(draw.randrange(4))]
        seen = [f"i{draw.randrange(20)}" for _ in range(events)]
        clicked = int(draw.random() < (0.8 if (user + item) % 2 else 0.2))
        lines.append(
            "\t".join(
                [
                    f"u{user}",
                    f"i{item}",
                    str(draw.randrange(7)),
                    "|".join(tags),
                    "|".join(f"{draw.random():.3f}" for _ in tags),
                    "|".join(seen),
                    "|".join(str(draw.randrange(3)) for _ in seen),
                    "" if draw.random() < 0.1 else f"{draw.gauss(price, 5):.3f}",
                    "" if draw.random() < 0.1 else str(draw.randrange(90)),
                    str(clicked),
                    str(int(draw.random() < 0.3)),
                ]
            )
        )
    path.write_text("\n".join(lines) + "\n")


CONFIG = """
[run]
threads = 1
device = "cpu"
[recommender]
model = "MODEL"
dim = 4
deep = [12, 6]
[rows]
files = ["rows.tsv"]
label = LABEL
group = "user"
dense = [
  { columns = ["price"], transform = "standard", missing = "mean" },
  { columns = ["price", "age"], transform = "log1p" },
]
sparse = [
  { columns = ["user"], num_rows = 23 },
  { columns = ["item"], num_rows = 50 },
  { columns = ["slot"], ids = "integer", num_rows = 7 },
  { columns = ["user", "slot"], num_rows = 61 },
  { columns = ["tags"], num_rows = 31, separator = "|", weights = "shares", max_length = 3 },
  { columns = ["seen"], num_rows = 50, separator = "|", sequence = true, max_length = 3, table = "item" },
  { columns = ["long"], num_rows = 9, separator = "|", sequence = true, max_length = 3 },
]
[embedding]
pooling = "POOLING"
row_dtype = "ROW_DTYPE"
lr = 0.1
override = [{ tables = ["item", "user"], optimizer = "adam", lr = 0.02 }]
[train]
steps = 30
batch = 64
[precision]
recipe = "fp32"
[checkpoint]
every_steps = "end"
[eval]
every_steps = 0
[log]
tensorboard = false
"""


DYNAMIC = [
    ('["user"], num_rows = 23', '["user"], max_rows = 20'),
    ('["item"], num_rows = 50', '["item"], max_rows = 30'),
    ('ids = "integer", num_rows = 7', 'ids = "integer", max_rows = 9'),
    ('["user", "slot"], num_rows = 61', '["user", "slot"], max_rows = 500'),
    ('["seen"], num_rows = 50', '["seen"], max_rows = 30'),
    ("[train]", '[embedding.dynamic]\nadmission = "count"\nmin_count = 3\n[train]'),
]


# Features whose embeddings differ from the others, for models that allow this.
OWN = [
    ('{ columns = ["user"], ', '{ columns = ["user"], dim = 2, '),
    ('{ columns = ["tags"], ', '{ columns = ["tags"], dim = 7, pooling = "mean", '),
]


# A bag whose rows are concatenated, for models that may have more columns.
UNPOOLED = ('{ columns = ["tags"], ', '{ columns = ["tags"], pooling = "none", ')


def write_config(folder, model, pooling="sum", row_dtype="fp32", dynamic=False):
    label = '["clicked", "bought"]' if model == "mmoe" else '"clicked"'
    text = CONFIG.replace("MODEL", model).replace("LABEL", label).replace("POOLING", pooling)
    text = text.replace("ROW_DTYPE", row_dtype)
    for fixed, without in DYNAMIC if dynamic else []:
        assert fixed in text
        text = text.replace(fixed, without)
    for shared, own in OWN if model not in ("dlrm", "deepfm") else []:
        assert shared in text
        text = text.replace(shared, own)
    if model in ("wide_deep", "deepfm", "dlrm", "dien"):
        text = text.replace(*UNPOOLED).replace(', pooling = "mean"', "")
    (folder / f"{model}.toml").write_text(text)


def last_validation(run):
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    keys = ("auc", "normalized_entropy", "calibration", "gauc")
    tasks = line.get("tasks") or {"clicked": {key: line[key] for key in keys}}
    return line["validation_loss"], line["validation_samples"], tasks


def predictions(path):
    with path.open(newline="") as file:
        header, *lines = csv.reader(file)
    return header, [(name, int(row), [float(s) for s in scores]) for name, row, *scores in lines]


@pytest.fixture(scope="module", params=MODELS)
def trained(request, tmp_path_factory):
    """A folder with a run of 30 steps, and its export."""
    model = request.param
    folder = tmp_path_factory.mktemp(model)
    write_rows(folder / "rows.tsv")
    dtypes = {"wide_deep": "bf16", "deepfm": "mxfp8", "din": "bf16"}
    write_config(
        folder,
        model,
        "mean" if model in ("dcnv2", "din") else "sum",
        dtypes.get(model, "fp32"),
        model in DYNAMIC_MODELS,
    )
    dovetail("train", f"{model}.toml", "--set", "run.folder=run", "--quiet", folder=folder)
    dovetail("export", "run", "--out", "exported", folder=folder)
    return folder


def test_eval_gives_the_figures_of_the_last_validation_bit_for_bit(trained):
    loss, samples, tasks = last_validation(trained / "run")
    for source in ("run", "exported"):
        found = dovetail_json("eval", source, folder=trained)["validation"]
        assert (found["loss"], found["samples"]) == (loss, samples)
        for name, task in tasks.items():
            assert {key: found["tasks"][name][key] for key in task} == task


def test_pytorch_scores_rows_as_eval_does(trained):
    dovetail("eval", "run", "--split", "all", "--predictions", "scores.csv", folder=trained)
    header, scores = predictions(trained / "scores.csv")
    model = package.recommender.load(trained / "exported")
    assert header == ["file", "row", *model.tasks]
    assert [(name, row) for name, row, _ in scores] == [("rows.tsv", i + 1) for i in range(ROWS)]
    with (trained / "rows.tsv").open() as file:
        rows = [{k: v or None for k, v in row.items()} for row in csv.DictReader(file, delimiter="\t")]
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    with torch.no_grad():
        found = model(model.encode(columns)).sigmoid()
    expected = torch.tensor([s for _, _, s in scores])
    assert expected.std() > 0.01
    assert (found - expected).abs().max() < 1e-5
    # The metrics match these scores, as computed by scikit-learn.
    measured = dovetail_json("eval", "run", "--split", "all", folder=trained)["validation"]["tasks"]
    for k, task in enumerate(model.tasks):
        labels, of_task = [int(label) for label in columns[task]], expected[:, k].double()
        assert measured[task]["auc"] == pytest.approx(sklearn.metrics.roc_auc_score(labels, of_task), abs=1e-5)
        assert measured[task]["log_loss"] == pytest.approx(sklearn.metrics.log_loss(labels, of_task), abs=1e-5)


@pytest.mark.parametrize("model", ["dlrm", "dien", "mmoe"])
def test_a_run_in_bfloat16_is_measured_in_its_numbers_and_exported_in_float32(model, tmp_path):
    write_rows(tmp_path / "rows.tsv")
    write_config(tmp_path, model)
    said = dovetail(
        *["train", f"{model}.toml", "--set", "run.folder=run", "--set", "precision.recipe=bf16"], folder=tmp_path
    ).stderr
    assert "tables · bf16 ·" in said
    loss, _, tasks = last_validation(tmp_path / "run")
    dovetail("export", "run", "--out", "exported", folder=tmp_path)
    for source in ("run", "exported"):
        found = dovetail_json("eval", source, folder=tmp_path)
        assert found["precision"] == {"recipe": "bf16"}
        assert found["validation"]["loss"] == loss
        assert {name: task["auc"] for name, task in found["validation"]["tasks"].items()} == {
            name: task["auc"] for name, task in tasks.items()
        }
    tensors = load_file(tmp_path / "exported/model.safetensors")
    weight = next(tensor for name, tensor in tensors.items() if name.startswith("model.") and tensor.dim() == 2)
    assert weight.dtype == torch.float32
    assert not torch.equal(weight, weight.bfloat16().float())
    # PyTorch computes with the masters, as --precision float32 does.
    dovetail(
        *["eval", "run", "--precision", "float32", "--split", "all", "--predictions", "scores.csv"], folder=tmp_path
    )
    wide = dovetail_json("eval", "run", "--precision", "float32", folder=tmp_path)
    assert wide["precision"] == {"recipe": "fp32"}
    assert wide["validation"]["loss"] != loss
    assert wide["validation"]["loss"] == pytest.approx(loss, rel=1e-2)
    with (tmp_path / "rows.tsv").open() as file:
        rows = [{k: v or None for k, v in row.items()} for row in csv.DictReader(file, delimiter="\t")]
    trained = package.recommender.load(tmp_path / "exported")
    with torch.no_grad():
        found = trained(trained.encode({key: [row[key] for row in rows] for key in rows[0]})).sigmoid()
    expected = torch.tensor([s for _, _, s in predictions(tmp_path / "scores.csv")[1]])
    assert (found - expected).abs().max() < 1e-5


def test_encode_takes_cells_as_the_run_read_them():
    """Booleans, floats that a null made of integers and empty texts, as tests/data/row_pairs_test.cpp has them."""
    feature = {
        "name": "",
        "columns": ["a"],
        "ids": "hash",
        "num_rows": 0,
        "separator": "",
        "weights": "",
        "max_length": 0,
    }
    feature |= {"keep": "last", "missing": "empty"}

    def ids(cells, **changes):
        return features.encode_feature({"a": cells, "b": cells}, feature | changes).values.tolist()

    assert ids([True, 7.0, "", float("nan"), None, b""]) == ids(["True", "7"])
    assert ids([True, 7.0, ""], columns=["a", "b"]) == ids(["True\x1fTrue", "7\x1f7"])
    assert ids([True, 7.0, "8.00", "", "False", -3], ids="integer") == [1, 7, 8, 0, -3]
    for cell in (1.5, 2.0**53, ["a", ""]):
        with pytest.raises(ValueError, match=r"is no id|is missing"):
            ids([cell])
    for cell in (1.5, "1.5", "x", "x.0", "1_0", " 7", "+1", "\u0663", "tRue"):
        with pytest.raises(ValueError):
            ids([cell], ids="integer")


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    write_rows(folder / "rows.tsv")
    write_config(folder, "dcnv2")
    dovetail("train", "dcnv2.toml", "--set", "run.folder=run", "--quiet", folder=folder)
    return folder


def test_what_else_is_in_the_file_changes_no_score(one):
    """Statistics come from training: neither other rows nor their prices change a score."""
    lines = (one / "rows.tsv").read_text().splitlines(keepends=True)
    write_rows(one / "dear.tsv", rows=50, seed=2, price=900.0)
    (one / "mixed.tsv").write_text("".join(lines[:8]) + "".join((one / "dear.tsv").read_text().splitlines(True)[1:]))
    dovetail("eval", "run", "--split", "all", "--predictions", "all.csv", folder=one)
    dovetail("eval", "run", "--data", "mixed.tsv", "--predictions", "mixed.csv", folder=one)
    before, after = predictions(one / "all.csv")[1], predictions(one / "mixed.csv")[1]
    assert len(after) == 57
    assert [s[0] for _, _, s in after[:7]] == pytest.approx([s[0] for _, _, s in before[:7]], abs=1e-6)


def test_rows_without_label_and_bad_ones_keep_their_numbers(one):
    lines = (one / "rows.tsv").read_text().splitlines()
    cells = [line.split("\t") for line in lines[:6]]
    cells[2][-2] = ""
    cells[4][7] = "dear"
    (one / "holes.tsv").write_text("".join("\t".join(c) + "\n" for c in cells))
    error = dovetail_json("eval", "run", "--data", "holes.tsv", folder=one, code=2)["error"]
    assert error["message"] == 'holes.tsv: row 4, column `price`: "dear" is not a number'
    cells[4][7] = ""
    (one / "holes.tsv").write_text("".join("\t".join(c) + "\n" for c in cells))
    found = dovetail_json("eval", "run", "--data", "holes.tsv", "--predictions", "holes.csv", folder=one)
    assert found["validation"]["left_out"] == {"bad": 0, "unlabelled": 1}
    assert [row for _, row, _ in predictions(one / "holes.csv")[1]] == [1, 3, 4, 5]


def test_errors_say_what_where_and_what_to_do(one):
    text = (one / "rows.tsv").read_text().replace("price", "cost", 1)
    (one / "renamed.tsv").write_text(text)
    error = dovetail_json("eval", "run", "--data", "renamed.tsv", folder=one, code=2)["error"]
    assert "no column `price`" in error["message"]
    assert "renamed.tsv" in json.dumps(error)
    for words, part in [
        (["--shots", "2"], "--shots, --limit and --log-items are about --task or --suite"),
        (["--precision", "mxfp8"], "--precision mxfp8: a recommender computes in FP32 or BF16"),
        (["--predictions", "scores.parquet"], "name a .csv file"),
        (["--data", "none.tsv"], "names no file"),
    ]:
        assert part in dovetail_json("eval", "run", *words, folder=one, code=2)["error"]["message"]


def test_an_export_that_was_changed_is_refused(one):
    dovetail("export", "run", "--out", "changed", folder=one)
    tensors = one / "changed" / "model.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    assert "is not the file" in dovetail_json("eval", "changed", folder=one, code=2)["error"]["message"]
    with pytest.raises(ValueError, match="is not the file"):
        package.recommender.load(one / "changed")
    described = one / "changed" / "recommender.json"
    for damage in ({"tensors": []}, {"version": "new"}, {"format": 5}):
        described.write_text(json.dumps(json.loads(described.read_text()) | damage))
        error = dovetail_json("eval", "changed", folder=one, code=2)["error"]
        assert "recommender.json is damaged" in error["message"]
        assert "json.exception" not in error["message"]


ID_KINDS = {
    "truths": [True, False, True, None],
    "texts": ["a", "", None, "True"],
    "floats": [1.0, 2.0, float("nan"), 7.0],
    "fields": ["1.0", "2.0", "", "7"],
}


@pytest.mark.parametrize(
    ("kind", "ids"),
    [(kind, ids) for kind in ID_KINDS for ids in ("hash", "integer") if (kind, ids) != ("texts", "integer")],
)
def test_pytorch_takes_ids_of_any_type_as_eval_does(tmp_path, kind, ids):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    users = ID_KINDS[kind] * 16
    table = {"label": [i % 2 for i in range(64)], "user": users, "price": [float(i % 5) for i in range(64)]}
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    (tmp_path / "run.toml").write_text(
        '[run]\nname = "x"\n[recommender]\nmodel = "dlrm"\ndim = 4\nbottom = [8]\ndeep = [8]\n[rows]\n'
        'files = ["x.parquet"]\nlabel = "label"\n[[rows.dense]]\ncolumns = ["price"]\n'
        f'[[rows.sparse]]\ncolumns = ["user"]\nids = "{ids}"\nnum_rows = 32\n[train]\nsteps = 20\nbatch = 16\n'
        '[precision]\nrecipe = "fp32"\n'
    )
    dovetail("train", "run.toml", "--set", "run.folder=run", folder=tmp_path)
    dovetail("export", "run", "--out", "exported", folder=tmp_path)
    dovetail("eval", "run", "--split", "all", "--predictions", "scores.csv", folder=tmp_path)
    model = package.recommender.load(tmp_path / "exported")
    with torch.no_grad():
        found = model(model.encode(table)).sigmoid()[:, 0].tolist()
    expected = [s[0] for _, _, s in predictions(tmp_path / "scores.csv")[1]]
    assert found == pytest.approx(expected, abs=1e-5)
    assert len({round(s, 4) for s in expected[:20:5]}) > 1
