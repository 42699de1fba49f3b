"""Arguments, results and errors of planned steps, against the same steps without a plan."""

import collections
import contextlib
import copy
import dataclasses

import dovetail
import numpy as np
import pytest
import torch
from dovetail.plan import PlanError
from torch import nn

CALLS = 11


def model_of(layers=4):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(layers)], nn.Linear(32, 4))


def planned(function, model, optimizer=None, budget="0.8x"):
    return dovetail.plan.step(function, model, optimizer, budget=budget, solve_s=1)


def batch(number, rows=512):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(rows, 32, generator=generator), torch.randint(0, 4, (rows,), generator=generator)


def update(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def both(make_function, calls=CALLS, make_batch=batch):
    """Results of all calls, and the models, without and with a plan."""
    out = []
    for plan in (False, True):
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = make_function(model, optimizer)
        if plan:
            step = planned(step, model, optimizer)
        out.append(([step(*make_batch(number)) for number in range(calls)], model))
    (eager, eager_model), (ours, our_model) = out
    for a, b in zip(eager_model.parameters(), our_model.parameters(), strict=True):
        assert torch.equal(a, b)
    return eager, ours


def test_values_that_are_read_by_pointer_are_those_of_this_call():
    def make(model, optimizer):
        def step(x, y):
            loss = update(model, optimizer, x, y)
            shown = repr(loss.detach())
            return loss.tolist(), loss.detach().numpy().copy(), np.asarray(x), shown, f"{loss:.4f}"

        return step

    for eager, ours in zip(*both(make), strict=True):
        assert eager[0] == ours[0] and eager[3:] == ours[3:]
        assert np.array_equal(eager[1], ours[1]) and np.array_equal(eager[2], ours[2])


def test_arrays_of_results_keep_their_values_also_after_the_step_is_gone():
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = planned(lambda x, y: update(model, optimizer, x, y).detach(), model, optimizer)
    arrays, copies = [], []
    for number in range(CALLS):
        arrays.append(step(*batch(number)).numpy())
        copies.append(arrays[-1].copy())
    del step
    assert np.array_equal(arrays, copies)


def test_arguments_that_the_step_returns_keep_their_values():
    def make(model, optimizer):
        return lambda x, y: (update(model, optimizer, x, y).detach(), y, x[:3])

    for eager, ours in zip(*both(make), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(eager, ours, strict=True))


def test_a_batch_of_another_dtype_is_not_converted():
    def make(model, optimizer):
        return lambda x, weight: update(
            model, optimizer, x * weight[:, None], torch.zeros(512, dtype=torch.long)
        ).item()

    def weighted(number):
        weight = torch.rand(512, generator=torch.Generator().manual_seed(number))
        return batch(number)[0], weight > 0.5 if number < 9 else weight

    eager, ours = both(make, make_batch=weighted)
    assert eager == ours


@dataclasses.dataclass(frozen=True)
class Labelled:
    rows: torch.Tensor
    others: list
    name: str = "a batch"


class Encoding(collections.UserDict):
    """A mapping with attributes, as transformers.BatchEncoding is."""

    def __getattr__(self, name):
        if name == "data":  # while it is copied
            raise AttributeError(name)
        return self.data[name]


@pytest.mark.parametrize("nested", [False, True])
def test_mappings_and_dataclasses_are_batches(nested):
    def make(model, optimizer):
        def step(given):
            encoding = given.others[0] if nested else given
            assert isinstance(encoding, Encoding)
            assert not nested or given.name == "a batch"
            return update(model, optimizer, given.rows, encoding.labels).item()

        return step

    def make_batch(number):
        rows, labels = batch(number)
        encoding = Encoding(rows=rows, labels=labels)
        return [Labelled(rows, [encoding])] if nested else [encoding]

    eager, ours = both(make, make_batch=make_batch)
    assert eager == ours


def test_arguments_without_tensors_are_the_callers_objects():
    @dataclasses.dataclass
    class Progress:
        steps: int = 0

    progress, seen = Progress(), Encoding()

    def make(model, optimizer):
        def step(x, y, progress, seen):
            progress.steps += 1
            seen[progress.steps] = True
            return update(model, optimizer, x, y).item()

        return step

    eager, ours = both(make, make_batch=lambda number: (*batch(number), progress, seen))
    assert eager == ours
    assert progress.steps == len(seen) == 2 * CALLS


def test_a_size_that_comes_eight_times_in_a_row_is_planned_anew():
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = copy.deepcopy(model)
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    step = planned(lambda x, y: update(model, optimizer, x, y), model, optimizer)
    rows = [100, *[512] * 7, 100, *[512] * 14]  # the first eight in a row end at call 17
    peaks = []
    for number, size in enumerate(rows):
        loss = step(*batch(number, size))
        assert torch.equal(loss, update(other, other_optimizer, *batch(number, size)))
        with contextlib.suppress(PlanError):
            peaks.append(dovetail.plan.report(step)["keep_all_bytes"])
    assert len(peaks) == 1
    wide = planned(lambda x, y: update(model, optimizer, x, y), model, optimizer)
    del step
    for number in range(8):
        wide(*batch(number))
    assert peaks[0] == dovetail.plan.report(wide)["keep_all_bytes"]


def test_tensors_in_other_objects_are_refused():
    class Holder:
        def __init__(self, x, y):
            self.x, self.y = x, y

    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = planned(lambda given: update(model, optimizer, given.x, given.y), model, optimizer)
    with pytest.raises(PlanError, match=r"no argument of the step(.|\n)*give it as an input"):
        for number in range(CALLS):
            step(Holder(*batch(number)))


def test_an_argument_that_is_changed_in_place_is_refused():
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, counts):
        counts += 1
        return update(model, optimizer, x, torch.zeros(512, dtype=torch.long))

    with pytest.raises(PlanError, match=r"changes argument \[0\]\[1\] in place"):
        planned(step, model, optimizer)(batch(0)[0], torch.zeros(4))


