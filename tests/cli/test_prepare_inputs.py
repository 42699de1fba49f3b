"""The inputs that people have: `dovetail prepare` held against Python's json, gzip and codecs, pandas and pyarrow."""

import bz2
import gzip
import json
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli import dovetail, dovetail_json

TEXTS = ["The first text.\n", "déjà vu — 😀 “quoted”\n", 'a "quote", a \\ and a\ttab', "x" * 5000]
END = 256


def prepared(folder, *inputs, options=()):
    """The result of `dovetail prepare` and the documents in the folder that it made, by the bytes tokenizer."""
    settings = ["data.validation_fraction=0", *options]
    words = [w for s in settings for w in ("--set", s)]
    result = dovetail_json("prepare", *inputs, "--out", folder / "out", *words, folder=folder)
    shards = sorted((folder / "out").glob("train-*.tokens"))
    tokens = np.concatenate([np.fromfile(shard, np.uint16, offset=64) for shard in shards])
    ends = np.flatnonzero(tokens == END)
    begins = [0, *(ends[:-1] + 1)]
    return result, [bytes(tokens[a:b].astype(np.uint8)).decode() for a, b in zip(begins, ends, strict=True)]


def refused(folder, *inputs, options=()):
    words = [w for s in options for w in ("--set", s)]
    error = dovetail_json("prepare", *inputs, "--out", folder / "refused", *words, folder=folder, code=2)["error"]
    assert not (folder / "refused" / "manifest.json").exists()
    return error


def json_lines(texts=TEXTS, **others):
    return "".join(json.dumps({"text": text} | others) + "\n" for text in texts).encode()


def packed(name, data):
    if name.endswith(("gz", "gzip")):
        return gzip.compress(data)
    if name.endswith("bz2"):
        return bz2.compress(data)
    return pa.Codec("zstd").compress(data, asbytes=True) if name.endswith("zst") else data


@pytest.mark.parametrize("name", ["corpus.jsonl.gz", "CORPUS.JSONL.GZ", "corpus.jsonl.zst", "corpus.ndjson.bz2",
                                  "corpus.jsonl"])  # fmt: skip
def test_packed_records_are_read_alone_and_in_a_folder(tmp_path, name):
    (tmp_path / "in").mkdir()
    data = json_lines()
    (tmp_path / "in" / name).write_bytes(packed(name.lower(), data))
    assert prepared(tmp_path, tmp_path / "in" / name)[1] == TEXTS
    (tmp_path / "in" / "z.txt").write_text("beside")
    (tmp_path / "in" / "photo.PNG").write_bytes(b"\x89PNG\r\n")
    (tmp_path / "in" / "film.ts").write_bytes(bytes(range(256)) * 9)
    result, documents = prepared(tmp_path, tmp_path / "in")
    assert sorted(documents) == sorted([*TEXTS, "beside"])
    assert [entry["file"] for entry in result["passed_over"]] == ["film.ts", "photo.PNG"]
    assert [entry["reason"] for entry in result["passed_over"]] == ["binary data", "no extension of a text"]
    # A packed file is known by its bytes, not by its name.
    (tmp_path / "misnamed.jsonl").write_bytes(gzip.compress(data))
    assert prepared(tmp_path, tmp_path / "misnamed.jsonl")[1] == TEXTS


