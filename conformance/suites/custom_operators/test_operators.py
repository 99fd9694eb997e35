"""Operators that are registered for the device: dispatch, fake kernels, derivatives, opcheck and compilation."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import COMPILE, DEVICE
from conformance.judging.finding import environment_lacks
from conformance.plan.case import About, case

from .registering import registered

_NOT_YET = "NYI devices other than"
#: Result for 0, 1, 2, …: 1, 3, 5, …
DUE = torch.arange(7.0) * 2 + 1


@case("custom_operators.dispatch", requires=[DEVICE])
def test_dispatch(device, check):
    """A tensor on the device reaches the kernel that is registered for the device, and a host tensor does not."""
    with registered(device.type) as operators:
        there = operators.scaled(torch.arange(7.0, device=device))
        written = torch.arange(7.0, device=device)
        operators.scale_(written)

    check.that(operators.seen == [device.type] * 2, f"the kernels of {device.type} got tensors of {operators.seen}")
    check.that(there.device.type == device.type, f"the result is on {there.device}")
    check.equal(there.cpu(), DUE, "the result of the kernel")
    check.equal(written.cpu(), DUE, "what the kernel wrote in place")


@case("custom_operators.without_kernel", requires=[DEVICE])
def test_without_kernel(device, check):
    """An operator without a kernel for the device is refused, or computed right by a fallback to the host's kernel."""
    elsewhere = "mtia" if device.type == "cpu" else "cpu"
    source = torch.arange(7.0, device=device)
    with registered(elsewhere) as operators:
        # A refusal alone shows no device. The same formula does.
        check.equal((source * 2 + 1).cpu(), DUE, "the same formula on the device")
        try:
            found = operators.scaled(source)
        except NotImplementedError:
            check.that(not operators.seen, f"the call is refused after a kernel got tensors of {operators.seen}")
            return

    check.that(found.device == source.device, f"the result of the fallback is on {found.device}")
    check.equal(found.cpu(), DUE, f"the result of a fallback to the kernel of {elsewhere}")


@case("custom_operators.autograd", requires=[DEVICE])
def test_autograd(device, check):
    """The registered derivative is used on the device, through other operators too."""
    with registered(device.type) as operators:
        leaf = torch.arange(7.0, device=device, requires_grad=True)
        (operators.scaled(leaf) ** 2).sum().backward()

    check.equal(leaf.grad.cpu(), 4 * DUE, "the gradient")


@case("custom_operators.fake", requires=[DEVICE])
def test_fake(device, check):
    """A fake tensor of the device has shape, dtype and device of the result, and no kernel runs."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with registered(device.type) as operators:
        real = operators.scaled(torch.arange(7.0, device=device))
        operators.seen.clear()
        with FakeTensorMode() as mode:
            fake = operators.scaled(mode.from_tensor(real))

    check.that(not operators.seen, "a kernel ran for a fake tensor")
    check.that(fake.device == real.device, f"the fake result is on {fake.device}, the real one on {real.device}")
    check.that((fake.shape, fake.dtype) == (real.shape, real.dtype), f"the fake result is {fake}")
    check.equal(real.cpu(), DUE, "the result of the kernel")


@case("custom_operators.opcheck", requires=[DEVICE], axes={"operator": ["scaled", "scale_"]}, deadline=120)
def test_opcheck(device, check, operator):
    """PyTorch's own check of an operator finds nothing: schema, derivative, fake kernel, and traced graphs."""
    leaf = torch.arange(7.0, device=device)
    with registered(device.type) as operators:
        if operator == "scaled":
            leaf.requires_grad_()
        found = torch.library.opcheck(getattr(operators, operator), (leaf,), raise_exception=False)
        check.that(device.type in operators.seen, f"opcheck() ran no kernel of {device.type}")
        written = torch.arange(7.0, device=device)
        operators.scale_(written)
        check.equal(written.cpu(), DUE, "what the kernel wrote in place")

    # One of PyTorch's tests knows only the types of devices in its tree, and says so for others.
    bad = {name: str(result) for name, result in found.items() if result != "SUCCESS" and _NOT_YET not in str(result)}
    check.that(not bad, f"opcheck() of an operator on {device.type}: {bad}")
    check.that(len(found) >= 4, f"opcheck() made {len(found)} tests, not 4")


@case("custom_operators.compiled", requires=[DEVICE, COMPILE], axes={"operator": ["scaled", "scale_"]}, deadline=120)
def test_compiled(device, check, operator):
    """Inside a compiled function the operator gives the same values, in one graph, and writes where it should."""

    def work(x):
        if operator == "scaled":
            return operators.scaled(x + 1) - 2
        part = x[1:]
        operators.scale_(part)
        return part - 2

    with registered(device.type) as operators:
        source, compiled_source = torch.arange(7.0, device=device), torch.arange(7.0, device=device)
        due = work(source)
        calls = len(operators.seen)
        # Tracing and functionalization are what is tested; the code generator of the backend has cases of its own.
        found = torch.compile(work, backend="aot_eager", fullgraph=True)(compiled_source)

    check.that(len(operators.seen) == 2 * calls == 2, f"the kernel ran {len(operators.seen) - calls} times, not once")
    check.equal(found.cpu(), due.cpu(), "the result of the compiled function")
    check.equal(compiled_source.cpu(), source.cpu(), "the argument after the compiled function")
    check.that(bool(due.any()), "the function gives zeros alone")


@case("custom_operators.deepspeed", requires=[DEVICE, COMPILE], about=About.LIBRARY)
def test_deepspeed(device, check):
    """Each operator torch.ops.deepspeed.* with a kernel for the device has a fake kernel, which a graph needs."""
    key = torch._C._dispatch_key_for_device(device.type)
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("deepspeed::")]
    ours = [name for name in names if has(name, key)]
    if not ours:
        environment_lacks(f"no torch.ops.deepspeed.* is registered for {device.type}; import the vendor's package")

    for name in ours:
        fake = has(name, "Meta") or has(name, "CompositeImplicitAutograd") or has(name, "CompositeExplicitAutograd")
        fake = fake or torch._library.simple_registry.singleton.find(name).fake_impl.kernel is not None
        check.that(
            fake, f"{name} has a kernel for {device.type} and no fake kernel: a compiled graph cannot contain it"
        )
