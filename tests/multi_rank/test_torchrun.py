"""Real processes under torchrun: the same bits twice, one law for any number of ranks, and restarts after a death."""

import json

import pytest
from ranks import expect_a_killed_rank_changes_nothing, launch
from tiny_run import make_workspace, metrics, train


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return make_workspace(tmp_path_factory.mktemp("torchrun"))


def test_two_ranks_twice_have_the_same_bits(workspace):
    for run in ["first", "second"]:
        launch(workspace, 2, run, train__micro_batch=1)
    assert (workspace / "first" / "metrics.jsonl").read_bytes() == (workspace / "second" / "metrics.jsonl").read_bytes()
    assert json.loads((workspace / "first" / "machine.json").read_text())["ranks"] == 2


def test_ranks_change_only_the_rounding(workspace):
    settings = {"precision__recipe": "fp64", "train__steps": 50, "optimizer__lr": "1e-3"}
    alone = train(workspace, "alone", **settings)
    assert alone.returncode == 0, alone.stderr
    expected = metrics(workspace / "alone")
    for ranks in [2, 4]:
        launch(workspace, ranks, f"ranks{ranks}", **settings)
        lines = metrics(workspace / f"ranks{ranks}")
        assert len(lines) == 50
        for line, peer in zip(lines, expected, strict=True):
            assert line["tokens"] == peer["tokens"]
            assert line["loss"] == pytest.approx(peer["loss"], abs=1e-10)
            assert line.get("validation_loss") == pytest.approx(peer.get("validation_loss"), abs=1e-10)


def test_a_dead_rank_is_restarted_from_the_last_checkpoint(workspace):
    expect_a_killed_rank_changes_nothing(workspace, {"train__steps": 300, "checkpoint__every_steps": 20})
