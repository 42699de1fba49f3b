"""`dovetail launch` when a job cannot go on: one message, no restart, and the exit code of the rank that failed."""

import os
import signal
import socket
import subprocess
import time

import pytest
from ranks import launch_words, processes_of
from tiny_run import BINARY, command, make_workspace

MOST_S = 10  # seconds until a mistake has ended all ranks


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return make_workspace(tmp_path_factory.mktemp("launch"))


def fail(folder, words) -> tuple[int, str, float]:
    begin = time.monotonic()
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr, time.monotonic() - begin


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model__moe__experts": 4, "parallel__expert": 3}, "parallel.expert = 3 does not divide the 2 ranks"),
        ({"data__text": '["absent.txt"]', "data__path": "absent"}, "absent.txt"),
        ({"optimizer__lr": "-1"}, "optimizer.lr"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(workspace, settings, message):
    code, stderr, seconds = fail(workspace, launch_words(2, "wrong", **settings))
    assert code == 2, stderr
    assert seconds < MOST_S
    assert message in stderr
    assert stderr.count("error:") == 1, stderr
    assert "Traceback" not in stderr
    assert processes_of(workspace, b"run.folder=wrong") == []


def test_a_mistake_of_one_rank_ends_all(workspace):
    (workspace / "file").write_text("")  # rank 0 alone makes the run's folder
    code, stderr, seconds = fail(workspace, launch_words(2, "file"))
    assert code == 2, stderr
    assert seconds < MOST_S
    assert stderr.count("error:") == 1 and "cannot make the run's folder" in stderr, stderr
    assert processes_of(workspace, b"run.folder=file") == []


def test_a_killed_rank_without_a_restart_left_is_named(workspace):
    words = [BINARY, "launch", "--max-restarts", "0", *launch_words(2, "long", train__steps=100000)[2:]]
    process = subprocess.Popen(words, cwd=workspace, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (workspace / "long" / "metrics.jsonl").exists():
        time.sleep(0.01)
    os.kill(processes_of(workspace, b"run.folder=long")[1], signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was ended by SIGKILL, and no restart is left" in stderr
    assert "Traceback" not in stderr


def test_a_signal_ends_all_ranks(workspace):
    process = subprocess.Popen(
        launch_words(2, "stopped", train__steps=100000), cwd=workspace, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not (workspace / "stopped" / "metrics.jsonl").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Traceback" not in stderr, stderr
    assert processes_of(workspace, b"run.folder=stopped") == []


def test_a_port_in_use_is_named(workspace):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ranks = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        done = subprocess.run(
            [BINARY, *command("port")],
            cwd=workspace,
            env=os.environ | ranks,
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 2
    assert f"MASTER_PORT = {port} is in use" in done.stderr


@pytest.mark.skipif("DOVETAIL_ALL" not in os.environ, reason="torchrun waits two minutes for the other machine")
def test_machines_that_do_not_meet_are_told_which_address(workspace):
    with socket.socket() as taken:  # listens, but is no store
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        words = launch_words(1, "apart")
        words[2:2] = ["--nodes", "2", "--master", f"127.0.0.1:{port}"]
        code, stderr, _ = fail(workspace, words)
    assert code == 1
    assert f"127.0.0.1:{port}" in stderr and "no other program uses" in stderr, stderr
    assert "Traceback" not in stderr
