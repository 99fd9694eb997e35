"""Programs that are drawn: a few steps each, over shapes, layouts, scalars and dtypes that kernels tell apart.

A program is text, so that a failure shows all of it. Most steps are exact in every order and with every fusion: their
floating numbers are multiples of a small power of two, so that they and their sums fit into the dtype. What a rounded
step gives is compared with float64 and is no operand of another step.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F

from conformance.numerics.nearness import Near, bound_of, near, relative_error
from conformance.numerics.same import same_numbers

from .drawn_steps import BESIDE, BY_CALLS, DRAWN, EXACT, LAYERS, OF_ROUNDED, ROUNDED, VIEWS, Step
from .operator_claims import claims_calls

#: Steps of a program, and draws of a step before a program ends.
_STEPS, _TRIES = 6, 40
#: Draws of the step that comes next in turn, and of a whole program until its first such step could be added.
_FEW_TRIES, _ATTEMPTS = 8, 12
HOST: Final = torch.device("cpu")
#: Beginning of the names of gradients.
OF_GRADIENTS: Final = "the gradient of"
#: End of the names of what a second call gives.
AGAIN: Final = " of a second call"
#: Most elements of a value.
_LARGEST: Final = 4096
#: By dtype, the power of two that divides all finite numbers, and the power of two below which they are.
_GRID: Final = {
    torch.float64: (-6, 17), torch.float32: (-6, 17), torch.float16: (-2, 8), torch.bfloat16: (-1, 6),
}  # fmt: skip
#: Power of two below which gradients are, so that no sum of their terms is rounded.
_GRADIENTS: Final = 10
#: Operators whose gradient goes to one of equal numbers, and to which one is open.
_CHOOSING: Final = (
    "quantile", "sort", "kthvalue", "median", "topk", "cummax", "cummin", "aminmax", "nn.functional.max_pool1d",
    "nn.functional.max_pool2d", "nn.functional.adaptive_max_pool1d", "scatter_reduce.amax", "max.reduction_with_dim",
)  # fmt: skip
#: Operators whose results have more elements than all operands, and the longest axis of an operand of theirs.
_PRODUCTS: Final = ("matmul", "nn.functional.linear", "outer")
_MOST_OF_PRODUCTS: Final = 300
#: Ends of casts to floating dtypes.
_FLOATS: Final = tuple(f".{name})" for name in ("float64", "float32", "float16", "bfloat16"))
#: Operators that add up elements.
_SUMS: Final = (
    "sum", "nansum", "cumsum", "index_add", "index_put", "matmul", "nn.functional.avg_pool1d", "nn.functional.linear",
    "einsum", "scatter_add", "diff", "outer",
)  # fmt: skip
#: Most dimensions, and numbers that fit into every dtype of integers.
_DIMENSIONS: Final = 4
#: The same for programs without a compiler: most elements of some of them, the share of these, most dimensions of all,
#: and how much larger a result may be than an input.
_MANY: Final = 1 << 18
_SHARE_OF_MANY, _MOST_DIMENSIONS, _GROWTH = 0.08, 7, 2
_RANKS: Final = (0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5, 6)
#: Sizes of a dimension: small ones, and those beside which kernels change their way.
_SIZES: Final = (
    1, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 127, 128, 129, 255, 257, 512, 1025, 2049, 4097,
    8193, 16385, 32769, 65537, 100003,
)  # fmt: skip
#: Ends of an expression of indices: as they are, in another dtype, as a part of others, and one alone.
_INDICES: Final = ("", "", ".to(torch.int32)", ".repeat_interleave(2)[::2]", "[None].repeat(2, 1)[1]", "[-1]")
#: Largest operands and results of rounded functions.
_MOST_ROUNDED, _MOST_OF_ROUNDED = 64.0, 1024.0
_BYTES: Final = 128
#: Largest integers that become floating numbers.
_EXACT_INTEGERS: Final = 1 << 20
_SHAPES: Final = ((), (1,), (7,), (33,), (1, 1), (5, 1), (1, 8), (6, 9), (2, 1, 5), (1, 4, 6), (3, 5, 4), (3, 300))
_SCALARS: Final = {
    "f": ("0", "-0.0", "0.5", "-1.5", "2", "math.inf", "-math.inf", "math.nan"),
    "i": ("0", "1", "-3", "2", "7"),
    "u": ("0", "1", "3", "7"),
    "b": ("True", "False"),
}
#: Expressions of inputs: n elements, in no order.
_LEAVES: Final = {
    "f": (
        "(torch.arange({n}) * {a} % 13 - 6) / 2",
        "torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -2.0, 3.0, -1.0])[torch.arange({n}) * {a} % 9]",
    ),
    "i": ("torch.arange({n}) * {a} % 13 - 6", "(torch.arange({n}) * {a} % 17 - 8) * ((1 << 26) + 1009)"),
}


#: Returns those of some steps whose operators are claimed.
_Usable = Callable[[Iterable[Step]], list[Step]]
#: All steps, and a function of a program's number that returns the steps to try first in each place.
_Plan = tuple[Sequence[Step], Callable[[int], list[Sequence[Step]]]]


class Input(NamedTuple):
    """A name, an expression of memory on the host, and the view of that memory on the device that is the input."""

    name: str
    expression: str
    view: str


@dataclass(frozen=True)
class Program:
    """Inputs as expressions, steps as statements, the names of what is returned, and the cells that it needs.

    ``rounded`` has the largest number in the operands of each result that is not exact.
    """

    inputs: tuple[Input, ...]
    steps: tuple[str, ...]
    results: tuple[str, ...]
    needs: tuple[tuple[str, str], ...]
    rounded: Mapping[str, float]

    @property
    def text(self) -> str:
        """Return the statements of the program on two lines: its inputs, for a name of the device, and its steps."""
        inputs = "; ".join(f"{name} = {expression}.to(device){view}" for name, expression, view in self.inputs)
        return f"{inputs}\n{'; '.join(self.steps)}"

    def made(self, *, wide: bool = False) -> tuple[list[torch.Tensor], Callable[..., tuple[torch.Tensor, ...]]]:
        """Return the inputs on the host, and the function; ``wide`` has float64 for each floating dtype."""
        names: dict[str, Any] = {"torch": torch, "F": F, "math": math}
        given = ", ".join(each.name for each in self.inputs)
        body = "".join(f"    {_widened(step) if wide else step}\n" for step in self.steps)
        exec(f"def program({given}):\n{body}    return {', '.join(self.results)},", names)
        inputs = self.inputs_on(HOST)
        return [each.double() if wide and each.is_floating_point() else each for each in inputs], names["program"]

    def inputs_on(self, device: torch.device, *, turned: bool = False) -> list[torch.Tensor]:
        """Return the inputs on a device; those that are ``turned`` have their numbers in reverse order in memory."""
        names: dict[str, Any] = {"torch": torch, "math": math}
        found = []
        for _, expression, view in self.inputs:
            memory = eval(expression, names)
            memory = memory.flip(tuple(range(memory.dim()))) if turned else memory
            found.append(eval(f"memory{view}", {**names, "memory": memory.to(device)}))
        return found

    def due_again(self, *, trained: bool) -> dict[str, torch.Tensor]:
        """Return what turned inputs give: results or gradients, by name. There is none if a step rounds them."""
        steps = tuple(f"t{number}" for number in range(len(self.steps)))
        inputs, every = self.inputs_on(HOST, turned=True), replace(self, results=steps)
        wide = [each.double() if each.is_floating_point() else each for each in inputs]
        found, exact = (
            dict(zip(steps, every.made(wide=is_wide)[1](*given), strict=True))
            for is_wide, given in ((False, inputs), (True, wide))
        )
        if not all(_same(found[name], exact[name]) for name in steps if name not in self.rounded):
            return {}
        if not trained:
            return {name: found[name] for name in self.results if name not in self.rounded}
        given = gradients(inputs, self.made()[1])
        if not self.rounded and not all(map(_same, given, gradients(wide, self.made(wide=True)[1]))):
            return {}
        return dict(zip(self.gradient_names(inputs), given, strict=True))

    def near_to(self, *, trained: bool, again: bool = False) -> dict[str, tuple[torch.Tensor, float]]:
        """Return the exact numbers of rounded results and, if asked, of gradients, and the size for bounds of each.

        Gradients of a second call, with turned inputs, are among them if ``again`` is asked.
        """
        inputs, function = self.made(wide=True)
        results = zip(self.results, function(*inputs), strict=True)
        found = {name: (each.double(), self.rounded[name]) for name, each in results if name in self.rounded}
        if trained:
            turned = [each.double() if each.is_floating_point() else each for each in self.inputs_on(HOST, turned=True)]
            for given, end in ((inputs, ""), (turned, AGAIN))[: 1 + again]:
                exact = zip(self.gradient_names(given), gradients(given, function), strict=True)
                found |= {f"{name}{end}": (each, 1.0) for name, each in exact}
        return {name: (each.detach(), max(size, float(each.abs().max()))) for name, (each, size) in found.items()}

    def gradient_names(self, inputs: Sequence[torch.Tensor]) -> list[str]:
        """Return names for the gradients of the inputs that are floating numbers."""
        known = zip(self.inputs, inputs, strict=True)
        return [f"{OF_GRADIENTS} {given.name}" for given, each in known if each.is_floating_point()]

    def beginnings(self) -> Iterator[Program]:
        """Yield a program for each step: the result of the step, and what it depends on."""
        for last in range(len(self.steps)):
            needed, steps = {f"t{last}"}, []
            for number in range(last, -1, -1):
                if f"t{number}" in needed:
                    steps.insert(0, self.steps[number])
                    needed |= set(re.findall(r"\b(?:[abcmv]|t\d+)\b", self.steps[number]))
            inputs = tuple(each for each in self.inputs if each.name in needed)
            yield replace(self, inputs=inputs, steps=tuple(steps), results=(f"t{last}",))


def _same(found: torch.Tensor, wide: torch.Tensor) -> bool:
    return bool(torch.allclose(found.double(), wide.double(), rtol=0.0, atol=0.0, equal_nan=True))


def gradients(inputs: Sequence[torch.Tensor], function: Callable[..., Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """Return the gradients of the floating inputs of a program: of its results with whole numbers as their gradients.

    An input that no result depends on has zeros. The inputs are detached first.
    """
    given = [each.detach().requires_grad_(each.is_floating_point()) for each in inputs]
    results = [each for each in function(*given) if each.requires_grad]
    floats = [each for each in given if each.requires_grad]
    if not results:
        return [torch.zeros_like(each) for each in floats]
    # Made on the host: a device need not claim what makes them.
    steps = [torch.arange(each.numel()) % 5 - 2 for each in results]
    due = [step.view(each.shape).to(each) for step, each in zip(steps, results, strict=True)]
    return list(torch.autograd.grad(results, floats, due, allow_unused=True, materialize_grads=True))


def programs(
    dtype: torch.dtype,
    numbers: Iterable[int],
    claimed: Callable[[str, str], bool],
    *,
    by_calls: bool = False,
    trained: bool = False,
) -> list[Program]:
    """Return the drawn programs with these numbers that begin in a dtype, if all of their operators are claimed.

    ``by_calls`` has steps that no compiler has a kernel for, too. Those that are ``trained`` have gradients that are
    exact, or near if a step is rounded.
    """
    kind = f"{dtype}{' by calls' * by_calls}{' trained' * trained}"
    letter, name = _letter(dtype), _name(dtype)

    def usable(steps: Iterable[Step]) -> list[Step]:
        """Return the steps whose operators are claimed, for the dtype if they take it."""
        return [
            step for step in steps if letter not in step.kinds or all(claimed(each, name) for each in _called(step))
        ]

    every, plan = (_of_calls if by_calls else _of_compilers)(usable, letter, kind)

    def program(number: int) -> Program | None:
        for attempt in range(_ATTEMPTS):
            chance = random.Random(f"{kind} {number} {attempt}")
            draft = _Draft(dtype, chance, plan(number), every, by_calls=by_calls, trained=trained)
            if found := draft.program():
                return found
        return None

    return [each for each in map(program, numbers) if each and all(claimed(*cell) for cell in each.needs)]


def is_claimed(declaration: Any, program: Program) -> bool:
    """Return whether the device claims each operator that a program calls."""
    inputs, function = program.made()
    return claims_calls(declaration, function, inputs)


def _of_calls(usable: _Usable, letter: str, kind: str) -> _Plan:
    """Return the steps of programs without a compiler: after each view, the step that comes next in turn."""
    every = usable((*EXACT, *BY_CALLS, *ROUNDED, *LAYERS))
    views = [step for step in every if step.operator in VIEWS] or every
    turns = _in_turn([step for step in every if step.operator not in VIEWS], _STEPS // 2, letter, kind)
    return every, lambda number: [steps for each in turns(number) for steps in (views, [each])]


def _of_compilers(usable: _Usable, letter: str, kind: str) -> _Plan:
    """Return the steps of compiled programs: in turn, five exact ones and one that is rounded."""
    # The memory order of a convolution's result is the device's choice, which compilers have to know.
    exact, rounded = usable(EXACT), usable(step for step in (*ROUNDED, *LAYERS) if ".conv" not in step.operator)
    turns = [_in_turn(exact, _STEPS - 1, letter, kind), _in_turn(rounded, 1, letter, kind)]
    return [*exact, *rounded], lambda number: [[each] for turn in turns for each in turn(number)]


def _in_turn(steps: Sequence[Step], count: int, letter: str, kind: str) -> Callable[[int], list[Step]]:
    """Return a function of a number that returns so many steps of a kind, which come in turn in a drawn order."""
    order = [step for step in steps if letter in step.kinds]
    random.Random(kind).shuffle(order)
    return lambda number: [order[(number * count + place) % len(order)] for place in range(count if order else 0)]


def first_wrong(
    chosen: Sequence[Program], said: Sequence[str], alone: Callable[[Program], str], together: str = ""
) -> tuple[Program, str]:
    """Return the first wrong program up to its first step that is wrong ``alone``, and what is wrong with it.

    If none is wrong alone, return the first program of which something is ``said``, with the words for that in front.
    """
    wrong = [pair for pair in zip(chosen, said, strict=True) if pair[1]]
    for program, _ in wrong:
        for beginning in program.beginnings():
            if message := alone(beginning):
                return beginning, message
    program, message = wrong[0]
    return program, together + message


def difference(check: Any, program: Program, results: Iterable[tuple[str, torch.Tensor, torch.Tensor]]) -> str:
    """Return what is wrong with the first wrong one of results, given as name, found and due; "" for nothing.

    A result that is not exact is compared with the one that the program has in float64, and so is a gradient if some
    result is not exact.
    """
    results = list(results)
    trained = any(name.startswith(OF_GRADIENTS) for name, *_ in results)
    again = any(name.endswith(AGAIN) for name, *_ in results)
    near_to = program.near_to(trained=trained, again=again) if program.rounded else {}
    try:
        for name, actual, wanted in results:
            check.equal((actual.dtype, actual.shape), (wanted.dtype, wanted.shape), f"dtype and shape of {name}")
            if name in near_to:
                exact, largest = near_to[name]
                kind = Near.GRADIENTS if name.startswith(OF_GRADIENTS) else Near.FORWARD
                near(check, name, actual, exact, kind, largest=largest)
            else:
                same_numbers(check, name, check.result(actual), wanted.detach())
    except AssertionError as error:
        return str(error)
    return ""


class _Draft:
    """A program in the making: its values, and the same values in float64."""

    def __init__(
        self,
        dtype: torch.dtype,
        chance: random.Random,
        plan: Sequence[Sequence[Step]],
        others: Sequence[Step],
        *,
        by_calls: bool,
        trained: bool,
    ) -> None:
        self._chance, self._dtype, self._trained = chance, dtype, trained
        self._plan, self._others = plan, others
        self._values: dict[str, torch.Tensor] = {}
        self._wide: dict[str, torch.Tensor] = {}
        self._inputs: list[Input] = []
        self._steps: list[str] = []
        self._used: set[str] = set()
        self._small: set[str] = set()
        self._needs: dict[tuple[str, str], None] = {}
        self._rounded: dict[str, float] = {}
        # Without a compiler, calls are cheap.
        self._by_calls = by_calls
        # A later step can hide what is wrong. A compiler may compute otherwise what nobody returns.
        self._returns_all = by_calls or chance.random() < 1 / 2
        self._largest, self._dimensions = _LARGEST, _DIMENSIONS

    def program(self) -> Program | None:
        """Draw inputs and steps; None if no step, or not the wanted one, can be added, or gradients are not exact."""
        shape = self._shape() if self._by_calls else self._chance.choice(_SHAPES)
        name = _name(self._dtype)
        for letter, form in (("a", shape), ("b", self._beside(shape)), ("c", self._beside(shape))):
            leaves = _LEAVES["f" if self._dtype.is_floating_point else "i"]
            expression = leaves[0] if self._trained else self._chance.choice(leaves)
            form, view = self._laid(form)
            expression = expression.format(n=math.prod(form), a=self._chance.choice((5, 7, 11)))
            self._input(letter, f"({expression}).to(torch.{name}).view({form})", view)
        self._input("m", f"(torch.arange({math.prod(shape)}) % 3 > 0).view({shape})")
        index = f"torch.tensor({self._chance.choice(([0], [1, 0, -1], [2, 0, 1], [0, 0, 1, 0]))})"
        self._input("v", index + (self._chance.choice(_INDICES) if self._by_calls else ""))
        for place, wanted in enumerate(self._plan):
            if not self._draw(wanted, _FEW_TRIES):
                # Without the first step of its turn, a program is drawn anew. A view may be another step.
                if len(wanted) == 1 and place < 2:
                    return None
                self._draw(self._others, _TRIES)
        if not self._steps:
            return None
        results = [name for name in self._values if name[0] == "t" and (self._returns_all or name not in self._used)]
        found = Program(tuple(self._inputs), tuple(self._steps), tuple(results), tuple(self._needs), self._rounded)
        return found if not self._trained or _has_exact_gradients(found) else None

    def _shape(self) -> tuple[int, ...]:
        """Draw the shape of a few elements, or seldom of many."""
        if self._chance.random() < _SHARE_OF_MANY:
            self._largest = _MANY
        self._dimensions = _MOST_DIMENSIONS
        rank = self._chance.choice(_RANKS)
        while True:
            shape = tuple(self._chance.choice(_SIZES) for _ in range(rank))
            if math.prod(shape) * _GROWTH <= self._largest:
                return shape

    def _input(self, name: str, expression: str, view: str = "") -> None:
        value = eval(f"({expression}){view}", {"torch": torch, "math": math})
        self._keep(name, value, value.double() if value.is_floating_point() else value)
        self._inputs.append(Input(name, expression, view))

    def _keep(self, name: str, value: torch.Tensor, wide: torch.Tensor) -> None:
        self._values[name], self._wide[name] = value, wide
        if _is_small(value):
            self._small.add(name)

    def _laid(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
        """Return the shape of memory, and the view of it that has a shape: most often it is dense and in order."""
        order = list(range(len(shape)))
        self._chance.shuffle(order)
        back = tuple(order.index(dim) for dim in range(len(shape)))
        layouts = (
            [
                (tuple(shape[dim] for dim in order), f".permute({back})"),
                ((*shape[:-1], shape[-1] * 2), "[..., ::2]"),
                ((shape[0] + 1, *shape[1:]), "[1:]"),
                ((1, *shape[1:]), f".expand({shape})"),
            ]
            if shape
            else []
        )
        return self._chance.choice([*[(shape, "")] * 4, *layouts])

    def _beside(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of another operand: with one place in some dimensions, or with fewer or more dimensions."""
        changed = [1 if self._chance.random() < 0.3 else size for size in shape]
        return self._chance.choice((shape, tuple(changed), tuple(changed[1:]), (1, *changed)))

    def _draw(self, steps: Sequence[Step], tries: int) -> bool:
        """Add one of some steps, and return whether one of these tries could be added."""
        return any(self._add(self._chance.choice(steps)) for _ in range(tries))

    def _add(self, step: Step) -> bool:
        """Add a step with drawn operands, and return whether it can be run and is exact, or rounded as its kind is."""
        names = self._operands(step)
        if names is None:
            return False
        x, out = names["x"], names["o"]
        text = self._text(step, names)
        given = self._values[x], self._values[names["z"]]
        if _is_open(step, text, *given, trained=self._trained) or not self._can_be_run(step, names):
            return False
        found = _run(text, self._values)
        if found is None or not self._has_due_size(found[out]):
            return False
        wide = _run(_widened(text), self._wide)
        if wide is None or not self._is_due(step, text, names, found[out], wide[out]):
            return False
        self._keep(out, found[out], wide[out])
        if step in OF_ROUNDED:
            read = (name for key, name in names.items() if key in "xy" and f"{{{key}}}" in step.text)
            self._rounded[out] = max(float(self._wide[name].abs().max()) for name in read)
        self._steps.append(text)
        self._used |= {name for key, name in names.items() if f"{{{key}}}" in step.text and key != "o"}
        for name in (x, out) if step.operator == "to" else (x, names["w"]) if "{w}" in step.text else (x,):
            self._needs |= dict.fromkeys((each, _name(self._values[name].dtype)) for each in _called(step))
        return True

    def _can_be_run(self, step: Step, names: Mapping[str, str]) -> bool:
        """Return whether the operands are small enough for a step."""
        operands = [self._values[names[key]] for key in "xymw" if f"{{{key}}}" in step.text]
        if _broadcast_elements([each.shape for each in operands]) > self._largest:
            return False
        return step.operator not in _PRODUCTS or all(
            max(each.shape, default=1) <= _MOST_OF_PRODUCTS for each in operands
        )

    def _has_due_size(self, found: torch.Tensor) -> bool:
        """Return whether a result has a size that programs have."""
        return 0 < found.numel() <= self._largest and found.dim() <= self._dimensions

    def _is_due(self, step: Step, text: str, names: Mapping[str, str], found: torch.Tensor, wide: torch.Tensor) -> bool:
        """Return whether a result is exact, or rounded and small."""
        if step in OF_ROUNDED:
            # Where the host itself is far off, the function is no question of kernels.
            is_near = relative_error(found.double(), wide.double(), 1.0) < bound_of(Near.FORWARD, found.dtype) / 2
            return is_near and bool((wide.abs() < _MOST_OF_ROUNDED).all())
        if not _is_same(found, wide):
            return False
        if self._trained and not (found.is_floating_point() and found.isfinite().all()):
            return False
        operands = [names[key] for key in "xyw"]
        return not found.is_floating_point() or self._is_exact(step, text, found, operands, names["o"])

    def _operands(self, step: Step) -> dict[str, str] | None:
        """Draw the values that the letters of a step stand for; None if there is no first operand of its kinds."""
        usable = {name: value for name, value in self._values.items() if name not in self._rounded}
        known = [name for name, value in usable.items() if name not in "mv" and _kind(value) in step.kinds]
        if step in OF_ROUNDED:
            known = [name for name in known if name in self._small]
        if not known:
            return None
        # Values that no step reads yet come first, so that steps build upon each other.
        fresh = [name for name in known if name not in self._used and name[0] == "t"]
        x = self._chance.choice(fresh or known)
        others = [name for name in known if usable[name].dtype == usable[x].dtype]
        masks = [name for name, value in usable.items() if value.dtype == torch.bool]
        return {
            "x": x,
            "y": self._chance.choice(others),
            "m": self._chance.choice(masks),
            "z": self._chance.choice("abc"),
            "w": self._chance.choice([*usable]),
            "v": "v",
            "o": f"t{len(self._steps)}",
        }

    def _text(self, step: Step, names: dict[str, str]) -> str:
        """Return the statement of a step, with drawn scalars and dimensions."""
        x = self._values[names["x"]]
        dims = max(x.dim(), 1)
        scalars = _SCALARS["u" if x.dtype == torch.uint8 else _kind(x)]
        text = step.text
        for letter, drawn in (*DRAWN, ("{s}", scalars), ("{d}", [str(d) for d in range(-dims, dims)])):
            while letter in text:
                text = text.replace(letter, self._chance.choice(drawn), 1)
        text = text.format(**names)
        return text if "{o}" in step.text else f"{names['o']} = {text}"

    def _is_exact(self, step: Step, text: str, found: torch.Tensor, operands: Sequence[str], out: str) -> bool:
        """Return whether floating numbers of a result fit into its dtype, in every order of sums."""
        if found.dtype not in _GRID:
            return False
        unit, limit = (2.0**power for power in _GRID[found.dtype])
        finite = found.double()[found.isfinite()]
        if not ((finite % unit == 0).all() and (finite.abs() < limit).all()):
            return False
        if step.operator in _SUMS:
            # No sum of some terms is larger than that of their sizes, and products of halves are quarters.
            sizes = {name: _sizes(value) for name, value in self._wide.items()}
            total = _run(_widened(text), {**sizes, "v": self._wide["v"]})
            if total is None or not (total[out] < limit).all() or (sizes[operands[0]] * 2 % 1 != 0).any():
                return False
        # Both evaluations round integers alike that become floating numbers.
        return all(bool((_sizes(self._wide[name]) <= _EXACT_INTEGERS).all()) for name in operands)


