"""Tests of a worker's memory: freed memory goes back to the system."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from conformance import plugin

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


#: Rows of many numbers in bfloat16, for each of which oneDNN makes a kernel. Alone, they take little memory.
MULTIPLIES = """
import torch
from conformance.process.peak import resident_bytes
torch.set_num_threads(1)
layer = torch.nn.Linear(64, 48, dtype=torch.bfloat16)
layer(torch.ones(1, 64, dtype=torch.bfloat16))
before = resident_bytes()
with torch.no_grad():
    for rows in range(2, 900):
        layer(torch.ones(rows, 64, dtype=torch.bfloat16))
print(resident_bytes() - before)
"""


def test_a_run_bounds_the_kernels_that_are_kept() -> None:
    bound = dict.fromkeys(plugin._KERNEL_CACHES, plugin._KERNELS_KEPT)
    grown = []
    for variables in ({}, bound):
        environment = {name: value for name, value in os.environ.items() if name not in bound} | variables
        command = [sys.executable, "-c", MULTIPLIES]
        grown.append(int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout))

    assert grown[1] < max(grown[0] / 2, 20e6), f"{grown[0]} bytes became {grown[1]}"
