"""Bodies that fail on ranks, each followed by an ordinary case. test_torture.py runs this file as a vendor's."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import warnings
from multiprocessing import shared_memory
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from conformance.plan.case import case

DEADLINE = 3.0
LINES = 100_000


def meet():
    dist.all_reduce(torch.ones(4))


def raises_on_one(rank):
    if rank == 1:
        raise ValueError("only rank 1 minds")


def raises_while_others_wait(rank):
    if rank == 1:
        raise ValueError("rank 1 never joins")
    meet()


def raises_on_all(rank):
    raise ValueError("everybody minds")


def fails_by_pytest(rank):
    if rank == 1:
        pytest.fail("rank 1 says so")


def asserts_without_words(rank):
    expected = 7
    assert rank == expected


def skips_on_all(rank):
    pytest.skip("there is no such thing here")


def skips_by_unittest(rank):
    raise unittest.SkipTest("there is no such thing here either")


def skips_on_rank_0(rank):
    if rank == 0:
        pytest.skip("rank 0 alone")


def skips_while_others_wait(rank):
    if rank == 1:
        pytest.skip("rank 1 alone")
    meet()


def skips_and_fails(rank):
    if rank == 0:
        pytest.skip("rank 0 skips")
    raise AssertionError("rank 1 fails")


def segfaults(rank):
    if rank == 1:
        ctypes.string_at(0)


def segfaults_while_others_wait(rank):
    if rank == 1:
        ctypes.string_at(0)
    meet()


def is_killed(rank):
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    meet()


def exits_72(rank):
    if rank == 1:
        os._exit(72)
    meet()


def exits_0_early(rank):
    if rank == 1:
        os._exit(0)


def exits_0_on_all(rank):
    os._exit(0)


def leaves_by_sys_exit(rank):
    if rank == 1:
        sys.exit(0)


def mismatched_calls(rank):
    meet()
    if rank == 0:
        dist.broadcast(torch.ones(4), 1)
    else:
        dist.recv(torch.ones(4), 0, tag=77)


def one_has_left(rank):
    meet()
    if rank == 0:
        meet()


def sleeps(rank):
    if rank == 0:
        time.sleep(600)
    meet()


def loops_with_the_gil(rank):
    if rank == 1:
        ctypes.PyDLL(None).usleep(ctypes.c_uint(600_000_000))
    meet()


def prints_and_passes(rank):
    for number in range(LINES):
        print("line", number, "of rank", rank)


def prints_and_fails(rank):
    for number in range(LINES):
        print("line", number, "of rank", rank)
    raise AssertionError("after all that was printed")


def prints_without_end(rank):
    while rank == 1:
        os.write(1, b"x" * 65536)


def wrong_on_one(rank):
    total = torch.ones(4)
    dist.all_reduce(total)
    assert total[0] == 2 + (rank == 1), f"got {total[0]}"


def differs_between_ranks(rank, check):
    check.same_on_all_ranks("result", torch.tensor([1.0, float(rank)]))


def changes_the_default_dtype(rank):
    torch.set_default_dtype(torch.float64)


def leaks_all_it_can(rank):
    os.environ["TORTURE"] = "left"
    os.chdir("/")
    sys.path.insert(0, "/nowhere")
    sys.excepthook = print
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    warnings.simplefilter("error")
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)


def computes_slowly(rank):
    """Computes longer than it takes to suspect a mismatch; no mismatch may be reported."""
    if rank == 1:
        time.sleep(1.8)
    meet()


def leaves_a_thread(rank):
    threading.Thread(target=time.sleep, args=(600,), name="torture-thread", daemon=True).start()


def leaves_a_process(rank):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "torture-process"], start_new_session=True)
    os._exit(3)


def comes_back_from_a_fork(rank):
    """The child returns as if it were the rank; only the rank's own end counts."""
    if os.fork():
        os.wait()
        raise AssertionError("the rank itself has failed")


def dies_with_shared_memory(rank):
    segment = shared_memory.SharedMemory(create=True, size=4096, name=f"torture-{os.getppid()}-{rank}")
    segment.buf[0] = 1
    os.kill(os.getpid(), signal.SIGSEGV)


def destroys_the_group_itself(rank):
    meet()
    dist.destroy_process_group()


def kills_the_fork_server(rank):
    if rank == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


SHORT = {
    "mismatched_calls": DEADLINE,
    "sleeps": DEADLINE,
    "loops_with_the_gil": DEADLINE,
    "prints_without_end": DEADLINE,
}
BODIES = [
    body
    for body in list(globals().values())
    if callable(body) and getattr(body, "__module__", "") == __name__ and body is not meet
]


def following(name):
    def body(rank, world_size, group, check):
        """After any other case, a sum is right and the state of the process is restored."""
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.tolist() == [float(world_size)] * 3
        assert total.dtype == torch.float32
        assert torch.is_grad_enabled()
        assert "TORTURE" not in os.environ
        assert str(Path.cwd()) != "/"
        assert "/nowhere" not in sys.path
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        check.same_on_all_ranks("sum", total)

    return body


for _body in BODIES:
    _name = _body.__name__
    globals()[f"test_{_name}"] = case(f"torture.{_name}", world_size=2, deadline=SHORT.get(_name, 60.0))(_body)
    globals()[f"test_after_{_name}"] = case(f"torture.after.{_name}", world_size=3)(following(_name))
