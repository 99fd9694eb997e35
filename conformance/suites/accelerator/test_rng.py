"""Random numbers: seeds repeat them and states restore them, on every device index."""

from __future__ import annotations

import contextlib
import io

import torch

from conformance.accelerators.capabilities import RNG, RNG_PER_DEVICE, RNG_STATE
from conformance.judging.finding import environment_lacks, stub
from conformance.plan.case import Level, case
from conformance.suites.operator_claims import skip_if_denied
from conformance.suites.shared_bodies import differing, of_draws

#: Odd sizes: device generators draw in blocks, and an odd count leaves an offset inside one.
SIZES = ("1", "3", "5", "7", "1023", "65537")
#: Random functions: ``draw(count, device)`` returns ``count`` numbers.
DRAWS = {
    "bernoulli": lambda n, device: torch.bernoulli(torch.full((n,), 0.5, device=device)),
    "dropout": lambda n, device: torch.nn.functional.dropout(torch.ones(n, device=device), 0.5),
    "exponential": lambda n, device: torch.empty(n, device=device).exponential_(),
    "multinomial": lambda n, device: torch.multinomial(torch.ones(97, device=device), n, replacement=True),
    "normal": lambda n, device: torch.empty(n, device=device).normal_(2.0, 3.0),
    "rand": lambda n, device: torch.rand(n, device=device),
    "randint": lambda n, device: torch.randint(0, 1000, (n,), device=device),
    "randn": lambda n, device: torch.randn(n, device=device),
    "randperm": lambda n, device: torch.randperm(n, device=device),
    "uniform": lambda n, device: torch.empty(n, device=device).uniform_(-1.0, 1.0),
}

#: The operator of a function and its dtype, of those that have one in PyTorch's database.
_OPERATORS = {
    **{name: (name, "float32") for name in ("bernoulli", "exponential", "multinomial", "randn", "uniform")},
    "dropout": ("nn.functional.dropout", "float32"),
    "normal": ("normal.in_place", "float32"),
    "randint": ("randint", "int64"),
}
#: Functions whose numbers are seldom equal.
CONTINUOUS = ("exponential", "normal", "rand", "randn", "uniform")
#: More numbers than one launch of a kernel draws; no block divides it.
_LONG = (1 << 16) + 7


def _skip_if_denied(declaration, function):
    """Skip the case if the device declares the operator of a random function unsupported."""
    if function in _OPERATORS:
        operator, dtype = _OPERATORS[function]
        skip_if_denied(declaration, operator, dtype=dtype)


@case("accelerator.rng.seed_repeats", requires=[RNG], level=Level.CORE, axes={"function": sorted(DRAWS)})
def test_seed_repeats(accelerator, declaration, device, function):
    """The same seed gives the same numbers, bit for bit."""
    _skip_if_denied(declaration, function)
    draw = DRAWS[function]

    accelerator.manual_seed(1234)
    first = draw(1023, device)
    accelerator.manual_seed(1234)
    second = draw(1023, device)

    assert differing(first, second) == 0, of_draws(
        accelerator.manual_seed,
        device,
        f"{differing(first, second)} of 1023 numbers differ after the same seed: {function} does not draw from the "
        "generator that manual_seed() and manual_seed_all() set, or draws later than it is called",
    )


@case("accelerator.rng.seed_forgets", requires=[RNG], axes={"function": sorted(DRAWS)})
def test_seed_forgets(accelerator, declaration, device, function):
    """After a seed is set, numbers do not depend on how many were drawn before, and by which function."""
    _skip_if_denied(declaration, function)

    def draw():
        # A small draw may take a number that an earlier one has left over; a large one may not.
        return torch.cat([DRAWS[function](count, device) for count in (1, 5, 1023)])

    accelerator.manual_seed(4321)
    first, following = draw(), draw()

    assert differing(first, following) > 100, "the numbers after the first 1029 are the same again"
    for seed in (accelerator.manual_seed, accelerator.manual_seed_all):
        for earlier in ("randn", "rand", function):
            for count in (1, 2, 3, 5, 1023):
                DRAWS[earlier](count, device)
                seed(4321)
                wrong = differing(draw(), first)
                assert wrong == 0, (
                    f"{wrong} of 1029 numbers differ after {seed.__name__}(), if {count} of {earlier} were drawn before"
                )


