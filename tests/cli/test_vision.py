"""Vision runs as users start them: data, training, resume, memory plans, evaluation, export.

The step is compared with PyTorch in float64 (tests/models/vision_oracle.py), the scores with scikit-learn.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cli import dovetail, dovetail_json
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score, jaccard_score
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[2]
SIZE, CLASSES = 32, 4


def module_of(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


oracle = module_of(ROOT / "tests" / "models" / "vision_oracle.py")
shapes = module_of(ROOT / "tools" / "shapes.py")

CONFIG = """
[run]
name = "tiny"
device = "cpu"
threads = 1
[vision]
model = "{model}"
classes = {classes}
height = 32
width = 32
base_width = {width}
[images]
train = "{train}"
{targets}
mirror = false
[train]
steps = 3
batch = 8
[optimizer]
lr = 1e-3
[log]
tensorboard = false
[checkpoint]
every_steps = 1
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folders of images, masks and classes: 8 to train on, and 5 to measure on."""
    folder = tmp_path_factory.mktemp("shapes")
    random = np.random.default_rng(1)
    for part, count in (("train", 8), ("held", 5)):
        for kind in ("images", "masks", *(f"classes/{name}" for name in shapes.SHAPES)):
            (folder / part / kind).mkdir(parents=True)
        for number in range(count):
            image, mask = shapes.draw(random, SIZE, [number % 3, (number + 1) % 3])
            shapes.write_png(folder / part / "images" / f"{number}.png", image)
            shapes.write_png(folder / part / "masks" / f"{number}.png", mask)
            image = shapes.draw(random, SIZE, [number % 3])[0]
            shapes.write_png(folder / part / "classes" / shapes.SHAPES[number % 3] / f"{number}.png", image)
    return folder


def workspace(folder: Path, data: Path, model: str) -> Path:
    """A folder with a config of this model. All images are one batch, so that their order does not matter."""
    masks = model == "unet"
    kind = "images" if masks else "classes"
    targets = f'validation = "{data}/held/{kind}"\n'
    if masks:
        targets += f'targets = "{data}/train/masks"\nvalidation_targets = "{data}/held/masks"'
    (folder / "run.toml").write_text(
        CONFIG.format(
            model=model,
            classes=CLASSES if masks else 3,
            width=4,
            train=data / "train" / kind,
            targets=targets,
        )
    )
    return folder


def train(folder: Path, name: str, *settings: str) -> list[dict]:
    """Trains, and returns the lines of metrics.jsonl."""
    words = ["train", "run.toml", "--set", f"run.folder={name}"]
    for setting in settings:
        words += ["--set", setting]
    dovetail(*words, folder=folder)
    return metrics(folder / name)


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def tensors_of(run: Path, step: int) -> dict[str, torch.Tensor]:
    out = {}
    for file in (run / "checkpoints" / f"step-{step:08}").glob("*.safetensors"):
        out |= load_file(file)
    return out


def read_png(path: Path) -> np.ndarray:
    """Reads what tools/shapes.py writes: 8 bits, no filter."""
    import struct
    import zlib

    file = path.read_bytes()
    width, height, _, colours = struct.unpack(">IIBB", file[16:26])
    at, data = 33, b""
    while file[at + 4 : at + 8] == b"IDAT":
        size = struct.unpack(">I", file[at : at + 4])[0]
        data += file[at + 8 : at + 8 + size]
        at += 12 + size
    rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, -1)[:, 1:]
    return rows.reshape(height, width, 3) if colours == 2 else rows.reshape(height, width)


def batch_of(folder: Path, model: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalized images in float64, and targets."""
    if model == "unet":
        paths = sorted((folder / "images").iterdir())
        targets = torch.tensor(np.stack([read_png(folder / "masks" / path.name) for path in paths])).long()
    else:
        classes = sorted(path.name for path in (folder / "classes").iterdir())
        paths = [path for name in classes for path in sorted((folder / "classes" / name).iterdir())]
        targets = torch.tensor([classes.index(path.parent.name) for path in paths])
    images = torch.tensor(np.stack([read_png(path) for path in paths])).permute(0, 3, 1, 2).double() / 255
    mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], dtype=torch.float64)
    return (images - mean.view(3, 1, 1)) / deviation.view(3, 1, 1), targets


def reference(model: str, tensors: dict[str, torch.Tensor]):
    """The oracle's model with the tensors of a checkpoint, and the names of its tensors there."""
    spec = {"preset": model, "channels": 3, "base_width": 4, "classes": CLASSES if model == "unet" else 3}
    net = {"unet": oracle.UNet, "resnet50": oracle.ResNet}.get(model, oracle.Vgg)(spec).double()
    ours = getattr(net, "our_name", lambda name: name)
    buffers = dict(net.named_buffers())
    names = {name: ("buffer." if name in buffers else "model.") + ours(name) for name in net.state_dict()}
    net.load_state_dict({name: tensors[own] for name, own in names.items()})
    return net, names


