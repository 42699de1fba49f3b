"""No operator of torch.ops.dovetail reads a tensor that has no memory, or another layout: an error, never a crash."""

import os
import subprocess
import sys

import dovetail
import pytest
import torch


def operators() -> dict[str, torch._C.FunctionSchema]:
    """Schemas of the operators that take a tensor."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("dovetail::"):
            continue
        if any("Tensor" in str(a.type) for a in schema.arguments):
            found[schema.name.removeprefix("dovetail::")] = schema
    return found


#: Objects that another operator makes; names of arguments are lost where they occur.
OBJECTS = {
    "KMeansData": lambda: torch.ops.dovetail.kmeans_data(torch.randn(64, 32)),
    "ExpertRanks": lambda: torch.ops.dovetail.moe_ranks(None, "", 60.0),
}
#: Tables that operators take by their handle.
TABLES = dovetail.embedding.EmbeddingCollection([dovetail.embedding.Table("t", 32, 4)], {"f": "t"})
STRINGS = {
    "kmeans_fit": "reseed",
    "algorithm": "auto",
    "format": "e4m3",
    "scale_mode": "round_up",
    "non_finite": "poison",
    "recipe": "mxfp8",
    "activation": "gelu",
    "row_dtype": "fp32",
}


def arguments(schema, make) -> list:
    """Plausible arguments, each tensor by `make`."""
    values = []
    for a in schema.arguments:
        kind = str(a.type)
        if "__torch__" in kind:
            values.append(OBJECTS[kind.rsplit(".", 1)[1]]())
        elif kind == "Tensor":
            values.append(make())
        elif kind == "List[Tensor]":
            values.append([make()])
        elif a.has_default_value():
            values.append(a.default_value)
        elif "Tensor" in kind:
            values.append(None)
        elif kind == "str":
            values.append(STRINGS.get(a.name, STRINGS.get(schema.name.removeprefix("dovetail::"), "gelu")))
        elif kind == "float":
            values.append(1e-5)
        elif a.name == "tables":
            values.append(TABLES.handle)
        elif kind == "List[str]":
            values.append(["sum"])
        elif kind == "bool":
            values.append(False)
        elif kind == "List[int]":
            values.append([1, 1])
        else:
            values.append(2)
    return values


def dtensor():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return distribute_tensor(torch.ones(32, 32), init_device_mesh("cpu", (1,)), [Replicate()])


def freed():
    x = torch.ones(32, 32)
    x.untyped_storage().resize_(0)
    return x


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(32, 32)


def nested():
    return torch.nested.nested_tensor([torch.ones(2, 32), torch.ones(3, 32)])


TENSORS = {
    "dtensor": dtensor,
    "freed": freed,
    "fake": fake,
    "nested": nested,
    "sparse": lambda: torch.ones(32, 32).to_sparse(),
    "csr": lambda: torch.ones(32, 32).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(32, 32), 0.1, 0, torch.qint8),
    "meta": lambda: torch.ones(32, 32, device="meta"),
    "complex": lambda: torch.ones(32, 32, dtype=torch.complex64).conj(),
    "float64": lambda: torch.ones(32, 32, dtype=torch.float64),
    "bool": lambda: torch.ones(32, 32, dtype=torch.bool),
    "float8": lambda: torch.ones(32, 32).to(torch.float8_e4m3fn),
    "empty": lambda: torch.ones(0, 32),
    "scalar": lambda: torch.tensor(1.0),
    "five": lambda: torch.ones(2, 2, 2, 2, 32),
    "expanded": lambda: torch.ones(1, 1).expand(32, 32),
    "strided": lambda: torch.ones(64, 64)[::2, ::2],
    "negative": lambda: torch.ones(32, 32, dtype=torch.complex64).conj().imag,
    "ids": lambda: torch.zeros(32, 32, dtype=torch.int64),
    "large ids": lambda: torch.full((32, 32), 2**40),
}
#: A DTensor goes to ATen's operators where these consist of them.
BY_ATEN = {f"dtensor, {name}: ran" for name in ("linear", "moe_importance_loss", "moe_smooth_load_loss")}
NEVER_READ = ["dtensor", "freed", "nested", "sparse", "csr", "quantized"]


def call_all() -> None:
    for kind, make in TENSORS.items():
        for name, schema in operators().items():
            print(f"{kind}, {name}:", end=" ", flush=True)
            try:
                getattr(torch.ops.dovetail, name)(*arguments(schema, make))
            except Exception as error:
                print("refused,", str(error).splitlines()[0], flush=True)
            else:
                print("ran", flush=True)


def test_no_tensor_crashes_an_operator():
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=300, env=os.environ)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"crashed in {lines[-1:]}: {done.stderr[-400:]}"
    assert len(operators()) > 20
    assert len(lines) == len(operators()) * len(TENSORS)
    for kind in NEVER_READ:
        assert {line for line in lines if line.startswith(f"{kind},") and line.endswith("ran")} <= BY_ATEN
    # Nothing takes the real part of a complex number for it.
    assert [line for line in lines if line.startswith("complex, kmeans") and line.endswith("ran")] == []


def test_a_wrapper_is_named_with_its_remedy():
    with pytest.raises(RuntimeError, match=r"mx_linear_forward: a tensor has no readable memory.*"):
        dovetail.mx.linear(freed(), torch.ones(8, 32))
    with pytest.raises(RuntimeError, match="swiglu: a tensor is sparse"):
        dovetail.functional.swiglu(torch.ones(4, 8).to_sparse())


def test_conjugate_and_batched_tensors_are_read_as_their_values():
    x, weight = torch.randn(4, 8, dtype=torch.complex64), torch.randn(3, 8, dtype=torch.complex64)
    assert torch.equal(
        dovetail.functional.linear(x.conj(), weight), dovetail.functional.linear(x.conj().clone(), weight)
    )
    x = torch.randn(4, 8)
    torch.testing.assert_close(torch.func.vmap(dovetail.functional.gelu)(x), dovetail.functional.gelu(x))


def test_negative_views_are_read_as_their_values():
    x = torch.complex(torch.randn(4, 32), torch.randn(4, 32)).conj().imag
    assert x.is_neg()
    assert torch.equal(dovetail.functional.gelu(x), dovetail.functional.gelu(x.clone()))
    codes, scales = dovetail.mx.quantize(x)
    expected = dovetail.mx.quantize(x.clone())
    assert torch.equal(codes, expected[0]) and torch.equal(scales, expected[1])


if __name__ == "__main__":
    call_all()
