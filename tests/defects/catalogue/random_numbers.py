"""Generators, seeds, states, and functions that draw."""

from __future__ import annotations

from typing import Any

import torch

from tests.defects.faults import Around, Fault, Where, scaled, with_argument
from tests.defects.mutant import Mutant
from tests.defects.spoiling import accelerator, constant

RNG = ("accelerator.rng.*", "accelerator.generator.*", "accelerator.lazy_call.*", "capabilities.rng*",
       "accelerator.effect.*", "accelerator.graph.random_numbers")  # fmt: skip
DROPOUT = ("operators.nn.functional.dropout*", "operators.nn.functional.alpha_dropout*")


def rng(name: str, family: str, precedent: str, caught_by: str, *touch: str, also_run: tuple[str, ...] = (),
        peer_misses: bool = False, **fault: Any) -> Mutant:  # fmt: skip
    what = Fault(name, family, precedent, Where.RNG, caught_by, **fault)
    return Mutant(what, (*RNG, *touch), also_run, peer_misses=peer_misses)


def _own_numbers() -> Around:
    """Numbers come from a generator that nobody can seed."""
    own = torch.Generator()

    def around(call: Any, args: list[Any]) -> list[Any]:
        state = torch.get_rng_state()
        torch.set_rng_state(own.get_state())
        try:
            return list(call(args))
        finally:
            own.set_state(torch.get_rng_state())
            torch.set_rng_state(state)

    return around


def _same_numbers(call: Any, args: list[Any]) -> list[Any]:
    """The same numbers at every call."""
    torch.manual_seed(0)
    return list(call(args))


def _hosts_generator(position: int) -> Around:
    """The host's own generator in place of the one that was given."""
    return with_argument(position, lambda generator: torch.default_generator)


def _first_only(self: Any, seed: int) -> None:
    self.default_generator().manual_seed(int(seed))


