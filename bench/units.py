"""Units of a study: one arm on one seed, whose result is a line of a file that later calls continue."""

import concurrent.futures
import dataclasses
import hashlib
import json
import pathlib
import shutil
import statistics
import threading
import time

from runs import finished, read_lines, read_machine, train_once, write_file_list


@dataclasses.dataclass(frozen=True)
class Unit:
    """One run of `config` with settings. `seed` is among them as run.seed."""

    config: pathlib.Path
    arm: str
    seed: int
    settings: tuple[str, ...]

    def config_hash(self) -> str:
        """Hash of everything that a unit's losses follow from, except code and processor."""
        return hashlib.sha256("\n".join([self.config.read_text(), *self.settings]).encode()).hexdigest()[:16]


class Results:
    """Finished units of one regime: one JSON object a line, appended as units end."""

    def __init__(self, folder: pathlib.Path, regime: str):
        self.path = folder / f"{regime}.jsonl"
        self.lock = threading.Lock()
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self.units = [json.loads(line) for line in lines]

    def has(self, unit: Unit) -> bool:
        return any(u["config"] == unit.config_hash() for u in self.units)

    def add(self, line: dict) -> None:
        with self.lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            self.units.append(line)


def run_unit(unit: Unit, results: Results, out: pathlib.Path, jobs: int) -> None:
    """Trains in a folder of `out`. A run that a signal stopped is continued by the next call."""
    folder = out / f"{unit.arm}-{unit.seed}"
    start = time.monotonic()
    train_once(unit.config, folder, list(unit.settings), jobs)
    if not finished(folder):
        return
    machine = read_machine(folder)
    results.add(
        {
            "arm": unit.arm,
            "seed": unit.seed,
            "config": unit.config_hash(),
            "cpu": machine["machine"]["cpu"],
            "simd": machine["machine"]["simd"],
            "parameters": machine["parameters"],
            "flops_per_token": machine["flops_per_token"],
            "seconds": round(time.monotonic() - start),
            "step_ms": round(statistics.median(t["step_ms"] for t in read_lines(folder, "timings.jsonl")), 1),
            "validation": [
                [m["tokens"], m["validation_loss"]]
                for m in read_lines(folder, "metrics.jsonl")
                if "validation_loss" in m
            ],
        }
    )
    shutil.rmtree(folder)  # the checkpoint is not part of the result


def run_units(plan: list[Unit], results: Results, out: pathlib.Path, jobs: int, minutes: float) -> None:
    """Runs the units without a result, `jobs` at a time. Starts none after `minutes`."""
    write_file_list()
    missing = [unit for unit in plan if not results.has(unit)]
    print(f"{results.path.stem}: {len(plan) - len(missing)} of {len(plan)} units are done", flush=True)
    deadline = time.monotonic() + 60 * minutes

    def run(unit: Unit) -> None:
        if time.monotonic() < deadline:
            run_unit(unit, results, out, jobs)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, missing))
