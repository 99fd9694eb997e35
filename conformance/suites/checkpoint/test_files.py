"""Checkpoint cases of one process: torch.save and torch.load."""

from __future__ import annotations

import io
import os
import pickle

import pytest
import torch
from torch import nn

from conformance.accelerators.capabilities import CHECKPOINT, DTYPE, RNG_STATE
from conformance.numerics.budgets import load_table
from conformance.plan.case import About, case

DTYPES = ("float32", "bfloat16", "float16", "int64", "bool")


class Training:
    """Training loop state: a model with dropout, its optimizer, a learning-rate schedule and a loss scaler."""

    def __init__(self, accelerator, device):
        self.accelerator, self.device = accelerator, device
        self.model = nn.Sequential(nn.Linear(9, 17), nn.Tanh(), nn.Dropout(0.3), nn.Linear(17, 3)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.scaler = torch.amp.GradScaler(device.type, init_scale=256.0, growth_interval=3)

    def run(self, steps):
        """Run ``steps`` training steps on random data drawn on the device, and return their losses."""
        losses = []
        for _ in range(steps):
            self.optimizer.zero_grad()
            inputs = torch.randn(6, 9, device=self.device)
            loss = self.model(inputs).square().mean() + (self.model(inputs) - 1).square().mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.schedule.step()
            losses.append(loss.item())
        return losses

    def state(self):
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "schedule", "scaler")}
        return {**parts, "rng": self.accelerator.get_rng_state()}

    def restore(self, state):
        for name in ("model", "optimizer", "schedule", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        self.accelerator.set_rng_state(state["rng"].cpu())


@case("checkpoint.continued", requires=[CHECKPOINT, RNG_STATE], axes={"map": ("device", "host")})
def test_continued(accelerator, check, device, tmp_path, map):
    """A training resumed from a checkpoint is bitwise identical to one without a break."""
    original, file = Training(accelerator, device), tmp_path / "state.pt"
    original.run(3)
    torch.save(original.state(), file)
    expected = [*original.run(4), original.scaler.get_scale(), original.schedule.get_last_lr()]

    resumed = Training(accelerator, device)
    # A step of its own fills the optimizer's state, so that restore() has to overwrite everything.
    resumed.run(1)
    map_location = device if map == "device" else torch.device("cpu")
    resumed.restore(torch.load(file, map_location=map_location, weights_only=True))
    found = [*resumed.run(4), resumed.scaler.get_scale(), resumed.schedule.get_last_lr()]

    check.equal(found, expected, "losses of four steps, loss scale and learning rate")
    check.that(all(expected[:4]), f"the losses are {expected[:4]}")
    for name, value in original.model.state_dict().items():
        check.agree(resumed.model.state_dict()[name].cpu(), value.cpu(), f"'{name}'")


@case("checkpoint.places", requires=[CHECKPOINT, DTYPE], axes={"dtype": DTYPES})
def test_places(check, device, dtype):
    """Tensors saved on the device or the host load on either of them with their dtype, strides and shared storage."""
    source = torch.arange(24).view(4, 6).to(getattr(torch, dtype))

    copy = pickle.loads(pickle.dumps(source.to(device)))
    check.equal(copy.device.type, device.type, "the device type of a tensor that Python has pickled")
    check.equal(copy.cpu(), source, "a tensor that Python has pickled")
    for start, end in ((device, torch.device("cpu")), (torch.device("cpu"), device), (device, device)):
        base, buffer = source.to(start), io.BytesIO()
        torch.save({"base": base, "across": base.t(), "row": base[2]}, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=end, weights_only=True)
        route = f"from {start.type} to {end.type}"
        types = {tensor.device.type for tensor in loaded.values()}
        check.equal(types, {end.type}, f"device types of the loaded tensors, {route}")
        check.equal(loaded["across"].cpu(), source.t(), f"a transposed view, {route}")
        # The row was saved as a view of the base, so a write to the base has to change it.
        loaded["base"][2] = 1
        check.equal(loaded["row"].cpu(), torch.ones(6, dtype=source.dtype), f"a row after a write to its base, {route}")
        # Numbers of bytes that are no multiple of the words in which a device may copy.
        odd, buffer = {str(n): (torch.arange(n, 0, -1) % 113).to(source.dtype) for n in (1, 3, 65, 4099)}, io.BytesIO()
        torch.save({name: values.to(start) for name, values in odd.items()}, buffer)
        buffer.seek(0)
        for name, values in torch.load(buffer, map_location=end, weights_only=True).items():
            check.equal(values.cpu(), odd[name], f"{name} elements, {route}")


def _kinds(start):
    """Return tensors by name whose metadata a file has to keep, on a device."""
    base = torch.arange(48.0).view(6, 8).to(start)
    numbers = torch.complex(torch.arange(6.0), torch.arange(6.0) - 2).to(start)
    return {
        "a column": base[:, 3],
        "every second row": base[1::2],
        "a permuted tensor": torch.arange(24.0).view(2, 3, 4).to(start).permute(2, 0, 1),
        "an expanded row": base[:1].expand(5, 8),
        "channels last": torch.arange(48.0).view(1, 3, 4, 4).to(start).contiguous(memory_format=torch.channels_last),
        "an empty tensor": base[:0],
        "a number": base[2, 5],
        "a leaf with a gradient": base.clone().requires_grad_(),
        "a parameter": nn.Parameter(base.clone()),
        "a frozen parameter": nn.Parameter(base.clone(), requires_grad=False),
        "a conjugate": numbers.conj(),
        "a negative view": numbers.clone().conj().imag,
    }


@case("checkpoint.metadata", requires=[CHECKPOINT, DTYPE.on("float32"), DTYPE.on("complex64")])
def test_metadata(check, device):
    """Shapes, strides, offsets, requires_grad, classes and lazy conjugates survive a file, to and from the device."""
    for start, end in ((device, torch.device("cpu")), (torch.device("cpu"), device), (device, device)):
        given, exact, buffer = _kinds(start), _kinds("cpu"), io.BytesIO()
        torch.save(given, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=end, weights_only=True)
        for name, right in exact.items():
            found, what = loaded[name], f"{name} from {start.type} to {end.type}"
            check.equal(found.device.type, end.type, f"the device type of {what}")
            check.equal(type(found).__name__, type(right).__name__, f"the class of {what}")
            for kept in ("shape", "dtype", "requires_grad", "is_leaf"):
                check.equal(getattr(found, kept), getattr(right, kept), f"{kept} of {what}")
            if right.numel():
                check.equal(found.stride(), right.stride(), f"the strides of {what}")
            check.equal(found.detach().cpu().resolve_conj().resolve_neg(),
                        right.detach().resolve_conj().resolve_neg(), f"the values of {what}")  # fmt: skip
        loaded["a leaf with a gradient"].sum().backward()
        gradient = loaded["a leaf with a gradient"].grad
        check.equal(gradient.cpu(), torch.ones(6, 8), f"the gradient of a loaded leaf on {end.type}")


@case("checkpoint.weights_only", requires=[CHECKPOINT], about=About.PYTORCH)
def test_weights_only(check, device, tmp_path):
    """With weights_only, torch.load refuses a file that contains code and does not run the code."""

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"weight": torch.ones(5, device=device), "trap": Trap()}, tmp_path / "trap.pt")

    with pytest.raises(pickle.UnpicklingError, match=r"weights_only|Weights only"):
        torch.load(tmp_path / "trap.pt", weights_only=True)

    check.that(not (tmp_path / "ran").exists(), "torch.load(weights_only=True) ran code from the file")


