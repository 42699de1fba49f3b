"""The estimate of memory that training prints before a run, against the resident memory that the run then takes.

usage: ./dev bench memory_estimate [--out FILE]

Eight models train for a few steps on texts and rows that this program writes:

- the quickstart's in float32, bfloat16 and MXFP8
- a GPT of 10 M parameters
- a Llama with SwiGLU and grouped heads
- a mixture of experts
- a recommender in float32 and bfloat16

Each validates, and saves a checkpoint at its end. The measured figure is the process's maximum resident memory
(VmHWM) minus its resident memory right before the model was made. Claim: the estimate is within 15 % of it.

A second run saves at each step. The checkpoint's copy may still be there when the next step reaches its peak. So the
peak may lie anywhere between the two figures that are printed, each give or take 15 %. Exit code 1 if a claim fails.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

from runs import DOVETAIL, ROOT

TOLERANCE = 0.15
TEXT = {
    "data.file_list": '""',
    "data.validation_split": "tail",
    "data.validation_fraction": "0.02",
    "data.max_document_bytes": "1000000",
}
LLAMA = {
    "model.layers": "4",
    "model.width": "256",
    "model.heads": "8",
    "model.kv_heads": "2",
    "model.context": "256",
    "model.norm": "rmsnorm",
    "model.activation": "swiglu",
    "train.batch": "16",
}
ROWS = {
    "recommender.model": "dlrm",
    "rows.dense": '[{ columns = ["price"], transform = "standard" }]',
    "rows.sparse": "["
    + ", ".join(f'{{ columns = ["c{i}"], num_rows = {rows} }}' for i, rows in enumerate([200000, 50000, 1000, 100]))
    + "]",
    "train.batch": "4096",
}
# Name, config, precision, what differs from the config.
MODELS = [
    ("quickstart", "quickstart", "fp32", {}),
    ("quickstart in bfloat16", "quickstart", "bf16", {}),
    ("quickstart in MXFP8", "quickstart", "mxfp8", {}),
    ("GPT of 10 M", "tinyshakespeare_10m", "fp32", {"train.batch": "16"}),
    ("Llama", "quickstart", "fp32", LLAMA),
    ("mixture", "moe_tiny", "fp32", {}),
    ("recommender", "adult", "fp32", ROWS),
    ("recommender in bfloat16", "adult", "bf16", ROWS),
]


def write_text(path: pathlib.Path) -> None:
    """Words with a long tail, so that a tokenizer finds all the pieces it may."""
    draw = random.Random(1)
    words = ["".join(draw.choices("etaoinshrdlucm", k=draw.randrange(2, 9))) for _ in range(4000)]
    path.write_text(" ".join(words[int(len(words) * draw.random() ** 3)] for _ in range(45000)))


def write_rows(path: pathlib.Path) -> None:
    draw = random.Random(2)
    with path.open("w") as out:
        out.write("label\tprice\tc0\tc1\tc2\tc3\n")
        for _ in range(30000):
            ids = "\t".join(f"v{draw.randrange(n)}" for n in (200000, 50000, 1000, 100))
            out.write(f"{draw.randrange(2)}\t{draw.gauss(20, 5):.3f}\t{ids}\n")


def memory_of(folder: pathlib.Path, config: str, precision: str, changes: dict, every_steps: int | str) -> dict:
    """machine.json's "memory" of a run of a few steps."""
    source = (
        {"rows.files": f'["{folder}/rows.tsv"]'}
        if config == "adult"
        else TEXT
        | {
            "data.text": f"{folder}/text.txt",
            "data.path": f"{folder}/data-{config}",
        }
    )
    settings = source | {
        "run.folder": f"{folder}/run",
        "run.device": "cpu",
        "train.steps": "4",
        "schedule.warmup_steps": "1",
        "eval.every_steps": "2",
        "checkpoint.every_steps": str(every_steps),
        "log.sample_prompts": "[]",
        "log.tensorboard": "false",
    }
    settings["precision.recipe"] = precision
    command = [str(DOVETAIL), "train", str(ROOT / f"configs/{config}.toml"), "--fresh", "--quiet"]
    for key, value in (settings | changes).items():
        command += ["--set", f"{key}={value}"]
    environment = {**os.environ, "DOVETAIL_PYTHON": sys.executable}
    code = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
    if code != 0:
        sys.exit(f"{config}: dovetail ended with code {code}")
    return json.loads((folder / "run/machine.json").read_text())["memory"]


def measure(folder: pathlib.Path) -> list[dict]:
    write_text(folder / "text.txt")
    write_rows(folder / "rows.tsv")
    results = []
    print(f"{'MB':26}{'estimate':>9}{'measured':>9}{'ratio':>7}   {'saving each step':>18}{'measured':>9}")
    for name, config, precision, changes in MODELS:
        memory_of(folder, config, precision, changes, 0)  # prepares the text
        end, each = (memory_of(folder, config, precision, changes, every) for every in ("end", 1))
        result = {
            "model": name,
            "estimate_bytes": end["estimate_bytes"],
            "measured_bytes": end["peak_bytes"],
            "ratio": end["estimate_bytes"] / end["peak_bytes"],
            "saving": {key: each[key] for key in ("estimate_bytes", "most_bytes", "peak_bytes")},
        }
        results.append(result)
        line = f"{name:26}{end['estimate_bytes'] / 1e6:9.1f}{end['peak_bytes'] / 1e6:9.1f}{result['ratio']:7.3f}"
        between = f"{each['estimate_bytes'] / 1e6:.1f} to {each['most_bytes'] / 1e6:.1f}"
        print(f"{line}   {between:>18}{each['peak_bytes'] / 1e6:9.1f}", flush=True)
    return results


def hold(results: list[dict]) -> bool:
    """Print each claim that does not hold, and whether all do."""
    holds = True
    for result in results:
        if abs(result["ratio"] - 1) > TOLERANCE:
            print(f"claim: {result['model']}: within {TOLERANCE:.0%}: DOES NOT HOLD: {result['ratio']:.3f}")
            holds = False
        saving = result["saving"]
        lowest, highest = saving["estimate_bytes"] * (1 - TOLERANCE), saving["most_bytes"] * (1 + TOLERANCE)
        if not lowest <= saving["peak_bytes"] <= highest:
            print(f"claim: {result['model']}, saving each step: between its two figures: DOES NOT HOLD")
            holds = False
    print(f"claim: each estimate within {TOLERANCE:.0%} of what the run took: {'holds' if holds else 'DOES NOT HOLD'}")
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="also write the result as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(pathlib.Path(folder))
    holds = hold(results)
    if options.out:
        result = {"benchmark": "memory_estimate", "tolerance": TOLERANCE, "models": results}
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
