"""All-reduce of CPU tensors for ranks that share a host: the public class, and what it refuses."""

from __future__ import annotations

import ctypes
from enum import Enum
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor

from conformance.errors import UsageError
from conformance.kernels.groups import member_of
from conformance.kernels.low_latency import reference
from conformance.kernels.low_latency.segment import Segment, Tuning, agree

#: The order is the library's numbering.
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip
OPERATIONS = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_OPERATION_CODES = {operation: code for code, operation in enumerate(OPERATIONS)}


class Implementation(Enum):
    """Who does the work."""

    SHARED_MEMORY = "shared memory"
    REFERENCE = "torch.distributed"


class Status(Enum):
    """How a call into the library ended; the library's numbering."""

    DONE = 0
    TIMED_OUT = 1
    DIED = 2
    LEFT = 3
    MISMATCH = 4
    INTERRUPTED = 5


class LowLatencyAllReduce:
    """All-reduce in place between the ranks of ``group`` (all ranks if None), made and closed by all of them together.

    Where the ranks share a host and a C++ compiler is there, the data goes through shared memory without a name, which
    the kernel frees with the last process that has it. Else ``torch.distributed`` carries it and the arithmetic is the
    same. ``implementation`` says which it is and ``why`` says why, in one sentence; all ranks have the same.

    16-bit types are summed in float32 and rounded once, to the nearest even; other types are combined in their own
    width, and integers wrap around. Ranks are combined in their order, so all of them get the same bits. A NaN on any
    rank is a NaN in the result of every operation.

    ``timeout`` is in seconds, for a call as a whole. A rank that waits longer raises TimeoutError; one whose peer died
    or left raises ConnectionError within some 20 ms. After either the object is closed. One thread uses it at a time.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        timeout: float = 60.0,
        portable: str = "",
        tuning: Tuning | None = None,
    ) -> None:
        """``portable``, where not empty, is a reason to use ``torch.distributed`` even where shared memory would do.

        Raises UsageError without an initialized process group, on a rank outside ``group``, and for a time-out that
        is not positive.
        """
        self.rank, self.world_size = member_of(group)
        if not timeout > 0:
            raise UsageError(f"the time-out is {timeout} seconds.\n  give a number above 0")
        self._group, self._timeout, self._closed = group, timeout, ""
        self._segment: Segment | None
        self._segment, self.why = agree(group, portable, tuning or Tuning())
        self.implementation = Implementation.SHARED_MEMORY if self._segment else Implementation.REFERENCE

    def all_reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """Combine ``tensor`` of all ranks into every rank's own, in place, and return it.

        Any shape and strides, 0 elements too; all ranks give the same shape, dtype and operation, but not the same
        strides. Operations: SUM, AVG (floating-point only), MIN, MAX. Gradients do not flow through it.

        Raises UsageError, with nothing changed on any rank, for what it cannot do, and on all ranks if they disagree
        about the number of elements, the dtype or the operation (through ``torch.distributed`` this is not seen).
        """
        dtype, code = _DTYPE_CODES.get(tensor.dtype), _OPERATION_CODES.get(operation)
        if dtype is None or code is None or self._closed or not _fits(tensor, code):
            raise self._refusal(tensor, operation)
        if self.world_size == 1:
            return tensor
        with torch.no_grad():
            dense = tensor.detach() if tensor.is_contiguous() else tensor.detach().contiguous()
            if self._segment is None:
                reference.all_reduce(dense, operation, self._group)
            else:
                self._through(self._segment, dense, dtype, code)
            if dense.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(dense)
        return tensor

    def close(self) -> None:
        """Give the memory back. A rank that still waits for this one raises ConnectionError."""
        self._closed = self._closed or "it was closed"
        if self._segment is not None:
            self._segment.close()

    def __enter__(self) -> LowLatencyAllReduce:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<all-reduce of rank {self.rank} of {self.world_size} by {self.implementation.value}: {self.why}>"

    def _through(self, segment: Segment, dense: Tensor, dtype: int, code: int) -> None:
        library, handle = segment.library, segment.handle
        timeout = int(self._timeout * 1e9)
        try:
            status = library.low_latency_all_reduce(handle, dense.data_ptr(), dense.numel(), dtype, code, timeout)
            while status == Status.INTERRUPTED.value:  # Python runs its signal handlers here, and they may raise
                status = library.low_latency_resume(handle)
        except BaseException:
            self._closed = "a call was interrupted"
            library.low_latency_give_up(handle)
            raise
        if status != Status.DONE.value:
            self._fail(segment, Status(status), dense, OPERATIONS[code])

    def _fail(self, segment: Segment, status: Status, dense: Tensor, operation: object) -> None:
        culprit: int = segment.library.low_latency_culprit(segment.handle)
        told = f"all-reduce of {_described(dense.numel(), dense.dtype, operation)} on rank {self.rank}: rank {culprit}"
        process = f"process {segment.processes[culprit]}"
        again = "all ranks must make a new object"
        theirs = _call_of(segment, culprit) if status is Status.MISMATCH else ""
        self._closed = "a call failed"
        self.close()
        if status is Status.TIMED_OUT:
            raise TimeoutError(f"{told} ({process}) did not come within {self._timeout:g} s.\n  {again}")
        if status is Status.MISMATCH:
            raise UsageError(f"{told} calls it for {theirs}.\n  call it alike on all ranks; {again}")
        how = "has ended" if status is Status.DIED else "has closed it or failed"
        raise ConnectionError(f"{told} ({process}) {how}.\n  {again}")

    def _refusal(self, tensor: Tensor, operation: object) -> Exception:
        if self._closed:
            return UsageError(f"this all-reduce can no longer be used: {self._closed}.\n  all ranks must make another")
        fact, step = _obstacle(tensor, operation)
        return UsageError(f"all-reduce {fact}.\n  {step}")


def _fits(tensor: Tensor, code: int) -> bool:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    if code == 1 and not tensor.is_floating_point():
        return False
    return tensor.is_contiguous() or not _overlaps(tensor)


def _overlaps(tensor: Tensor) -> bool:
    """Whether two elements may be one place in memory, as after ``expand``."""
    places = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    reach = 0
    for stride, size in places:
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _described(count: int, dtype: torch.dtype, operation: object) -> str:
    return f"{count} × {str(dtype).removeprefix('torch.')} with {_named(operation)}"


def _named(operation: object) -> str:
    return str(getattr(operation, "name", operation))


def _call_of(segment: Segment, rank: int) -> str:
    count, dtype, operation = ctypes.c_uint64(), ctypes.c_uint32(), ctypes.c_uint32()
    segment.library.low_latency_call_of(segment.handle, rank, *map(ctypes.byref, (count, dtype, operation)))
    return _described(count.value, DTYPES[dtype.value], OPERATIONS[operation.value])


def _obstacle(tensor: Tensor, operation: object) -> tuple[str, str]:
    """What is wrong with this pair, and what to do."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        fact = f"works on dense CPU tensors; this one is {tensor.layout} on {tensor.device}"
        return fact, "move it to the CPU, or use torch.distributed.all_reduce"
    if tensor.dtype not in _DTYPE_CODES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        return f"does not know {tensor.dtype}", f"it knows {known}"
    if operation not in _OPERATION_CODES:
        return f"does not know the operation {_named(operation)}", f"it knows {', '.join(map(_named, OPERATIONS))}"
    if operation == dist.ReduceOp.AVG and not tensor.is_floating_point():
        return f"has no AVG of {tensor.dtype}", "use SUM, and divide as the program needs it"
    fact = f"would write one place several times: shape {tuple(tensor.shape)}, strides {tensor.stride()}"
    return fact, "give it tensor.contiguous()"