def test_a_step_that_leaves_gradients_and_updates_nothing_is_refused():
    model = model_of()
    with pytest.raises(PlanError, match=r"leaves gradients and updates nothing"):
        planned(lambda x, y: nn.functional.cross_entropy(model(x), y).backward(), model)(*batch(0))


def test_gradients_that_are_returned_are_those_of_eager_training():
    def make(model, optimizer):
        def step(x, y):
            return torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))

        return step

    for eager, ours in zip(*both(make), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(eager, ours, strict=True))


def test_a_model_without_sizes_is_refused_until_it_has_been_called():
    model = nn.Sequential(nn.LazyLinear(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = planned(lambda x, y: update(model, optimizer, x, y), model, optimizer, budget="1x")
    with pytest.raises(PlanError, match=r"0\.weight has no size yet; call the model once"):
        step(*batch(0))
    model(batch(0)[0])
    assert step(*batch(0)).item() > 0


def test_a_second_step_on_the_same_model_is_refused_and_loses_no_update():
    model, alone = model_of(), model_of()
    steps = []
    for of in (model, model):
        optimizer = torch.optim.SGD(of.parameters(), lr=0.1)
        steps.append(planned(lambda x, y, o=optimizer: update(model, o, x, y).item(), model, optimizer))
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for number in range(CALLS):
        steps[0](*batch(number))
        update(alone, optimizer, *batch(number))
    with pytest.raises(PlanError, match=r"no longer in the memory of this plan.*one planned step at a time"):
        for number in range(CALLS, 3 * CALLS):
            steps[number % 2](*batch(number))
            update(alone, optimizer, *batch(number))
    steps.clear()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), alone.parameters(), strict=True))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(context, gradient):
        return gradient * 2 + 0 * context.saved_tensors[0]


@pytest.mark.parametrize("kind", ["function", "checkpoint", "hook", "compiled"])
def test_functions_hooks_and_compiled_models_in_python(kind):
    def make(model, optimizer):
        forward = model
        if kind == "hook":
            model[1].register_full_backward_hook(lambda module, inputs, outputs: None)
        if kind == "compiled":
            forward = torch.compile(model, backend="eager")

        def step(x, y):
            optimizer.zero_grad()
            if kind == "checkpoint":
                z = model[1:](torch.utils.checkpoint.checkpoint(model[0], x, use_reentrant=False))
            else:
                z = forward(Double.apply(x) if kind == "function" else x)
            loss = nn.functional.cross_entropy(z, y)
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    eager, ours = both(make)
    assert eager == ours


@pytest.mark.parametrize("number", [0, 1, 2, 5, 9])
def test_after_an_error_of_the_function_the_next_call_records_anew(number):
    def make(model, optimizer):
        left = [number]

        def step(x, y):
            loss = update(model, optimizer, x, y)
            left[0] -= 1
            if left[0] == -1:
                raise KeyError("mine")
            return loss.item()

        def caught(*arguments, call=None):
            try:
                return (call or step)(*arguments)
            except KeyError:
                return None

        caught.step = step
        return caught

    results = []
    for plan in (False, True):
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        caught = make(model, optimizer)
        step = planned(caught.step, model, optimizer) if plan else caught.step
        results.append([caught(*batch(i), call=step) for i in range(number + CALLS)])
    assert results[0] == results[1]
    assert dovetail.plan.report(step)["operations"] > 0


def test_a_planned_step_within_another_is_refused():
    model, other = model_of(), model_of()
    inner = planned(lambda x: other(x).sum(), other)
    with pytest.raises(PlanError, match="within another planned step"):
        planned(lambda x: model(x).sum() + inner(x), model)(batch(0)[0])


def test_training_goes_on_without_the_step():
    model, alone = model_of(), model_of()
    optimizers = [torch.optim.Adam(of.parameters()) for of in (model, alone)]
    step = planned(lambda x, y: update(model, optimizers[0], x, y), model, optimizers[0])
    for number in range(2 * CALLS):
        if number == CALLS:
            kept = copy.deepcopy(model)
            del step
        (step if number < CALLS else lambda x, y: update(model, optimizers[0], x, y))(*batch(number))
        update(alone, optimizers[1], *batch(number))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), alone.parameters(), strict=True))
    assert not torch.equal(kept[0][0].weight, model[0][0].weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"budget": 0.5}, r'budget is 0\.5.*"0\.5x"'), ({"budget": "1x", "allow": "recompute"}, "allow is 'recompute'")],
)
def test_options_of_another_type_are_refused(options, message):
    with pytest.raises(PlanError, match=message):
        dovetail.plan.step(lambda: None, model_of(), **options)