@case("accelerator.rng.seeds_differ", requires=[RNG], level=Level.CORE, axes={"function": sorted(DRAWS)})
def test_seeds_differ(accelerator, declaration, device, function):
    """Different seeds give different numbers, also if they differ in one bit of the low 32."""
    _skip_if_denied(declaration, function)
    draw = DRAWS[function]

    accelerator.manual_seed(1)
    first = draw(1023, device)
    accelerator.manual_seed(2)
    second = draw(1023, device)

    # Not all of them: half of the values of bernoulli and dropout agree by chance.
    assert differing(first, second) > 100, f"only {differing(first, second)} of 1023 numbers differ for seeds 1 and 2"

    # A seed is a whole number of 64 bits, and every generator of PyTorch takes at least the low 32 of them in.
    for bit in range(32):
        accelerator.manual_seed(1 ^ (1 << bit))
        other = draw(1023, device)
        assert differing(first, other) > 100, f"seeds 1 and {1 ^ (1 << bit)}: {differing(first, other)} numbers differ"


@case("accelerator.rng.advances", requires=[RNG], level=Level.CORE, axes={"function": sorted(DRAWS)})
def test_advances(accelerator, declaration, device, function):
    """A second draw gives other numbers than the first, also after more numbers than one launch draws."""
    _skip_if_denied(declaration, function)
    draw = DRAWS[function]

    first, second = draw(1023, device), draw(1023, device)

    assert differing(first, second) > 100, f"only {differing(first, second)} of 1023 numbers differ between two draws"
    if function in CONTINUOUS:
        first, second = draw(_LONG, device).cpu(), draw(_LONG, device).cpu()
        # Of 2^24 numbers, two draws have few in common by chance.
        again = int(torch.isin(second, first).sum())
        assert again < _LONG / 2, f"{again} of {_LONG} numbers of a draw were in the draw before"


@case("accelerator.rng.seed_all_repeats", requires=[RNG], level=Level.CORE)
def test_seed_all_repeats(accelerator):
    """manual_seed_all() seeds every device with the same seed."""
    names = [accelerator.device_name(index) for index in range(accelerator.device_count())]

    accelerator.manual_seed_all(76)  # an earlier case may have left the seed that is set next
    with contextlib.suppress(NotImplementedError):  # a device without initial_seed() fails in the cases about it
        before = accelerator.initial_seed()
        accelerator.manual_seed_all(77)
        if accelerator.initial_seed() == before:
            stub(f"manual_seed_all(77) has no effect: initial_seed() is {before} as before")
    accelerator.manual_seed_all(77)
    first = [torch.randn(65, device=name) for name in names]
    accelerator.manual_seed_all(77)
    second = [torch.randn(65, device=name) for name in names]

    for name, before, after in zip(names, first, second, strict=True):
        assert differing(before, after) == 0, of_draws(
            accelerator.manual_seed_all,
            name,
            f"{differing(before, after)} of 65 numbers on {name} differ after the same manual_seed_all()",
        )


@case("accelerator.rng.initial_seed", requires=[RNG], level=Level.CORE, axes={"seed": ["0", "1", "1234", "2147483648"]})
def test_initial_seed(accelerator, seed):
    """initial_seed() returns the seed that was set, as an int."""
    wanted = int(seed)
    accelerator.manual_seed(wanted + 1)  # an earlier case may have left the seed that is set next
    before = accelerator.initial_seed()
    accelerator.manual_seed(wanted)

    answer = accelerator.initial_seed()

    if answer == before:
        stub(f"manual_seed({seed}) has no effect: initial_seed() is {answer} as before")
    assert type(answer) is int, f"initial_seed() returned {answer!r}; it must return an int"
    assert answer == wanted, f"initial_seed() is {answer} after manual_seed({seed})"


