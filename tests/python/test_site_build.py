"""The documentation site builds without a warning, and its pages link to each other."""
# ctest-labels: package

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_builds_without_a_warning(tmp_path):
    site = tmp_path / "site"
    # The tests' own cache is empty; Sphinx's environment lies beside this one.
    environment = dict(os.environ, DOVETAIL_CACHE=str(pathlib.Path(sys.prefix).parent))
    subprocess.run([sys.executable, ROOT / "tools/site.py", "--out", site], check=True, env=environment)
    start = (site / "index.html").read_text()
    assert 'href="docs/quickstart.html"' in start
    assert 'id="dovetail.mx.quantize"' in (site / "reference/python/mx.html").read_text()
    quantize = (site / "reference/cpp/mx/quantize.html").read_text()
    assert re.search(r'<dt class="sig sig-object cpp" id="[^"]*quantize', quantize)
    assert "reference/cpp/moe/routing.html" in (site / "docs/models.html").read_text()  # a link to a header
