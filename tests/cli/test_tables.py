"""Tables as people have them: `kmeans`, `fit` and `[rows]` read what pandas, NumPy and Arrow write."""

import bz2
import decimal
import gzip
import io
import json
import lzma
import os
import pickle
import zipfile

import numpy as np
import pytest
from cli import dovetail, dovetail_json
from numpy.lib.recfunctions import structured_to_unstructured

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
sklearn_cluster = pytest.importorskip("sklearn.cluster")
linear_model = pytest.importorskip("sklearn.linear_model")

X = np.array([[1.0, 2], [1, 3], [9, 8], [9, 9]])
CSV = "a,b\n1,2\n1,3\n9,8\n9,9\n"


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as packed:
        packed.write(data)
    return sink.getvalue().to_pybytes()


def labels_of(folder, *words, data, k=2):
    """Labels by --init first, renumbered in the order of their first rows."""
    dovetail("kmeans", "--data", data, "--k", k, "--out", "run", "--fresh", *words, folder=folder)
    labels = pd.read_csv(folder / "run/labels.csv").label
    return pd.factorize(labels)[0].tolist()


def refusal(folder, *words):
    error = dovetail(*words, folder=folder, code=2).stderr
    assert error.isprintable() or all(c.isprintable() or c == "\n" for c in error)
    return error


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("DATA.CSV", CSV.encode()),
        ("x.csv", (CSV + "\n").encode()),
        ("x.csv", ("\n\n" + CSV.replace("\n9,8", "\n\n  \n9,8") + "\r\n\r\n").encode()),
        ("x.csv", CSV.replace("\n", "\r\n").encode()),
        ("x.csv", CSV.replace("\n", "\r").encode()),
        ("x.csv", b"\xef\xbb\xbf" + CSV.encode()),
        ("x.csv", CSV.encode("utf-16")),
        ("x.csv", b"\xfe\xff" + CSV.encode("utf-16-be")),
        ("x.csv", gzip.compress(CSV.encode("utf-16"))),
        ("x.csv.gz", gzip.compress(CSV.encode())),
        ("x.csv.GZ", gzip.compress(CSV[:8].encode()) + gzip.compress(CSV[8:].encode())),
        ("x.csv.bz2", bz2.compress(CSV.encode())),
        ("x.csv.zst", zstd(CSV.encode())),
        ("x.csv", gzip.compress(CSV.encode())),
        ("x.csv.gz", CSV.encode()),
        ("x", CSV.encode()),
        ("x.csv", CSV.replace(",", ";").encode()),
        ("x.csv", CSV.replace(",", "\t").encode()),
        ("x.txt", CSV.replace(",", "|").encode()),
        ("x.txt", b"# made by hand\n" + CSV.replace(",", "  ").encode()),
        ("x.csv", CSV.replace("a,b\n", "").encode()),
        ("x.csv", b'"a","b, c"\n"1","2"\n1,3\n9,8\n9,9'),
    ],
)
def test_texts_in_any_dress_have_the_rows_of_pandas(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert labels_of(tmp_path, data=name) == [0, 0, 1, 1]
    centres = pd.read_csv(tmp_path / "run/centres.csv").sort_values(
        by=pd.read_csv(tmp_path / "run/centres.csv").columns[0]
    )
    np.testing.assert_allclose(centres.to_numpy(), [[1, 2.5], [9, 8.5]])


def test_a_named_delimiter_and_a_decimal_comma(tmp_path):
    pd.DataFrame(X + 0.5, columns=["a", "b"]).to_csv(tmp_path / "x.csv", sep=";", decimal=",", index=False)
    assert labels_of(tmp_path, "--decimal", ",", data="x.csv") == [0, 0, 1, 1]
    assert labels_of(tmp_path, "--decimal", ",", "--delimiter", ";", data="x.csv") == [0, 0, 1, 1]
    assert "--decimal ," in refusal(tmp_path, "kmeans", "--data", "x.csv", "--k", 2, "--out", "r")
    pd.DataFrame(X + 0.5, columns=["a", "b"]).to_csv(tmp_path / "y.csv", sep="~", index=False)
    assert labels_of(tmp_path, "--delimiter", "~", data="y.csv") == [0, 0, 1, 1]
    np.save(tmp_path / "x.npy", X)
    assert "are for text" in refusal(tmp_path, "kmeans", "--data", "x.npy", "--k", 2, "--delimiter", ";", "--out", "r")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(CSV.encode())[:-9], "ends early"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG image"),
        (bytes(range(256)) * 4, "binary data"),
        (CSV.encode("utf-16-le"), "UTF-16 without a byte order mark"),
        (CSV.encode("utf-32"), "UTF-32"),
        (gzip.compress(gzip.compress(CSV.encode())), "gzip-compressed data"),
        (b"", "there are no rows"),
        (b"a,b\n1,\x1b[31m\n", "is not a number"),
        (b"\x1b[31m,b\n1,x\n", "is not a number"),
    ],
)
def test_other_bytes_are_named_and_never_printed(tmp_path, content, words):
    (tmp_path / "x.csv").write_bytes(content)
    assert words in refusal(tmp_path, "kmeans", "--data", "x.csv", "--k", 2, "--out", "r")


