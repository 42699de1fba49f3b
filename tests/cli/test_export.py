"""A model goes out to `transformers` and comes back, with the same loss."""

import json
import math
import shutil

import pytest
from cli import dovetail, dovetail_json
from tiny_run import SANITIZED, make_workspace

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = make_workspace(tmp_path_factory.mktemp("export"))
    settings = ["run.folder=run", "train.steps=12", "data.tokenizer.kind=bpe", "data.tokenizer.vocab_size=300"]
    dovetail("train", "run.toml", *(w for s in settings for w in ("--set", s)), folder=folder)
    assert dovetail_json("export", "run", "--out", "hf", folder=folder) == {
        "folder": "hf",
        "step": 12,
        "precision": {"recipe": "fp32", "linears": 9, "quantized_linears": 0},
    }
    return folder


def test_transformers_computes_the_loss_that_eval_prints(workspace):
    (workspace / "held_out.txt").write_text("two gears mesh and neither waits for the other while data flows\n" * 40)
    # One document that is all validation but its first bytes; the tokenizer is the run's.
    tokenizer_file = workspace / "hf" / "tokenizer.json"
    dovetail(
        "prepare", "held_out.txt", "--out", "held_out", "--tokenizer", tokenizer_file,
        "--set", "data.validation_split=tail", "--set", "data.validation_fraction=0.5", folder=workspace,
    )  # fmt: skip
    ours = dovetail_json("eval", "run", "--data", "held_out", folder=workspace)["validation"]

    tokenizer = transformers.AutoTokenizer.from_pretrained(workspace / "hf")
    model = transformers.AutoModelForCausalLM.from_pretrained(workspace / "hf").eval()
    text = (workspace / "held_out.txt").read_text()
    data = dovetail_json("inspect", "held_out", folder=workspace)
    held_out = text[len(text) - data["validation_bytes"] :]
    ids = tokenizer(held_out, add_special_tokens=False)["input_ids"] + [data["end_of_document"]]
    assert len(ids) == data["validation_tokens"] == ours["tokens"] + 1
    ids = torch.tensor(ids)
    context = model.config.max_position_embeddings
    # The same windows: side by side, each token but the first predicted once.
    nats = tokens = 0
    for begin in range(0, len(ids) - 1, context):
        window = ids[begin : begin + context + 1]
        with torch.no_grad():
            log_p = torch.log_softmax(model(window[None, :-1]).logits[0].double(), -1)
        nats -= log_p.gather(1, window[1:, None]).sum().item()
        tokens += len(window) - 1
    assert nats / tokens == pytest.approx(ours["nats_per_token"], abs=1e-4)


@pytest.mark.skipif(SANITIZED, reason="the same code as above, in ten times the time")
def test_an_imported_model_evaluates_alike_and_trains_on(workspace):
    dovetail("import", "hf", "--out", "again", folder=workspace)
    evaluate = ["--data", "data"]
    before = dovetail_json("eval", "run", *evaluate, folder=workspace)["validation"]
    after = dovetail_json("eval", "again", *evaluate, folder=workspace)["validation"]
    assert after["nats_per_token"] == pytest.approx(before["nats_per_token"], abs=1e-5)
    assert math.isfinite(after["perplexity"])
    settings = ["data.path=data", "train.steps=3", "train.batch=2", "run.device=cpu", "precision.recipe=fp32"]
    words = [w for s in settings for w in ("--set", s)]
    assert dovetail_json("train", "again/config.toml", *words, folder=workspace)["steps"] == 3


def test_import_refuses_a_folder_in_use_and_one_without_a_tokenizer(workspace):
    error = dovetail_json("import", "hf", "--out", "run", folder=workspace, code=2)["error"]
    assert error["message"] == "run exists and is not empty"
    (workspace / "bare").mkdir()
    error = dovetail_json("import", "bare", "--out", "new", folder=workspace, code=2)["error"]
    assert "neither tokenizer.json nor tokenizer.model" in error["message"]
    assert not (workspace / "new").exists()


