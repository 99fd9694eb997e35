"""Cases on one device of what moves to the host and comes back: states between steps, and saved activations."""

from __future__ import annotations

import math

import torch
from torch import nn

from conformance.accelerators.capabilities import MEMORY_PINNED, MEMORY_STATS, RNG_STATE
from conformance.numerics.nearness import Near, near
from conformance.plan.case import case

from .training import ADAM, STEPS, batch, loss_of, model, reference

PLACES = {"pageable": (), "locked": (MEMORY_PINNED,)}
#: States, weights and gradients that leave the device between two steps.
PARTS = ("states", "weights", "gradients", "all")


def make(kind, parameters):
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    return torch.optim.AdamW(parameters, **ADAM)


def tensors_of(part, trained, optimizer):
    """Return (holder, key) for each tensor of that part; ``holder[key]`` reads and writes it."""
    found = []
    if part in ("states", "all"):
        for state in optimizer.state.values():
            found += [(state, key) for key, value in state.items() if torch.is_tensor(value) and value.dim()]
    if part in ("weights", "all"):
        found += [(_Attribute(value, "data"), "") for value in trained.parameters()]
    if part in ("gradients", "all"):
        found += [(_Attribute(value, "grad"), "") for value in trained.parameters()]
    return found


class _Attribute:
    """Attribute of a parameter that is read and written as an item."""

    def __init__(self, owner, name):
        self._owner, self._name = owner, name

    def __getitem__(self, _):
        return getattr(self._owner, self._name)

    def __setitem__(self, _, value):
        setattr(self._owner, self._name, value)


@case("runtime.reload", requires=[], axes={"part": PARTS, "place": PLACES, "optimizer": ("sgd", "adamw")})
def test_reload(accelerator, check, device, part, place, optimizer):
    """States that leave the device between steps come back with their bits, and training goes on as in float64."""
    exact, _ = reference(lambda parameters: make(optimizer, parameters))
    trained = model().to(device)
    stepping = make(optimizer, trained.parameters())

    for step in range(STEPS):
        if part in ("states", "weights"):
            stepping.zero_grad()
        else:
            stepping.zero_grad(set_to_none=False)
        loss_of(trained, *(tensor.to(device) for tensor in batch(step))).backward()
        stepping.step()
        moved = tensors_of(part, trained, stepping)
        check.that(moved, "nothing leaves the device")
        kept = []
        for holder, key in moved:
            away = torch.empty_like(holder[key], device="cpu", pin_memory=False)
            if place == "locked":
                away = accelerator.pin_memory(away)
            away.copy_(holder[key], non_blocking=place == "locked")
            kept.append(away)
        accelerator.synchronize()
        before = [holder[key].detach().cpu().clone() for holder, key in moved]
        for holder, key in moved:
            holder[key].detach().fill_(math.nan)
        for (holder, key), away, value in zip(moved, kept, before, strict=True):
            check.agree(away, value, "a tensor on the host")
            holder[key] = away.to(device, non_blocking=place == "locked", copy=True)
        accelerator.synchronize()
        kept.clear()

    for name, value in exact.named_parameters():
        near(check, f"'{name}'", dict(trained.named_parameters())[name], value, Near.TRAJECTORY)


@case("runtime.reload.memory", requires=[MEMORY_STATS], axes={"optimizer": ("sgd", "adamw")})
def test_memory(accelerator, check, device, optimizer):
    """While the states are on the host, their memory on the device is free, and it is taken again afterwards."""
    trained = nn.Linear(1024, 1024, bias=False).to(device)
    stepping = make(optimizer, trained.parameters())
    trained(torch.ones(2, 1024, device=device)).sum().backward()
    stepping.step()
    stepping.zero_grad()
    accelerator.synchronize()
    states = [state[key] for state in stepping.state.values() for key in state if torch.is_tensor(state[key])]
    size = sum(value.nbytes for value in states if value.device.type == device.type and value.dim())
    del states

    whole = accelerator.memory_allocated()
    for state in stepping.state.values():
        for key, value in state.items():
            state[key] = value.cpu() if torch.is_tensor(value) and value.dim() else value
    del value
    away = accelerator.memory_allocated()
    sums = [float(v.double().sum()) for state in stepping.state.values() for v in state.values() if torch.is_tensor(v)]
    for state in stepping.state.values():
        for key, kept in state.items():
            state[key] = kept.to(device) if torch.is_tensor(kept) and kept.dim() else kept
    back = accelerator.memory_allocated()

    count = 1 if optimizer == "sgd" else 2
    check.equal(size, count * 1024 * 1024 * 4, "bytes of the states")
    check.that(whole - away >= size, f"{whole - away} bytes are free while states of {size} bytes are on the host")
    check.that(back - away >= size, f"{back - away} bytes are taken when states of {size} bytes are back")
    # Every gradient is 2: Adam's mean of gradients is a tenth of it, and momentum is the gradient itself.
    expected = 2.0 * 1024 * 1024 * (1.0 if optimizer == "sgd" else 0.1)
    first = sums[0] if optimizer == "sgd" else sums[-2]
    check.that(abs(first - expected) <= 2.0**-20 * expected, f"the sum of the states is {first}, not {expected}")