def test_the_configs_run_as_their_comments_say(tmp_path):
    subprocess.run(
        [sys.executable, ROOT / "tools" / "shapes.py", "data/shapes", "--count", "20"], cwd=tmp_path, check=True
    )
    dovetail("train", ROOT / "configs" / "unet.toml", "--set", "train.steps=21", folder=tmp_path)
    assert metrics(tmp_path / "runs" / "unet")[-1]["validation_samples"] == 2
    sizes = dovetail("train", ROOT / "configs" / "vgg19.toml", "--dry-run", folder=tmp_path).stderr
    assert "vgg19 144 M parameters · 3 x 224 x 224 · fp32 · 118 GFLOP/sample" in sizes


@pytest.mark.parametrize("model", ["unet", "resnet50"])
def test_a_step_is_pytorchs(tmp_path, data, model):
    folder = workspace(tmp_path, data, model)
    lines = train(folder, "run", "schedule.decay=constant", "train.clip=0.5")
    before, after = tensors_of(folder / "run", 2), tensors_of(folder / "run", 3)
    net, names = reference(model, before)
    images, targets = batch_of(data / "train", model)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in net.parameters() if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in net.parameters() if p.dim() == 1], "weight_decay": 0.0},
        ],
        lr=1e-3,
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    for name, parameter in net.named_parameters():
        own = names[name].removeprefix("model.")
        optimizer.state[parameter] = {
            "step": torch.tensor(2.0),
            "exp_avg": before[f"optimizer.m.{own}"].double(),
            "exp_avg_sq": before[f"optimizer.v.{own}"].double(),
        }
    loss = functional.cross_entropy(net.train()(images), targets)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()
    assert lines[2]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert lines[2]["grad_norm"] == pytest.approx(norm.item(), rel=1e-3)
    assert norm > 0.5, "clipping has no effect"
    for name, value in net.state_dict().items():
        moved = (after[names[name]].double() - before[names[name]].double()).flatten()
        expected = (value - before[names[name]].double()).flatten()
        if names[name].startswith("buffer."):
            torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-5, msg=name)
        else:
            # Adam divides by the square root of the second moment: a small gradient may turn its sign.
            assert (moved - expected).norm() < 0.02 * expected.norm() + 1e-7, name


@pytest.mark.parametrize("model", ["unet", "vgg16"])
def test_scores_are_those_of_scikit_learn(tmp_path, data, model):
    folder = workspace(tmp_path, data, model)
    last = train(folder, "run", "train.steps=5")[-1]
    net, _ = reference(model, tensors_of(folder / "run", 5))
    images, targets = batch_of(data / "held", model)
    with torch.no_grad():
        logits = net.eval()(images)
    predicted = logits.argmax(1).flatten()
    assert last["validation_loss"] == pytest.approx(functional.cross_entropy(logits, targets).item(), rel=1e-5)
    assert last["accuracy"] == pytest.approx(accuracy_score(targets.flatten(), predicted))
    assert last["validation_samples"] == 5
    if model == "unet":
        expected = jaccard_score(targets.flatten(), predicted, average="macro", zero_division=0)
        assert last["mean_iou"] == pytest.approx(expected)
    measured = dovetail_json("eval", "run", folder=folder)["validation"]
    assert measured["loss"] == pytest.approx(last["validation_loss"], rel=1e-12)
    assert measured["accuracy"] == last["accuracy"]
    kind = ["images", "masks"] if model == "unet" else ["classes"]
    named = [word for name in kind for word in ("--data", data / "held" / name)]
    assert dovetail_json("eval", "run", *named, folder=folder)["validation"] == measured


@pytest.mark.parametrize("model", ["vgg16", "resnet50"])
def test_a_resumed_run_has_the_same_bits(tmp_path, data, model):
    """vgg has dropout, so the random state of a step counts. Validation reads resnet's running statistics."""
    folder = workspace(tmp_path, data, model)
    settings = ("images.mirror=true", 'images.crop="random"', "schedule.decay=constant")
    whole = train(folder, "whole", "train.steps=6", *settings)
    train(folder, "parts", "train.steps=3", *settings)
    parts = train(folder, "parts", "train.steps=6", *settings)
    assert [line["loss"] for line in parts] == [line["loss"] for line in whole]
    assert parts[-1]["validation_loss"] == whole[-1]["validation_loss"]
    assert len({line["loss"] for line in whole}) == 6


