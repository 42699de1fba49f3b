"""`dovetail prepare`, held against hashlib and the PyPI package `tokenizers`, and killed while it works."""

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cli import dovetail, dovetail_json
from tiny_run import BINARY
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(os.environ["DOVETAIL_TEST_DATA"]) / "tokenizers"
HEADER_BYTES = 64


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tokens(folder, split):
    manifest = json.loads((folder / "manifest.json").read_text())
    width = np.uint16 if manifest["tokenizer"]["vocab_size"] <= 65536 else np.uint32
    shards = [np.fromfile(folder / shard["file"], width, offset=HEADER_BYTES) for shard in manifest[split]["shards"]]
    return np.concatenate(shards).tolist()


def held_out(relative, fraction):
    """The rule that docs/data.md states."""
    first_bits = int(hashlib.sha256(relative.encode()).hexdigest()[:16], 16) >> 11
    return first_bits / 2**53 < fraction


@pytest.fixture
def corpus(tmp_path):
    """Texts that are hard to split, one document each, and Python source."""
    folder = tmp_path / "text"
    folder.mkdir()
    for i, text in enumerate(json.loads((FIXTURES / "texts.json").read_text())):
        (folder / f"{i:03}.txt").write_bytes(text.encode())
    for source in sorted((ROOT / "tools").glob("*.py")):
        (folder / source.name).write_bytes(source.read_bytes())
    return folder


@pytest.mark.parametrize("split", ["gpt2", "llama3"])
def test_trained_tokenizer_loads_in_hugging_face_with_equal_ids(corpus, tmp_path, split):
    out = tmp_path / "out"
    result = dovetail_json("prepare", corpus, "--out", out, "--tokenizer", "bpe", "--vocab-size", 600,
                           "--set", f"data.tokenizer.split={split}", "--set", "data.validation_fraction=0.2",
                           folder=tmp_path)  # fmt: skip
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 600
    end = tokenizer.token_to_id("<|endoftext|>")
    expected = {"train": [], "validation": []}
    for path in sorted(corpus.iterdir()):
        if text := path.read_bytes().decode("utf-8-sig"):
            side = "validation" if held_out(path.name, 0.2) else "train"
            expected[side] += [*tokenizer.encode(text, add_special_tokens=False).ids, end]
    assert tokens(out, "train") == expected["train"]
    assert tokens(out, "validation") == expected["validation"]
    assert result["train_tokens"] == len(expected["train"])


def test_manifest_says_what_is_there(corpus, tmp_path):
    out = tmp_path / "out"
    result = dovetail_json("prepare", corpus, "--out", out, folder=tmp_path)
    manifest = json.loads((out / "manifest.json").read_text())
    assert result["sha256"] == sha256(out / "manifest.json")
    assert str(tmp_path) not in (out / "manifest.json").read_text()
    assert [s["path"] for s in manifest["sources"]] == sorted(p.name for p in corpus.iterdir())
    for source in manifest["sources"]:
        assert source["sha256"] == sha256(corpus / source["path"])
        assert source["bytes"] == (corpus / source["path"]).stat().st_size
    for split in ("train", "validation"):
        for shard in manifest[split]["shards"]:
            assert shard["sha256"] == sha256(out / shard["file"])
        assert len(tokens(out, split)) == manifest[split]["tokens"]
    assert dovetail_json("prepare", corpus, "--out", out, folder=tmp_path)["reused"] is True


def test_a_tokenizer_file_without_its_kind_is_refused(corpus, tmp_path):
    result = dovetail("prepare", corpus, "--out", tmp_path / "out", "--set",
                      f"data.tokenizer.path={FIXTURES / 'gpt2.json'}", folder=tmp_path, code=2)  # fmt: skip
    assert "data.tokenizer.kind" in result.stderr


def test_killed_at_any_moment_it_goes_on(tmp_path):
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefgh ", k=draw.randint(2, 9))) for _ in range(3000)]
    (tmp_path / "text").mkdir()
    for i in range(60):
        (tmp_path / "text" / f"{i:02}.txt").write_text(" ".join(draw.choices(words, k=8000)))
    command = ["prepare", tmp_path / "text", "--tokenizer", "bpe", "--vocab-size", "500", "--out"]
    begin = time.monotonic()
    undisturbed = dovetail_json(*command, tmp_path / "undisturbed", folder=tmp_path)
    seconds = time.monotonic() - begin
    for _ in range(100 if os.environ.get("DOVETAIL_ALL") else 8):
        process = subprocess.Popen([BINARY, *map(str, command), str(tmp_path / "out")], cwd=tmp_path,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        time.sleep(draw.uniform(0, seconds))
        process.kill()
        process.wait()
        # Whatever has its final name is whole.
        for shard in (tmp_path / "out").glob("*.tokens"):
            assert sha256(shard) == sha256(tmp_path / "undisturbed" / shard.name)
    result = dovetail_json(*command, tmp_path / "out", folder=tmp_path)
    assert result["sha256"] == undisturbed["sha256"]
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == sorted(p.name for p in (tmp_path / "undisturbed").iterdir())


def test_baselines_of_a_prepared_folder(tmp_path):
    text = b"the cat sat on the mat; the dog sat on the log. " * 400
    (tmp_path / "text.txt").write_bytes(text)
    split = ["--set", "data.validation_split=tail", "--set", "data.validation_fraction=0.1"]
    for tokenizer in (["bytes"], ["bpe", "--vocab-size", 300]):
        out = tmp_path / tokenizer[0]
        dovetail("prepare", tmp_path / "text.txt", "--out", out, *split, "--tokenizer", *tokenizer, folder=tmp_path)
        script = [sys.executable, ROOT / "tools" / "text_baselines.py", out, "--json"]
        result = json.loads(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
        assert result["held_out_bytes"] == len(text) - int(len(text) * 0.9)
        # Four bytes before decide nearly every byte of this text.
        assert 0 < result["ngram_5"] < 0.4
        assert 0 < result["zlib_9"] < 1


def test_python_lines_counts_what_tokenizes():
    lines = ["import os", "x = (1,", "    return x)", "'unterminated", "what? $this", "", "\n", "# a comment", '"""doc']
    script = [sys.executable, ROOT / "tools" / "python_lines.py"]
    for at_least, code in ((5, 0), (6, 1)):
        result = subprocess.run([*script, "--at-least", str(at_least)], input="\n".join(lines), text=True,
                                capture_output=True, check=False)  # fmt: skip
        assert result.stdout == "5 of 7 lines tokenize as Python\n"
        assert result.returncode == code


def test_quickstart_lists_the_same_files_each_time(tmp_path):
    script = [sys.executable, str(ROOT / "tools" / "quickstart_text.py")]
    subprocess.run([*script, "--out", str(tmp_path / "list")], check=True, capture_output=True)
    listing = (tmp_path / "list").read_text()
    assert subprocess.run(script, check=True, capture_output=True, text=True).stdout == listing
    rows = [line.split("\t") for line in listing.splitlines()]
    assert len(rows) > 3000
    assert [name for _, name in rows] == sorted(name for _, name in rows)
    assert all((Path(root) / name).stat().st_size <= 300_000 for root, name in rows)
