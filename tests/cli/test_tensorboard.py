"""The event files are read by TensorBoard itself and hold what metrics.jsonl holds."""

import struct

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_run import make_workspace, metrics, train


def float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = make_workspace(tmp_path_factory.mktemp("tensorboard"))
    # The run stops once, so that there are two files; the second continues the run.
    first = train(folder, "run", log__tensorboard="true", train__time_limit_s="1e-9")
    assert first.returncode == 0, first.stderr
    second = train(folder, "run", log__tensorboard="true")
    assert second.returncode == 0, second.stderr
    return folder


def test_scalars_are_those_of_the_metrics(workspace):
    events = EventAccumulator(str(workspace / "run" / "events"), size_guidance={"scalars": 0})
    events.Reload()
    lines = metrics(workspace / "run")
    assert len(list((workspace / "run" / "events").iterdir())) == 2
    for tag, key in [
        ("loss/train", "loss"),
        ("optimizer/lr", "lr"),
        ("optimizer/grad_norm", "grad_norm"),
        ("loss/validation", "validation_loss"),
    ]:
        expected = [(line["step"], float32(line[key])) for line in lines if key in line]
        assert [(e.step, e.value) for e in events.Scalars(tag)] == expected, tag
    assert all(e.value > 0 for e in events.Scalars("speed/tokens_per_s"))
