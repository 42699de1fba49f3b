"""Experts of a layer: parameters, or modules of any class."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from dovetail.moe._operators import Routing, combine, dispatch
from torch import Tensor, nn


class ByNumber(nn.Module):
    """Parts of the experts ``own`` of this rank, by their numbers among the ``total`` experts of all ranks."""

    own: range
    total: int

    def _load_from_state_dict(self, state_dict, prefix, *arguments):
        """Takes this rank's experts and passes over the others'."""

        def is_elsewhere(key: str) -> bool:
            number = key.removeprefix(prefix).split(".", 1)[0]
            return number.isdecimal() and int(number) < self.total and int(number) not in self.own

        super()._load_from_state_dict(
            {key: value for key, value in state_dict.items() if not (key.startswith(prefix) and is_elsewhere(key))},
            prefix,
            *arguments,
        )


class ExpertParameters(ByNumber):
    """A parameter of each expert. ``parameters[e]`` is the one of expert e.

    The parameters lie one after another in one storage, so a GPU's products read them without a copy. Conversions and
    copies of the module keep this. Tensors that ``load_state_dict(assign=True)`` assigns stay where they are.
    """

    def __init__(self, own: range, total: int, *sizes: int, **options):
        super().__init__()
        self.own, self.total = own, total
        for e, part in zip(own, torch.empty(len(own), *sizes, **options) if own else (), strict=True):
            self.register_parameter(str(e), nn.Parameter(part))

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        self._share_storage()
        return self

    def __setstate__(self, state):
        super().__setstate__(state)
        self._share_storage()

    def _share_storage(self) -> None:
        parameters = list(self)
        kinds = {(p.shape, p.dtype, p.device) for p in parameters}
        if len(kinds) != 1 or any(type(p.data) is not Tensor or p.is_meta for p in parameters):
            return
        first = parameters[0]
        if all(
            p.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            and p.storage_offset() == first.storage_offset() + i * first.numel()
            and p.is_contiguous()
            for i, p in enumerate(parameters)
        ):
            return
        with torch.no_grad():
            for p, part in zip(parameters, torch.stack([p.data for p in parameters]), strict=True):
                p.data = part

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[nn.Parameter]:
        return iter(self._parameters.values())

    def __getitem__(self, e: int) -> nn.Parameter:
        if str(e) not in self._parameters:
            raise IndexError(f"expert {e} is none of this rank's, {self.own.start} to {self.own.stop - 1}")
        return self._parameters[str(e)]


class ExpertModules(ByNumber, nn.ModuleDict):
    """A module for each expert, by the expert's number as text."""

    def __init__(self, own: range, total: int, make: Callable[[], nn.Module]):
        super().__init__()
        self.own, self.total = own, total
        seed = draw_seed()
        for e in own:
            with seeded(seed, e):
                self[str(e)] = make()


def draw_seed() -> int:
    return int(torch.randint(2**62, (), device="cpu"))


@contextmanager
def seeded(seed: int, e: int):
    """Random numbers of expert e. They are the same on any number of ranks."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed + e)
        if devices:
            torch.cuda.manual_seed(seed + e)
        yield


def _run(name: str, module: nn.Module, rows: Tensor) -> Tensor:
    made = module(rows)
    if not isinstance(made, Tensor) or made.shape != rows.shape:
        found = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise ValueError(f"expert {name} maps rows {tuple(rows.shape)} to {found}; it must keep their shape")
    return made


def run_modules(experts: ExpertModules, x: Tensor, routing: Routing) -> Tensor:
    """Map x (T, C) to the weighted sums of the experts' results. Each expert is called once, on its rows."""
    rows, count = dispatch(x, routing)
    parts = zip(experts.items(), rows.split(count.tolist()), strict=True)
    return combine(torch.cat([_run(name, module, part) for (name, module), part in parts]), routing)


#: Experts of the operators moe_parallel_modules that run now, by number.
_calls: dict[int, list[tuple[str, nn.Module]]] = {}
_numbers = itertools.count()


@contextmanager
def callable_experts(experts: ExpertModules):
    """Gives a number by which the operator moe_call_expert finds the experts."""
    number = next(_numbers)
    _calls[number] = list(experts.items())
    try:
        yield number
    finally:
        del _calls[number]


def _call_expert(call: int, expert: int, rows: Tensor) -> Tensor:
    if call not in _calls:
        raise RuntimeError("moe_call_expert: moe_parallel_modules alone calls it; call MoELayer")
    return _run(*_calls[call][expert], rows)


def register_calls() -> torch.library.Library:
    """Implements moe_call_expert, once the library is loaded. Keep the result."""
    library = torch.library.Library("dovetail", "IMPL")
    library.impl("moe_call_expert", _call_expert, "CompositeImplicitAutograd")
    return library