class Deep(nn.Module):
    """Four layers with a nonlinearity and dropout."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, 12) for _ in range(4)])

    def forward(self, x, drop=0.0):
        for layer in self.layers:
            x = nn.functional.dropout(torch.tanh(layer(x)), drop)
        return x


def deep():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(71)
        return Deep(), torch.randn(6, 12)


@case("runtime.saved_on_host", requires=[], axes={"place": PLACES})
def test_saved(accelerator, check, device, place):
    """Activations that wait on the host for the backward pass give the gradients of float64."""
    start, x = deep()
    exact, _ = deep()
    exact.double()
    exact(x.double()).square().sum().backward()
    trained, kept = start.to(device), []

    def pack(tensor):
        away = tensor.to("cpu", copy=True)
        away = accelerator.pin_memory(away) if place == "locked" else away
        kept.append(away.device.type)
        return tensor.device, away

    def unpack(packed):
        target, away = packed
        return away.to(target, non_blocking=place == "locked", copy=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = trained(x.to(device)).square().sum()
    with torch.no_grad():
        scratch = torch.full((6, 12), math.nan, device=device)  # memory that is free may be used
    del scratch
    loss.backward()

    check.that(len(kept) >= 8, f"{len(kept)} tensors were saved")
    for name, parameter in exact.named_parameters():
        near(check, f"the gradient of '{name}'", dict(trained.named_parameters())[name].grad, parameter.grad,
             Near.GRADIENTS)  # fmt: skip


@case("runtime.recomputation.kinds", requires=[RNG_STATE], axes={
    "kind": ("sequential", "nested", "selective", "kept-products")})  # fmt: skip
def test_kinds(accelerator, check, device, kind):
    """Every way to recompute activations gives the gradients of float64, and the same dropped elements."""
    from torch.utils import checkpoint as again

    start, x = deep()
    exact, _ = deep()
    exact.double()
    exact(x.double()).square().sum().backward()
    trained = start.to(device)

    def run(drop):
        layers = [lambda value, layer=layer: nn.functional.dropout(torch.tanh(layer(value)), drop)
                  for layer in trained.layers]  # fmt: skip
        if kind == "sequential":
            return again.checkpoint_sequential(nn.Sequential(*(_Call(one) for one in layers)), 2,
                                               x.to(device), use_reentrant=False)  # fmt: skip

        def inner(value):
            return layers[1](layers[0](value))

        def outer(value):
            value = again.checkpoint(inner, value, use_reentrant=False) if kind == "nested" else inner(value)
            return layers[3](layers[2](value))

        options = {}
        if kind in ("selective", "kept-products"):
            kept = [torch.ops.aten.tanh.default] if kind == "selective" else [torch.ops.aten.addmm.default]
            options = {"context_fn": lambda: again.create_selective_checkpoint_contexts(kept)}
        return again.checkpoint(outer, x.to(device), use_reentrant=False, **options)

    run(0.0).square().sum().backward()
    for name, parameter in exact.named_parameters():
        near(check, f"the gradient of '{name}'", dict(trained.named_parameters())[name].grad, parameter.grad,
             Near.GRADIENTS)  # fmt: skip
    results = []
    for recomputed in (False, True):
        trained.zero_grad()
        accelerator.manual_seed(72)
        output = run(0.4) if recomputed else trained(x.to(device), 0.4)
        torch.rand(3, device=device)  # another draw between the passes
        output.square().sum().backward()
        results.append([output.detach().cpu(), *(value.grad.cpu() for value in trained.parameters())])
    for number, (plain, recomputed) in enumerate(zip(*results, strict=True)):
        check.agree(recomputed, plain, f"output or gradient {number} with dropout")


class _Call(nn.Module):
    """Function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


#: Numbers of parts of the inputs and of the outputs of a layer.
TILES = {"inputs": (4, 1), "outputs": (1, 3), "both": (2, 2), "odd": (5, 3)}


@case("runtime.tiled_linear", requires=[], axes={"tiles": tuple(TILES), "bias": ("yes", "no")})
def test_tiled(check, device, tiles, bias):
    """A large layer in tiles of its inputs and outputs, of unequal sizes too, has the layer's output and gradients."""
    rows, columns = 13, 17
    parts_in, parts_out = TILES[tiles]
    generator = torch.Generator().manual_seed(73)
    weight = torch.randn(rows, columns, generator=generator) / 4
    offset = torch.randn(rows, generator=generator)
    x = torch.randn(7, columns, generator=generator)
    exact = [tensor.double().requires_grad_() for tensor in (weight, offset, x)]
    expected = exact[2] @ exact[0].t() + (exact[1] if bias == "yes" else 0)
    expected.square().sum().backward()
    cut = [[piece.to(device).clone().requires_grad_() for piece in row.tensor_split(parts_in, 1)]
           for row in weight.tensor_split(parts_out)]  # fmt: skip
    offsets = [piece.to(device).clone().requires_grad_() for piece in offset.tensor_split(parts_out)]
    mine = x.to(device, copy=True).requires_grad_()

    outputs = []
    for row, shift in zip(cut, offsets, strict=True):
        total = None
        for tile, piece in zip(row, mine.tensor_split(parts_in, 1), strict=True):
            # The bias is added with the first tile alone.
            part = nn.functional.linear(piece, tile, shift if total is None and bias == "yes" else None)
            total = part if total is None else total + part
        outputs.append(total)
    output = torch.cat(outputs, 1)
    output.square().sum().backward()

    near(check, "the output", output, expected.detach(), Near.FORWARD)
    near(check, "the gradient of the inputs", mine.grad, exact[2].grad, Near.GRADIENTS)
    # Joined on the host: the case is about the tiles.
    whole = torch.cat([torch.cat([tile.grad.cpu() for tile in row], 1) for row in cut])
    near(check, "the gradient of the weight", whole, exact[0].grad, Near.GRADIENTS)
    if bias == "yes":
        shifts = torch.cat([shift.grad.cpu() for shift in offsets])
        near(check, "the gradient of the bias", shifts, exact[1].grad, Near.GRADIENTS)
