"""All-reduce of CPU tensors for ranks that share a host: the public class and its argument checks."""

from __future__ import annotations

import ctypes
from enum import Enum
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor

from conformance.base.errors import UsageError
from conformance.kernels.groups import member_of
from conformance.kernels.low_latency import reference
from conformance.kernels.low_latency.segment import Segment, Tuning, agree

#: The index is the dtype's number in the compiled library.
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip
#: The index is the operation's number in the compiled library.
OPERATIONS = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_OPERATION_CODES = {operation: code for code, operation in enumerate(OPERATIONS)}
_AVERAGE = OPERATIONS.index(dist.ReduceOp.AVG)


class Transport(Enum):
    """Transport of the data between ranks."""

    SHARED_MEMORY = "shared memory"
    REFERENCE = "torch.distributed"


class CallStatus(Enum):
    """Status of a call into the compiled library, with the library's numbers."""

    DONE = 0
    TIMED_OUT = 1
    DIED = 2
    LEFT = 3
    MISMATCH = 4
    INTERRUPTED = 5


class LowLatencyAllReduce:
    """In-place all-reduce between the ranks of ``group`` (all ranks if None). All of them make and close it together.

    If the ranks share a host and a C++ compiler is installed, the data goes through anonymous shared memory, which the
    operating system frees with the last process that maps it. Otherwise the data goes through ``torch.distributed``,
    with the same arithmetic. ``transport`` says which one is used, and ``why`` gives the reason in one sentence. Both
    are the same on all ranks.

    16-bit types are summed in float32 and rounded once, to the nearest even. Other types are combined in their own
    width, and integers wrap around. Ranks are combined in their order, so all of them get the same bits. A NaN on any
    rank makes the result NaN, for every operation.

    ``timeout`` is in seconds and covers a whole call. A rank that waits longer raises TimeoutError. A rank whose peer
    died or left raises ConnectionError within about 20 ms. After either error the object is closed. Do not use it from
    several threads at a time.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        timeout: float = 60.0,
        portable: str = "",
        tuning: Tuning | None = None,
    ) -> None:
        """Agree with the other ranks on the transport.

        ``portable``, if not empty, is a reason to use ``torch.distributed`` where shared memory would be possible.
        Raises UsageError without an initialized process group, on a rank outside ``group``, and for a timeout that is
        not positive.
        """
        self.rank, self.world_size = member_of(group)
        if not timeout > 0:
            raise UsageError(f"the timeout is {timeout} seconds.\n  give a number above 0")
        self._group, self._timeout, self._closed = group, timeout, ""
        self._segment: Segment | None
        self._segment, self.why = agree(group, portable, tuning or Tuning())
        self.transport = Transport.SHARED_MEMORY if self._segment else Transport.REFERENCE

    def all_reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """Replace ``tensor`` on every rank by the combination of all ranks' tensors, and return it.

        The tensor may have any shape and strides, and also 0 elements. Shape, dtype and operation have to be the same
        on all ranks; strides may differ. Operations: SUM, AVG (floating-point only), MIN, MAX. Autograd does not record
        the call.

        Raises UsageError, with nothing changed on any rank, for an unsupported tensor or operation. Raises it on all
        ranks if they disagree on the number of elements, the dtype or the operation; ``torch.distributed`` does not
        detect that.
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
            # A tensor with gaps was reduced in a copy.
            if dense.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(dense)
        return tensor

    def close(self) -> None:
        """Free the memory. A rank that still waits for this one raises ConnectionError."""
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
        return f"<all-reduce of rank {self.rank} of {self.world_size} by {self.transport.value}: {self.why}>"

    def _through(self, segment: Segment, dense: Tensor, dtype: int, code: int) -> None:
        """Reduce through shared memory, in place. Any failure closes this object."""
        library, handle = segment.library, segment.handle
        # The library counts in nanoseconds.
        timeout = int(self._timeout * 1e9)
        try:
            status = library.low_latency_all_reduce(handle, dense.data_ptr(), dense.numel(), dtype, code, timeout)
            # The library returns at intervals. Then Python runs the handlers of signals; they may raise.
            while status == CallStatus.INTERRUPTED.value:
                status = library.low_latency_resume(handle)
        except BaseException:
            self._closed = "a call was interrupted"
            library.low_latency_give_up(handle)
            raise
        if status != CallStatus.DONE.value:
            self._fail(segment, CallStatus(status), dense, OPERATIONS[code])

    def _fail(self, segment: Segment, status: CallStatus, dense: Tensor, operation: object) -> None:
        """Close this object, and raise the error that tells which rank broke off and how."""
        culprit: int = segment.library.low_latency_culprit(segment.handle)
        call = _described(dense.numel(), dense.dtype, operation)
        fact = f"all-reduce of {call} on rank {self.rank}: rank {culprit}"
        process = f"process {segment.processes[culprit]}"
        again = "all ranks must make a new object"
        # Read before close(), which unmaps the other rank's call.
        theirs = _call_of(segment, culprit) if status is CallStatus.MISMATCH else ""
        self._closed = "a call failed"
        self.close()
        if status is CallStatus.TIMED_OUT:
            raise TimeoutError(f"{fact} ({process}) did not make the call within {self._timeout:g} s.\n  {again}")
        if status is CallStatus.MISMATCH:
            raise UsageError(f"{fact} calls it for {theirs}.\n  make the same call on all ranks; {again}")
        how = "has ended" if status is CallStatus.DIED else "has closed it or failed"
        raise ConnectionError(f"{fact} ({process}) {how}.\n  {again}")

    def _refusal(self, tensor: Tensor, operation: object) -> Exception:
        """Return the error for a call that cannot be made."""
        if self._closed:
            fact = f"this all-reduce can no longer be used: {self._closed}"
            return UsageError(f"{fact}.\n  all ranks must make a new object")
        fact, step = _obstacle(tensor, operation)
        return UsageError(f"all-reduce {fact}.\n  {step}")


def _fits(tensor: Tensor, code: int) -> bool:
    """Return whether the compiled code takes the tensor and the operation."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    if code == _AVERAGE and not tensor.is_floating_point():
        return False
    return tensor.is_contiguous() or not _overlaps(tensor)


def _overlaps(tensor: Tensor) -> bool:
    """Return True if two elements may share an address, as after ``expand``."""
    dimensions = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    # The distance of the first and the last element of the dimensions so far; the next stride has to be larger.
    reach = 0
    for stride, size in dimensions:
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
    """Return why this tensor or operation is refused, and the next step."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        fact = f"needs a dense CPU tensor; this tensor is {tensor.layout} on {tensor.device}"
        return fact, "move it to the CPU, or use torch.distributed.all_reduce"
    if tensor.dtype not in _DTYPE_CODES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        return f"does not support {tensor.dtype}", f"supported dtypes: {known}"
    if operation not in _OPERATION_CODES:
        supported = f"supported operations: {', '.join(map(_named, OPERATIONS))}"
        return f"does not support the operation {_named(operation)}", supported
    if operation == dist.ReduceOp.AVG and not tensor.is_floating_point():
        return f"does not support AVG of {tensor.dtype}", "use SUM, and divide the result"
    fact = f"would write an address several times: shape {tuple(tensor.shape)}, strides {tensor.stride()}"
    return fact, "pass tensor.contiguous()"
