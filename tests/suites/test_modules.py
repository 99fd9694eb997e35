"""The area ``modules``: its list is complete, and defects that no operator cell shows turn its cases red."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.accelerators.capabilities import DTYPES
from conformance.judging.checker import Checker
from conformance.numerics.trees import tensors
from conformance.suites.modules import checking, database, planned
from conformance.suites.operators.cell import quiet
from conformance.suites.operators.plan.catalogue import operators

HOST = torch.device("cpu")
#: Bases and containers of other modules, and modules that need several processes.
WITHOUT_A_CASE = {
    *("Container", "DataParallel", "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList"),
    *("RNNBase", "RNNCellBase", "Sequential", "SyncBatchNorm"),
}


def judged(name: str, *, training: bool = True, dtype: torch.dtype = torch.float32) -> str:
    """Return the failure of a module's case in a dtype on the host, or an empty text."""
    try:
        with quiet():
            checking.check_module(Checker(), name, HOST, dtype, training=training)
    except AssertionError as error:
        return str(error)
    return ""


def test_every_module_of_torch_has_a_case():
    modules = {name for name, kind in vars(nn).items() if isinstance(kind, type) and issubclass(kind, nn.Module)}

    cases = {case.payload for case in planned.generate()}

    assert modules - cases - WITHOUT_A_CASE == set()


def test_every_planned_module_has_calls():
    assert {case.payload for case in planned.generate()} <= set(database.names())


def test_required_cells_are_operators_of_the_plan():
    known = {f"operators.{operator.name}" for operator in operators()}

    required = {cell.subject for case in planned.generate() for cell in case.requires}

    assert required <= known
    assert set(planned.DTYPES) <= set(DTYPES)


def _stale_buffer(forward):
    def called(self, input):
        mean = self.running_mean.clone() if self.training else None
        result = forward(self, input)
        if mean is not None:
            self.running_mean.data.copy_(mean)
        return result

    return called


def _one_wrong(forward):
    def called(self, input):
        result = forward(self, input)
        return torch.cat([result.flatten()[:-1], result.flatten()[-1:] + 1]).reshape(result.shape)

    return called


def _misread(tensor):
    """Return what stands in the memory of a tensor, read as if it were contiguous."""
    return torch.as_strided(tensor, tensor.shape, torch.empty(tensor.shape).stride())


def _without_strides(forward):
    def called(self, input):
        return forward(self, _misread(input))

    return called


def _weight_without_strides(forward):
    def called(self, *inputs, **named):
        name = next(name for name, tensor in self.named_parameters() if tensor.dim() > 1)
        setattr(self, name, nn.Parameter(_misread(getattr(self, name).detach())))
        return forward(self, *inputs, **named)

    return called


def _bias_without_strides(forward):
    """Misread a bias whose numbers are one number, if the weight beside it has a row for each."""

    def called(self, input):
        if self.bias is not None and 0 in self.bias.stride() and 0 not in self.weight.stride():
            self.bias = nn.Parameter(self.bias.detach() * torch.arange(len(self.bias)))
        return forward(self, input)

    return called


def _wrong_elsewhere(forward):
    """Be wrong on threads that Python has started."""

    def called(self, input):
        result = forward(self, input)
        return result if threading.current_thread() is threading.main_thread() else result + 1

    return called


def _numbers_for_nan(forward):
    """Read zeros in place of NaN in parameters."""

    def called(self, *inputs, **named):
        for parameter in self.parameters():
            parameter.data = parameter.data.nan_to_num(0.0)
        return forward(self, *inputs, **named)

    return called


def _same_mask(forward):
    def called(self, input):
        if not self.training:
            return input
        mask = torch.bernoulli(torch.full_like(input[:1], 1 - self.p)).expand_as(input)
        return input * mask / (1 - self.p)

    return called


def _middle_layers_scaled(forward):
    """Scale the gradients of weights that layers between the first and the last one read."""

    def called(self, *inputs):
        for name, tensor in self.named_parameters():
            if "_ih_" in name and any(f"_l{layer}" in name for layer in range(1, self.num_layers - 1)):
                tensor.register_hook(lambda gradient: gradient * 1.5)
        return forward(self, *inputs)

    return called


def _gradients_without_strides(forward):
    """Read gradients of results from the memory in which they lie as if they had no gaps."""

    def called(self, *inputs):
        result = forward(self, *inputs)
        for tensor in tensors(result):
            if tensor.requires_grad:
                tensor.register_hook(_misread)
        return result

    return called


def _initial_vectors(forward):
    """Read the numbers with which a module begins in place of those of its vectors."""

    def called(self, *inputs, **named):
        with torch.no_grad():
            for name, vector in self.named_parameters():
                if vector.dim() == 1:
                    vector.fill_("bias" not in name)
        return forward(self, *inputs, **named)

    return called


def _without_statistics(forward):
    """Read zeros and ones in place of the running mean and variance."""

    def called(self, input):
        self.running_mean.zero_()
        self.running_var.fill_(1)
        return forward(self, input)

    return called


def _one_kernel_without_strides(forward):
    """Read the weights of an encoder layer that is one kernel from the memory in which they lie, without gaps."""
    kernel = torch._transformer_encoder_layer_fwd

    def called(self, *inputs, **named):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, kernel.__name__, lambda *given: kernel(given[0], *map(_misread_numbers, given[1:])))
            return forward(self, *inputs, **named)

    return called