def edited(workspace, name, edit):
    """A copy of the exported folder; `edit` gets its tensors and its config."""
    from safetensors.torch import load_file, save_file

    folder = workspace / name
    shutil.copytree(workspace / "hf", folder)
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    edit(tensors, config)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.skipif(SANITIZED, reason="transformers takes ten times the time")
def test_a_head_of_its_own_beside_a_tied_config_writes_the_tokens_of_transformers(workspace):
    def edit(tensors, config):
        assert config["tie_word_embeddings"] is True
        torch.manual_seed(1)
        tensors["lm_head.weight"] = torch.randn_like(tensors["model.embed_tokens.weight"])

    folder = edited(workspace, "own_head", edit)
    said = dovetail("import", folder, "--out", "own_head_run", folder=workspace).stderr
    assert "warning: " in said and "lm_head.weight" in said
    words = ["--prompt", "two gears", "--tokens", "20", "--temperature", "0"]
    ours = dovetail_json("generate", "own_head_run", *words, folder=workspace)["continuation"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("two gears", add_special_tokens=False, return_tensors="pt").input_ids
    ids = model.generate(prompt, max_new_tokens=20, do_sample=False)[0, prompt.shape[1] :]
    if tokenizer.eos_token_id in ids:
        ids = ids[: ids.tolist().index(tokenizer.eos_token_id)]
    assert ours == tokenizer.decode(ids)


def test_a_tokenizer_larger_than_the_embedding_is_refused_with_both_numbers(workspace):
    def edit(tensors, config):
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            if name in tensors:
                tensors[name] = tensors[name][:299].contiguous()
        config["vocab_size"] = 299

    folder = edited(workspace, "small", edit)
    error = dovetail_json("import", folder, "--out", "small_run", folder=workspace, code=2)["error"]
    assert "has 300 tokens" in error["message"] and "has 299 rows" in error["message"]
    assert "resize_token_embeddings(300)" in error["help"]
    assert not (workspace / "small_run").exists()
    # The advice helps.
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(300)
    model.save_pretrained(folder)
    dovetail("import", folder, "--out", "small_run", folder=workspace)


def test_import_names_the_files_that_it_needs(workspace):
    folder = edited(workspace, "binary", lambda tensors, config: None)
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model.safetensors is read" in dovetail("import", folder, "--out", "stale", folder=workspace).stderr
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    error = dovetail_json("import", folder, "--out", "none", folder=workspace, code=2)["error"]
    assert "model-00001-of-00002.safetensors" in error["message"]
    (folder / "model.safetensors.index.json").unlink()
    error = dovetail_json("import", folder, "--out", "none", folder=workspace, code=2)["error"]
    assert "pytorch_model.bin" in error["message"] and "save_pretrained" in error["help"]


def test_shards_are_read_by_their_own_names(workspace):
    """transformers reads every tensor of every shard that the index names, wherever the index says that it is."""
    from safetensors.torch import load_file, save_file

    folder = edited(workspace, "sharded", lambda tensors, config: None)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, shards = sorted(tensors), [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for i, shard in enumerate(shards):
        save_file({n: tensors[n] for n in names[i::2]}, folder / shard, {"format": "pt"})
    # Each tensor is said to be in the other shard, and one in none.
    index = {"metadata": {}, "weight_map": {n: shards[1 - k % 2] for k, n in enumerate(names)} | {"gone": shards[0]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert all(torch.equal(model.state_dict()[n], tensors[n]) for n in names)
    dovetail("import", folder, "--out", "sharded_run", folder=workspace)
    dovetail("export", "sharded_run", "--out", "sharded_again", folder=workspace)
    again = load_file(workspace / "sharded_again" / "model.safetensors")
    assert all(torch.equal(again[n], tensors[n]) for n in names)


def test_import_says_what_to_do_about_damaged_models(workspace):
    def nan(tensors, config):
        tensors["model.norm.weight"][0] = float("nan")

    def untied(tensors, config):
        tensors.pop("lm_head.weight", None)
        config["tie_word_embeddings"] = False

    def smaller(tensors, config):
        config["intermediate_size"] += 1

    for name, edit, words, help in [("nan", nan, "a NaN or an infinity", "again"),
                                    ("untied", untied, "lm_head.weight is missing", "tie_word_embeddings"),
                                    ("smaller", smaller, "config.json asks for", "two models")]:  # fmt: skip
        folder = edited(workspace, f"model_{name}", edit)
        error = dovetail_json("import", folder, "--out", f"{name}_run", folder=workspace, code=2)["error"]
        assert words in error["message"] and help in error["help"]
        assert not (workspace / f"{name}_run").exists()
    # The advice about the head helps.
    config = workspace / "model_untied" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": True}))
    dovetail("import", workspace / "model_untied", "--out", "tied_run", folder=workspace)
    folder = edited(workspace, "pointer", lambda tensors, config: None)
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n")
    error = dovetail_json("import", folder, "--out", "pointer_run", folder=workspace, code=2)["error"]
    assert "Git LFS" in error["message"] and "git lfs pull" in error["help"]


def test_a_config_without_its_epsilon_has_that_of_transformers(workspace):
    folder = edited(workspace, "no_eps", lambda tensors, config: config.pop("rms_norm_eps"))
    dovetail("import", folder, "--out", "no_eps_run", folder=workspace)
    dovetail("export", "no_eps_run", "--out", "no_eps_again", folder=workspace)
    expected = transformers.AutoConfig.from_pretrained(folder).rms_norm_eps
    assert json.loads((workspace / "no_eps_again" / "config.json").read_text())["rms_norm_eps"] == expected
