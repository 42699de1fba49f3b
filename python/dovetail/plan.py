"""Training steps of any PyTorch model within a memory budget.

>>> step = dovetail.plan.step(train_step, model, optimizer, budget="0.5x")
>>> for batch in loader:
...     loss = step(batch)

A plan decides for each tensor of a step: keep it, recompute it, or copy it to slower memory. The step's operations run
unchanged and give the bits of PyTorch without a plan. Steps run where the model is: on the CPU or on one GPU.
"""

import contextlib
import copy
import ctypes
import dataclasses
import json
import os
import pathlib
import weakref
from collections.abc import Callable, Iterator, MutableMapping

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

__all__ = ["PlanError", "Report", "Step", "report", "step", "write"]

TECHNIQUES = ("recompute", "compress")
ON_GPU = ("recompute", "offload")
DEVICES = ("cpu", "cuda")


class PlanError(RuntimeError):
    """A step cannot be planned, or differs from the recorded one. The traceback shows the line of the function."""


class _Reads(TorchFunctionMode):
    """Lets the function read values by pointer, as ``numpy`` and printing do, from a copy outside the plan's memory."""

    NAMES = frozenset({"numpy", "tolist", "__array__", "__dlpack__", "__repr__", "__reduce_ex__", "__deepcopy__"})

    def __init__(self, native):
        super().__init__()
        self._native = native

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") not in self.NAMES or args[0].device.type not in DEVICES:
            return func(*args, **kwargs)
        seen = args[0].detach().clone()  # an operation of the step, after which nothing has reused its memory
        self._native.set_outside(True)
        try:
            return func(seen.clone().requires_grad_(args[0].requires_grad), *args[1:], **kwargs)
        finally:
            self._native.set_outside(False)


class _Batch:
    """Tensors of a mapping or dataclass that pytree does not know, such as ``transformers.BatchEncoding``."""

    def __init__(self, batch, values: dict):
        self.batch, self.values = batch, values

    def flatten_with_keys(self):
        key = _pytree.MappingKey if isinstance(self.batch, MutableMapping) else _pytree.GetAttrKey
        return [(key(name), value) for name, value in self.values.items()], self

    def flatten(self):
        return list(self.values.values()), self

    @staticmethod
    def unflatten(values, self):
        """Returns an object of the batch's own type."""
        out = copy.copy(self.batch)
        for name, value in zip(self.values, values, strict=True):
            if isinstance(out, MutableMapping):
                out[name] = value
            else:
                object.__setattr__(out, name, value)  # also of frozen classes
        return out

    @staticmethod
    def of(leaf):
        """Returns a batch in place of a leaf with tensors. Other leaves stay the caller's objects."""
        if isinstance(leaf, MutableMapping):
            values = dict(leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            values = {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)}
        else:
            return leaf
        values = _pytree.tree_map(_Batch.of, values)
        has_tensors = any(isinstance(value, torch.Tensor) for value in _pytree.tree_leaves(values))
        return _Batch(leaf, values) if has_tensors else leaf


_pytree.register_pytree_node(_Batch, _Batch.flatten, _Batch.unflatten, flatten_with_keys_fn=_Batch.flatten_with_keys)