@pytest.mark.parametrize("model", ["unet", "vgg16", "resnet50"])
def test_a_memory_budget_changes_no_bit(tmp_path, data, model):
    folder = workspace(tmp_path, data, model)
    settings = ("train.steps=12", "checkpoint.every_steps=end", "vision.height=64", "vision.width=64")
    free = train(folder, "free", *settings)
    budget = "0.9x" if model == "vgg16" else "0.85x"
    held = train(folder, "held", *settings, f"memory.budget={budget}", "memory.solve_s=3")
    assert [line["loss"] for line in held] == [line["loss"] for line in free]
    assert held[-1]["validation_loss"] == free[-1]["validation_loss"]
    plan = json.loads((folder / "held" / "memory_plan.json").read_text())
    assert plan["step_bytes"] <= plan["budget_bytes"] < plan["keep_all_bytes"]


def test_a_budget_includes_the_batches_that_are_decoded(tmp_path, data):
    """Three batches take 90 MiB. The process may exceed the budget by 64 MiB."""
    folder = workspace(tmp_path, data, "unet")
    settings = ("vision.height=256", "vision.width=256", "train.batch=24", "train.micro_batch=4", "train.steps=9")
    train(folder, "run", *settings, "memory.budget=220MiB", "memory.solve_s=2", "checkpoint.every_steps=end")
    machine = json.loads((folder / "run" / "machine.json").read_text())
    assert machine["memory"]["peak_bytes"] <= (220 + 64) << 20


def test_other_algorithms_differ_by_rounding_alone(tmp_path, data):
    folder = workspace(tmp_path, data, "unet")
    settings = ("train.steps=12", "checkpoint.every_steps=end", "vision.height=64", "vision.width=64")
    free = train(folder, "free", *settings)
    allowed = ('memory.allow=["recompute", "algorithms"]', "memory.budget=0.85x", "memory.solve_s=3")
    held = train(folder, "held", *settings, *allowed)
    for a, b in zip(free, held, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)
    graph = json.loads((folder / "held" / "graph.json").read_text())
    convolutions = [node for node in graph["nodes"] if node["name"].startswith("aten::convolution")]
    algorithms = [algorithm for node in convolutions for algorithm in node["algos"]]
    assert {"aten", "im2col", "winograd", "winograd, aten"} <= {algorithm["name"] for algorithm in algorithms}
    assert all(algorithm["time"] > 0 for algorithm in algorithms)


def test_micro_batches_and_ranks_add_up(tmp_path, data):
    folder = workspace(tmp_path, data, "unet")
    whole = train(folder, "whole")
    parts = train(folder, "parts", "train.micro_batch=3")
    words = ["launch", "-n", "2", "train", "run.toml", "--set", "run.folder=ranks"]
    dovetail(*words, folder=folder)
    for other in (parts, metrics(folder / "ranks")):
        for a, b in zip(whole, other, strict=True):
            assert a["loss"] == pytest.approx(b["loss"], rel=2e-5)
            assert a["samples"] == b["samples"]


def test_brightness_alone_trains_with_its_own_mean(tmp_path, data):
    folder = workspace(tmp_path, data, "unet")
    assert len(train(folder, "run", "vision.channels=1", "train.steps=1")) == 1
    dovetail("export", "run", "--out", "exported", folder=folder)
    assert json.loads((folder / "exported" / "config.json").read_text())["mean"] == [0.449]


def test_export_has_the_names_of_torchvision(tmp_path, data):
    folder = workspace(tmp_path, data, "resnet50")
    train(folder, "run", "train.steps=1")
    dovetail("export", "run", "--out", "exported", folder=folder)
    state = load_file(folder / "exported" / "model.safetensors")
    assert state["conv1.weight"].shape == (4, 3, 7, 7)
    assert {"layer4.2.bn3.running_var", "layer1.0.downsample.0.weight", "fc.bias"} <= state.keys()
    about = json.loads((folder / "exported" / "config.json").read_text())
    assert about["class_names"] == ["box", "disc", "triangle"]