def _gradients_beside_gaps(forward):
    """Halve expanded gradients of results where an input has gaps."""

    def called(self, *inputs, **named):
        result = forward(self, *inputs, **named)
        has_gaps = any(tensor.stride()[-1:] == (2,) for tensor in tensors([inputs, named]))
        for tensor in tensors(result) if has_gaps else ():
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: gradient / 2 if 0 in gradient.stride() else gradient)
        return result

    return called


def _misread_numbers(value):
    return _misread(value) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


@pytest.mark.parametrize(
    ("name", "broken", "said"),
    [
        *(
            (name, _gradients_without_strides, "gradients in another order in memory: the gradient of")
            for name in ("RNN", "GRU", "LSTM")
        ),
        *((name, _middle_layers_scaled, "gradient of weight_ih_l1") for name in ("RNN", "GRU", "LSTM")),
        ("BatchNorm1d", _stale_buffer, "running_mean"),
        ("Linear", _one_wrong, "result 0 is off"),
        ("Tanh", _without_strides, "strided: result 0"),
        ("Linear", _weight_without_strides, "weights with other strides: result 0"),
        ("Linear", _bias_without_strides, "weights with other strides, expanded at 1, inputs expanded: result 0"),
        ("LSTMCell", _weight_without_strides, "weights with other strides: result 0"),
        ("GroupNorm", _wrong_elsewhere, "other numbers, on another thread: result 0"),
        ("GRUCell", _numbers_for_nan, "NaN at the start of weight_ih: result 0 has"),
        ("TransformerEncoderLayer", _numbers_for_nan, "NaN at the start of self_attn.in_proj_weight: result 0 has"),
        ("Dropout", _same_mask, "equal to the row before"),
        *((name, _initial_vectors, "result 0 is off") for name in ("LayerNorm", "GroupNorm", "MultiheadAttention")),
        *((f"BatchNorm{d}d", _without_statistics, "result 0 is off") for d in (1, 2, 3)),
        ("TransformerEncoderLayer", _one_kernel_without_strides, "weights with other strides: result 0"),
        ("LSTMCell", _gradients_beside_gaps, "gradients expanded: the gradient of"),
    ],
)
def test_a_defect_is_seen_where_only_the_device_has_it(monkeypatch, name, broken, said):
    real, run = getattr(nn, name).forward, checking.run

    def on_the_device(module, call, device, dtype, training):
        with monkeypatch.context() as patch:
            patch.setattr(getattr(nn, name), "forward", broken(real))
            return run(module, call, device, dtype, training)

    monkeypatch.setattr(checking, "run", on_the_device)
    drawn = checking.laws._drawn

    def drawn_with_the_defect(place, seed):
        with monkeypatch.context() as patch:
            patch.setattr(getattr(nn, name), "forward", broken(real))
            return drawn(place, seed)

    monkeypatch.setattr(checking.laws, "_drawn", drawn_with_the_defect)

    # Statistics are read, and a layer is one kernel, in evaluation alone.
    evaluated = (_one_kernel_without_strides, _without_statistics, _bias_without_strides)
    assert said in judged(name, training=broken not in evaluated)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_nan_that_a_fused_cell_loses_in_16_bits_is_seen(monkeypatch, dtype):
    real, run = nn.LSTMCell.forward, checking.run

    def on_the_device(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(nn.LSTMCell, "forward", _numbers_for_nan(real))
            return run(*arguments)

    monkeypatch.setattr(checking, "run", on_the_device)

    assert "NaN at the start of weight_ih" in judged("LSTMCell", dtype=dtype)


def test_nan_that_only_the_host_spreads_in_16_bits_is_not_due(monkeypatch):
    host_run, spread = checking.host_run, []

    def spreading(module, call, device, dtype, training):
        found = host_run(module, call, device, dtype, training)
        for value in (*found.results.values(), *found.gradients.values()):
            if dtype is torch.bfloat16 and value is not None and value.isnan().any():
                spread.append(int((~value.isnan()).sum()))
                value.fill_(torch.nan)
        return found

    monkeypatch.setattr(checking, "run", host_run)
    monkeypatch.setattr(checking, "host_run", spreading)

    assert judged("GRU", dtype=torch.bfloat16) == ""
    assert any(spread)


class _TwoUnits(TorchDispatchMode):
    """A tanh that is off by two units in the last place, as CUDA's may be."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten.tanh.default:
            return result
        for _ in range(2):
            result = torch.nextafter(result, torch.zeros_like(result))
        return result


@pytest.mark.parametrize("name", ["Tanh", "RNN"])
def test_roundings_that_a_device_may_have_are_right_where_tanh_is_saturated(monkeypatch, name):
    run = checking.run

    def on_the_device(*arguments):
        with _TwoUnits():
            return run(*arguments)

    monkeypatch.setattr(checking, "run", on_the_device)

    assert judged(name) == ""


@pytest.mark.parametrize("name", ["BatchNorm1d", "Linear", "Tanh", "Dropout", "LSTM", "Embedding"])
@pytest.mark.parametrize("training", [False, True])
def test_the_host_is_right(name, training):
    assert judged(name, training=training) == ""