CHECKPOINTING = "DeepSpeed's activation checkpointing restores generators through lazy_call"
MUTANTS = (
    rng("set_rng_state does nothing", "rng state not restored", CHECKPOINTING, "accelerator.rng.state_roundtrip[*]",
        "workloads.*", switches={"rng_set_state_ignored": 1}, peer_misses=True),
    rng("get_rng_state advances", "rng state not restored", CHECKPOINTING, "accelerator.rng.state_is_a_copy",
        switches={"rng_get_state_advances": 1}),
    rng("devices share a generator", "generator shared between devices", "defect class of device generators",
        "accelerator.rng.state_index", switches={"rng_shared": 1}),
    rng("generators ignore their index", "generator shared between devices", "defect class of device generators",
        "accelerator.generator.default",
        context=accelerator(default_generator=lambda old: lambda self, device_index=None: old(self, 0))),
    rng("seeding one device seeds all", "generator shared between devices", "defect class of device generators",
        "accelerator.rng.per_device_state",
        context=accelerator(manual_seed=lambda old: lambda self, seed: self.manual_seed_all(seed))),
    rng("seeding does nothing", "dropout ignoring the seed or p = 0/1", "DeepSpeed ac935c7fd: seed arguments mixed up",
        "accelerator.rng.seed_repeats[*]", "accelerator.determinism.*", switches={"rng_seed_ignored": 1}),
    rng("seeding the device seeds the host", "generator shared between devices", "defect class of device generators",
        "accelerator.rng.host_stream", switches={"rng_coupled_to_host": 1}),
    rng("seeds are cut to 16 bits", "dropout ignoring the seed or p = 0/1", "DeepSpeed ac935c7fd",
        "accelerator.rng.initial_seed[2147483648]",
        context=accelerator(manual_seed=lambda old: lambda self, seed: old(self, int(seed) & 0xFFFF))),
    rng("initial_seed moves with each draw", "rng state not restored", "DeepSpeed ac935c7fd",
        "accelerator.rng.initial_seed_after_draws",
        context=accelerator(initial_seed=lambda old: _moving_seed(old))),
    rng("manual_seed_all seeds the current device only", "generator shared between devices",
        "DeepSpeed model-parallel dropout seeds every device", "accelerator.rng.seed_all_repeats",
        context=accelerator(manual_seed_all=lambda old: _first_only)),
    rng("torch.manual_seed does not reach the device", "dropout ignoring the seed or p = 0/1",
        "training scripts seed once", "accelerator.rng.torch_seed_reaches_device",
        members={"manual_seed_all": constant(None)}),
    rng("fork_rng does not restore", "rng state not restored", CHECKPOINTING, "accelerator.rng.fork",
        members={"set_rng_state": constant(None)}),
    rng("the device says it is not initialised", "rng state not restored",
        "torch.utils.checkpoint skips such devices silently", "accelerator.rng.recomputed_dropout",
        members={"_initialized": lambda old: False}),
    rng("lazy_call drops its callback", "rng state not restored", CHECKPOINTING, "accelerator.lazy_call.runs",
        "capabilities.lazy-call", members={"_lazy_call": constant(None)}),
    rng("lazy_call runs twice", "rng state not restored", CHECKPOINTING, "accelerator.lazy_call.runs",
        "capabilities.lazy-call", members={"_lazy_call": lambda old: lambda callback, **_: (callback(), callback())}),
    rng("the state ignores its index", "set_device ignored", CHECKPOINTING, "accelerator.rng.state_of_other_device",
        context=accelerator(get_rng_state=lambda old: lambda self, device_index=None: old(self))),
    rng("setting a state ignores the index", "set_device ignored", CHECKPOINTING, "accelerator.rng.state_index",
        context=accelerator(set_rng_state=lambda old: lambda self, new_state, device_index=None: old(self, new_state))),
    rng("the state lies on the device", "rng state not restored", CHECKPOINTING, "accelerator.rng.state_type",
        "accelerator.interface.rng_state",
        context=accelerator(get_rng_state=lambda old: lambda self, device_index=None:
                            old(self, device_index).to("sim"))),
    rng("a wrong state is accepted", "rng state not restored", CHECKPOINTING, "accelerator.rng.bad_state",
        context=accelerator(set_rng_state=lambda old: _forgiving(old))),
    rng("drawing consumes the state", "rng state not restored", CHECKPOINTING, "accelerator.rng.state_not_consumed",
        context=accelerator(set_rng_state=lambda old: _consuming(old))),
    rng("draws come from the host's generator", "generator shared between devices", "defect class of device generators",
        "accelerator.generator.own",
        operators={"aten::normal_": _hosts_generator(3), "aten::uniform_": _hosts_generator(3)}),
    rng("the default generator is a copy", "generator shared between devices", "defect class of device generators",
        "accelerator.generator.default_is_live",
        context=accelerator(default_generator=lambda old: lambda self, device_index=None:
                            old(self, device_index).clone_state())),
    rng("uniform numbers fill [0, 1/2)", "dropout ignoring the seed or p = 0/1", "defect class of draws",
        "accelerator.rng.statistics", "accelerator.*", "capabilities.*", operators={"aten::uniform_": scaled(0.5)}),
    rng("normal numbers are 10 % too wide", "dropout ignoring the seed or p = 0/1", "defect class of draws",
        "accelerator.rng.statistics", operators={"aten::normal_": scaled(1.1)}),
    rng("randperm repeats", "dropout ignoring the seed or p = 0/1", "defect class of draws",
        "accelerator.rng.advances[randperm]", operators={"aten::randperm": _same_numbers}),
    rng("dropout ignores the seed", "dropout ignoring the seed or p = 0/1", "DeepSpeed model-parallel dropout",
        "accelerator.rng.seed_repeats[dropout]", *DROPOUT, "workloads.*", "accelerator.graph.*",
        operators={"aten::bernoulli_": _own_numbers(), "aten::native_dropout": _own_numbers()}),
    rng("dropout drops half of what it should", "dropout ignoring the seed or p = 0/1", "seen missed by a peer suite",
        "operators.nn.functional.dropout[float32-*]", *DROPOUT, "workloads.*", also_run=DROPOUT,
        operators={"aten::bernoulli_": with_argument(1, lambda p: p + (1 - p) / 2 if isinstance(p, float) else p),
                   "aten::native_dropout": with_argument(1, lambda p: p / 2)}, peer_misses=True),
)  # fmt: skip


def _moving_seed(old: Any) -> Any:
    def initial_seed(self: Any) -> int:
        drawn = self.get_rng_state()
        fresh = torch.Generator("sim").manual_seed(old(self)).get_state()
        return int(old(self)) + (0 if torch.equal(drawn, fresh) else 1)

    return initial_seed


def _forgiving(old: Any) -> Any:
    def set_rng_state(self: Any, new_state: torch.Tensor, device_index: int | None = None) -> None:
        if new_state.dtype is torch.uint8 and new_state.numel() > 3:
            old(self, new_state, device_index)

    return set_rng_state


def _consuming(old: Any) -> Any:
    def set_rng_state(self: Any, new_state: torch.Tensor, device_index: int | None = None) -> None:
        old(self, new_state, device_index)
        new_state[-1] += 1

    return set_rng_state