def test_the_largest_batch_within_a_budget_trains_and_one_more_does_not(tmp_path, data):
    folder = workspace(tmp_path, data, "unet")
    budget = "memory.budget=12MiB"
    found = dovetail_json("plan", "run.toml", "--fits", "--set", budget, folder=folder)
    assert found["key"] == "train.batch"
    largest = found["largest"]
    assert largest > 8 and found["fits"]
    settings = (budget, "memory.solve_s=5", "train.steps=10", "checkpoint.every_steps=end")
    train(folder, "fits", f"train.batch={largest}", *settings)
    words = ["train", "run.toml", "--set", "run.folder=over", "--set", f"train.batch={largest + 1}"]
    for setting in settings:
        words += ["--set", setting]
    refused = dovetail(*words, folder=folder, code=2)
    assert "below its floor" in refused.stderr or "floor" in refused.stderr
    assert not (folder / "over" / "metrics.jsonl").read_text(), "a step was taken before the refusal"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["vision.height=30"], "multiple"),
        (["images.train=nowhere"], "images.train"),
        (["vision.classes=2"], "is outside 0 to 1"),
        (["images.mean=[0.5,0.5]"], "images.mean has 2 numbers"),
        (["vision.channels=2"], "3 channels (colours) or 1 (brightness)"),
        (["model.layers=3"], "does nothing"),
        (["images.validation_fraction=0.3"], "does nothing beside images.validation"),
        (["recommender.model=dlrm"], "are both given"),
        (["run.seed=2", "train.micro_batch=auto"], "for recommenders"),
    ],
)
def test_mistakes_are_named(tmp_path, data, settings, message):
    folder = workspace(tmp_path, data, "unet")
    words = ["train", "run.toml"]
    for setting in settings:
        words += ["--set", setting]
    result = dovetail(*words, folder=folder, code=2)
    assert message in result.stderr


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('images.crop="random"', "images.crop was"),
        ("vision.height=48", "vision.height was 32, is 48"),
        ("images.mean=[0.5]", "images.mean"),
        ("images.validation_fraction=0.5", "images.validation_fraction"),
    ],
)
def test_a_resumed_run_sees_its_images_as_before(tmp_path, data, setting, message):
    folder = workspace(tmp_path, data, "unet")
    config = (folder / "run.toml").read_text().replace('validation = "', '# "').replace("validation_targets", "#")
    config = config.replace("mirror = false", "mirror = false\nvalidation_fraction = 0.25")
    (folder / "run.toml").write_text(config)
    train(folder, "run", "train.steps=1")
    words = ["train", "run.toml", "--set", "run.folder=run", "--set", "train.steps=2", "--set", setting]
    assert message in dovetail(*words, folder=folder, code=2).stderr


def test_a_micro_batch_of_one_pixel_is_refused_before_training(tmp_path, data):
    folder = workspace(tmp_path, data, "resnet50")
    words = ["train", "run.toml", "--dry-run", "--set", "train.batch=5", "--set", "train.micro_batch=2"]
    assert "Rank 0 has 5 images in micro-batches of 2" in dovetail(*words, folder=folder, code=2).stderr
    dovetail(*words, "--set", "vision.height=64", folder=folder)


def test_skipped_files_are_counted_and_folders_in_folders_read(tmp_path, data):
    folder = workspace(tmp_path, data, "vgg16")
    deep = folder / "images" / "disc" / "more"
    deep.parent.mkdir(parents=True)
    shutil.copytree(data / "train" / "classes" / "disc", deep)
    (folder / "images" / "disc" / "notes.webp").write_bytes(b"RIFF")
    held = ["--set", f"images.train={folder}/images", "--set", f"images.validation={folder}/images"]
    said = dovetail("train", "run.toml", "--set", "train.steps=1", *held, folder=folder).stderr
    assert "images: 3 to train on in 1 folders" in said and "1 other files skipped" in said


def test_eval_names_its_own_options(tmp_path, data):
    folder = workspace(tmp_path, data, "unet")
    train(folder, "run", "train.steps=1")
    said = dovetail("eval", "run", "--data", data / "held" / "images", folder=folder, code=2).stderr
    assert "the second --data" in said and "names no masks" in said


def test_fewer_images_are_refused_on_resume(tmp_path, data):
    folder = workspace(tmp_path, data, "unet")
    train(folder, "run", "train.steps=1")
    words = ["train", "run.toml", "--set", "run.folder=run", "--set", "train.steps=2"]
    fewer = ["--set", f"images.train={data}/held/images", "--set", f"images.targets={data}/held/masks"]
    result = dovetail(*words, *fewer, folder=folder, code=2)
    assert "has 5 images to train on, but the run was trained on 8" in result.stderr


def test_other_classes_are_refused_on_resume(tmp_path, data):
    folder = workspace(tmp_path, data, "vgg16")
    train(folder, "run", "train.steps=1")
    (tmp_path / "other").mkdir()
    for name in ("a", "b"):
        (tmp_path / "other" / name).symlink_to(data / "train" / "classes" / "disc")
    words = ["train", "run.toml", "--set", "run.folder=run", "--set", f"images.train={tmp_path / 'other'}"]
    result = dovetail(*words, "--set", f"images.validation={tmp_path / 'other'}", folder=folder, code=2)
    assert "was trained on box, disc, triangle" in result.stderr
