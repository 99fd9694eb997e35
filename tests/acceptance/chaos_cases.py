"""Cases that crash, hang and vanish, among ordinary ones. Run as a vendor's own file by test_chaos.py."""

import ctypes
import os
import signal
import time

from conformance.plan.case import case

COUNT = 12


@case("chaos.before", axes={"n": [str(n) for n in range(COUNT)]})
def test_before(n):
    """An ordinary case."""
    assert int(n) < COUNT


@case("chaos.segfault")
def test_segfault():
    """Reads address zero."""
    assert ctypes.string_at(0)


@case("chaos.exit_zero")
def test_exit_zero():
    """Leaves the process as if all were well."""
    os._exit(0)


@case("chaos.sigkill")
def test_sigkill():
    """Is killed from outside, as by the kernel when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    assert time.sleep(60)


@case("chaos.hang_holding_the_gil", deadline=2.0)
def test_hang_holding_the_gil():
    """Never returns, and lets no other Python thread run."""
    ctypes.PyDLL(None).sleep(600)
    raise AssertionError("the loop ended")


@case("chaos.system_exit")
def test_system_exit():
    """Asks Python to end."""
    raise SystemExit(0)


@case("chaos.raises")
def test_raises():
    """Ends in an exception."""
    raise ValueError("a plain exception")


@case("chaos.wrong")
def test_wrong():
    """A wrong number."""
    assert 1 + 1 == 3, "1 + 1 is 2, not 3"


@case("chaos.after", axes={"n": [str(n) for n in range(COUNT)]})
def test_after(n):
    """An ordinary case behind the others."""
    assert int(n) < COUNT