@case("accelerator.rng.initial_seed_after_draws", requires=[RNG], level=Level.CORE)
def test_initial_seed_after_draws(accelerator, device):
    """Drawing numbers does not change the initial seed."""
    accelerator.manual_seed(4321)
    torch.rand(1023, device=device)

    assert accelerator.initial_seed() == 4321, f"initial_seed() is {accelerator.initial_seed()} after drawing"


@case("accelerator.rng.statistics", requires=[RNG], level=Level.CORE)
def test_statistics(accelerator, device):
    """Uniform numbers fill [0, 1) evenly, and normal numbers have mean 0 and variance 1."""
    accelerator.manual_seed(5)
    uniform, normal = torch.rand(65536, device=device).cpu(), torch.randn(65536, device=device).cpu()

    assert uniform.min() >= 0 and uniform.max() < 1, f"rand gives numbers from {uniform.min()} to {uniform.max()}"
    # With 65,536 numbers and a fixed seed, every bound below is ten standard errors wide.
    # A bin of 4096 has a standard error of 62, the mean one of 1/256, the variance one of sqrt(2/65536).
    counts = torch.histc(uniform, bins=16, min=0, max=1)
    assert (counts - 4096).abs().max() < 10 * 62, f"rand is uneven: {counts.int().tolist()}"
    assert abs(normal.mean()) < 10 / 256, f"randn has mean {normal.mean():.4f}"
    assert abs(normal.var() - 1) < 10 * (2 / 65536) ** 0.5, f"randn has variance {normal.var():.4f}"


@case("accelerator.rng.state_type", requires=[RNG_STATE])
def test_state_type(accelerator):
    """get_rng_state() returns a one-dimensional uint8 tensor on the host."""
    state = accelerator.get_rng_state()

    assert isinstance(state, torch.Tensor), f"get_rng_state() returned {state!r}; it must return a tensor"
    assert state.dtype is torch.uint8, f"the state is {state.dtype}, not torch.uint8"
    assert state.device.type == "cpu", f"the state is on {state.device}, not on the host"
    assert state.dim() == 1 and state.numel() > 0, f"the state has shape {tuple(state.shape)}"


@case("accelerator.rng.state_is_a_copy", requires=[RNG_STATE])
def test_state_is_a_copy(accelerator, device):
    """Drawing does not change a state that was taken, and taking a state does not advance the generator."""
    accelerator.manual_seed(8)
    first, second = accelerator.get_rng_state(), accelerator.get_rng_state()
    kept = first.clone()
    drawn = torch.randn(33, device=device)

    assert torch.equal(first, second), (
        "two calls of get_rng_state() return different states: the call advances the generator"
    )
    assert torch.equal(first, kept), "drawing changed a state that was taken before"
    accelerator.manual_seed(8)
    plain = torch.randn(33, device=device)
    if differing(plain, drawn):
        accelerator.manual_seed(8)
        repeats = differing(torch.randn(33, device=device), plain) == 0
        assert not repeats, of_draws(accelerator.manual_seed, device, "get_rng_state() advanced the generator")
        ignored = "manual_seed() is ignored: the same seed gives other numbers at each call"
        raise AssertionError(of_draws(accelerator.manual_seed, device, ignored))


@case("accelerator.rng.state_roundtrip", requires=[RNG_STATE], axes={"function": sorted(DRAWS)})
def test_state_roundtrip(accelerator, declaration, device, function):
    """A restored state repeats the same numbers."""
    _skip_if_denied(declaration, function)
    draw = DRAWS[function]
    draw(7, device)

    state = accelerator.get_rng_state()
    first = draw(1023, device)
    moved = accelerator.get_rng_state()
    accelerator.set_rng_state(state)
    if torch.equal(accelerator.get_rng_state(), moved) and not torch.equal(moved, state):
        stub("set_rng_state() has no effect: the state is the same before and after the call")
    read = accelerator.get_rng_state()
    assert torch.equal(read, state), (
        f"{differing(read, state)} bytes of the state differ where it is read after it was set"
    )
    second = draw(1023, device)

    said = f"{differing(first, second)} of 1023 numbers differ after set_rng_state()"
    assert differing(first, second) == 0, of_draws(accelerator.manual_seed, device, said)


