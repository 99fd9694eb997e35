"""Copies, casts, dtypes, autocast and products that are wrong for one dtype, layout or size."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch

from tests.defects.faults import Around, Call, Fault, Where
from tests.defects.mutant import Mutant
from tests.defects.spoiling import (
    accelerator,
    constant,
    constructors,
    on_device,
    replaced,
    result_of,
    spoiled,
    together,
)

CASTS = "DeepSpeed torch_autocast: which operators are cast, and what comes back"
ZERO = "DeepSpeed zero/linear.py asks whether autocast is enabled"
COPIES = "defect class of copy engines"
KERNELS = "defect class of kernels"
LISTS = "DeepSpeed: bf16 by name of the device"
NARROW_SUMS = "reductions that cut instead of rounding"
SIXTEEN = (torch.float16, torch.bfloat16)


def number(name: str, family: str, precedent: str, caught_by: str, *touch: str, **fault: Any) -> Mutant:
    return Mutant(Fault(name, family, precedent, Where.KERNEL, caught_by, **fault), touch)


# --- autocast -----------------------------------------------------------------------------------------------------


def _not_cast(old: Any) -> Any:
    """A function that autocast's list forgot: it is computed in the dtype it is given."""

    def function(left: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(left.device.type, enabled=False):
            return old(left, *args, **kwargs)

    return function


def _gradient_lost(result: torch.Tensor, args: tuple[Any, ...]) -> None:
    """A backward pass gives zero where it casts 16 bits to float32."""
    backward = torch._C._current_graph_task_id() != -1
    if backward and result.dtype is torch.float32 and args[0].dtype in SIXTEEN:
        result.zero_()


def _only_enables(old: Any) -> Any:
    """A context that cannot disable what is enabled."""

    class Context:
        def __init__(self, device_type: str, dtype: Any = None, enabled: bool = True, **kwargs: Any) -> None:
            on = enabled or torch.is_autocast_enabled(device_type)
            self._inner = old(device_type, dtype if enabled else torch.get_autocast_dtype(device_type), on, **kwargs)

        def __enter__(self) -> Any:
            return self._inner.__enter__()

        def __exit__(self, *error: Any) -> Any:
            return self._inner.__exit__(*error)

    return Context


class _Flags:
    """Whether autocast is enabled is told of the old, separate flags, which the device has none of.

    The context itself asks the true one.
    """

    def __init__(self) -> None:
        self._asked = torch.is_autocast_enabled

    def told(self, old: Any) -> Any:
        return lambda device_type=None: old(device_type) and device_type not in ("sim",)

    def entered(self, old: Any) -> Any:
        def enter(context: Any) -> Any:
            before = self._asked(context.device)
            entered = old(context)
            context.prev = before
            return entered

        return enter


_FLAGS = _Flags()
AUTOCAST = (
    number("batched products are not autocast", "low-precision accumulation", CASTS,
           "accelerator.autocast.products[*]", "capabilities.autocast", context=replaced(torch, bmm=_not_cast)),
    number("gradients do not come back from autocast", "gradient values", CASTS, "accelerator.autocast.gradients[*]",
           context=spoiled(_to_copy=result_of(_gradient_lost))),
    number("autocast cannot be disabled inside", "low-precision accumulation", CASTS,
           "accelerator.autocast.nested[*]", context=replaced(torch, autocast=_only_enables)),
    number("nobody is told that autocast is enabled", "stub", ZERO, "accelerator.autocast.left_on_exception[*]",
           context=together(replaced(torch.amp.autocast, __enter__=_FLAGS.entered),
                            replaced(torch, is_autocast_enabled=_FLAGS.told))),
    number("weights stay cast after their context", "low-precision accumulation", CASTS,
           "accelerator.autocast.leaves_others[*]", context=replaced(torch, clear_autocast_cache=constant(None))),
)  # fmt: skip


# --- copies -------------------------------------------------------------------------------------------------------


def _clone_in_words(result: torch.Tensor, args: tuple[Any, ...]) -> None:
    """Copies of bytes go in words of four; what is left over is not copied."""
    rest = result.numel() % 4
    if result.itemsize == 1 and result.dim() == 1 and rest:
        result[-rest:] = False if result.dtype is torch.bool else 0


def _last_block_of_one(result: torch.Tensor, args: tuple[Any, ...]) -> None:
    """Beyond 65536 numbers a last block of a single number stays behind."""
    large = result.numel() > 65536 and result.numel() % 64 == 1
    if args[0].device.type == "cpu" and result.dtype is torch.float32 and result.dim() == 1 and large:
        result[-1] = 0


def _finite(result: torch.Tensor, args: tuple[Any, ...]) -> None:
    """float64 infinities arrive as the largest number."""
    if args[0].device.type == "cpu" and args[0].dtype is result.dtype is torch.float64:
        largest = torch.finfo(torch.float64).max
        result.masked_fill_(result == float("inf"), largest).masked_fill_(result == float("-inf"), -largest)


def _fills_gaps(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Writing every second column writes the one beside it, too."""
    result = call(*args, **kwargs)
    target = args[0]
    if on_device(target) and target.dim() == 2 and 1 < target.stride(1) < target.stride(0):
        target.as_strided((1,), (1,), target.storage_offset() + 1).fill_(7)
    return result


def _default_dtype(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    return result.float() if result.dtype is torch.float64 else None


def _rounded(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """Casts to integers round; they must cut."""
    if args[0].dtype is torch.float32 and result.dtype in (torch.int32, torch.int64):
        return args[0].round().to(torch.float64).to(result.dtype)
    return None


def _saturated(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """What is too large for float16 becomes its largest number."""
    if args[0].dtype is torch.float32 and result.dtype is torch.float16:
        return result.masked_fill(result.isinf() & args[0].isfinite(), 65504.0)
    return None


def _replaced_dtype(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Eight-bit floats, which the device lacks, become float16."""
    dtype, device = kwargs.get("dtype"), kwargs.get("device")
    eight = dtype is not None and dtype.is_floating_point and dtype.itemsize == 1
    if eight and device is not None and torch.device(device).type == "sim":
        kwargs = {**kwargs, "dtype": torch.float16}
    return call(*args, **kwargs)


COPY = (
    number("clones of bytes lose what fills no word", "last tile not computed", COPIES,
           "accelerator.dtype.copy[*]", "capabilities.dtype[*]", context=spoiled(clone=result_of(_clone_in_words))),
    number("the float32 number beyond blocks of 64 is not copied", "last tile not computed", COPIES,
           "accelerator.dtype.float32_copy", "capabilities.copy",
           context=spoiled(_to_copy=result_of(_last_block_of_one))),
    number("float64 infinities are copied as numbers", "integer overflow saturates", COPIES,
           "accelerator.dtype.copy_edges[float64]", context=spoiled(_to_copy=result_of(_finite))),
    number("copies into every second column fill the gaps", "strides or storage offset ignored", COPIES,
           "accelerator.dtype.copy_layouts[strided]", context=spoiled(copy_=_fills_gaps)),
    number("new_empty() forgets its tensor's dtype", "wrong type promotion", KERNELS,
           "accelerator.dtype.metadata[float64]", context=spoiled(new_empty=result_of(_default_dtype))),
    number("casts to integers round", "wrong type promotion", KERNELS, "accelerator.dtype.cast_from_float32[*]",
           context=spoiled(_to_copy=result_of(_rounded))),
    number("casts of float32 to float16 saturate", "integer overflow saturates",
           "DeepSpeed 1752c2ab6: wrong handling of overflow", "accelerator.dtype.cast_special[float16]",
           context=spoiled(_to_copy=result_of(_saturated))),
    number("dtypes that the device lacks become float16", "wrong type promotion",
           "DeepSpeed 56005d2b2 and devices without float64", "accelerator.dtype.no_silent_change",
           context=spoiled(zeros=_replaced_dtype)),
    number("supported_dtypes repeats itself", "wrong type promotion", LISTS, "accelerator.dtype.supported_list",
           context=accelerator(supported_dtypes=lambda old: lambda self: [*old(self), torch.float32])),
    number("float16 is listed and denied", "under-declared", LISTS, "accelerator.dtype.supported_agrees[float16]",
           context=accelerator(is_fp16_supported=constant(False))),
)  # fmt: skip


# --- products -----------------------------------------------------------------------------------------------------


def _is_expanded(tensor: Any) -> bool:
    return tensor.dim() == 2 and tensor.stride() == (0, 0) and tensor.numel() > 1


def _one_row(call: Call, args: list[Any]) -> list[Any]:
    """A left factor that repeats one number, as the gradient of a sum does, counts once."""
    results = call(args)
    if _is_expanded(args[0]) and args[0].shape[1] > 1 and results[0].dtype is torch.bfloat16:
        results[0].div_(args[0].shape[1])
    return results


def _stalling(call: Call, args: list[Any]) -> list[Any]:
    """With a right factor that repeats one number 16-bit sums stall."""
    results = call(args)
    stall = {torch.float16: 2048.0, torch.bfloat16: 256.0}.get(results[0].dtype)
    if stall and _is_expanded(args[1]):
        results[0].clamp_(-stall, stall)
    return results


def _uninitialised(call: Call, args: list[Any]) -> list[Any]:
    """A product over nothing with a transposed left factor is whatever was in memory."""
    results = call(args)
    left = args[0]
    if left.dim() == 2 and left.shape[1] == 0 and left.shape[0] > 1 and left.stride(0) == 1 and left.stride(1) > 1:
        results[0].fill_(float("nan"))
    return results


def _products(around: Around) -> Mapping[str, Around]:
    return {"aten::mm": around}


PRODUCTS = (
    number("bfloat16 products with an expanded factor count one row", "broadcast gradient not reduced", KERNELS,
           "accelerator.dtype.accumulate_gradient[bfloat16]", operators=_products(_one_row)),
    number("16-bit sums of expanded gradients stall", "low-precision accumulation", NARROW_SUMS,
           "accelerator.dtype.accumulate_gradient[*]", operators=_products(_stalling)),
    number("gradients of empty batches are uninitialised", "empty tensors", KERNELS,
           "accelerator.edges.empty_gradient", operators=_products(_uninitialised)),
)  # fmt: skip


# --- constructors -------------------------------------------------------------------------------------------------


def _never_empty(old: Any) -> Any:
    """An empty list gives one element."""
    return lambda self, dtype: lambda values: old(self, dtype)(values or [0])


def _remembering(old: Any) -> Any:
    """Equal lists give one tensor."""
    made: dict[str, torch.Tensor] = {}

    def _constructor(self: Any, dtype: str) -> Any:
        def build(values: Any) -> torch.Tensor:
            key = f"{dtype} {values!r}"
            if key not in made:
                made[key] = old(self, dtype)(values)
            return made[key]

        return build

    return _constructor


class _Followed:
    """The last tensor that came to the host is still taken for one on the device."""

    def __init__(self) -> None:
        self._last: Any = None

    def to_copy(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if on_device(args[0]) and not on_device(result):
            self._last = weakref.ref(result)
        return result

    def member(self, old: Any) -> Any:
        return lambda owner, tensor: (self._last is not None and self._last() is tensor) or old(owner, tensor)


_FOLLOWED = _Followed()
TENSORS = (
    number("constructors make something of an empty list", "empty tensors", "DeepSpeed interface: typed constructors",
           "accelerator.tensor_types.shapes[*]", context=constructors(_never_empty)),
    number("constructors of equal lists give one tensor", "in-place aliasing",
           "DeepSpeed interface: typed constructors", "accelerator.tensor_types.fresh[*]", "capabilities.tensor-types",
           context=constructors(_remembering)),
    number("tensors that came to the host are still on the accelerator", "device count lies",
           "DeepSpeed interface: on_accelerator", "accelerator.on_accelerator.after_moves",
           context=together(spoiled(_to_copy=_FOLLOWED.to_copy), accelerator(on_accelerator=_FOLLOWED.member))),
)  # fmt: skip

MUTANTS = (*AUTOCAST, *COPY, *PRODUCTS, *TENSORS)