def test_packed_records_longer_than_a_piece(tmp_path):
    rng = np.random.default_rng(1)
    texts = ["".join(map(chr, rng.integers(97, 123, 20000))) for _ in range(500)]
    (tmp_path / "long.jsonl.gz").write_bytes(gzip.compress(json_lines(texts), 1))
    assert prepared(tmp_path, "long.jsonl.gz")[1] == texts


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.TXT.bz2", "a.md.zst"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be-bom", "utf-16-le-bom"])
def test_texts_become_utf8(tmp_path, encoding, name):
    text = "".join(TEXTS) + "\r\nold\rends\n"
    marks = {"utf-16-be-bom": "\ufeff", "utf-16-le-bom": "\ufeff"}
    data = (marks.get(encoding, "") + text).encode(encoding.removesuffix("-bom"))
    (tmp_path / name).write_bytes(packed(name.lower(), data))
    assert prepared(tmp_path, name)[1] == [text]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("plain ascii text".encode("utf-16-le"), "UTF-16 without a byte order mark"),
        ("text".encode("utf-32"), "UTF-32"),
        (b"\x1f\x8b\x08\x00damaged", "gzip"),
        (gzip.compress(b"text " * 9000)[:-30], "gzip"),
        (b"PK\x03\x04 an archive", "zip archive"),
        (b"\xfd7zXZ\x00 packed", "xz"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "PNG"),
        (bytes(range(256)), "binary data"),
    ],
    ids=["utf-16", "utf-32", "gzip", "short-gzip", "zip", "xz", "png", "binary"],
)
def test_what_is_no_text_is_refused_by_what_it_is(tmp_path, data, words):
    (tmp_path / "a.txt").write_bytes(data)
    error = refused(tmp_path, "a.txt")
    assert words in error["message"] and "a.txt" in error["place"]


def test_a_text_may_hold_a_zero(tmp_path):
    text = "words before\0 and é after it" * 3000
    (tmp_path / "a.txt").write_text(text)
    assert prepared(tmp_path, "a.txt")[1] == [text]


def test_latin_1_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes("caf\xe9".encode("latin-1"))
    (tmp_path / "b.txt").write_text("plain")
    words = ["a.txt", "b.txt", "--out", "out", "--set", "data.validation_fraction=0"]
    result = dovetail("prepare", *words, folder=tmp_path)
    assert "warning: 1 texts are not UTF-8: 0 are left out, 1 files are kept byte by byte" in result.stderr
    assert "a.txt" in result.stderr


def test_json_that_python_writes_is_read(tmp_path):
    records = [
        {"text": "nan", "score": float("nan"), "list": [float("inf"), -float("inf")], "s": 'NaN "Infinity'},
        {"text": None, "score": 1},
        {"text": ""},
        {"text": "last \\", "id": 2**70},
    ]
    lines = "\r\n\n".join(json.dumps(r) for r in records).encode()
    for name, data in {"a.jsonl": lines, "bom.jsonl": b"\xef\xbb\xbf" + lines, "wide.jsonl":
                       lines.decode().encode("utf-16")}.items():  # fmt: skip
        (tmp_path / name).write_bytes(data)
        result, documents = prepared(tmp_path, name)
        assert documents == [record["text"] for record in records if record["text"]]
        assert (result["empty_skipped"], result["bad_skipped"]) == (2, 0)


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_is_records(tmp_path, indent):
    records = [{"text": t, "n": {"a": [1, "]}"]}} for t in TEXTS] + [{"text": None}]
    (tmp_path / "a.json").write_text("\ufeff " + json.dumps(records, indent=indent), encoding="utf-8")
    expected = pd.read_json(tmp_path / "a.json", encoding="utf-8-sig")["text"].dropna().tolist()
    result, documents = prepared(tmp_path, "a.json")
    assert documents == expected == TEXTS
    assert result["empty_skipped"] == 1
    (tmp_path / "lines.json").write_bytes(json_lines())
    assert prepared(tmp_path, "lines.json")[1] == TEXTS
    (tmp_path / "cut.json").write_text(json.dumps(records, indent=indent)[:-40])
    assert "cut.json" in refused(tmp_path, "cut.json")["place"]
    (tmp_path / "more.json").write_text(json.dumps(records) + " []")
    assert "follows" in refused(tmp_path, "more.json")["message"]