@pytest.mark.parametrize(
    "dtype", ["i1", "u1", "<i2", ">i2", "<u4", ">i8", "<u8", "<f2", ">f2", "<f4", ">f4", ">f8", "?"]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy_arrays_of_any_number(tmp_path, dtype, order):
    x = np.asarray(X > 4 if dtype == "?" else X, dtype=dtype, order=order)
    np.save(tmp_path / "x.npy", x)
    assert labels_of(tmp_path, data="x.npy") == [0, 0, 1, 1]


def test_archives_of_numpy(tmp_path):
    np.savez(tmp_path / "one.npz", x=X)
    np.savez_compressed(tmp_path / "two.npz", x=X, y=X[::-1].copy())
    (tmp_path / "x.npy.gz").write_bytes(
        gzip.compress((np.save(tmp_path / "x.npy", X), (tmp_path / "x.npy").read_bytes())[1])
    )
    assert labels_of(tmp_path, data="one.npz") == [0, 0, 1, 1]
    assert labels_of(tmp_path, data="two.npz:y") == [0, 0, 1, 1]
    assert labels_of(tmp_path, data="x.npy.gz") == [0, 0, 1, 1]
    assert "x, y" in refusal(tmp_path, "kmeans", "--data", "two.npz", "--k", 2, "--out", "r")
    assert "named z" in refusal(tmp_path, "kmeans", "--data", "two.npz:z", "--k", 2, "--out", "r")
    np.save(tmp_path / "fields.npy", np.zeros(4, dtype=[("a", "f4")]))
    assert "fields" in refusal(tmp_path, "kmeans", "--data", "fields.npy", "--k", 2, "--out", "r")
    np.save(tmp_path / "complex.npy", X.astype(complex))
    assert "c16" in refusal(tmp_path, "kmeans", "--data", "complex.npy", "--k", 2, "--out", "r")


@pytest.mark.parametrize(
    "kind",
    [pa.int8(), pa.uint16(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.decimal128(9, 2),
     pa.decimal256(40, 3),
     pa.string(), pa.large_string(), pa.string_view(), pa.binary_view(), pa.dictionary(pa.int8(), pa.string()),
     pa.dictionary(pa.int16(), pa.int64())],
    ids=str,
)  # fmt: skip
def test_arrow_columns_of_any_number(tmp_path, kind):
    a = pa.array([1, 1, 9, 9])
    if pa.types.is_dictionary(kind):
        column = a.cast(kind.value_type).dictionary_encode().cast(kind)
    elif kind == pa.float16():
        column = pa.array(np.array([1, 1, 9, 9], np.float16))
    elif pa.types.is_decimal(kind):
        column = pa.array([decimal.Decimal(v) for v in (1, 1, 9, 9)], kind)
    else:
        column = (
            a.cast(pa.string()).cast(pa.binary()).cast(kind)
            if kind == pa.binary_view()
            else a.cast(pa.string()).cast(kind)
            if "string" in str(kind)
            else a.cast(kind)
        )
    pq.write_table(pa.table({"a": column, "b": [2.0, 3, 8, 9]}), tmp_path / "x.bin")
    assert labels_of(tmp_path, data="x.bin") == [0, 0, 1, 1]


def test_the_index_of_pandas_is_no_feature(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 1, 9, 9] * 2, "b": [2.0, 3, 8, 9] * 2}, index=range(0, 8000, 1000))
    frame = frame.iloc[[0, 3, 1, 2, 4, 7, 5, 6]]
    frame.to_parquet(tmp_path / "x.parquet")
    frame.rename_axis("id").to_parquet(tmp_path / "named.parquet")
    expected = pd.factorize(sklearn_cluster.KMeans(2, n_init=3, random_state=0).fit_predict(frame))[0].tolist()
    for name, index in [("x.parquet", "__index_level_0__"), ("named.parquet", "id")]:
        result = dovetail("kmeans", "--data", name, "--k", 2, "--out", "run", "--fresh", folder=tmp_path)
        assert f"`{index}`" in result.stderr
        assert pd.factorize(pd.read_csv(tmp_path / "run/labels.csv").label)[0].tolist() == expected
        dovetail(
            "kmeans", "--data", name, "--k", 2, "--columns", f"a,{index}", "--out", "run", "--fresh", folder=tmp_path
        )
        assert pd.read_csv(tmp_path / "run/centres.csv").columns.tolist() == ["a", index]


def test_two_columns_of_one_name(tmp_path):
    pq.write_table(
        pa.table([[1.0, 1, 9, 9], [2.0, 3, 8, 9], [5.0, 5, 5, 5]], names=["a", "a", "b"]), tmp_path / "x.parquet"
    )
    (tmp_path / "x.csv").write_text("a,a,b\n1,2,5\n1,3,5\n9,8,5\n9,9,5\n")
    for name in ("x.parquet", "x.csv"):
        assert labels_of(tmp_path, data=name) == [0, 0, 1, 1]
        assert labels_of(tmp_path, "--columns", "1,b", data=name) == [0, 0, 1, 1]
        assert "both named" in refusal(tmp_path, "fit", "linear", "--data", name, "--target", "a", "--out", "r")
        result = dovetail_json("fit", "linear", "--data", name, "--target", 1, "--out", name + "_fit", folder=tmp_path)
        assert result["columns"] == 2


