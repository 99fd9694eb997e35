"""Half precision cases on one device: schedules of the loss scale, and float32 copies of 16-bit weights."""

from __future__ import annotations

import torch
from torch import nn

from conformance.accelerators.capabilities import AUTOCAST, CHECKPOINT, COMM, COMM_AVERAGE, COMM_DTYPE, DTYPE
from conformance.plan.case import case

#: Imports that take seconds on each rank.
RANK_IMPORTS = ("torch._dynamo",)
SIXTEEN_BITS = ("bfloat16", "float16")
#: Steps with a good (g) or an overflowing (o) gradient.
PATTERNS = {"good": "gggggg", "bad": "oooo", "alternating": "gogogogo", "rare": "ggggoggggg", "late": "ggogggoo"}
START, INTERVAL = 2.0**12, 3
#: Steps of this size are exact in float32 beside a weight of 1, and too small for 16 bits.
STEP = 2.0**-13


def scales_by_hand(pattern, growth=2.0, backoff=0.5):
    """Return the scale after each step: it grows after INTERVAL good steps in a row, and shrinks after a bad one."""
    scale, row, scales = START, 0, []
    for step in pattern:
        row = row + 1 if step == "g" else 0
        if step == "o":
            scale *= backoff
        elif row == INTERVAL:
            scale, row = scale * growth, 0
        scales.append(scale)
    return scales


