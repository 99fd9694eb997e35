"""Checkpoints of one process: torch.save and torch.load."""

from __future__ import annotations

import io
import os
import pickle

import pytest
import torch
from torch import nn

from conformance.accelerators.capabilities import CHECKPOINT, DTYPE, RNG_STATE
from conformance.case import case

from .limits import largest_file

DTYPES = ("float32", "bfloat16", "float16", "int64", "bool")


class Training:
    """A model with dropout, its optimizer, a schedule and a loss scale: all that a step depends on."""

    def __init__(self, accelerator, device):
        self.accelerator, self.device = accelerator, device
        self.model = nn.Sequential(nn.Linear(9, 17), nn.Tanh(), nn.Dropout(0.3), nn.Linear(17, 3)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.scaler = torch.amp.GradScaler(device.type, init_scale=256.0, growth_interval=3)

    def run(self, steps):
        """The losses of some steps on random data that the device draws."""
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
    """Saved, loaded and gone on, a training has the bits of one without a break: dropout, scale and schedule."""
    whole, file = Training(accelerator, device), tmp_path / "state.pt"
    whole.run(3)
    torch.save(whole.state(), file)
    expected = [*whole.run(4), whole.scaler.get_scale(), whole.schedule.get_last_lr()]

    resumed = Training(accelerator, device)
    resumed.run(1)
    place = device if map == "device" else torch.device("cpu")
    resumed.restore(torch.load(file, map_location=place, weights_only=True))
    found = [*resumed.run(4), resumed.scaler.get_scale(), resumed.schedule.get_last_lr()]

    check.equal(found, expected, "losses of four steps, loss scale and learning rate")
    for name, value in whole.model.state_dict().items():
        check.equal(resumed.model.state_dict()[name].cpu(), value.cpu(), f"'{name}'")


@case("checkpoint.places", requires=[CHECKPOINT, DTYPE], axes={"dtype": DTYPES})
def test_places(check, device, dtype):
    """What was saved on the device is loaded on the host, and the other way round, with dtype, strides and sharing."""
    source = torch.arange(24).view(4, 6).to(getattr(torch, dtype))

    for start, end in ((device, torch.device("cpu")), (torch.device("cpu"), device), (device, device)):
        base, buffer = source.to(start), io.BytesIO()
        torch.save({"base": base, "across": base.t(), "row": base[2]}, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=end, weights_only=True)
        way = f"from {start.type} to {end.type}"
        check.equal({tensor.device.type for tensor in loaded.values()}, {end.type}, f"where tensors are, {way}")
        check.equal(loaded["across"].cpu(), source.t(), f"a transposed view, {way}")
        loaded["base"][2] = 1
        check.equal(
            loaded["row"].cpu(), torch.ones(6, dtype=source.dtype), f"a row of a tensor that has changed, {way}"
        )


@case("checkpoint.weights_only", requires=[CHECKPOINT])
def test_weights_only(check, device, tmp_path):
    """With weights_only a file's code does not run, and says so; tensors beside it would have been loaded."""

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"weight": torch.ones(5, device=device), "trap": Trap()}, tmp_path / "trap.pt")

    with pytest.raises(pickle.UnpicklingError, match=r"weights_only|Weights only"):
        torch.load(tmp_path / "trap.pt", weights_only=True)

    check.that(not (tmp_path / "ran").exists(), "the file's code was run")


@case("checkpoint.truncated", requires=[CHECKPOINT], axes={"part": ("none", "half", "all but a byte")})
def test_truncated(check, device, tmp_path, part):
    """A file that was cut off is an error, never other numbers; the checkpoint before it loads as it was."""
    good, cut = tmp_path / "1.pt", tmp_path / "2.pt"
    values = torch.randn(4099, device=device)
    torch.save({"weight": values}, good)
    torch.save({"weight": values * 2}, cut)
    size = cut.stat().st_size
    os.truncate(cut, {"none": 0, "half": size // 2, "all but a byte": size - 1}[part])

    with pytest.raises((RuntimeError, EOFError, pickle.UnpicklingError, OSError)):
        torch.load(cut, map_location=device, weights_only=True)

    before = torch.load(good, map_location=device, weights_only=True)["weight"]
    check.equal(before.cpu(), values.cpu(), "the one before")


@case("checkpoint.size", requires=[CHECKPOINT])
def test_size(check, device, tmp_path):
    """A file is as large as its tensors: a clone of a slice does not bring the tensor that it was cut from."""
    large = torch.randn(1 << 18, device=device)
    tensors = {f"slice{number}": large[number * 100 : number * 100 + 64].clone() for number in range(20)}

    torch.save(tensors, tmp_path / "slices.pt")

    size, most = (tmp_path / "slices.pt").stat().st_size, largest_file(tensors.values())
    check.that(size <= most, f"{size} bytes for tensors of {sum(t.nbytes for t in tensors.values())}; {most} allowed")
    check.metric("bytes", size)
