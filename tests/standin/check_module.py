"""``torch.supa`` has the vendor's names, and ``torch.cuda`` answers with them. Run as check_operators.py is."""

from __future__ import annotations

import pytest
import torch
import torch.distributed
import torch_supa
from torch_supa import impersonation

from conformance.accelerators.backends import builtin
from conformance.accelerators.detection import choose, is_usable

#: What DeepSpeed's accelerator for this device calls, beyond what every device has.
NAMES = (
    "_lazy_call",
    "memory_cached",
    "max_memory_cached",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "SUPAGraph",
    "graph",
    "supart",
    "check_error",
)
CONSTRUCTORS = {
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
}


@pytest.mark.parametrize("name", NAMES)
def test_names(name):
    assert callable(getattr(torch.supa, name))


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_constructors_take_values_or_a_shape(name):
    make = getattr(torch.supa, name)

    assert (make([1, 2]).dtype, make([1, 2]).tolist()) == (CONSTRUCTORS[name], [1, 2])
    assert (make(3, 2).dtype, tuple(make(3, 2).shape), make(3).device.type) == (CONSTRUCTORS[name], (3, 2), "supa")


def test_cuda_is_answered_by_the_vendors_device():
    torch.supa.set_device(1)
    try:
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == torch.supa.device_count() == torch_supa.PROFILE.devices
        assert torch.cuda.current_device() == 1
        assert torch.cuda.get_device_name() == torch.supa.get_device_name()
        assert torch.cuda.get_device_properties(0).total_memory == torch_supa.PROFILE.memory
    finally:
        torch.supa.set_device(0)
    assert all(hasattr(torch.cuda, name) for name in impersonation.ANSWERED)


def test_cuda_looks_usable_and_is_not_chosen():
    cuda, supa, cpu = (builtin(name) for name in ("cuda", "supa", "cpu"))

    assert is_usable(cuda)
    assert choose([cuda, supa, cpu], is_usable, preferred=lambda: "cuda") == "supa"


def test_collectives_have_the_vendors_name():
    assert torch.distributed.Backend.default_device_backend_map["supa"] == "bccl"
    assert torch.distributed.is_backend_available("bccl")


def test_the_runtime_registers_host_memory():
    memory = torch.zeros(1024)
    runtime = torch.supa.supart()

    torch.supa.check_error(runtime.supaHostRegister(memory.data_ptr(), 4096, 0))

    with pytest.raises(RuntimeError, match="SUPA error 1"):
        torch.supa.check_error(runtime.supaHostRegister(memory.data_ptr() + 8, 8, 0))
    torch.supa.check_error(runtime.supaHostUnregister(memory.data_ptr()))
    assert runtime.supaHostUnregister(memory.data_ptr()) != 0