@case("checkpoint.truncated", requires=[CHECKPOINT], axes={"part": ("none", "half", "all but a byte")})
def test_truncated(check, device, tmp_path, part):
    """Loading a truncated file raises an error, and an earlier checkpoint still loads unchanged."""
    good, cut = tmp_path / "1.pt", tmp_path / "2.pt"
    exact = torch.randn(4099)
    values = exact.to(device)
    torch.save({"weight": values}, good)
    torch.save({"weight": values * 2}, cut)
    size = cut.stat().st_size
    os.truncate(cut, {"none": 0, "half": size // 2, "all but a byte": size - 1}[part])

    with pytest.raises((RuntimeError, EOFError, pickle.UnpicklingError, OSError)):
        torch.load(cut, map_location=device, weights_only=True)

    before = torch.load(good, map_location=device, weights_only=True)["weight"]
    check.equal(before.cpu(), exact, "the earlier checkpoint")


def largest_file(tensors):
    """Return the largest allowed size, in bytes, of a file that holds these tensors."""
    limits = load_table(__file__, "limits.toml")
    return limits["file"] + sum(tensor.nbytes + limits["tensor"] for tensor in tensors)


@case("checkpoint.size", requires=[CHECKPOINT])
def test_size(check, device, tmp_path):
    """A file is as large as its tensors: a cloned slice does not carry its source tensor along."""
    exact = torch.randn(1 << 18)
    large = exact.to(device)
    tensors = {f"slice{index}": large[index * 100 : index * 100 + 64].clone() for index in range(20)}

    torch.save(tensors, tmp_path / "slices.pt")

    size, limit = (tmp_path / "slices.pt").stat().st_size, largest_file(tensors.values())
    stored = sum(tensor.nbytes for tensor in tensors.values())
    check.that(size <= limit, f"the file has {size} bytes for {stored} bytes of tensors; at most {limit} are allowed")
    check.metric("bytes", size)
    loaded = torch.load(tmp_path / "slices.pt", weights_only=True)
    for index in range(20):
        check.equal(loaded[f"slice{index}"].cpu(), exact[index * 100 : index * 100 + 64], f"slice {index} of the file")
