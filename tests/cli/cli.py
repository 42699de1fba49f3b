"""Running the `dovetail` binary as a user or a program does."""

import json
import subprocess
from pathlib import Path

from tiny_run import BINARY


def dovetail(*words, folder: Path, code: int = 0, env: dict | None = None) -> subprocess.CompletedProcess:
    """Runs a command and checks its exit code."""
    result = subprocess.run(
        [BINARY, *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=600, env=env, check=False
    )
    assert result.returncode == code, f"{words}: exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def dovetail_json(*words, folder: Path, code: int = 0) -> dict:
    return json.loads(dovetail(*words, "--json", folder=folder, code=code).stdout)
