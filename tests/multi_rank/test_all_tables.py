"""configs/all_tables.toml: every capability of embedding tables on two ranks, in a run that outlives one and learns."""

import collections
import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ranks import expect_a_killed_rank_changes_nothing
from tiny_run import BINARY, metrics

CONFIG = Path(__file__).resolve().parents[2] / "configs/all_tables.toml"
USERS, ITEMS = 300, 200


def write_rows(path: Path, rows: int) -> None:
    """Writes rows. A click is likely if the item's hidden sign equals the sign of most items clicked before."""
    draw = random.Random(1)
    signs = [draw.randrange(2) for _ in range(ITEMS)]
    lines = ["user\titem\tclicks\tsize\tclicked"]
    for _ in range(rows):
        item, sign = draw.randrange(ITEMS), draw.randrange(2)
        liked = [i for i in range(ITEMS) if signs[i] == sign]
        history = [draw.choice(liked) for _ in range(draw.randrange(1, 7))]
        clicked = draw.random() < (0.9 if signs[item] == sign else 0.1)
        clicks = "|".join(f"i{i}" for i in history)
        lines.append(f"u{draw.randrange(USERS)}\ti{item}\t{clicks}\t{draw.random():.3f}\t{clicked:d}")
    path.write_text("\n".join(lines) + "\n")


def dovetail(folder: Path, *words: str) -> str:
    return subprocess.run([BINARY, *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_all_tables_at_once_outlive_a_rank_and_learn(tmp_path):
    shutil.copy(CONFIG, tmp_path / "run.toml")
    write_rows(tmp_path / "rows.tsv", 6000)
    run = expect_a_killed_rank_changes_nothing(tmp_path, {}, checkpoints=2)  # the second is a delta

    found = json.loads(dovetail(tmp_path, "inspect", "whole/checkpoints/step-00000300", "--json"))
    assert found["kind"] == "delta checkpoint"
    assert found["builds_on"] == "step-00000225, step-00000250, step-00000275"
    rows = collections.Counter()  # sums over pieces: each rank has one of each table
    for t in found["tensors"]:
        rows[re.sub(r"\.\d-of-2$", "", t["tensor"])] += t["shape"][0]
    pieces = [t["tensor"] for t in found["tensors"] if t["tensor"].startswith("embedding.item.rows")]
    assert pieces == ["embedding.item.rows.0-of-2", "embedding.item.rows.1-of-2"]
    assert rows["embedding.item.rows"] == rows["embedding.item.weight"] <= ITEMS < 2000

    # Who knows the signs of all items reaches 0.90.
    last = metrics(run)[-1]
    assert last["auc"] > 0.8
    # One process with all tables in memory measures the same as the ranks. Only rounding of sums
    # and AUC's bins differ.
    assert 0 < last["auc_error"] < 1e-3
    found = json.loads(dovetail(tmp_path, "eval", "whole", "--json"))["validation"]
    assert found["loss"] == pytest.approx(last["validation_loss"], rel=1e-4)
    assert "auc_error" not in found["tasks"]["clicked"]
    assert found["tasks"]["clicked"]["auc"] == pytest.approx(last["auc"], abs=last["auc_error"] + 1e-4)
    hits = [json.loads(line)["hit_rate"] for line in (run / "timings.jsonl").read_text().splitlines()]
    assert 0.1 < sum(hits) / len(hits) < 0.9
    # Users are admitted at their second occurrence, and leave when they were not seen for 100 steps.
    keys = [json.loads(line) for line in (tmp_path / "whole/tables.jsonl").read_text().splitlines()]
    assert 0 < keys[-1]["rows"] <= USERS and keys[0]["admitted"] > 0 and keys[0]["not_admitted"] > 0
    assert 0 < rows["embedding.user.keys"] == rows["embedding.user.weight"] <= keys[-1]["rows"]
    assert "embedding.user.removed_keys" in rows
    plan = json.loads((run / "embedding_plan.json").read_text())
    assert plan["ranks"] == 2 and {pack["sharding"] for pack in plan["packs"]} == {"row"}
    assert {pack["group"] for pack in plan["packs"]} == {0, 1}