@case("accelerator.rng.state_odd_sizes", requires=[RNG_STATE], axes={"size": SIZES})
def test_state_odd_sizes(accelerator, device, size):
    """A state taken after any number of draws restores the generator's offset within its block."""
    torch.randn(int(size), device=device)
    torch.rand(1, device=device)

    state = accelerator.get_rng_state()
    first = [torch.randn(int(size), device=device), torch.rand(3, device=device), torch.randn(64, device=device)]
    accelerator.set_rng_state(state)
    second = [torch.randn(int(size), device=device), torch.rand(3, device=device), torch.randn(64, device=device)]

    for step, (before, after) in enumerate(zip(first, second, strict=True)):
        said = f"draw {step} after set_rng_state() differs, with {size} numbers drawn before"
        assert differing(before, after) == 0, of_draws(accelerator.manual_seed, device, said)


@case("accelerator.rng.state_index", requires=[RNG_STATE])
def test_state_index(accelerator):
    """get_rng_state() and set_rng_state() accept a device index by position and by name."""
    for index in range(accelerator.device_count()):
        name = accelerator.device_name(index)
        state = accelerator.get_rng_state(index)
        assert torch.equal(state, accelerator.get_rng_state(device_index=index))
        first = torch.randn(65, device=name)
        accelerator.set_rng_state(state, index)
        second = torch.randn(65, device=name)
        accelerator.set_rng_state(new_state=state, device_index=index)
        third = torch.randn(65, device=name)
        said = f"set_rng_state(state, {index}) does not restore device {index}"
        assert differing(first, second) == 0, of_draws(accelerator.manual_seed_all, name, said)
        said = f"set_rng_state() with arguments by name does not restore device {index}"
        assert differing(first, third) == 0, of_draws(accelerator.manual_seed_all, name, said)


@case("accelerator.rng.state_saved", requires=[RNG_STATE])
def test_state_saved(accelerator, device):
    """A state still restores the generator after torch.save(), .cpu() and clone()."""
    state, buffer = accelerator.get_rng_state(), io.BytesIO()
    expected = torch.randn(129, device=device)

    torch.save(state, buffer)
    buffer.seek(0)
    for copy in (torch.load(buffer, weights_only=True), state.cpu(), state.clone()):
        accelerator.set_rng_state(copy)
        drawn = torch.randn(129, device=device)
        said = "a copied state does not restore the generator"
        assert differing(drawn, expected) == 0, of_draws(accelerator.manual_seed, device, said)
        again = torch.randn(129, device=device)
        assert differing(again, expected) > 0, "the first draw behind set_rng_state() does not move the state on"


@case("accelerator.rng.state_not_consumed", requires=[RNG_STATE])
def test_state_not_consumed(accelerator, device):
    """One state restores any number of times, and set_rng_state() does not write into it."""
    state = accelerator.get_rng_state()
    kept = state.clone()
    rounds = []

    for _ in range(3):
        accelerator.set_rng_state(state)
        rounds.append(torch.randn(65, device=device))

    assert torch.equal(state, kept), "set_rng_state() or drawing wrote into the state that was passed in"
    once = differing(rounds[0], rounds[1]) == differing(rounds[0], rounds[2]) == 0
    assert once, of_draws(accelerator.manual_seed, device, "a state restores only once")


@case("accelerator.rng.state_of_another_seed", requires=[RNG_STATE])
def test_state_of_another_seed(accelerator, device):
    """A restored state overrides a later seed, for draws and for initial_seed()."""
    accelerator.manual_seed(11)
    state, expected = accelerator.get_rng_state(), torch.randn(65, device=device)

    accelerator.manual_seed(99)
    accelerator.set_rng_state(state)

    assert differing(torch.randn(65, device=device), expected) == 0, of_draws(
        accelerator.manual_seed,
        device,
        "after set_rng_state() the seed that was set before it is still in effect",
    )

    # The state holds "all the necessary bits to restore a Generator to a specific point in time", as PyTorch documents.
    # The seed is one of its bits on the host.
    host = torch.Generator().manual_seed(11)
    restored = torch.Generator().manual_seed(99).set_state(host.get_state())
    if restored.initial_seed() == 11:
        answer = accelerator.initial_seed()
        assert answer == 11, f"the restored state has seed 11, but initial_seed() is {answer} after set_rng_state()"


