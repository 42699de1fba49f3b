"""Builds the documentation site: build/site/index.html. `./dev docs --site` starts it after building the libraries.

build/site-source is the input of Sphinx. Pages are copied to their paths in the repository. All other files are
symbolic links, since pages link to some. `reference` holds the pages of docs/site/python and of the C++ headers.
"""

import argparse
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements-docs.lock"


def ready_environment() -> pathlib.Path:
    """The Python of Sphinx's environment, which is made on first use and sees this Python's packages behind its own."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    cache = pathlib.Path(os.environ.get("DOVETAIL_CACHE") or pathlib.Path(cache_home) / "dovetail")
    key = hashlib.sha256(LOCK.read_bytes() + sys.prefix.encode()).hexdigest()[:16]
    environment = cache / f"docs-{key}"
    python, ready = environment / "bin/python", environment / ".ready"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "docs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            print("dovetail: making the environment of the documentation site", file=sys.stderr)
            shutil.rmtree(environment, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
            install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--require-hashes"]
            subprocess.run([*install, "-r", LOCK], check=True)
            packages = sysconfig.get_path("purelib", vars={"base": environment})
            (pathlib.Path(packages) / "dovetail.pth").write_text(sysconfig.get_path("purelib") + "\n")
            ready.touch()
    return python


def gather(source: pathlib.Path) -> None:
    shutil.rmtree(source, ignore_errors=True)
    files = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True).splitlines()
    for name in files:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            if name.endswith((".md", ".svg", ".png")):
                shutil.copy2(ROOT / name, source / name)
            else:
                (source / name).symlink_to(ROOT / name)
    shutil.copy2(ROOT / "docs/site/index.md", source / "index.md")
    shutil.copytree(ROOT / "docs/site/python", source / "reference/python")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/site", help="default: build/site")
    out = parser.parse_args().out.resolve()
    source, doctrees = out.with_name(out.name + "-source"), out.with_name(out.name + "-doctrees")
    python = ready_environment()
    gather(source)
    subprocess.run([python, ROOT / "tools/headers.py", source / "reference/cpp"], check=True)
    sphinx = [python, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", ROOT / "docs/site"]
    jobs = ["-j", os.environ.get("DOVETAIL_JOBS", "auto")]
    path = os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))
    status = subprocess.call([*sphinx, *jobs, "-d", doctrees, source, out], env=dict(os.environ, PYTHONPATH=path))
    if status == 0:
        print(f"dovetail: {out / 'index.html'}", file=sys.stderr)
    else:
        shutil.rmtree(doctrees)  # the next call reads all pages again, and so repeats their warnings
    return status


if __name__ == "__main__":
    sys.exit(main())
