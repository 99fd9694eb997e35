"""Tests of a worker's memory: freed memory goes back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

#: Blocks that come from the heap, not from maps of their own. The last one stays, and holds the end of the heap.
FREES = """
from conformance.process.peak import FreedMemory, resident_bytes
blocks = [bytearray(b"x" * 100_000) for _ in range(3_000)]
freed = FreedMemory(start=resident_bytes() - 2**20, each=2**30)
del blocks[:-1]
before = resident_bytes()
print(before, freed.give_back(), resident_bytes(), freed.give_back())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc gives freed memory back")
def test_freed_memory_goes_back_to_the_system_once() -> None:
    output = subprocess.run([sys.executable, "-c", FREES], capture_output=True, text=True, check=True).stdout

    before, gave, after, again = output.split()
    assert (gave, again) == ("True", "False")
    assert int(before) - int(after) > 200e6, f"{before} resident bytes became {after}"