def _is_open(step: Step, text: str, x: torch.Tensor, z: torch.Tensor, *, trained: bool) -> bool:
    """Return whether nothing defines the numbers of a call, by its operand and by the input that gives signs."""
    if trained and step.operator in _CHOOSING:
        return True
    if step.operator == "copysign":  # the sign of NaN
        return "math.nan" in text or ("{z}" in step.text and bool(z.isnan().any()))
    if step.operator in ("abs", "neg", "square") and _kind(x) == "i":
        return bool((x == torch.iinfo(x.dtype).min).any())
    if step.operator in ("bucketize", "topk", "searchsorted", "unique", "isin", "sign"):
        return bool(x.isnan().any())
    if x.dtype == torch.uint8 and re.search(r"-\d+\)?$", text):  # no number of this dtype
        return True
    if step.operator == "median":  # PyTorch 2.13's CPU reads other memory if one number stands for a dimension
        return 0 in x.stride()
    # C leaves it open what becomes of floating numbers that do not fit.
    is_cast = step.operator == "to" and x.is_floating_point() and not step.text.endswith(_FLOATS)
    return is_cast and not bool((x.isfinite() & (x >= 0) & (x < _BYTES)).all())


def _broadcast_elements(shapes: Sequence[torch.Size]) -> int:
    """Return how many elements shapes have together as those of one elementwise function, 0 if they have none."""
    count = 1
    for sizes in itertools.zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        longer = {size for size in sizes if size != 1}
        if len(longer) > 1:
            return 0
        count *= next(iter(longer), 1)
    return count


