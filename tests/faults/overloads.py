"""Facts about PyTorch's overloads: who provides the kernel of a device, and which overloads are one operator."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from conformance.coverage.flags import size_class

#: Overloads that give memory without values, or that every call needs. A fault in them breaks everything at once.
_PLUMBING = ("aten::empty", "aten::set_", "aten::resize_", "aten::record_stream", "aten::_has_compatible")
#: Operators whose results are vectors, and those whose results have no dimension: these have no row and no second axis.
VECTORS = frozenset(
    f"aten::{name}"
    for name in (
        "linspace", "logspace", "arange", "range", "bincount", "histc", "randperm", "mv", "addmv", "masked_select",
        "repeat_interleave",
    )
)  # fmt: skip
SCALARS = frozenset(f"aten::{name}" for name in ("dot", "vdot", "equal", "_local_scalar_dense", "is_set_to"))
#: Kernels whose result follows from its shape: one that is kept from a call before is right.
SAME_FOR_A_SHAPE = frozenset(("aten::eye.out", "aten::eye.m_out"))
#: Kernels that take matrices as long as they are wide: a matrix of 2^12 rows takes minutes on a CPU.
SQUARE = frozenset(
    f"aten::{name}"
    for name in (
        "linalg_eig", "_linalg_eigh", "linalg_eigvals", "_linalg_eigvals", "linalg_cholesky_ex", "cholesky",
        "linalg_inv_ex", "linalg_ldl_factor_ex", "_linalg_det", "_linalg_slogdet", "cholesky_inverse",
        "linalg_matrix_exp",
    )
)  # fmt: skip
#: The same for one argument or result of a kernel.
SQUARE_PLACES = frozenset((("aten::triangular_solve.X", "r1"), ("aten::triangular_solve.X", "1"),
                           ("aten::linalg_solve_triangular", "0"), ("aten::linalg_solve_triangular.out", "0"),
                           ("aten::linalg_ldl_solve", "0"), ("aten::linalg_ldl_solve.out", "0"),
                           ("aten::cholesky_solve", "1"), ("aten::_cholesky_solve_helper", "1"),
                           ("aten::_linalg_solve_ex.result", "0"), ("aten::linalg_lu_solve", "0"),
                           ("aten::linalg_lu_solve.out", "0")))  # fmt: skip
#: Kernels that one kind of module alone calls, and these modules.
_ENCODERS = frozenset(("TransformerEncoderLayer", "TransformerEncoder"))
MODULES = {
    "aten::_thnn_fused_lstm_cell": frozenset(("LSTM", "LSTMCell")),
    "aten::_thnn_fused_lstm_cell_backward_impl": frozenset(("LSTM", "LSTMCell")),
    "aten::_thnn_fused_gru_cell": frozenset(("GRU", "GRUCell")),
    "aten::_thnn_fused_gru_cell_backward": frozenset(("GRU", "GRUCell")),
    "aten::_native_multi_head_attention": _ENCODERS | {"MultiheadAttention"},
    "aten::_transformer_encoder_layer_fwd": _ENCODERS,
}
#: Names of arguments that hold indices, as PyTorch's schemas have them.
INDICES = ("index", "indices", "target", "offsets", "batch_sizes", "inverse_indices")
#: Parts of the names of kernels that belong to other libraries or to the CPU alone.
_FOREIGN = ("mkldnn", "cudnn", "miopen", "_for_cpu", "fbgemm", "quantized")
#: Dispatch keys of the implementations that PyTorch shares between all devices.
_SHARED = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def overload(name: str) -> Any:
    """Return the callable overload of a name such as ``aten::add.out``."""
    qualified, _, variant = name.partition(".")
    space, _, operator = qualified.partition("::")
    return getattr(getattr(getattr(torch.ops, space), operator), variant or "default")


@functools.cache
def schema(name: str) -> Any:
    """Return the schema of an overload."""
    return torch._C._get_schema(*_split(name))


def _split(name: str) -> tuple[str, str]:
    qualified, _, variant = name.partition(".")
    return qualified, variant


def operator_of(name: str) -> str:
    """Return the operator of an overload; ``add.out``, ``add_.Tensor`` and ``add.Tensor`` are one operator."""
    qualified = name.partition(".")[0]
    # The last underscore marks the in-place form, except in names such as __and__.
    return qualified if qualified.endswith("__") else qualified.removesuffix("_")


@functools.cache
def kernels_of_a_device() -> frozenset[str]:
    """Return the aten overloads whose kernel a device brings: PyTorch's shared code computes none of them.

    For an accelerator outside of PyTorch this is what its key has, or has to have. The population is the same for all
    accelerators, so it is taken from the CPU's kernels, and from those that are registered for PrivateUse1.
    """
    return frozenset(
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and not name.startswith(_PLUMBING) and _is_own(name)
    )


def _is_own(name: str) -> bool:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if any(argument.type.kind() == "StorageType" for argument in schema(name).arguments):
        return False
    if any(part in name for part in _FOREIGN):
        return False
    # Lists of tensors have a shared implementation that is a loop. Devices bring kernels for them.
    if has(name, "PrivateUse1") or name.startswith("aten::_foreach_"):
        return True
    return has(name, "CPU") and not any(has(name, key) for key in _SHARED)


@functools.cache
def kernel_behind(name: str) -> str | None:
    """Return the overload whose kernel computes a public one: itself, or its ``out=`` form where it is structured."""
    if name in kernels_of_a_device():
        return name
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
        return None
    given = [argument.name for argument in schema(name).arguments]
    forms = [
        form for form in _forms(operator_of(name)) if schema(form).arguments and _inputs_of(form)[: len(given)] == given
    ]
    same = [form for form in forms if _variant(form).startswith(_variant(name) or "out")]
    return (same or forms or [None])[0]


def _variant(name: str) -> str:
    return name.partition(".")[2]


def _inputs_of(name: str) -> list[str]:
    return [argument.name for argument in schema(name).arguments if not argument.is_out]


@functools.cache
def _by_operator() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in sorted(kernels_of_a_device()):
        found.setdefault(operator_of(name), []).append(name)
    return found


def _forms(operator: str) -> list[str]:
    """Return the ``out=`` overloads of an operator that a device brings."""
    return [
        name for name in _by_operator().get(operator, []) if any(argument.is_out for argument in schema(name).arguments)
    ]


def has_one_element(kernel: str, flags: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a kernel's results have one element each, as a sum of all has, in every call that is known."""
    if operator_of(kernel) in SCALARS:
        return True
    has_several = any(size_class(seen) > 1 for place, seen in flags.items() if place.isdigit())
    return has_several and "0-dim" in flags.get("r", ()) and size_class(flags["r"]) <= 1