def test_bad_rows_have_one_policy(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n1,3,4\n\n9,NA\n9,8\n9,9\n1,2\n")
    error = refusal(tmp_path, "kmeans", "--data", "x.csv", "--k", 2, "--out", "r")
    assert "line 3: 3 fields, not 2" in error
    words = ["kmeans", "--data", "x.csv", "--k", 2, "--bad-values", "skip", "--out", "run"]
    result = dovetail(*words, "--json", folder=tmp_path)
    assert json.loads(result.stdout)["rows_left_out"] == 2
    assert "line 3" in result.stderr and "line 5" in result.stderr
    assert pd.read_csv(tmp_path / "run/labels.csv").row.tolist() == [0, 3, 4, 5]


def test_seconds_since_1970_keep_their_differences(tmp_path):
    t = 1_700_000_000.0 + np.array([0.0, 1, 2, 3, 40, 41, 42, 43])
    pd.DataFrame({"t": t}).to_parquet(tmp_path / "t.parquet", index=False)
    pd.DataFrame({"t": t.astype(np.int64)}).to_csv(tmp_path / "t.csv", index=False)
    np.save(tmp_path / "t.npy", t)
    oracle = sklearn_cluster.KMeans(2, n_init=3, random_state=0).fit(t[:, None])
    for name in ("t.parquet", "t.csv", "t.npy"):
        result = dovetail_json("kmeans", "--data", name, "--k", 2, "--out", "run", "--fresh", folder=tmp_path)
        assert sorted(result["counts"]) == [4, 4]
        assert result["inertia"] == pytest.approx(oracle.inertia_, rel=1e-9)
        centres = np.sort(pd.read_csv(tmp_path / "run/centres.csv").to_numpy().ravel())
        np.testing.assert_allclose(centres, np.sort(oracle.cluster_centers_.ravel()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_very_small_and_large_tables_have_the_same_clusters(tmp_path, scale):
    np.save(tmp_path / "x.npy", X * scale)
    result = dovetail_json("kmeans", "--data", "x.npy", "--k", 2, "--out", "run", folder=tmp_path)
    assert sorted(result["counts"]) == [2, 2]
    centres = np.sort(pd.read_csv(tmp_path / "run/centres.csv").to_numpy(), axis=0)
    np.testing.assert_allclose(centres, np.array([[1, 2.5], [9, 8.5]]) * scale, rtol=1e-6)
    assert result["inertia"] == pytest.approx(scale**2, rel=1e-5)


def test_a_column_that_centring_cannot_save_is_said(tmp_path):
    t = 1_700_000_000.0 + np.arange(40)
    t[0] = 0  # a missing time, as some write it
    np.save(tmp_path / "t.npy", t)
    assert "float32 rounds" in dovetail("kmeans", "--data", "t.npy", "--k", 2, "--out", "run", folder=tmp_path).stderr


def test_numbers_outside_of_float32_are_refused_or_said(tmp_path):
    np.save(tmp_path / "large.npy", X * 1e60)
    assert "beyond float32" in refusal(tmp_path, "kmeans", "--data", "large.npy", "--k", 2, "--out", "r")
    np.save(tmp_path / "small.npy", X * 1e-60)
    assert "float32 rounds" in dovetail("kmeans", "--data", "small.npy", "--k", 2, "--out", "r", folder=tmp_path).stderr


@pytest.mark.parametrize("kind", ["npy", "csv", "parquet"])
@pytest.mark.parametrize("base", [2**60, 2**63 + 2**12])
def test_integers_that_float64_cannot_hold_are_said(tmp_path, kind, base):
    t = np.array([base + i for i in (0, 1, 2, 3, 40, 41, 42, 43)], dtype=np.uint64 if base >= 2**63 else np.int64)
    assert len(np.unique(t.astype(np.float64))) < len(t)
    frame, name = pd.DataFrame({"t": t, "y": np.arange(8.0)}), f"t.{kind}"
    if kind == "npy":
        np.save(tmp_path / name, t)
    else:
        getattr(frame, {"csv": "to_csv", "parquet": "to_parquet"}[kind])(tmp_path / name, index=False)
        fit = dovetail("fit", "linear", "--data", name, "--target", "t", "--out", "fit", folder=tmp_path)
        assert "`t`: float64 rounds its numbers" in fit.stderr
    assert "7 of 7" in dovetail("kmeans", "--data", name, "--k", 1, "--out", "run", folder=tmp_path).stderr


@pytest.mark.parametrize("step", [1 << 20, 1 << 40])
def test_integers_whose_rounding_changes_nothing_are_not(tmp_path, step):
    np.save(tmp_path / "t.npy", np.int64(2**60) + np.array([0, 1, 2, 3, 40, 41, 42, 43]) * step + 1)
    result = dovetail("kmeans", "--data", "t.npy", "--k", 2, "--out", "run", folder=tmp_path)
    assert "rounded" not in result.stderr
    assert len(set(pd.read_csv(tmp_path / "run/labels.csv").label[:4])) == 1


def test_a_linear_target_with_a_large_offset(tmp_path):
    x = np.arange(12.0)
    pd.DataFrame({"x": x.astype(int), "y": 1_000_000_000 + 2 * x.astype(int)}).to_csv(tmp_path / "x.csv", index=False)
    result = dovetail_json("fit", "linear", "--data", "x.csv", "--target", "y", "--out", "run", folder=tmp_path)
    coefficients = pd.read_csv(tmp_path / "run/coefficients.csv")
    assert coefficients.x[0] == pytest.approx(2, rel=1e-12)
    assert coefficients.intercept[0] == pytest.approx(1e9, rel=1e-12)
    assert result["r2"] == pytest.approx(1, abs=1e-12)


def test_a_linear_feature_with_a_large_offset_is_that_of_scikit_learn(tmp_path):
    random = np.random.default_rng(0)
    x = np.stack([1.7e9 + np.arange(200.0), random.normal(0, 1, 200)], 1)
    y = 3 * (x[:, 0] - 1.7e9) - x[:, 1]
    pd.DataFrame({"t": x[:, 0], "u": x[:, 1], "y": y}).to_parquet(tmp_path / "x.parquet", index=False)
    dovetail("fit", "linear", "--data", "x.parquet", "--target", "y", "--out", "run", folder=tmp_path)
    found = pd.read_csv(tmp_path / "run/coefficients.csv").iloc[0]
    oracle = linear_model.LinearRegression().fit(x, y)
    np.testing.assert_allclose(found[["t", "u"]], oracle.coef_, rtol=1e-6)
    assert found.intercept == pytest.approx(oracle.intercept_, rel=1e-6)


def sku_table(names):
    rows = [(c * 4 + d, c * 3 - d, names[c]) for c in range(3) for d in (0, 0.1, 0.2, 0.3)]
    return pd.DataFrame(rows, columns=["x", "y", "sku"])


@pytest.mark.parametrize(
    "names",
    [[2**24, 2**24 + 1, 2**24 + 2], [2**62, 2**62 + 1, 2**62 + 2], [-(2**60), -(2**60) + 1, 7], ["a", "b, c", "ü"]],
    ids=["2^24", "2^62", "signed", "texts"],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_classes_are_exact(tmp_path, names, suffix):
    frame = sku_table(names)
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "x.parquet", index=False)
    result = dovetail_json(
        "fit", "logistic", "--data", f"x.{suffix}", "--target", "sku", "--out", "run", folder=tmp_path
    )
    oracle = linear_model.LogisticRegression().fit(frame[["x", "y"]], frame.sku)
    assert result["classes"] == oracle.classes_.tolist()
    assert result["accuracy"] == oracle.score(frame[["x", "y"]], frame.sku) == 1
    table = pd.read_csv(tmp_path / "run/coefficients.csv")
    assert table["class"].tolist() == names
    np.testing.assert_allclose(table[["x", "y"]], oracle.coef_, atol=1e-3)


def test_uint64_classes_beyond_int64(tmp_path):
    names = [2**63, 2**63 + 1, 2**64 - 1]
    frame = sku_table(names).astype({"sku": "uint64"})
    frame.to_parquet(tmp_path / "x.parquet", index=False)
    result = dovetail_json("fit", "logistic", "--data", "x.parquet", "--target", "sku", "--out", "run", folder=tmp_path)
    assert result["classes"] == names


@pytest.mark.parametrize("offset", [0.0, 1.7e9])
def test_mixtures_and_components_do_not_see_an_offset(tmp_path, offset):
    decomposition = pytest.importorskip("sklearn.decomposition")
    random = np.random.default_rng(3)
    x = random.normal(0, 1, (400, 2)) * [3, 1]
    x[200:] += [40, 0]
    np.save(tmp_path / "x.npy", x + np.array([offset, 0]))
    result = dovetail_json("fit", "gmm", "--data", "x.npy", "--k", 2, "--out", "gmm", folder=tmp_path)
    assert sorted(result["counts"]) == [200, 200]
    means = pd.read_csv(tmp_path / "gmm/means.csv").sort_values("c0").to_numpy()
    np.testing.assert_allclose(means - [offset, 0], [x[:200].mean(0), x[200:].mean(0)], atol=1e-4)
    found = dovetail_json("fit", "pca", "--data", "x.npy", "--components", 2, "--out", "pca", folder=tmp_path)
    oracle = decomposition.PCA(2).fit(x)
    np.testing.assert_allclose(found["shares"], oracle.explained_variance_ratio_, rtol=1e-5)
    mean = pd.read_csv(tmp_path / "pca/mean.csv").to_numpy()[0]
    np.testing.assert_allclose(mean - [offset, 0], oracle.mean_, atol=1e-5)


ROWS = """[run]
name = "clicks"
[recommender]
model = "dlrm"
dim = 4
bottom = [8]
deep = [8]
[rows]
files = {files}
label = "label"
{more}
[[rows.dense]]
columns = ["price"]
[[rows.sparse]]
columns = ["user"]
num_rows = 32
[precision]
recipe = "fp32"
[train]
steps = 2
batch = 8
"""


def clicks(users=None, n=64):
    return pd.DataFrame(
        {"label": [i % 2 for i in range(n)], "user": users if users is not None else [f"u{i % 7}" for i in range(n)],
         "price": [float(i) for i in range(n)]}
    )  # fmt: skip


def losses(folder, *files, more=""):
    (folder / "run.toml").write_text(ROWS.format(files=json.dumps(list(files)), more=more))
    out = "-".join(["run", *files, *(["more"] if more else [])])
    dovetail("train", "run.toml", "--set", f"run.folder={out}", folder=folder)
    lines = [json.loads(line) for line in next((folder / out).glob("metrics.jsonl")).read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def test_rows_are_read_alike_in_any_dress(tmp_path):
    frame = clicks()
    text = frame.to_csv(index=False)
    (tmp_path / "plain.csv").write_text(text)
    expected = losses(tmp_path, "plain.csv")
    (tmp_path / "blank.csv").write_text("\n" + text.replace("\n3,", "\n\n3,") + "\n\n")
    (tmp_path / "PACKED.CSV.GZ").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "packed.csv.zst").write_bytes(zstd(text.encode()))
    (tmp_path / "wide.csv").write_bytes(text.encode("utf-16"))
    for name in ("blank.csv", "PACKED.CSV.GZ", "packed.csv.zst", "wide.csv"):
        assert losses(tmp_path, name) == expected, name
    frame.to_csv(tmp_path / "comma.csv", index=False, sep=";", decimal=",")
    assert losses(tmp_path, "comma.csv", more='delimiter = ";"\ndecimal = ","') == expected
    table = pa.Table.from_pandas(frame, preserve_index=False)
    kinds = {"view": pa.string_view(), "large": pa.large_string(), "words": pa.dictionary(pa.int8(), pa.string())}
    for name, kind in kinds.items():
        pq.write_table(
            table.set_column(1, "user", table["user"].combine_chunks().cast(kind)), tmp_path / f"{name}.parquet"
        )
        assert losses(tmp_path, f"{name}.parquet") == expected, name
    pq.write_table(table.select(["price", "user", "label"]), tmp_path / "order.PARQUET")
    assert losses(tmp_path, "order.PARQUET") == expected


def test_large_dense_numbers_warn_unless_they_are_centred(tmp_path):
    frame = clicks()
    frame["price"] += 1.7e9
    frame.to_parquet(tmp_path / "x.parquet", index=False)
    (tmp_path / "run.toml").write_text(ROWS.format(files='["x.parquet"]', more=""))
    assert "float32 rounds" in dovetail("train", "run.toml", "--set", "run.folder=a", folder=tmp_path).stderr
    (tmp_path / "run.toml").write_text(
        ROWS.format(files='["x.parquet"]', more="").replace('["price"]', '["price"]\ntransform = "standard"')
    )
    assert "float32 rounds" not in dovetail("train", "run.toml", "--set", "run.folder=b", folder=tmp_path).stderr


def test_ids_of_uint64_are_those_of_their_text(tmp_path):
    ids = np.array([2**63 + 12345 * (i % 7) for i in range(64)], np.uint64)
    clicks(ids).to_parquet(tmp_path / "x.parquet", index=False)
    clicks(ids).to_csv(tmp_path / "x.csv", index=False)
    clicks((ids - 2**63).astype(np.uint64)).to_parquet(tmp_path / "small.parquet", index=False)
    clicks((ids - 2**63).astype(np.int64)).to_parquet(tmp_path / "signed.parquet", index=False)
    assert losses(tmp_path, "x.parquet") == losses(tmp_path, "x.csv")
    assert losses(tmp_path, "small.parquet") == losses(tmp_path, "signed.parquet")


def test_a_shard_without_any_user_and_two_columns_of_one_name(tmp_path):
    table = pa.Table.from_pandas(clicks(), preserve_index=False)
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table.set_column(1, "user", pa.nulls(64)), tmp_path / "b.parquet")
    assert len(losses(tmp_path, "a.parquet", "b.parquet")) > 0
    twice = pa.table(
        [table["label"], table["user"], table["price"], table["user"]], names=["label", "user", "price", "user"]
    )
    pq.write_table(twice, tmp_path / "twice.parquet")
    (tmp_path / "run.toml").write_text(ROWS.format(files='["twice.parquet"]', more=""))
    assert "two columns `user`" in refusal(tmp_path, "train", "run.toml")
    other = pa.table([table["label"], table["user"], table["price"], table["user"], table["user"]],
                     names=["label", "user", "price", "b", "b"])  # fmt: skip
    pq.write_table(other, tmp_path / "unused.parquet")
    assert losses(tmp_path, "unused.parquet") == losses(tmp_path, "a.parquet")


def rows_of(folder, name, *words):
    """The rows that `kmeans` read, in file order: each is its own cluster."""
    words = ["kmeans", "--data", name, "--k", 4, "--init", "first", "--out", "rows", "--fresh", *words]
    result = dovetail(*words, folder=folder)
    return result.stderr, pd.read_csv(folder / "rows/centres.csv")


def test_row_names_without_a_name_are_no_feature(tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b"], index=[30, 10, 20, 0])
    frame.to_csv(tmp_path / "x.csv")
    said, rows = rows_of(tmp_path, "x.csv")
    assert "column 0 (``)" in said and "--columns names it" in said
    pd.testing.assert_frame_equal(
        rows, pd.read_csv(tmp_path / "x.csv", index_col=0).reset_index(drop=True), check_dtype=False
    )
    assert rows_of(tmp_path, "x.csv", "--columns", "0,a")[1].iloc[:, 0].tolist() == [30, 10, 20, 0]
    frame.set_index([[1, 1, 2, 2], [7, 8, 7, 8]]).rename_axis([None, None]).to_csv(tmp_path / "two.csv")
    assert rows_of(tmp_path, "two.csv")[1].columns.tolist() == ["a", "b"]


@pytest.mark.parametrize("words", [["True", "False"], ["true", "false"], ["TRUE", "FALSE"]])
def test_truths_in_a_text_are_the_numbers_that_parquet_gives(tmp_path, words):
    truths = [words[0], words[1], words[1], words[0]]
    (tmp_path / "x.csv").write_text("a,b\n" + "".join(f"{t},{i}\n" for i, t in enumerate(truths)))
    frame = pd.read_csv(tmp_path / "x.csv")
    assert frame.a.dtype == bool
    frame.to_parquet(tmp_path / "x.parquet")
    for name in ("x.csv", "x.parquet"):
        np.testing.assert_array_equal(rows_of(tmp_path, name)[1].to_numpy(), frame.to_numpy(float))


def test_words_for_a_missing_value_are_those_of_pandas(tmp_path):
    words = ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A",
             "NA", "NULL", "NaN", "None", "n/a", "nan", "null"]  # fmt: skip
    lines = [f"{i},{w}" for i, w in enumerate(words)] + [f"{i},{'uv'[i % 2]}" for i in range(30)]
    (tmp_path / "x.csv").write_text("x,y\n" + "\n".join(lines) + "\n")
    assert pd.read_csv(tmp_path / "x.csv").y.isna().sum() == len(words)
    for policy in ("skip", "zero"):
        options = ["--data", "x.csv", "--target", "y", "--bad-values", policy, "--out", policy]
        result = dovetail_json("fit", "logistic", *options, folder=tmp_path)
        assert result["classes"] == ["u", "v"] and result["rows"] == 30 and result["rows_left_out"] == len(words)


@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_a_missing_target_is_never_made_up(tmp_path, model):
    frame = pd.DataFrame({"x": np.arange(12.0), "y": [3.0] * 6 + [4.0] * 6})
    frame.loc[5, "y"] = np.nan
    frame.loc[2, "x"] = np.nan
    frame.to_csv(tmp_path / "x.csv", index=False)
    options = ["--data", "x.csv", "--target", "y", "--bad-values", "zero", "--out", "run"]
    result = dovetail("fit", model, *options, folder=tmp_path)
    assert "0 in place of features, 1 rows without target left out" in result.stderr
    kept = frame.dropna(subset="y").fillna(0)
    found = pd.read_csv(tmp_path / "run/coefficients.csv")
    if model == "linear":
        oracle = linear_model.LinearRegression().fit(kept[["x"]], kept.y)
        np.testing.assert_allclose(found[["intercept", "x"]], [[oracle.intercept_, oracle.coef_[0]]], rtol=1e-6)
    else:
        oracle = linear_model.LogisticRegression(tol=1e-8).fit(kept[["x"]], kept.y)
        assert found["class"].tolist() == [4]
        np.testing.assert_allclose(found[["x"]], oracle.coef_, rtol=1e-3)


@pytest.mark.parametrize("digits", [0, 2])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_decimals_that_float64_cannot_hold_are_said_and_are_exact_as_classes(tmp_path, suffix, digits):
    with decimal.localcontext(prec=40):
        values = [decimal.Decimal(3 * 10**25 + i).scaleb(-digits) for i in range(12)]
        names = [decimal.Decimal(3 * 10**25 + i // 4).scaleb(-digits) for i in range(12)]
    assert len({float(v) for v in values}) == 1
    kind = pa.decimal128(38, digits)
    table = pa.table({"x": np.arange(12.0), "v": pa.array(values, kind), "c": pa.array(names, kind)})
    pq.write_table(table, tmp_path / "x.parquet")
    table.to_pandas().to_csv(tmp_path / "x.csv", index=False)
    name = f"x.{suffix}"
    said = dovetail("kmeans", "--data", name, "--columns", "v", "--k", 1, "--out", "k", folder=tmp_path).stderr
    assert "`v`: float64 rounds its numbers" in said and "11 of 11" in said
    options = ["--columns", "x", "--target", "c", "--out", "run"]
    result = dovetail_json("fit", "logistic", "--data", name, *options, folder=tmp_path)
    assert [decimal.Decimal(c) for c in result["classes"]] == sorted(set(names))


def test_a_comma_is_explained_by_both_readings(tmp_path):
    (tmp_path / "x.csv").write_text('a,b\n"1,000",2\n')
    assert "--decimal , reads it as 1. If the comma separates thousands, take it out" in refusal(
        tmp_path, "kmeans", "--data", "x.csv", "--k", 1, "--out", "r"
    )
    (tmp_path / "y.csv").write_text("a;b\n1,5;2\n")
    error = refusal(tmp_path, "kmeans", "--data", "y.csv", "--k", 1, "--out", "r")
    assert "for a decimal comma give --decimal ," in error and "thousands" not in error


def test_names_and_classes_that_are_not_utf8_are_refused(tmp_path):
    (tmp_path / "x.csv").write_bytes("größe,b\n1,2\n1,3\n".encode("latin-1"))
    with pytest.raises(UnicodeDecodeError):
        pd.read_csv(tmp_path / "x.csv")
    error = refusal(tmp_path, "kmeans", "--data", "x.csv", "--k", 1, "--out", "r")
    assert "is not UTF-8" in error and "iconv" in error
    (tmp_path / "y.csv").write_bytes("x,y\n1,é\n2,è\n3,u\n".encode("latin-1"))
    assert "is not UTF-8" in refusal(tmp_path, "fit", "logistic", "--data", "y.csv", "--target", "y", "--out", "r")


def feather(frame):
    sink = io.BytesIO()
    frame.to_feather(sink)
    return sink.getvalue()


def zipped(members):
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name in members:
            archive.writestr(name, CSV)
    return sink.getvalue()


def saved(x, **options):
    sink = io.BytesIO()
    np.save(sink, x, **options)
    return sink.getvalue()


FRAME = pd.DataFrame(X, columns=["a", "b"])
OTHERS = {
    "x.csv.xz": (lambda: lzma.compress(CSV.encode()), "xz", "xz -dk"),
    "x.feather": (lambda: feather(FRAME), "Feather", "read_feather"),
    "x.pkl": (lambda: pickle.dumps(FRAME), "pickle", "read_pickle"),
    "x.png": (lambda: b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "PNG", "leave it out"),
    "x.zip": (lambda: zipped(["d.csv"]), "only d.csv", "unzip"),
    "x.xlsx": (lambda: zipped(["[Content_Types].xml", "xl/workbook.xml"]), "Excel", "read_excel"),
    "x.pt": (lambda: zipped(["x/data.pkl", "x/data/0"]), "torch.save", "numpy.save"),
    "x.json": (lambda: FRAME.to_json(orient="records").encode(), "JSON", "read_json"),
    "x.jsonl": (lambda: FRAME.to_json(orient="records", lines=True).encode(), "JSON", "lines=True"),
    "page.csv": (lambda: b"<!DOCTYPE html>\n<html><body>Not, found</body></html>\n", "HTML", "again"),
    "lfs.csv": (lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n", "Git LFS",
                "git lfs pull"),
    "zero.npy": (lambda: saved(np.array(3.0)), "0 dimensions", "reshape"),
    "cube.npy": (lambda: saved(np.zeros((2, 2, 2))), "3 dimensions", "reshape"),
    "fields.npy": (lambda: saved(np.zeros(4, dtype=[("a", "f4")])), "fields", "structured_to_unstructured"),
    "words.npy": (lambda: saved(np.array([["1", "2"]])), "U1", "astype(float)"),
    "objects.npy": (lambda: saved(np.array([[1, 2]], object), allow_pickle=True), "type O", "astype(float)"),
    "header.csv": (lambda: b"a,b\n", "there are no rows", "rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_named_with_a_way_on(tmp_path, name):
    content, what, help = OTHERS[name]
    (tmp_path / name).write_bytes(content())
    error = refusal(tmp_path, "kmeans", "--data", name, "--k", 2, "--out", "r")
    assert what in error and help in error.split("help:")[1]


def test_what_the_help_says_is_read(tmp_path):
    x = np.arange(8.0).reshape(2, 2, 2)
    np.save(tmp_path / "a.npy", x.reshape(len(x), -1))
    fields = np.array([(1.5, 2), (1, 3), (9, 8), (9, 9)], dtype=[("a", "f4"), ("b", "i4")])
    np.save(tmp_path / "b.npy", structured_to_unstructured(fields))
    np.save(tmp_path / "c.npy", X.astype(str).astype(float))
    dovetail("kmeans", "--data", "a.npy", "--k", 2, "--out", "r", folder=tmp_path)
    for name in ("b.npy", "c.npy"):
        assert labels_of(tmp_path, data=name) == [0, 0, 1, 1]
    table = pa.table({"a": pa.array(X.tolist(), pa.list_(pa.float32(), 2)), "b": [1.0, 2, 3, 4]})
    pq.write_table(table, tmp_path / "lists.parquet")
    error = refusal(tmp_path, "kmeans", "--data", "lists.parquet", "--k", 2, "--bad-values", "zero", "--out", "r")
    assert "holds lists" in error and "numpy.stack" in error
    np.save(tmp_path / "d.npy", np.stack(pd.read_parquet(tmp_path / "lists.parquet").a))
    assert labels_of(tmp_path, data="d.npy") == [0, 0, 1, 1]
    dovetail("kmeans", "--data", "lists.parquet", "--k", 2, "--drop-columns", 0, "--out", "r2", folder=tmp_path)
    sparse = pytest.importorskip("scipy.sparse")
    sparse.save_npz(tmp_path / "s.npz", sparse.csr_matrix(X))
    assert "SciPy" in refusal(tmp_path, "kmeans", "--data", "s.npz", "--k", 2, "--out", "r")
    np.save(tmp_path / "s.npy", sparse.load_npz(tmp_path / "s.npz").toarray())
    assert labels_of(tmp_path, data="s.npy") == [0, 0, 1, 1]


def test_a_pipe_and_a_folder_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "x.csv")
    (tmp_path / "folder").mkdir()
    for name, words in [("x.csv", "a pipe or a device"), ("/dev/null", "a pipe or a device"), ("folder", "a folder")]:
        error = refusal(tmp_path, "kmeans", "--data", name, "--k", 2, "--out", "r")
        assert words in error and "help:" in error


def test_rows_find_their_delimiter(tmp_path):
    frame = clicks()
    frame.to_csv(tmp_path / "plain.csv", index=False)
    expected = losses(tmp_path, "plain.csv")
    for name, delimiter in [
        ("a.csv", ";"),
        ("b.csv", "\t"),
        ("c.txt", ","),
        ("d.dat", "|"),
        ("e", ";"),
        ("f.tsv", ","),
    ]:
        frame.to_csv(tmp_path / name, index=False, sep=delimiter)
        assert losses(tmp_path, name) == expected, name
        # The named delimiter reads the same.
        named = "\\t" if delimiter == "\t" else delimiter
        assert losses(tmp_path, name, more=f'delimiter = "{named}"') == expected, name
    (frame.assign(price=frame.price + 0.5)).to_csv(tmp_path / "half.csv", index=False)
    (frame.assign(price=frame.price + 0.5)).to_csv(tmp_path / "comma.csv", index=False, sep=";", decimal=",")
    assert losses(tmp_path, "comma.csv", more='decimal = ","') == losses(tmp_path, "half.csv")
    # A tab stays the delimiter of a .tsv whose lists have commas.
    frame.assign(user=[f"u{i},v{i}" for i in range(64)]).to_csv(tmp_path / "list.tsv", index=False, sep="\t")
    assert len(losses(tmp_path, "list.tsv")) > 0
    frame.label.to_csv(tmp_path / "one.txt", index=False)
    (tmp_path / "run.toml").write_text(ROWS.format(files='["one.txt"]', more=""))
    assert "rows.delimiter names" in refusal(tmp_path, "train", "run.toml")


def test_truths_are_labels(tmp_path):
    clicks().to_csv(tmp_path / "numbers.csv", index=False)
    clicks().assign(label=clicks().label == 1).to_csv(tmp_path / "truths.csv", index=False)
    assert losses(tmp_path, "truths.csv") == losses(tmp_path, "numbers.csv")


@pytest.mark.parametrize("name", ["x.feather", "x.csv.xz", "x.zip", "x.jsonl", "page.csv", "lfs.csv"])
def test_rows_name_other_files_with_a_way_on(tmp_path, name):
    content, what, help = OTHERS[name]
    (tmp_path / name).write_bytes(content())
    (tmp_path / "run.toml").write_text(ROWS.format(files=json.dumps([name]), more=""))
    error = refusal(tmp_path, "train", "run.toml")
    assert (what in error or name == "x.zip") and help in error.split("help:")[1]


def test_a_finished_run_does_not_take_other_files_for_its_own(tmp_path):
    clicks().to_csv(tmp_path / "a.csv", index=False)
    clicks().assign(price=7.0).to_csv(tmp_path / "b.csv", index=False)
    losses(tmp_path, "a.csv")
    words = ["train", "run.toml", "--set", "run.folder=run-a.csv"]
    dovetail(*words, folder=tmp_path)
    assert 'is "b.csv"' in refusal(tmp_path, *words, "--set", 'rows.files=["b.csv"]')
    more = dovetail(*words, "--set", 'rows.files=["b.csv"]', "--set", "train.steps=4", folder=tmp_path)
    assert "from step 3 on" in more.stderr and "rows.files" in more.stderr


def fitted_classes(folder, name, *words):
    result = dovetail_json(
        "fit", "logistic", "--data", name, "--target", "y", "--out", "fit", "--fresh", *words, folder=folder
    )
    return result["classes"], pd.read_csv(folder / "fit/coefficients.csv", dtype=str, keep_default_na=False)["class"]


TEXTS = {
    "versions": ["1.1", "1.10", "v2"],
    "zips": ["00501", "501", "x"],
    "forms": ["1e3", "1000", "1_0"],
    "blanks": ["a", " a", "a "],
    "words": ["NA", "None", ""],
    "truths": [True, False, True],
    "digits": ["1.1", "1.10", "01"],
}


# In a text, words are missing and digits are numbers.
@pytest.mark.parametrize(
    ("kind", "suffix"),
    [*((kind, ".parquet") for kind in TEXTS), *((kind, ".csv") for kind in TEXTS if kind not in ("words", "digits"))],
)
def test_texts_are_the_classes_of_scikit_learn(tmp_path, kind, suffix):
    frame = pd.DataFrame({"x": np.tile([0.0, 1, 3], 20), "y": np.tile(TEXTS[kind], 20)})
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "x.parquet")
    oracle = linear_model.LogisticRegression().fit(frame[["x"]], frame.y)
    classes, rows = fitted_classes(tmp_path, f"x{suffix}")
    wanted = [str(c) for c in oracle.classes_.tolist()]
    assert classes == wanted and rows.tolist() == (wanted[1:] if len(wanted) == 2 else wanted)


def test_numbers_of_a_text_are_one_class_in_any_form(tmp_path):
    (tmp_path / "x.csv").write_text("x,y\n" + "0,1\n1,1.0\n3, 2\n4,2e0\n" * 8)
    oracle = pd.read_csv(tmp_path / "x.csv").y.unique()
    assert fitted_classes(tmp_path, "x.csv")[0] == oracle.tolist() == [1, 2]


@pytest.mark.parametrize("quoting", [1, 2])  # all, all but numbers
def test_quotes_between_tabs_are_read_as_pandas_does(tmp_path, quoting):
    frame = pd.DataFrame({"a": X[:, 0], "b\tc": X[:, 1], "d": ["1", "2", "3", "4"]})
    frame.to_csv(tmp_path / "x.tsv", sep="\t", index=False, quoting=quoting)
    assert_rows_of_pandas(tmp_path, "x.tsv", sep="\t")


def assert_rows_of_pandas(folder, name, words=(), **options):
    """Holds rows and columns against pandas.read_csv(**options). Each row is a cluster of its own."""
    rows = rows_of(folder, name, *words)[1]
    wanted = pd.read_csv(folder / name, **options).reset_index(drop=True)
    wanted.columns = [str(column) for column in wanted.columns]
    pd.testing.assert_frame_equal(rows, wanted, check_dtype=False)


def test_columns_that_pandas_numbers_are_names(tmp_path):
    frame = pd.DataFrame(X)
    for index in [True, False]:
        frame.to_csv(tmp_path / "x.csv", index=index)
        assert_rows_of_pandas(tmp_path, "x.csv", index_col=0 if index else None)
    assert "--header no" in rows_of(tmp_path, "x.csv")[0]
    (tmp_path / "y.csv").write_text("2019,2020\n1,2\n1,3\n9,8\n9,9\n")
    assert "--header yes" in dovetail("kmeans", "--data", "y.csv", "--k", 2, folder=tmp_path).stderr
    assert_rows_of_pandas(tmp_path, "y.csv", words=["--header", "yes"])
    (tmp_path / "z.csv").write_text("0,1\n1,3\n9,8\n9,9\n")
    rows = rows_of(tmp_path, "z.csv", "--header", "no")[1]
    assert rows.to_numpy().tolist() == pd.read_csv(tmp_path / "z.csv", header=None).to_numpy().tolist()
    np.save(tmp_path / "x.npy", X)
    assert "--header are for text" in refusal(tmp_path, "kmeans", "--data", "x.npy", "--k", 2, "--header", "no")


# utils::write.table and write.csv of R 4 name no column for row names and put texts in quotes.
R_TABLES = {
    "blanks.txt": '"a" "b"\n"1" 1 2\n"2" 1 3\n"row 3" 9 8\n"4" 9 9\n',
    "tabs.tsv": '"a"\t"b"\n"1"\t1\t2\n"2"\t1\t3\n"3"\t9\t8\n"4"\t9\t9\n',
    "commas.csv": '"a","b"\n"1",1,2\n"2",1,3\n"3",9,8\n"4",9,9\n',
    "named.csv": '"","a","b"\n"1",1,2\n"2",1,3\n"3",9,8\n"4",9,9\n',
}


@pytest.mark.parametrize("name", R_TABLES)
def test_row_names_of_r_are_no_feature(tmp_path, name):
    (tmp_path / name).write_text(R_TABLES[name])
    assert "an index of pandas or R" in rows_of(tmp_path, name)[0]
    sep = {"blanks.txt": r"\s+", "tabs.tsv": "\t"}.get(name, ",")
    assert_rows_of_pandas(tmp_path, name, sep=sep, index_col=0)


def test_a_delimiter_at_the_end_of_each_line_is_no_row_name(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2,\n1,3,\n9,8,\n9,9,\n")
    assert "3 fields, not 2" in refusal(tmp_path, "kmeans", "--data", "x.csv", "--k", 2)


@pytest.mark.parametrize("first", ["sep=;\n", '"sep=;"\r\n', "# made by a tool\n# in May\n"])
def test_lines_before_the_header(tmp_path, first):
    (tmp_path / "x.csv").write_text(first + CSV.replace(",", ";"))
    assert_rows_of_pandas(tmp_path, "x.csv", sep=";", skiprows=first.count("\n"))
    (tmp_path / "one.csv").write_text("#a\n1\n2\n3\n9\n")
    assert rows_of(tmp_path, "one.csv")[1].columns.tolist() == ["#a"]


def test_centres_are_matched_by_name(tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b"])
    frame.to_csv(tmp_path / "x.csv", index=False)
    words = ["kmeans", "--data", "x.csv", "--k", 2, "--iterations", 1, "--fresh", "--init"]
    centres = pd.DataFrame([[1.0, 9], [8, 1]], columns=["a", "b"])
    found = []
    for table in [centres, centres[["b", "a"]]]:
        table.to_csv(tmp_path / "start.csv", index=False)
        dovetail(*words, "start.csv", "--out", "run", folder=tmp_path)
        found.append((tmp_path / "run/centres.csv").read_text())
    assert found[0] == found[1]
    oracle = sklearn_cluster.KMeans(2, init=centres.to_numpy(), n_init=1, max_iter=1).fit(X)
    np.testing.assert_allclose(pd.read_csv(tmp_path / "run/centres.csv").to_numpy(), oracle.cluster_centers_)
    for data, start, code in [
        (["c1", "c0"], ["c0", "c1"], 0),
        (["c0", "c1"], ["c1", "c0"], 0),
        (["c0", "c1"], ["x", "y"], 0),  # the data may have no names
        (["c0", "c1"], ["c0", "c2"], 2),
    ]:
        frame.set_axis(data, axis=1).to_csv(tmp_path / "named.csv", index=False)
        table = centres.set_axis(data, axis=1)
        table = table[start] if set(start) == set(data) else table.set_axis(start, axis=1)
        table.to_csv(tmp_path / "start.csv", index=False)
        named = [word if word != "x.csv" else "named.csv" for word in words]
        dovetail(*named, "start.csv", "--out", "run", folder=tmp_path, code=code)
        assert (tmp_path / "run/centres.csv").read_text().splitlines()[1:] == found[0].splitlines()[1:]
    centres.rename(columns={"b": "c"}).to_csv(tmp_path / "start.csv", index=False)
    assert "no column of start.csv is named b" in refusal(tmp_path, *words, "start.csv")
    np.save(tmp_path / "start.npy", centres)
    dovetail(*words, "start.npy", "--out", "run", folder=tmp_path)
    assert (tmp_path / "run/centres.csv").read_text() == found[0]


def test_columns_are_named_by_name_or_place_everywhere(tmp_path):
    frame = pd.DataFrame(np.c_[X, X[:, ::-1]], columns=["1", "0", "a,b", "c"])
    frame.to_csv(tmp_path / "x.csv", index=False)
    for words, names in [
        (["--columns", "0"], ["0"]),
        (["--drop-columns", "0"], ["1", "a,b", "c"]),
        (["--columns", '"a,b",c'], ["a,b", "c"]),
        (["--drop-columns", 'c,"a,b"'], ["1", "0"]),
        (["--columns", "2,3"], ["a,b", "c"]),
    ]:
        assert rows_of(tmp_path, "x.csv", *words)[1].columns.tolist() == names
    for option in ["--columns", "--drop-columns", "--init"]:
        assert f"{option} is empty" in refusal(tmp_path, "kmeans", "--data", "x.csv", "--k", 2, option, "")
    assert "text after a closing quote" in refusal(tmp_path, "kmeans", "--data", "x.csv", "--k", 2, "--columns", '"a"b')


@pytest.mark.parametrize("scale", [1e-200, 1e200, 1e-310])
def test_a_linear_target_of_any_size_has_the_same_r2(tmp_path, scale):
    random = np.random.default_rng(0)
    x = random.normal(0, 1, (50, 2))
    y = x @ [1, 2] + random.normal(0, 0.5, 50)
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y * scale}).to_csv(tmp_path / "x.csv", index=False)
    words = ["fit", "linear", "--data", "x.csv", "--target", "y", "--out", "run"]
    result = dovetail_json(*words, folder=tmp_path)
    oracle = linear_model.LinearRegression().fit(x, y)
    assert result["r2"] == pytest.approx(oracle.score(x, y), rel=1e-6)
    rmse = np.sqrt(np.mean((oracle.predict(x) - y) ** 2))
    assert result["rmse"] / scale == pytest.approx(rmse, rel=1e-6)
    found = pd.read_csv(tmp_path / "run/coefficients.csv")
    np.testing.assert_allclose(found[["a", "b"]].to_numpy()[0] / scale, oracle.coef_, rtol=1e-5)


def test_rows_read_texts_of_other_programs(tmp_path):
    frame = clicks()
    frame.to_csv(tmp_path / "plain.csv", index=False)
    frame.to_csv(tmp_path / "quoted.tsv", index=False, sep="\t", quoting=1)
    plain = (tmp_path / "plain.csv").read_text()
    (tmp_path / "excel.csv").write_text("sep=;\n" + plain.replace(",", ";"))
    (tmp_path / "comment.csv").write_text("# from a tool\n" + plain)
    head, *rows = plain.splitlines()
    (tmp_path / "r.csv").write_text("\n".join([head, *(f"{i},{row}" for i, row in enumerate(rows))]) + "\n")
    wanted = losses(tmp_path, "plain.csv")
    for name in ["quoted.tsv", "excel.csv", "comment.csv", "r.csv"]:
        assert losses(tmp_path, name) == wanted, name


def test_dates_are_refused_with_a_way_on(tmp_path):
    days = pd.to_datetime(["2020-01-01", "2020-01-02", "2021-01-01", "2021-01-02"]).to_series()
    frame = pd.DataFrame({"t": days, "d": days.dt.date, "s": days - days.iloc[0], "x": X[:, 0]})
    words = ["kmeans", "--k", 2, "--out", "run", "--fresh", "--data"]
    ways = {
        "t": ('column.astype("datetime64[s]").astype("int64")', days.astype("datetime64[s]").astype("int64")),
        "d": ("column.astype(str)", None),
        "s": ("column.dt.total_seconds()", frame.s.dt.total_seconds()),
    }
    for name, (way, numbers) in ways.items():
        frame[[name, "x"]].to_parquet(tmp_path / "x.parquet", index=False)
        error = refusal(tmp_path, *words, "x.parquet")
        assert f"column 0 (`{name}`) holds" in error and way in error and "--drop-columns 0" in error
        dovetail(*words, "x.parquet", "--drop-columns", 0, folder=tmp_path)
        if numbers is not None:
            frame[["x"]].assign(n=numbers).to_parquet(tmp_path / "x.parquet", index=False)
            dovetail(*words, "x.parquet", folder=tmp_path)
    frame[["t", "x"]].to_csv(tmp_path / "x.csv", index=False)
    assert "write dates as numbers" in refusal(tmp_path, *words, "x.csv")


@pytest.mark.parametrize(
    "users",
    [
        [i % 3 == 0 for i in range(64)],
        [["a", "", "b"][i % 3] for i in range(64)],
        [["a", None, "b"][i % 3] for i in range(64)],
        [2**63 + i % 7 for i in range(64)],
        [-(i % 7) for i in range(64)],
    ],
    ids=["truths", "empty", "missing", "uint64", "negative"],
)
def test_ids_are_alike_in_csv_and_parquet(tmp_path, users):
    frame = clicks(users)
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "x.parquet", index=False)
    assert losses(tmp_path, "x.csv") == losses(tmp_path, "x.parquet")


def test_integers_that_pandas_made_floats(tmp_path):
    users = [i % 7 if i else None for i in range(64)]
    clicks(pd.array(users, dtype="Int64")).to_csv(tmp_path / "whole.csv", index=False)
    frame = clicks(users)
    frame.to_csv(tmp_path / "float.csv", index=False)
    frame.to_parquet(tmp_path / "float.parquet", index=False)
    assert losses(tmp_path, "float.parquet") == losses(tmp_path, "whole.csv")
    integer = ROWS.replace('columns = ["user"]', 'columns = ["user"]\nids = "integer"')
    assert integer != ROWS
    for name in ["whole.csv", "float.csv", "float.parquet"]:
        (tmp_path / "run.toml").write_text(integer.format(files=json.dumps([name]), more=""))
        dovetail("train", "run.toml", "--set", f"run.folder=i-{name}", folder=tmp_path)
    found = [(tmp_path / f"i-{name}/metrics.jsonl").read_text() for name in ["whole.csv", "float.csv", "float.parquet"]]
    assert found[0] == found[1] == found[2]
    (tmp_path / "run.toml").write_text(ROWS.format(files=json.dumps(["float.csv"]), more=""))
    said = dovetail("train", "run.toml", "--set", "run.folder=said", folder=tmp_path).stderr
    assert "all ids of column `user` read like 7.0" in said
    said = dovetail("eval", "run-whole.csv", "--data", "float.csv", folder=tmp_path).stderr
    assert "float.csv: all ids of column `user` read like 7.0" in said


def test_a_label_among_features_is_said(tmp_path):
    clicks().to_csv(tmp_path / "x.csv", index=False)
    text = ROWS.format(files=json.dumps(["x.csv"]), more="").replace('"price"', '"label"')
    (tmp_path / "run.toml").write_text(text)
    assert "column `label` of rows.label is also an input" in dovetail("train", "run.toml", folder=tmp_path).stderr


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_numbers_beyond_float32_are_bad_rows(tmp_path, suffix):
    frame = clicks()
    frame.loc[3, "price"] = 1e39
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "x.parquet", index=False)
    (tmp_path / "run.toml").write_text(ROWS.format(files=json.dumps([f"x{suffix}"]), more=""))
    assert "1e+39 is beyond float32" in refusal(tmp_path, "train", "run.toml")


def test_a_column_without_a_name_has_a_header(tmp_path):
    (tmp_path / "x.csv").write_text(",a\n5,2\n3,4\n")
    words = ["kmeans", "--data", "x.csv", "--k", 2, "--init", "first", "--columns", "0", "--out", "run"]
    dovetail(*words, folder=tmp_path)
    assert pd.read_csv(tmp_path / "run/centres.csv").iloc[:, 0].tolist() == [5, 3]


def test_an_infinite_class_is_a_bad_value(tmp_path):
    pd.DataFrame({"x": [1.0, 2, 3] * 4, "y": [np.inf, 1, 2] * 4}).to_parquet(tmp_path / "x.parquet")
    assert "inf is not finite" in refusal(tmp_path, "fit", "logistic", "--data", "x.parquet", "--target", "y")
