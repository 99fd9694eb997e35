"""Cases that fail in known ways, one that no longer does, and one that fails otherwise. Run by test_waivers.py."""

import os

from conformance.plan.case import Level, case


@case("known.wrong")
def test_wrong():
    """Ends with a wrong value."""
    assert 1 + 1 == 3, "1 + 1 is not 3"


@case("known.crash")
def test_crash():
    """Ends its process."""
    os._exit(3)
    raise AssertionError("the process outlived its end")


@case("known.otherwise")
def test_otherwise():
    """Raises, where a wrong value is known."""
    raise OSError("no such luck")


@case("known.mended")
def test_mended():
    """Passes, though it is waived."""
    assert 1 + 1 == 2, "1 + 1 is not 2"


@case("known.ended")
def test_ended():
    """Fails with a waiver that has run out."""
    assert 1 + 1 == 3, "1 + 1 is not 3"


@case("known.core", level=Level.CORE)
def test_core():
    """Passes; nothing of the core can be waived."""
    assert 1 + 1 == 2, "1 + 1 is not 2"
