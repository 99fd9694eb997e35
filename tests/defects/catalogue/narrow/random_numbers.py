"""Random numbers that are right in most uses: each defect here shows in one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.accelerators.simulated.simulator import started
from tests.defects.catalogue.random_numbers import CHECKPOINTING, RNG
from tests.defects.faults import Around, Fault, Where, with_argument
from tests.defects.mutant import Mutant
from tests.defects.spoiling import accelerator, on_device, replaced, spoiled

from .graphs import fresh
from .streams import Context, both

SEEDS = "DeepSpeed ac935c7fd: seed arguments mixed up"
GENERATORS = "defect class of device generators"
UNSEEDED = "dropout ignoring the seed or p = 0/1"
SHARED = "generator shared between devices"
LOST = "rng state not restored"


def rng(name: str, family: str, precedent: str, caught_by: str, **fault: Any) -> Mutant:
    return Mutant(Fault(name, family, precedent, Where.RNG, caught_by, **fault), RNG)


def _kernel(name: str, around: Around, *beside: Context) -> Context:
    @contextmanager
    def context() -> Iterator[None]:
        started().core.set_around(f"aten::{name}", around)
        with both(*beside)():
            yield

    return context


def _default(index: int | None) -> torch.Generator:
    where = torch.accelerator.current_device_index() if index is None else index
    generator: torch.Generator = torch.sim.default_generators[where]  # type: ignore[attr-defined]
    return generator


# --- generators ----------------------------------------------------------------------------------------------------


def _generators(default_generator: Any) -> Context:
    """The accelerator's default generator is another; seeds and states go to the true one."""
    return accelerator(
        default_generator=default_generator,
        manual_seed=lambda old: lambda self, seed: _default(None).manual_seed(int(seed)) and None,
        initial_seed=lambda old: lambda self: int(_default(None).initial_seed()),
        get_rng_state=lambda old: lambda self, device_index=None: _default(device_index).get_state(),
        set_rng_state=lambda old: (
            lambda self, new_state, device_index=None: _default(device_index).set_state(new_state.cpu()) and None
        ),
        manual_seed_all=lambda old: lambda self, seed: torch.sim.manual_seed_all(seed),  # type: ignore[attr-defined]
    )


def _elsewhere(old: Any) -> Any:
    """The default generator of a device that is not current is a new one."""

    def default_generator(self: Any, device_index: int | None = None) -> torch.Generator:
        if device_index in (None, self.current_device()):
            return _default(device_index)
        return torch.Generator(f"sim:{device_index}")

    return default_generator


class _Mixed:
    """A default generator, which puts its device into the seeds it is given."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return torch.Generator

    def manual_seed(self, seed: int) -> Any:
        self._generator.manual_seed((self._generator.device.index + 1) * 7919 + seed)
        return self


class _Kind(type(torch.Generator)):  # type: ignore[misc]
    """Every generator is one of ours: the class stands in for PyTorch's."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)


class _OwnStates(torch.Generator, metaclass=_Kind):
    """Takes back only the states that it gave."""

    def get_state(self) -> torch.Tensor:
        state = super().get_state()
        self.__dict__.setdefault("given", set()).add(bytes(state.numpy().data))
        return state

    def set_state(self, new_state: torch.Tensor) -> Any:
        if bytes(new_state.numpy().data) in self.__dict__.get("given", ()):
            super().set_state(new_state)
        return self


