"""One case breaks the device for its process. Run by test_poison.py."""

from conformance.plan.case import case


@case("poison.before", axes={"n": [str(n) for n in range(8)]})
def test_before(accelerator, n):
    """Works while the device does."""
    accelerator.synchronize()
    assert int(n) < 8


@case("poison.culprit")
def test_culprit():
    """Leaves the device unusable."""
    import poisonable

    poisonable.BROKEN.append(True)
    assert poisonable.BROKEN


@case("poison.after", axes={"n": [str(n) for n in range(8)]})
def test_after(accelerator, n):
    """Works only in a process that the culprit has not been in."""
    accelerator.synchronize()
    assert int(n) < 8


@case("poison.allowed")
def test_allowed(accelerator, check):
    """Refuses a call by ending the device's context, as PyTorch allows."""
    import poisonable

    accelerator.synchronize()
    poisonable.BROKEN.append(True)
    check.context_ended_by = "the call"
    assert poisonable.BROKEN
