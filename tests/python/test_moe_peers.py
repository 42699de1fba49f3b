"""Sides of `./dev bench moe` against MoELayer. DeepSpeed and torchtitan are oracles if the bench installed them."""

import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import moe
from moe_sides import INSTALLED, PACKAGES, PEERS, Dovetail, Network
from peers import add_peers

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def sides_of(peer, experts, k, dtype):
    if peer in INSTALLED and not add_peers("moe", PACKAGES, install=False):
        pytest.skip(f"{peer} is not there; ./dev bench moe installs it")
    shape = {"experts": experts, "k": k, "ff": 32, "width": 48}
    network = Network(shape, "swiglu", DTYPES[dtype], products=torch.float32)
    return {"dovetail": Dovetail(network), peer: PEERS[peer](network)}


def tokens(dtype, width=48):
    x, dy = torch.randn(2, 70, width).to(DTYPES[dtype])
    return x.requires_grad_(), dy


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("experts", "k"), [(6, 2), (10, 4)])
@pytest.mark.parametrize("peer", [name for name in PEERS if name != "torchtitan_compiled"])
def test_results_and_gradients_are_the_peers(peer, experts, k, dtype):
    errors = moe.compare(sides_of(peer, experts, k, dtype), *tokens(dtype), moe.LARGEST_ERROR[dtype])
    assert list(errors) == [peer]


def test_a_peer_with_another_network_is_refused():
    sides = sides_of("sorted", 6, 2, "fp32")
    with torch.no_grad():
        sides["sorted"].router = torch.nn.Parameter(-sides["sorted"].router)
    with pytest.raises(SystemExit, match="sorted computes something else"):
        moe.compare(sides, *tokens("fp32"), moe.LARGEST_ERROR["fp32"])


def test_claims_are_about_dense_and_the_fastest_peer():
    sides = {"dense": {"ms": 100.0}, "dovetail": {"ms": 104.0}, "sorted": {"ms": 130.0}, "padded": {"ms": 103.0}}
    line = {"dtype": "bf16", "threads": 1, "sides": sides}
    dense, peer = moe.claims(line, 1.05)
    assert dense == {"against": "dense", "ratio": pytest.approx(1.04), "at_most": 1.05}
    assert peer == {"against": "padded", "ratio": pytest.approx(104 / 103), "at_most": 1.0}
    assert [claim["against"] for claim in moe.claims(line | {"threads": 2}, 1.05)] == ["padded"]