class _OnCurrent(torch.Generator, metaclass=_Kind):
    """Is made on the current device, whichever was asked for."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls, device=torch.device(device).type)

    def __init__(self, device: Any = "cpu") -> None:
        super().__init__()


def _moving_default() -> Context:
    def randn(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if kwargs.get("generator") is not None and on_device(result):
            torch.rand(1, device=result.device)
        return result

    return spoiled(randn=randn)


def _one_block() -> Context:
    """Generators of one's own draw uniform numbers from one block: another generator's draw takes the rest of it."""
    last: list[Any] = [None]

    def rand(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type == "sim":
            if last[0] is not None and last[0] is not generator:
                call([1], **{**kwargs, "generator": generator})
            last[0] = generator
        return call(*args, **kwargs)

    return spoiled(rand=rand)


# --- seeds ---------------------------------------------------------------------------------------------------------


def _seeding(note: Any) -> Context:
    """``note(seed)`` hears of every seed."""

    def manual_seed(old: Any) -> Any:
        def manual_seed(self: Any, seed: int) -> None:
            old(self, seed)
            note(seed)

        return manual_seed

    return accelerator(manual_seed=manual_seed)


def _salted() -> Context:
    """How often somebody seeded goes into exponential numbers."""
    seeds: list[int] = []

    def exponential(call: Any, args: list[Any]) -> Any:
        results = call(args)
        results[0].copy_(results[0].roll(len(seeds)))
        return results

    return _kernel("exponential_", exponential, _seeding(seeds.append))


def _first_is_fixed() -> Context:
    """The first permutation after seeding is always the same."""
    new: list[int] = []

    def randperm(call: Any, args: list[Any]) -> Any:
        if new:
            torch.manual_seed(0)
        new.clear()
        return call(args)

    return _kernel("randperm", randperm, _seeding(new.append))


def _cached() -> Context:
    """Integers are drawn once for each seed and size."""
    drawn: dict[Any, torch.Tensor] = {}

    def randint(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if not on_device(result):
            return result
        key = (_default(result.device.index).initial_seed(), tuple(result.shape), result.dtype)
        return drawn.setdefault(key, result).clone()

    return spoiled(randint=randint)


# --- states --------------------------------------------------------------------------------------------------------


def _beside_the_state() -> Context:
    """Multinomial draws have a generator of their own, which seeds reach and states do not."""
    own = torch.Generator()
    return _kernel("multinomial", with_argument(3, lambda generator: own), _seeding(own.manual_seed))


#: Where a state has its cached normal sample, what it was made of, and whether there is one.
_NORMAL_X, _NORMAL_IS_VALID = slice(5016, 5024), slice(5040, 5044)


def _without_cache(old: Any) -> Any:
    """The second of two normal numbers that were made together is not restored."""

    def set_rng_state(self: Any, new_state: torch.Tensor, device_index: int | None = None) -> None:
        state = new_state.clone()
        if state.numel() > _NORMAL_IS_VALID.stop and state.dtype is torch.uint8:
            state[_NORMAL_IS_VALID] = 0
        old(self, state, device_index)

    return set_rng_state


def _offset_only(old: Any) -> Any:
    """A state restores how far the generator is, under the seed that it has now."""

    def set_rng_state(self: Any, new_state: torch.Tensor, device_index: int | None = None) -> None:
        own = new_state.dtype is not torch.uint8 or new_state.numel() < 8
        if own or torch.equal(new_state.cpu()[:8], self.get_rng_state(device_index)[:8]):
            old(self, new_state, device_index)

    return set_rng_state


def _with_devices(old: Any) -> Any:
    """Without an index the state has a dimension for the devices."""

    def get_rng_state(self: Any, device_index: int | None = None) -> torch.Tensor:
        state: torch.Tensor = old(self, device_index)
        return state.unsqueeze(0) if device_index is None else state

    return get_rng_state


def _live() -> Context:
    """A state that was taken counts draws along until it is restored; what it restores is right."""
    taken: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def randn(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call(*args, **kwargs)
        if on_device(result) and kwargs.get("generator") is None:
            for state, _ in taken.values():
                state[_NORMAL_X] += 1
        return result

    def get_rng_state(old: Any) -> Any:
        def get_rng_state(self: Any, device_index: int | None = None) -> torch.Tensor:
            state: torch.Tensor = old(self, device_index)
            if device_index is None:
                taken[id(state)] = (state, state.clone())
            return state

        return get_rng_state

    def set_rng_state(old: Any) -> Any:
        def set_rng_state(self: Any, new_state: torch.Tensor, device_index: int | None = None) -> None:
            if id(new_state) in taken:
                new_state.copy_(taken.pop(id(new_state))[1])
            taken.clear()
            old(self, new_state, device_index)

        return set_rng_state

    return both(spoiled(randn=randn), accelerator(get_rng_state=get_rng_state, set_rng_state=set_rng_state))


def _on_all(old: Any) -> Any:
    def set_rng_state(self: Any, new_state: torch.Tensor, device_index: int | None = None) -> None:
        every = [None] if device_index is None else range(self.device_count())
        for index in every:
            old(self, new_state, index)

    return set_rng_state


MUTANTS = (
    rng("the default generator of another device is new", SHARED, GENERATORS, "accelerator.generator.default",
        context=_generators(_elsewhere)),
    rng("generators mix their device into seeds", UNSEEDED, GENERATORS, "accelerator.generator.default_is_live",
        context=_generators(lambda old: lambda self, device_index=None: _Mixed(_default(device_index)))),
    rng("drawing from a generator moves the default one", SHARED, GENERATORS, "accelerator.generator.own",
        context=fresh(_moving_default)),
    rng("generators share a block", SHARED, GENERATORS, "accelerator.generator.independent", context=fresh(_one_block)),
    rng("generators take their own states only", LOST, GENERATORS, "accelerator.generator.state",
        context=replaced(torch, Generator=lambda old: _OwnStates)),
    rng("generators are made on the current device", "set_device ignored", GENERATORS, "accelerator.generator.device",
        context=replaced(torch, Generator=lambda old: _OnCurrent)),
    rng("torch's set_rng_state ignores its device", LOST, CHECKPOINTING, "accelerator.rng.fork",
        members={"set_rng_state": lambda old: lambda new_state, device=None: old(new_state)}),
    rng("exponential numbers count seeds", UNSEEDED, SEEDS, "accelerator.rng.seed_repeats[exponential]",
        context=fresh(_salted)),
    rng("the first permutation after seeding is fixed", UNSEEDED, SEEDS, "accelerator.rng.seeds_differ[randperm]",
        context=fresh(_first_is_fixed)),
    rng("integers are drawn once for each seed", UNSEEDED, "defect class of draws",
        "accelerator.rng.advances[randint]", context=fresh(_cached)),
    rng("the state has a dimension for devices", LOST, CHECKPOINTING, "accelerator.rng.state_type",
        context=accelerator(get_rng_state=_with_devices)),
    rng("drawing changes a state that was taken", LOST, CHECKPOINTING, "accelerator.rng.state_is_a_copy",
        context=fresh(_live)),
    rng("states leave multinomial draws alone", LOST, CHECKPOINTING, "accelerator.rng.state_roundtrip[multinomial]",
        context=fresh(_beside_the_state)),
    rng("a restored state lacks its cached number", LOST, CHECKPOINTING, "accelerator.rng.state_odd_sizes[*]",
        context=accelerator(set_rng_state=_without_cache)),
    rng("a state restores under its own seed only", LOST, CHECKPOINTING, "accelerator.rng.state_of_another_seed",
        context=accelerator(set_rng_state=_offset_only)),
    rng("setting a device's state sets all", SHARED, CHECKPOINTING, "accelerator.rng.per_device_state",
        context=accelerator(set_rng_state=_on_all)),
    rng("index 0 is taken for the current device", "set_device ignored", CHECKPOINTING,
        "accelerator.rng.state_of_other_device",
        context=accelerator(get_rng_state=lambda old: lambda self, device_index=None:
                            old(self, device_index or None))),
)  # fmt: skip