class Scaled:
    """A weight of ones whose gradient is STEP, or overflows, under a scaled loss."""

    def __init__(self, device, growth=2.0, backoff=0.5):
        self.weight = torch.ones(65, device=device, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0)
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale=START, growth_interval=INTERVAL, growth_factor=growth, backoff_factor=backoff
        )

    def step(self, good, bad="inf"):
        self.optimizer.zero_grad()
        self.scaler.scale((self.weight * STEP).sum()).backward()
        if not good:
            self.weight.grad[41] = float(bad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale()


@case("v1.loss_scale", requires=[AUTOCAST], axes={"pattern": tuple(PATTERNS), "bad": ("inf", "-inf", "nan")})
def test_loss_scale(check, device, pattern, bad):
    """The loss scale follows its schedule step by step, and exactly the good steps change the weights."""
    training, steps = Scaled(device), PATTERNS[pattern]

    scales = [training.step(step == "g", bad) for step in steps]

    check.equal(scales, scales_by_hand(steps), f"the loss scale after each of the steps {steps}")
    expected = torch.full((65,), 1.0 - steps.count("g") * STEP)
    check.equal(training.weight.detach().cpu(), expected, f"the weights after {steps.count('g')} good steps")


@case("v1.loss_scale.factors", requires=[AUTOCAST], axes={"growth": ("1.5", "4.0"), "backoff": ("0.25", "0.75")})
def test_factors(check, device, growth, backoff):
    """The loss scale grows and shrinks by its own two factors."""
    training, steps = Scaled(device, float(growth), float(backoff)), PATTERNS["rare"]

    scales = [training.step(step == "g") for step in steps]

    check.equal(scales, scales_by_hand(steps, float(growth), float(backoff)), "the loss scale after each step")
    weights = training.weight.detach().cpu()
    check.equal(weights, torch.full((65,), 1.0 - steps.count("g") * STEP), "the weights")


@case("v1.loss_scale.restored", requires=[AUTOCAST, CHECKPOINT], axes={"at": ("1", "2", "4", "6")})
def test_restored(check, device, at, tmp_path):
    """A restored loss scale goes on with its count of good steps."""
    steps, place = PATTERNS["rare"], int(at)
    first, second = Scaled(device), Scaled(device)
    for step in steps[:place]:
        first.step(step == "g")

    torch.save({"scaler": first.scaler.state_dict(), "weight": first.weight.detach()}, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", map_location=device, weights_only=True)
    second.scaler.load_state_dict(state["scaler"])
    with torch.no_grad():
        second.weight.copy_(state["weight"])
    scales = [second.step(step == "g") for step in steps[place:]]

    check.equal(scales, scales_by_hand(steps)[place:], "the loss scale of the steps after it was restored")
    expected = torch.full((65,), 1.0 - steps.count("g") * STEP)
    check.equal(second.weight.detach().cpu(), expected, "the weights at the end")


@case("v1.loss_scale.clipped", requires=[AUTOCAST], axes={"scale": ("1.0", "1024.0", "65536.0")})
def test_clipped(check, device, scale):
    """Gradients that are unscaled and clipped give the same step for every loss scale, and are unscaled once."""
    weight = torch.ones(4, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler(device.type, init_scale=float(scale))

    scaler.scale((weight * torch.tensor([3.0, 0.0, 4.0, 0.0], device=device)).sum()).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_([weight], 2.5)
    scaler.step(optimizer)
    scaler.update()

    check.equal(norm.item(), 5.0, "the norm of the unscaled gradient")
    # Clipping divides by the norm plus a millionth.
    exact = 1 - torch.tensor([3.0, 0.0, 4.0, 0.0], dtype=torch.float64) * 2.5 / (5.0 + 1e-6)
    error = float((weight.detach().cpu().double() - exact).abs().max())
    # The factor, its product with the gradient, and the difference are rounded: each at most 2^-24 of 2.
    check.that(error <= 3 * 2.0**-23, f"the weights are off by {error:.3g} after a clipped step")


class Master:
    """Float32 copies of 16-bit parameters: gradients go up, and weights come down after a step."""

    def __init__(self, parameters, make_optimizer):
        self.parameters = list(parameters)
        self.copies = [parameter.detach().float().requires_grad_() for parameter in self.parameters]
        self.optimizer = make_optimizer(self.copies)

    @torch.no_grad()
    def step(self):
        for copy, parameter in zip(self.copies, self.parameters, strict=True):
            copy.grad, parameter.grad = parameter.grad.float(), None
        self.optimizer.step()
        torch._foreach_copy_(self.parameters, self.copies)


@case("v1.master_weights", requires=[DTYPE, DTYPE.on("float32")],
      axes={"dtype": SIXTEEN_BITS, "way": ("foreach", "loop")})  # fmt: skip
def test_master_weights(check, device, dtype, way):
    """Steps too small for 16-bit weights add up in their float32 copies, and show up in the weights in time."""
    kind = getattr(torch, dtype)
    weight = torch.ones(37, device=device, dtype=kind, requires_grad=True)
    master = Master([weight], lambda copies: torch.optim.SGD(copies, lr=1.0, foreach=way == "foreach"))
    plain = torch.ones(37, device=device, dtype=kind, requires_grad=True)
    alone, seen = torch.optim.SGD([plain], lr=1.0, foreach=way == "foreach"), []
    steps = 40

    for _ in range(steps):
        for parameter in (weight, plain):
            parameter.grad = None
            (parameter * STEP).sum().backward()
        master.step()
        alone.step()
        seen.append(weight.detach().cpu().clone())

    sums = [1.0 - (number + 1) * STEP for number in range(steps)]
    check.equal(master.copies[0].detach().cpu(), torch.full((37,), sums[-1]), "the float32 copy after all steps")
    for number, (found, value) in enumerate(zip(seen, sums, strict=True)):
        check.equal(found, torch.full((37,), value).to(kind), f"the weights after step {number}")
    check.that(bool((seen[-1] < 1).all()), "no step shows up in the weights")
    check.equal(plain.detach().cpu(), torch.ones(37, dtype=kind), "weights without a float32 copy")


class Line(nn.Module):
    """A weight whose gradient is STEP everywhere, on every rank."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 4))

    def forward(self, x):
        return (self.weight * x).sum()


@case("v1.master_weights.sharded", requires=[COMM, COMM_AVERAGE, COMM_DTYPE, COMM_DTYPE.on("float32"), DTYPE],
      axes={"dtype": SIXTEEN_BITS}, world_size=(2, 3))  # fmt: skip
def test_sharded_master(check, device, dtype, rank, world_size, group):
    """Sharded float32 weights take steps that are too small for 16 bits, and layers compute with 16-bit copies."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    kind = getattr(torch, dtype)
    mesh = init_device_mesh(device.type, (world_size,))
    policy = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=torch.float32, cast_forward_inputs=True)
    model = fully_shard(Line().to(device), mesh=mesh, mp_policy=policy)
    optimizer, used = torch.optim.SGD(model.parameters(), lr=1.0), []
    model.register_forward_hook(lambda module, args, output: used.append(module.weight.detach().clone().cpu()))
    steps = 24

    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.full((8, 4), STEP, device=device)).backward()
        optimizer.step()

    value = 1.0 - steps * STEP
    local = model.weight.to_local().detach().cpu()
    check.equal(local, torch.full_like(local, value), "the rank's float32 weights")
    check.equal(local.dtype, torch.float32, "the dtype of the weights")
    for number, weight in enumerate(used):
        check.equal(weight, torch.full((8, 4), 1.0 - number * STEP).to(kind), f"the weights used in step {number}")
