"""A model goes out to `transformers` and comes back, with the same loss."""

import math

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
    assert dovetail_json("export", "run", "--out", "hf", folder=folder) == {"folder": "hf", "step": 12}
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