def draws(name: str) -> bool:
    """Return whether an overload draws random numbers."""
    return torch.Tag.nondeterministic_seeded in overload(name).tags


def is_index(kernel: str, place: int) -> bool:
    """Return whether a result of a kernel is a tensor of indices or a mask, by its name or by the kernel's.

    The name is that of an output, or of a return.
    """
    if place and operator_of(kernel).startswith("aten::_embedding_bag"):
        return True
    outs = [argument.name for argument in schema(kernel).arguments if is_written(argument)]
    names = [item.name or (outs[at] if at < len(outs) else "") for at, item in enumerate(schema(kernel).returns)]
    return place < len(names) and names[place] in ("indices", "index", "inverse_indices", "counts", "mask")


def is_written(argument: Any) -> bool:
    """Return whether the overload writes this argument."""
    return argument.alias_info is not None and argument.alias_info.is_write


def kind_of(argument: Any) -> str:
    """Return the type of an argument in the schema's own words: ``Tensor``, ``Optional[int]``, ``List[Tensor]``."""
    return str(argument.type.annotation_str)


def bound(arguments: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return a call's values in the order of the schema; what was left out has its default."""
    rest = arguments[len(args) :]
    return [*args, *(kwargs.get(argument.name, argument.default_value) for argument in rest)]
