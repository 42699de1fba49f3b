"""Training steps of any PyTorch model within a memory budget.

>>> step = dovetail.plan.step(train_step, model, optimizer, budget="0.5x")
>>> for batch in loader:
...     loss = step(batch)

A plan decides for each tensor of a step: keep it, recompute it, or copy it to a file. The step's operations run
unchanged and give the bits of PyTorch without a plan. Steps run on the CPU.
"""

import contextlib
import ctypes
import json
import os
import pathlib
from collections.abc import Callable, Iterator

import torch
from torch.utils import _pytree

TECHNIQUES = ("recompute", "compress", "algorithms")


class PlanError(RuntimeError):
    """A step cannot be planned, or differs from the recorded one. The traceback shows the line of the function."""


class Step:
    """Calls a training function within a memory budget. Made by :func:`step`.

    The first three calls record the function's operations; the next four measure them by a first plan. From the eighth
    on, calls run by the final plan.
    """

    def __init__(self, function: Callable, model: torch.nn.Module, optimizer, options: dict):
        self._function, self._model = function, model
        self._optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer or ())
        self._options = json.dumps(options)
        self._names = {id(module): name for name, module in model.named_modules() if name}
        self._callback = ctypes.CFUNCTYPE(ctypes.c_int)(self._work)
        self._given = self._result = self._error = None
        self._restart()

    def _restart(self) -> None:
        self._native = torch.classes.dovetail.PlannedStep(
            self._options, ctypes.cast(self._callback, ctypes.c_void_p).value
        )
        self._known = None

    def __call__(self, *args, **kwargs):
        """Run one step, and return what the function returns.

        Args:
            args, kwargs: arguments of the function: tensors, or lists, tuples and dicts with tensors. Tensors are
                copied to the places of the plan. If other calls began with other sizes, this step runs
                within the budget without a plan.

        Raises:
            PlanError: the step cannot be planned, or the budget is too small. The message names operator and module.
        """
        paths, structure = _pytree.tree_flatten_with_path((args, kwargs))
        names = [_pytree.keystr(path) for path, leaf in paths if isinstance(leaf, torch.Tensor)]
        tensors = [leaf for _, leaf in paths if isinstance(leaf, torch.Tensor)]
        for name, tensor in zip(names, tensors, strict=True):
            if tensor.requires_grad:
                raise PlanError(f"dovetail.plan: argument {name} requires a gradient; a step's inputs have none")
        self._look_at_tensors()
        self._given = [leaf for _, leaf in paths], structure
        try:
            with self._layers():
                self._native.run(names, tensors)
        except RuntimeError as error:
            raised, self._error = self._error, None
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
        """Calls the function with the tensors of the plan. Called by the library."""
        try:
            leaves, structure = self._given
            tensors = iter(self._native.inputs())
            leaves = [next(tensors) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            args, kwargs = _pytree.tree_unflatten(leaves, structure)
            del leaves, tensors
            self._result = self._function(*args, **kwargs)
        except BaseException as error:
            self._error = error
            return 1
        return 0

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
            if tensor.device.type != "cpu":
                raise PlanError(f"dovetail.plan: {name} is on {tensor.device}, but planned steps run on the CPU")
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
        PlanError: there is no plan yet. The eighth call of the step makes it.
    """
    figures = step._native.report()
    if not figures:
        raise PlanError("dovetail.plan: there is no plan yet; run the step at least eight times")
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
        budget: most memory of a step: ``"2GiB"``, or ``"0.5x"`` of a step that keeps everything.
        folder: folder for a file to which tensors may be copied. Without one, tensors are recomputed.
        allow: techniques: ``"recompute"``, ``"offload"``, ``"compress"``, ``"algorithms"``, and ``"compress_mxfp8"``,
            which alone changes results. The default is all that keep the bits.
        host_bytes: most bytes in ``folder``, such as ``"4GiB"``.
        solve_s: most seconds for the search for each of the two plans.

    Raises:
        PlanError: an option is wrong.
    """
    if allow is None:
        allow = [*TECHNIQUES, *(["offload"] if folder else [])]
    elif "offload" in allow and not folder:
        raise PlanError('dovetail.plan: allow has "offload", which needs folder')
    options = {
        "budget": budget,
        "folder": "" if folder is None else os.fspath(folder),
        "allow": list(allow),
        "host_bytes": host_bytes or "",
        "solve_s": solve_s,
    }
    try:
        return Step(function, model, optimizer, options)
    except RuntimeError as error:
        raise PlanError(str(error)) from None