BAD = {
    "type": (b'{"text": 5}', "`text` (number)"),
    "missing": (b'{"body": "x"}', "`body` (string)"),
    "list": (b'["text"]', "found array"),
    "broken": (b'{"text": "x"', "not valid JSON"),
    "lines": (b'{\n "text": "x"\n}', "not valid JSON"),
    "name": (b'{"text": NaNs}', "not valid JSON: column 14: invalid literal"),
    "surrogate": (rb'{"text": "a \ud800 b"}', "half a surrogate pair"),
    "low surrogate": (rb'{"text": "a \udc00"}', "half a surrogate pair"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_one_policy_for_bad_records(tmp_path, kind, name):
    record, words = BAD[kind]
    data = json_lines() + record + b"\n" + json_lines(["after"])
    (tmp_path / name).write_bytes(packed(name, data))
    error = refused(tmp_path, name)
    assert words in error["message"] and error["place"].endswith(f"{name}:{len(TEXTS) + 1}")
    assert 'data.bad_row = "skip"' in error["help"]
    count = record.count(b"\n") + 1
    result, documents = prepared(tmp_path, name, options=["data.bad_row=skip"])
    assert documents == [*TEXTS, "after"]
    assert result["bad_skipped"] == count
    words = ["--out", "third", "--set", "data.bad_row=skip", "--set", "data.validation_fraction=0"]
    said = dovetail("prepare", name, *words, folder=tmp_path).stderr
    assert f"warning: {count} bad records are left out; the first:" in said
    assert f"{name}:{len(TEXTS) + 1}: " in said


@pytest.mark.parametrize(
    ("name", "text", "words", "advice"),
    [
        ("a.jsonl", json.dumps([{"text": "a"}, {"text": "b"}], indent=1), "one JSON array", "name it .json"),
        ("a.jsonl", json.dumps([{"text": "a"}]) + "\n", "one JSON array", "jq -c '.[]' a.jsonl"),
        ("a.jsonl", json.dumps({"text": "a"}, indent=1), "over several lines", "jq -c . a.jsonl"),
        ("a.json", 2 * json.dumps({"text": "a"}, indent=1), "over several lines", "jq -c . a.json"),
    ],
    ids=["array", "array on one line", "object", "objects"],
)
def test_a_file_that_is_not_lines_says_how_to_make_them(tmp_path, name, text, words, advice):
    (tmp_path / name).write_text(text)
    error = refused(tmp_path, name)
    assert words in error["message"] and advice in error["help"]


def test_a_broken_record_of_an_array_has_the_line_of_its_fault(tmp_path):
    (tmp_path / "a.json").write_text('[\n {\n  "text": "a"\n },\n {\n  "text": tru\n }\n]')
    error = refused(tmp_path, "a.json")
    assert error["place"].endswith("a.json:6") and "json.exception" not in error["message"]


def test_too_many_bad_records_end_the_run_with_the_first_places(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(json_lines() + b"{}\n" * 20)
    error = refused(tmp_path, "a.jsonl", options=["data.bad_row=skip", "data.max_bad_rows=19"])
    assert "data.max_bad_rows = 19" in error["message"] and "a.jsonl:5: " in error["message"]
    assert prepared(tmp_path, "a.jsonl", options=["data.bad_row=skip", "data.max_bad_rows=20"])[1] == TEXTS
    assert "bad_row" in refused(tmp_path, "a.jsonl", options=["data.max_bad_rows=20"])["message"]


def test_a_record_that_is_not_utf8_is_counted_with_its_place(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(json_lines() + b'{"text": "caf\xe9"}\n')
    result, documents = prepared(tmp_path, "a.jsonl")
    assert documents == TEXTS and result["invalid_skipped"] == 1
    words = ["--out", "again", "--set", "data.validation_fraction=0"]
    assert "a.jsonl:5: the record is not UTF-8" in dovetail("prepare", "a.jsonl", *words, folder=tmp_path).stderr


COLUMN_TYPES = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "dictionary_small": pa.dictionary(pa.int8(), pa.large_string()),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
}


@pytest.mark.parametrize("kind", COLUMN_TYPES)
@pytest.mark.parametrize("rows", [2, 1000])
def test_every_string_type_of_parquet(tmp_path, kind, rows):
    values = [*TEXTS, None, "", *(f"another {i}" for i in range(40))]
    data = [v.encode() if v is not None and "binary" in kind else v for v in values]
    column = pa.array(data, COLUMN_TYPES[kind]) if "dictionary" not in kind else pa.array(data).cast(COLUMN_TYPES[kind])
    pq.write_table(pa.table({"id": range(len(values)), "text": column}), tmp_path / "a.PARQUET", row_group_size=rows)
    result, documents = prepared(tmp_path, "a.PARQUET")
    assert documents == [v for v in pq.read_table(tmp_path / "a.PARQUET")["text"].cast(pa.string()).to_pylist() if v]
    assert result["empty_skipped"] == 2


def test_a_shard_without_a_text_and_one_with_invalid_bytes(tmp_path):
    pq.write_table(pa.table({"text": pa.nulls(7)}), tmp_path / "null.parquet")
    pq.write_table(pa.table({"text": pa.array([b"fine", b"caf\xe9"])}), tmp_path / "bytes.parquet")
    result, documents = prepared(tmp_path, "null.parquet", "bytes.parquet")
    assert documents == ["fine"]
    assert (result["empty_skipped"], result["invalid_skipped"]) == (7, 1)


def test_columns_of_one_name_matter_only_where_they_are_wanted(tmp_path):
    arrays = [pa.array(["a", "b"]), pa.array([1, 2]), pa.array([3, 4])]
    pq.write_table(pa.Table.from_arrays(arrays, ["text", "x", "x"]), tmp_path / "a.parquet")
    assert prepared(tmp_path, "a.parquet")[1] == ["a", "b"]
    error = refused(tmp_path, "a.parquet", options=["data.text_field=x"])
    assert "two columns are named `x`" in error["message"]


def test_a_structure_and_a_number_are_refused_by_name(tmp_path):
    pq.write_table(pa.table({"doc": [{"text": "a"}], "n": [1]}), tmp_path / "a.parquet")
    assert "flatten" in refused(tmp_path, "a.parquet", options=["data.text_field=doc.text"])["help"]
    assert "flatten" in refused(tmp_path, "a.parquet", options=["data.text_field=doc"])["help"]
    assert "int64, not strings" in refused(tmp_path, "a.parquet", options=["data.text_field=n"])["message"]
    pq.write_table(pq.read_table(tmp_path / "a.parquet").flatten(), tmp_path / "flat.parquet")
    assert prepared(tmp_path, "flat.parquet", options=["data.text_field=doc.text"])[1] == ["a"]


def test_a_folder_of_an_older_reading_is_made_anew(tmp_path):
    """Bytes that are read in another way than before do not count as prepared."""
    (tmp_path / "a.txt").write_text("text")
    first = prepared(tmp_path, "a.txt")[0]
    assert prepared(tmp_path, "a.txt")[0]["reused"] is True
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbftext")
    second = prepared(tmp_path, "a.txt")[0]
    assert second["reused"] is False and second["train_tokens"] == first["train_tokens"]


def test_numbers_that_python_reads_as_infinite(tmp_path):
    lines = '{"text": "a", "n": 1e999, "m": [-1e999, 1e-999]}\n{"text": "b 1e999", "n": NaN}\n'
    (tmp_path / "a.jsonl").write_text(lines)
    assert prepared(tmp_path, "a.jsonl")[1] == [json.loads(line)["text"] for line in lines.splitlines()]


def test_a_pointer_of_git_lfs_is_no_text(tmp_path):
    for name in ("a.txt", "a.jsonl", "a.parquet"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 1\n")
        error = refused(tmp_path, name)
        assert "Git LFS" in error["message"] and "git lfs pull" in error["help"]


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    error = refused(tmp_path, "a.txt")
    assert "a pipe" in error["message"] and error["help"]


def test_help_for_what_is_not_text_leads_on(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(json_lines().decode().encode("utf-16-le"))
    assert "UTF-8" in refused(tmp_path, "in")["help"]
    (tmp_path / "one.json").write_text(json.dumps({"text": "x"}, indent=2))
    assert "jq -c" in refused(tmp_path, "one.json")["help"]
    (tmp_path / "nested.jsonl").write_text('{"text": {"a": "b"}}\n')
    assert "the record itself" in refused(tmp_path, "nested.jsonl")["help"]


def test_a_table_as_one_text_is_said(tmp_path):
    pd.DataFrame({"text": TEXTS}).to_csv(tmp_path / "a.csv")
    words = ["a.csv", "--out", "out", "--set", "data.validation_fraction=0"]
    assert "JSON lines or Parquet" in dovetail("prepare", *words, folder=tmp_path).stderr