@case("accelerator.rng.bad_state", requires=[RNG_STATE])
def test_bad_state(accelerator, device):
    """set_rng_state() raises for a tensor that is no state, and keeps the generator's state."""
    state = accelerator.get_rng_state()
    raised = []

    # One of the wrong size, and one of the wrong dtype.
    for wrong in (torch.zeros(3, dtype=torch.uint8), torch.zeros(state.numel(), dtype=torch.float32)):
        try:
            accelerator.set_rng_state(wrong)
        except Exception as error:
            raised.append(error)

    assert len(raised) == 2, f"set_rng_state() raised for {len(raised)} of 2 tensors that are no state"
    assert torch.equal(accelerator.get_rng_state(), state), "a rejected state changed the generator"


@case("accelerator.rng.per_device_state", requires=[RNG_PER_DEVICE])
def test_per_device_state(accelerator):
    """Each device has a generator of its own, which one seed gives the numbers of all others of its kind."""
    if accelerator.device_count() < 2:
        environment_lacks("this machine shows one device, and the case needs two")
    state_of_second = accelerator.get_rng_state(1)

    accelerator.set_device(0)
    accelerator.manual_seed(3)
    drawn = torch.randn(65, device=accelerator.device_name(0))
    accelerator.set_rng_state(accelerator.get_rng_state(0), 0)

    assert bool(drawn.any()), "device 0 drew 65 zeros"
    assert torch.equal(accelerator.get_rng_state(1), state_of_second), (
        "work on device 0 advanced the generator of device 1"
    )
    if _are_of_one_kind(accelerator):
        for function in sorted(DRAWS):
            _check_on_each_device(accelerator, function)


def _are_of_one_kind(accelerator):
    """Return whether PyTorch's module for the devices gives all of them one name: others may draw otherwise."""
    try:
        name = torch.get_device_module(torch.device(accelerator.device_name(0))).get_device_name
        return len({name(index) for index in range(accelerator.device_count())}) == 1
    except Exception:  # what these members give and raise is judged by cases of their own
        return False


def _check_on_each_device(accelerator, function):
    """Check that each device draws the numbers of the first one for one seed: set for all, or for it while current."""
    draw, before, seed = DRAWS[function], accelerator.current_device(), 1235
    names = [accelerator.device_name(index) for index in range(accelerator.device_count())]
    accelerator.manual_seed_all(seed)
    drawn = {"manual_seed_all()": [draw(129, name) for name in names], "manual_seed()": []}
    try:
        for index, name in enumerate(names):
            accelerator.set_device(index)
            accelerator.manual_seed(seed)
            drawn["manual_seed()"].append(draw(129, name))
    finally:
        accelerator.set_device(before)
    for way, (first, *others) in drawn.items():
        for name, other in zip(names[1:], others, strict=True):
            wrong = differing(other, first)
            said = f"{wrong} of 129 numbers of {function} on {name} are not those of {names[0]} for one {way}"
            assert wrong == 0, of_draws(accelerator.manual_seed_all, name, said)


@case("accelerator.rng.state_of_other_device", requires=[RNG_PER_DEVICE])
def test_state_of_other_device(accelerator):
    """get_rng_state(i) returns the state of device i, whichever device is current."""
    if accelerator.device_count() < 2:
        environment_lacks("this machine shows one device, and the case needs two")
    before = accelerator.current_device()
    states = []
    try:
        for index in (0, 1):
            accelerator.set_device(index)
            accelerator.manual_seed(100 + index)
        for current in (0, 1):
            accelerator.set_device(current)
            states.append([accelerator.get_rng_state(index) for index in (0, 1)])
    finally:
        accelerator.set_device(before)

    assert torch.equal(states[0][0], states[1][0]) and torch.equal(states[0][1], states[1][1])
    assert not torch.equal(states[0][0], states[0][1]), "two devices seeded differently have the same state"