class Step:
    """Calls a training function within a memory budget. Made by :func:`step`.

    The first three calls record the function's operations; the next four measure them by a first plan. From the eighth
    on, calls run by the final plan. A call that raises an exception ends the plan: the next call records anew.
    """

    def __init__(self, function: Callable, model: torch.nn.Module, optimizer, device: torch.device, options: dict):
        self._device = device
        self._function, self._model = function, model
        self._optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer or ())
        self._options = json.dumps(options)
        self._names = {id(module): name for name, module in model.named_modules() if name}
        work = weakref.WeakMethod(self._work)  # no cycle: the last reference to a step ends its plan
        self._callback = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: work()())
        self._given = self._result = self._error = None
        self._restart()

    def _restart(self) -> None:
        self._native = None  # ends the previous plan, which gives the tensors memory of their own
        self._native = torch.classes.dovetail.PlannedStep(
            self._options, ctypes.cast(self._callback, ctypes.c_void_p).value
        )
        self._known = None

    def __call__(self, *args, **kwargs):
        """Run one step, and return what the function returns.

        Args:
            args, kwargs: arguments of the function: tensors, or lists, tuples, mappings and dataclasses with tensors.
                The function gets copies of tensors. If other calls began with other sizes, this step runs within the
                budget without a plan.

        Raises:
            PlanError: the step cannot be planned, or the budget is too small. The message names operator and module.
        """
        paths, structure = _pytree.tree_flatten_with_path(_pytree.tree_map(_Batch.of, (args, kwargs)))
        names = [_pytree.keystr(path) for path, leaf in paths if isinstance(leaf, torch.Tensor)]
        tensors = [leaf for _, leaf in paths if isinstance(leaf, torch.Tensor)]
        for name, tensor in zip(names, tensors, strict=True):
            if tensor.requires_grad:
                raise PlanError(f"dovetail.plan: argument {name} requires a gradient; a step's inputs have none")
        self._look_at_tensors()
        self._given = names, [leaf for _, leaf in paths], structure
        try:
            with self._layers(), torch.compiler.set_stance("force_eager"):
                self._native.run(names, tensors)
        except BaseException as error:
            raised, self._error, self._result = self._error, None, None
            self._restart()
            if not isinstance(error, RuntimeError):
                raise
            message = str(error)
            if raised is None:
                raise PlanError(message) from None
            if message == "the step's function raised an exception":
                raise raised from None
            raise PlanError(message).with_traceback(raised.__traceback__) from None
        finally:
            self._given = None
        result, self._result = self._result, None
        return result

    def _work(self) -> int:
        """Calls the function with copies of the plan's inputs. Called by the library. Returns 1, or 0 for an error."""
        try:
            names, leaves, structure = self._given
            copies = [tensor.clone() for tensor in self._native.inputs()]
            tensors = iter(copies)
            leaves = [next(tensors) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            args, kwargs = _pytree.tree_unflatten(leaves, structure)
            parameters = list(self._model.parameters())
            versions = [parameter._version for parameter in parameters]
            with _Reads(self._native):
                self._result = self._function(*args, **kwargs)
            for name, tensor in zip(names, copies, strict=True):
                if tensor._version > 0:
                    raise PlanError(
                        f"dovetail.plan: the function changes argument {name} in place, which the caller would not "
                        "see; return it, or make it a buffer of the model"
                    )
            if versions == [parameter._version for parameter in parameters] and any(
                parameter.grad is not None for parameter in parameters
            ):
                raise PlanError(
                    "dovetail.plan: the function leaves gradients and updates nothing; gradients end with the call; "
                    "call optimizer.step() in the function, or return the gradients"
                )
        except BaseException as error:
            self._error = error
            return 0
        return 1

    def _tensors(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Parameters, and state: buffers and tensors of the optimizers."""
        parameters = dict(self._model.named_parameters())
        names = {id(parameter): name for name, parameter in parameters.items()}
        state = dict(self._model.named_buffers())
        for number, optimizer in enumerate(self._optimizers):
            for parameter, of_parameter in optimizer.state.items():
                for key, value in of_parameter.items():
                    if isinstance(value, torch.Tensor):
                        state[f"optimizer{number or ''}.{key}.{names.get(id(parameter), '')}"] = value
        return parameters, state

    def _look_at_tensors(self) -> None:
        """Tells the library which tensors a plan may move. Starts over if others have replaced them."""
        parameters, state = self._tensors()
        for name, tensor in {**parameters, **state}.items():
            if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
                raise PlanError(f"dovetail.plan: {name} has no size yet; call the model once before the first step")
            if tensor.device != self._device and (tensor.device.type != "cpu" or name in parameters):
                raise PlanError(
                    f"dovetail.plan: {name} is on {tensor.device}, but the step was made for {self._device}; move the "
                    "model first, then make the step; planned steps run on the CPU or on one CUDA GPU"
                )
        now = [tensor.untyped_storage()._cdata for tensor in (*parameters.values(), *state.values())]
        if not self._native.records() and now != self._known:
            self._restart()
        if self._native.records():
            self._known = now
            self._native.set_tensors(list(parameters), list(parameters.values()), list(state), list(state.values()))

    @contextlib.contextmanager
    def _layers(self) -> Iterator[None]:
        """Names the module that runs, for reports and errors."""
        path = [""]

        def enter(module, _):
            name = self._names.get(id(module))
            if name is None:
                return
            inside = f"{path[-1]}."
            self._native.enter_layer(name.removeprefix(inside) if path[-1] else name)
            path.append(name)

        def leave(module, *_):
            if id(module) in self._names:
                self._native.leave_layer()
                path.pop()

        hooks = torch.nn.modules.module
        handles = [
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class Report(dict):
    """Figures of a plan, under the keys of memory_plan.json (docs/training.md). ``str`` gives tables.

    Sizes are in bytes, times in seconds.
    """

    def __init__(self, figures: dict, text: str):
        super().__init__(figures)
        self._text = text

    def __str__(self) -> str:
        return self._text


def report(step: Step) -> Report:
    """Return the figures of a step's plan; print it for tables by technique, by layer and by budget.

    Raises:
        PlanError: there is no plan yet. The seventh call of the step makes it.
    """
    figures = step._native.report()
    if not figures:
        raise PlanError("dovetail.plan: there is no plan yet; run the step at least seven times")
    return Report(json.loads(figures), step._native.text())


def write(step: Step, folder: str | os.PathLike) -> None:
    """Write ``graph.json``, ``plan.json`` and ``memory_plan.json`` of a step to a folder.

    Raises:
        PlanError: there is no plan yet.
    """
    report(step)
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    step._native.write(os.fspath(folder))


def step(
    function: Callable,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | list[torch.optim.Optimizer] | None = None,
    *,
    budget: str,
    folder: str | os.PathLike | None = None,
    allow: list[str] | None = None,
    host_bytes: str | None = None,
    solve_s: float = 30,
) -> Step:
    """Make a training step that runs within a memory budget.

    Args:
        function: one training step: forward, backward and update. It must call the same operations on the same shapes
            each time. It may read values (``loss.item()``) and pass other numbers, such as a learning rate.
        model: module whose parameters and buffers the plan may move.
        optimizer: optimizers whose state the plan may move.
        budget: most memory of a step on the model's device: ``"2GiB"``, or ``"0.5x"`` of a step that keeps everything.
        folder: folder for a file to which tensors may be copied. Without one, tensors are recomputed. On a GPU, tensors
            are copied to pinned memory of the CPU, and a folder is refused.
        allow: techniques: ``"recompute"``, ``"offload"``, ``"compress"``, and two that change results. ``"algorithms"``
            runs convolutions by algorithms that need less memory or time. ``"compress_mxfp8"`` keeps activations in
            MXFP8. The default is all that keep the bits. A GPU compresses nothing.
        host_bytes: most bytes of offloaded tensors, such as ``"4GiB"``.
        solve_s: most seconds for the search for each of the two plans.

    Raises:
        PlanError: an option is wrong.
    """
    for name, value, kinds in (
        ("function", function, Callable),
        ("model", model, torch.nn.Module),
        ("optimizer", optimizer, torch.optim.Optimizer | list | tuple | None),
        ("budget", budget, str),
        ("folder", folder, str | os.PathLike | None),
        ("allow", allow, list | tuple | None),
        ("host_bytes", host_bytes, str | None),
        ("solve_s", solve_s, int | float),
    ):
        if not isinstance(value, kinds):
            example = '; give a size such as "2GiB", or "0.5x"' if name == "budget" else ""
            raise PlanError(f"dovetail.plan: {name} is {value!r}, of type {type(value).__name__}{example}")
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    on_gpu = device.type == "cuda"
    if on_gpu and folder:
        raise PlanError("dovetail.plan: folder does nothing on a GPU, which offloads to the CPU's memory; leave it out")
    if allow is None:
        allow = ON_GPU if on_gpu else [*TECHNIQUES, *(["offload"] if folder else [])]
    elif "offload" in allow and not folder and not on_gpu:
        raise PlanError('dovetail.plan: allow has "offload", which needs folder')
    elif on_gpu and any(name.startswith("compress") for name in allow):
        raise PlanError(f"dovetail.plan: allow has {list(allow)}, but nothing is compressed on a GPU yet")
    options = {
        "budget": budget,
        "folder": "" if folder is None else os.fspath(folder),
        "allow": list(allow),
        "host_bytes": host_bytes or "",
        "solve_s": solve_s,
    }
    try:
        return Step(function, model, optimizer, device, options)
    except RuntimeError as error:
        raise PlanError(str(error)) from None
