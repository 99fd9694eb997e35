"""Cases in the order of their file, which is not that of workers. Run by test_order.py."""

from conformance.case import Level, case


@case("order.short")
def test_short():
    assert 1 + 1 == 2


@case("order.long", axes={"n": ["1", "2"]}, deadline=300)
def test_long(n):
    assert int(n) > 0


@case("order.core", level=Level.CORE)
def test_core():
    assert 1 + 1 == 2
