"""Statistics of bench/mx_study.py against scipy, and the sentences that its intervals allow."""

import math
import pathlib
import random
import sys

import pytest
from scipy import stats

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import mx_study


def unit(arm, seed, loss, cpu="EPYC", simd="AVX2"):
    return {"arm": arm, "seed": seed, "cpu": cpu, "simd": simd, "parameters": 1, "validation": [[10, 5.0], [20, loss]]}


def units_of(arm, losses, **options):
    return [unit(arm, seed, loss, **options) for seed, loss in enumerate(losses)]


def test_intervals_are_scipys():
    random.seed(1)
    a, b = ([random.gauss(3, 0.1) for _ in range(9)] for _ in range(2))
    row = mx_study.difference(units_of("mxfp8_floor", a) + units_of("mxfp8", b), "mxfp8_floor", "mxfp8")
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert row["pairs"] == 9
    assert row["mean"] - row["half"] == pytest.approx(expected.low)
    assert row["mean"] + row["half"] == pytest.approx(expected.high)


@pytest.mark.parametrize("n", [8, 12, 20])
def test_the_detectable_difference_has_power_of_four_fifths(n):
    differences = [float(i) for i in range(n)]
    deviation = stats.tstd(differences)
    noncentrality = mx_study.detectable(differences) / deviation * math.sqrt(n)
    power = 1 - stats.nct.cdf(stats.t.ppf(0.975, n - 1), n - 1, noncentrality)
    assert 0.79 < power < 0.84


def test_pairs_share_seed_and_processor():
    units = [unit("mxfp8", 1, 3.0), unit("bf16", 1, 3.1), unit("mxfp8", 2, 3.0), unit("bf16", 2, 3.1, simd="AVX-512")]
    assert [(a["seed"], b["seed"]) for a, b in mx_study.pairs(units, "mxfp8", "bf16")] == [(1, 1)]


def regime(floor, spread=1e-4):
    signs = [1, -1, 1, -1, 1, -1, 1, -1]
    bf16 = [3.0 + 0.01 * seed for seed in range(8)]
    return [
        *units_of("bf16", bf16),
        *units_of("mxfp8", [loss + spread * sign for loss, sign in zip(bf16, signs, strict=True)]),
        *units_of("mxfp8_floor", [loss + floor - spread * sign for loss, sign in zip(bf16, signs, strict=True)]),
    ]


def sentences(units):
    lines, holds = mx_study.verdicts("small", mx_study.analyse(units))
    return "\n".join(lines), holds


def test_an_arm_separates_only_if_its_interval_excludes_zero():
    assert "mxfp8_floor is above mxfp8: " in sentences(regime(1e-3))[0]
    assert "mxfp8_floor is below mxfp8: " in sentences(regime(-1e-3))[0]
    assert "mxfp8_floor is not distinguished from mxfp8: " in sentences(regime(1e-5))[0]


def test_a_study_without_power_does_not_hold():
    text, holds = sentences(regime(0.0))
    assert holds and "small: has power: " in text and ", inside 0.5 %" in text
    text, holds = sentences(regime(0.0, spread=0.02))
    assert not holds and "small: NO POWER: " in text and "NOT inside 0.5 %" in text


def test_finished_units_are_those_of_the_same_settings(tmp_path):
    first = mx_study.unit_of("small", "mxfp8", 1)
    mx_study.Results(tmp_path, "small").add({"config": first.config_hash()})
    again = mx_study.Results(tmp_path, "small")
    assert again.has(first)
    for other in (("small", "mxfp8", 2), ("small", "bf16", 1), ("high_rate", "mxfp8", 1)):
        assert not again.has(mx_study.unit_of(*other))


def test_the_page_shows_intervals_and_sentences():
    units = regime(1e-3)
    found = mx_study.analyse(units)
    html = mx_study.page({"small": found}, ["a < b"], {"small": units})
    assert "a &lt; b" in html and "<h2>small</h2>" in html and "<td>mxfp8_floor</td><td>8</td>" in html