def _is_small(operand: torch.Tensor) -> bool:
    """Return whether an operand of a rounded function has few floating numbers, which are small and finite."""
    return operand.is_floating_point() and operand.numel() <= _LARGEST and bool((operand.abs() < _MOST_ROUNDED).all())


def _is_same(found: torch.Tensor, wide: torch.Tensor) -> bool:
    """Return whether a result has the numbers that it has in float64."""
    if found.is_floating_point():
        return torch.equal(found.double().nan_to_num(7), wide.double().nan_to_num(7))
    return torch.equal(found, wide)


def _has_exact_gradients(program: Program) -> bool:
    """Return whether gradients are the same in float64, or near if the program rounds, and not large."""
    try:
        found, wide = (gradients(*program.made(wide=is_wide)) for is_wide in (False, True))
    except (RuntimeError, NotImplementedError):  # some functions have no gradient
        return False
    if not any(each.any() for each in wide) or any((each.abs() >= 1 << _GRADIENTS).any() for each in wide):
        return False
    known = zip(found, wide, strict=True)
    if program.rounded:
        bound = bound_of(Near.GRADIENTS, found[0].dtype) / 2
        return all(relative_error(each.double(), due, max(1.0, float(due.abs().max()))) < bound for each, due in known)
    return all(torch.equal(each.double(), due) for each, due in known)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _called(step: Step) -> Iterable[str]:
    """Return the operators that a step calls, each once, in the order of its text."""
    beside = (name for name in re.findall(r"\.(\w+)\(", step.text) if name in BESIDE)
    return dict.fromkeys((step.operator, *beside))


def _kind(value: torch.Tensor) -> str:
    return _letter(value.dtype)


def _letter(dtype: torch.dtype) -> str:
    return "b" if dtype == torch.bool else "f" if dtype.is_floating_point else "i"


def _widened(text: str) -> str:
    return re.sub(r"torch\.(?:float32|bfloat16|float16)", "torch.float64", text)


def _sizes(value: torch.Tensor) -> torch.Tensor:
    """Return the sizes of the numbers of a value, 0 for those that are not finite."""
    return value.double().nan_to_num(0, 0, 0).abs()


def _run(text: str, values: dict[str, torch.Tensor]) -> dict[str, Any] | None:
    """Run a statement on the host's values, and return all names, or None if PyTorch refuses it."""
    names: dict[str, Any] = {"torch": torch, "F": F, "math": math, **values}
    try:
        exec(text, names)
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        return None
    return names
