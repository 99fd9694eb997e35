"""Programs that are drawn: a few exact steps each, over shapes, layouts, scalars and dtypes that compilers tell apart.

A program is text, so that a failure shows all of it. Each step is exact in every order and with every fusion: its
floating numbers are multiples of a small power of two, so that they and their sums fit into the dtype.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F

#: Steps of a program, and draws of a step before a program ends.
_STEPS, _TRIES = 6, 40
#: Most elements of a value.
_LARGEST: Final = 4096
#: By dtype, the power of two that divides all finite numbers, and the power of two below which they are.
_GRID: Final = {torch.float32: (-6, 17), torch.float16: (-2, 8), torch.bfloat16: (-1, 6)}
#: Ends of casts to floating dtypes.
_FLOATS: Final = tuple(f".{name})" for name in ("float32", "float16", "bfloat16"))
#: Operators that add up elements.
_SUMS: Final = ("sum", "cumsum", "index_add", "matmul", "nn.functional.avg_pool1d")
#: Most dimensions, and numbers that fit into every dtype of integers.
_DIMENSIONS: Final = 4
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
    "i": ("torch.arange({n}) * {a} % 13 - 6", "(torch.arange({n}) * {a} % 17 - 8) * ((1 << 26) + 1)"),
}


class Step(NamedTuple):
    """Kinds of the first operand, the operator that has to be claimed, and the text of the call.

    Kinds are f(loating), i(nteger) and b(ool). In the text, x is the first operand, y another one of its dtype, w one
    of any dtype, m a mask, v a vector of indices, z an input whose signs of zeros are defined, s a scalar, d a
    dimension, and o the result.
    """

    kinds: str
    operator: str
    text: str


_ALL: Final = (
    *(Step("fi", name, f"torch.{name}({{x}})") for name in ("neg", "abs", "square")),
    *(Step("f", name, f"torch.{name}({{x}})") for name in ("floor", "ceil", "round", "trunc", "isnan", "isfinite")),
    *(Step("fi", name, f"torch.{name}({{x}}, {{y}})") for name in ("maximum", "minimum")),
    *(Step("f", name, f"torch.{name}({{x}}, {{y}})") for name in ("fmax", "fmin")),
    *(
        Step(kinds, name, f"{{x}} {sign} {{{operand}}}")
        for kinds, name, sign in (
            ("fi", "add", "+"), ("fi", "sub", "-"), ("fi", "mul", "*"), ("fi", "lt", "<"), ("fi", "ge", ">="),
            ("fi", "eq", "=="), ("fi", "ne", "!="),
        )
        for operand in "ys"
    ),
    *(Step("ib", name, f"{{x}} {sign} {{y}}") for name, sign in (
        ("bitwise_and", "&"), ("bitwise_or", "|"), ("bitwise_xor", "^"),
    )),
    *(Step("fi", name, f"{{x}} {sign} {{w}}") for name, sign in (("add", "+"), ("mul", "*"), ("lt", "<"))),
    Step("fi", "maximum", "torch.maximum({x}, {w})"),
    Step("fi", "mul", "{x} * {y} + {x} * {s}"),
    Step("fi", "__rsub__", "{s} - {x}"),
    Step("f", "copysign", "torch.copysign({x}, {z})"),
    Step("f", "copysign", "torch.copysign({x}, {s})"),
    Step("fi", "clamp", "torch.clamp({x}, {s}, {s})"),
    Step("f", "clamp_min", "torch.clamp_min({x}, {s})"),
    Step("fi", "true_divide", "{x} / 4"),
    Step("i", "floor_divide", "{x} // -3"),
    Step("i", "floor_divide", "{x} // 4"),
    Step("fi", "remainder", "{x} % 3"),
    Step("fi", "fmod", "torch.fmod({x}, -2)"),
    Step("i", "bitwise_right_shift", "{x} >> 1"),
    Step("ib", "bitwise_not", "~{x}"),
    Step("fi", "nn.functional.relu", "F.relu({x})"),
    Step("fib", "where", "torch.where({m}, {x}, {y})"),
    Step("fi", "where", "torch.where({m}, {x}, {s})"),
    Step("fi", "masked_fill", "{x}.masked_fill({m}, {s})"),
    *(Step("fi", name, f"{{x}}.{name}({{d}})") for name in ("sum", "amax", "amin", "argmax", "argmin", "cumsum")),
    *(Step("fi", name, f"{{x}}.{name}({{d}}, keepdim=True)") for name in ("sum", "amax", "argmax")),
    *(Step("fi", name, f"{{x}}.{name}()") for name in ("sum", "amax", "argmax", "argmin")),
    Step("fi", "max.reduction_with_dim", "{x}.max({d}).indices"),
    Step("fi", "sort", "torch.sort({x}, stable=True, dim={d}).indices"),
    *(Step("fib", name, f"{{x}}.{name}({{d}})") for name in ("any", "all")),
    Step("b", "sum", "{x}.sum({d})"),
    Step("fi", "nn.functional.pad.constant", "F.pad({x}, (2, 1), value={s})"),
    Step("fi", "nn.functional.pad.constant", "F.pad({x}, (0, -1, 1, 2), value={s})"),
    Step("f", "nn.functional.pad.replicate", "F.pad({x}, (1, 2), mode='replicate')"),
    Step("f", "nn.functional.pad.circular", "F.pad({x}, (1, 0), mode='circular')"),
    Step("fib", "cat", "torch.cat(({x}, {y}), {d})"),
    Step("fib", "stack", "torch.stack(({x}, {y}), {d})"),
    Step("fib", "flip", "{x}.flip({d})"),
    Step("fib", "roll", "{x}.roll(-2, {d})"),
    Step("fib", "roll", "{x}.roll(1)"),
    Step("fib", "transpose", "{x}.transpose({d}, {d})"),
    Step("fib", "movedim", "{x}.movedim(0, -1)"),
    Step("fib", "unsqueeze", "{x}.unsqueeze({d})"),
    Step("fib", "squeeze", "{x}.squeeze()"),
    Step("fib", "flatten", "{x}.flatten()"),
    Step("fib", "expand", "{x}.expand(3, *{x}.shape)"),
    Step("fib", "repeat_interleave", "{x}.repeat_interleave(2, {d})"),
    Step("fib", "unfold", "{x}.unfold({d}, 2, 1)"),
    *(Step("fib", "__getitem__", f"{{x}}[{at}]") for at in ("1:", "..., ::2", "..., -1", "None, ..., :3", "{v}")),
    Step("fib", "tril", "{x}.tril()"),
    Step("fib", "triu", "{x}.triu(1)"),
    Step("fib", "diagonal", "{x}.diagonal()"),
    Step("fi", "add", "{o} = {x}.clone(); {o}[..., 1:] += {s}"),
    Step("fi", "fill", "{o} = {x}.clone(); {o}[{v}] = {s}"),
    Step("fib", "clone", "{o} = {x}.clone(); {o}[..., 0] = {o}[..., -1]"),
    Step("fi", "mul", "{o} = {x}.clone(); {o}.mul_({y})"),
    Step("fi", "masked_fill", "{o} = {x}.clone(); {o}.transpose(0, -1).masked_fill_({m}, {s})"),
    Step("fi", "matmul", "{x} @ {x}.transpose(-1, -2)"),
    Step("fi", "matmul", "{x} @ {y}"),
    Step("fi", "topk", "torch.topk({x}, 2, {d}).values"),
    Step("i", "prod", "{x}.prod({d})"),
    Step("fib", "nn.functional.embedding", "F.embedding({v}, {x})"),
    Step("f", "nn.functional.max_pool1d", "F.max_pool1d({x}, 3, 2, 1)"),
    Step("f", "nn.functional.max_pool2d", "F.max_pool2d({x}, 2, 1, ceil_mode=True)"),
    Step("f", "nn.functional.avg_pool1d", "F.avg_pool1d({x}, 2, 2, 1)"),
    Step("f", "nn.functional.adaptive_max_pool1d", "F.adaptive_max_pool1d({x}, 3)"),
    Step("f", "nn.functional.interpolate.nearest", "F.interpolate({x}, scale_factor=2)"),
    Step("f", "nn.functional.interpolate.nearest", "F.interpolate({x}, size=5)"),
    Step("f", "nn.functional.leaky_relu", "F.leaky_relu({x}, 0.5)"),
    Step("f", "nn.functional.hardtanh", "F.hardtanh({x}, -1.5, 2.0)"),
    Step("i", "nn.functional.one_hot", "F.one_hot({v}, 4)"),
    Step("fi", "scatter", "{x}.scatter(0, torch.zeros_like({x}, dtype=torch.int64), {s})"),
    Step("fi", "take_along_dim", "torch.take_along_dim({x}, {x}.argsort(stable=True, dim={d}), {d})"),
    Step("fi", "bucketize", "torch.bucketize({x}, torch.arange(-3, 4, device={x}.device).to({x}.dtype))"),
    Step("fi", "add", "torch.arange({x}.shape[-1], device={x}.device) + {x}"),
    Step("fi", "full_like", "torch.full_like({x}, {s}) - {x}"),
    Step("fib", "tile", "{x}.tile((2, 1))"),
    Step("fib", "chunk", "{x}.chunk(2, {d})[-1]"),
    Step("fib", "split", "{x}.split(3, {d})[0]"),
    Step("fib", "rot90", "{x}.rot90(1, (0, -1))"),
    Step("fi", "index_select", "{x}.index_select({d}, {v})"),
    Step("fi", "index_add", "{x}.index_add(0, {v}, {x}[{v}])"),
    *(Step("fib", "to", f"{{x}}.to(torch.{name})") for name in ("float32", "int64", "int32", "int8", "uint8")),
    *(Step("f", "to", f"{{x}}.to(torch.{name})") for name in ("bfloat16", "float16")),
    Step("i", "to", "{x}.to(torch.int16)"),
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """Inputs as expressions, steps as statements, the names of what is returned, and the cells that it needs."""

    inputs: tuple[tuple[str, str], ...]
    steps: tuple[str, ...]
    results: tuple[str, ...]
    needs: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """Return the statements of the program on two lines: its inputs on the host, and its steps."""
        inputs = "; ".join(f"{name} = {expression}" for name, expression in self.inputs)
        return f"{inputs}\n{'; '.join(self.steps)}"

    def made(self) -> tuple[list[torch.Tensor], Callable[..., tuple[torch.Tensor, ...]]]:
        """Return the inputs on the host, and the function."""
        names: dict[str, Any] = {"torch": torch, "F": F, "math": math}
        given = [name for name, _ in self.inputs]
        body = "".join(f"    {step}\n" for step in self.steps)
        exec(f"def program({', '.join(given)}):\n{body}    return {', '.join(self.results)},", names)
        return [eval(expression, names) for _, expression in self.inputs], names["program"]

    def beginnings(self) -> Iterator[Program]:
        """Yield a program for each step: the result of the step, and what it depends on."""
        for last in range(len(self.steps)):
            needed, steps = {f"t{last}"}, []
            for number in range(last, -1, -1):
                if f"t{number}" in needed:
                    steps.insert(0, self.steps[number])
                    needed |= set(re.findall(r"\b(?:[abcmv]|t\d+)\b", self.steps[number]))
            inputs = tuple(each for each in self.inputs if each[0] in needed)
            yield replace(self, inputs=inputs, steps=tuple(steps), results=(f"t{last}",))


def programs(dtype: torch.dtype, numbers: Iterable[int], claimed: Callable[[str, str], bool]) -> list[Program]:
    """Return the drawn programs with these numbers that begin in a dtype, if all of their operators are claimed."""
    drawn = (_Draft(dtype, random.Random(f"{dtype} {number}")).program() for number in numbers)
    return [each for each in drawn if each.steps and all(claimed(*cell) for cell in each.needs)]


class _Draft:
    """A program in the making: its values, and the same values in float64."""

    def __init__(self, dtype: torch.dtype, chance: random.Random) -> None:
        self._chance, self._dtype = chance, dtype
        self._values: dict[str, torch.Tensor] = {}
        self._wide: dict[str, torch.Tensor] = {}
        self._inputs: list[tuple[str, str]] = []
        self._steps: list[str] = []
        self._used: set[str] = set()
        self._needs: dict[tuple[str, str], None] = {}

    def program(self) -> Program:
        """Draw inputs and steps."""
        shape = self._chance.choice(_SHAPES)
        name = str(self._dtype).removeprefix("torch.")
        for letter, form in (("a", shape), ("b", self._beside(shape)), ("c", self._beside(shape))):
            expression = self._chance.choice(_LEAVES["f" if self._dtype.is_floating_point else "i"])
            expression = expression.format(n=math.prod(form), a=self._chance.choice((5, 7, 11)))
            self._input(letter, f"({expression}).to(torch.{name}).view({form})")
        self._input("m", f"(torch.arange({math.prod(shape)}) % 3 > 0).view({shape})")
        self._input("v", f"torch.tensor({self._chance.choice(([0], [1, 0, -1], [2, 0, 1], [0, 0, 1, 0]))})")
        for _ in range(_STEPS):
            for _ in range(_TRIES):
                if self._add(self._chance.choice(_ALL)):
                    break
        results = [name for name in self._values if name not in self._used and name[0] == "t"]
        return Program(tuple(self._inputs), tuple(self._steps), tuple(results), tuple(self._needs))

    def _input(self, name: str, expression: str) -> None:
        self._values[name] = value = eval(expression, {"torch": torch, "math": math})
        self._wide[name] = value.double() if value.is_floating_point() else value
        self._inputs.append((name, expression))

    def _beside(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of another operand: with one place in some dimensions, or with fewer or more dimensions."""
        changed = [1 if self._chance.random() < 0.3 else size for size in shape]
        return self._chance.choice((shape, tuple(changed), tuple(changed[1:]), (1, *changed)))

    def _add(self, step: Step) -> bool:
        """Add a step with drawn operands, and return whether it can be run and is exact."""
        names = self._operands(step)
        if names is None:
            return False
        x, out = names["x"], names["o"]
        text = self._text(step, names)
        if _is_open(step, text, self._values[x], self._values[names["z"]]):
            return False
        found, wide = _run(text, self._values), _run(_widened(text), self._wide)
        if found is None or wide is None or not _is_same(found[out], wide[out]):
            return False
        operands = [x, names["y"], names["w"]]
        if found[out].is_floating_point() and not self._is_exact(step, text, found[out], operands, out):
            return False
        self._values[out], self._wide[out] = found[out], wide[out]
        self._steps.append(text)
        self._used |= {name for key, name in names.items() if f"{{{key}}}" in step.text and key != "o"}
        for name in (x, out) if step.operator == "to" else (x,):
            self._needs |= {(step.operator, str(self._values[name].dtype).removeprefix("torch.")): None}
        return True

    def _operands(self, step: Step) -> dict[str, str] | None:
        """Draw the values that the letters of a step stand for; None if there is no first operand of its kinds."""
        known = [name for name, value in self._values.items() if name not in "mv" and _kind(value) in step.kinds]
        if not known:
            return None
        # Values that no step reads yet come first, so that steps build upon each other.
        fresh = [name for name in known if name not in self._used and name[0] == "t"]
        x = self._chance.choice(fresh or known)
        others = [name for name, value in self._values.items() if value.dtype == self._values[x].dtype]
        masks = [name for name, value in self._values.items() if value.dtype == torch.bool]
        return {
            "x": x,
            "y": self._chance.choice(others),
            "m": self._chance.choice(masks),
            "z": self._chance.choice("abc"),
            "w": self._chance.choice([*self._values]),
            "v": "v",
            "o": f"t{len(self._steps)}",
        }

    def _text(self, step: Step, names: dict[str, str]) -> str:
        """Return the statement of a step, with drawn scalars and dimensions."""
        x = self._values[names["x"]]
        dims = max(x.dim(), 1)
        scalars = _SCALARS["u" if x.dtype == torch.uint8 else _kind(x)]
        text = step.text
        for letter, drawn in (("{s}", scalars), ("{d}", [str(d) for d in range(-dims, dims)])):
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
        sizes = {name: _sizes(value) for name, value in self._wide.items()}
        if step.operator in _SUMS:
            # No sum of some terms is larger than that of their sizes, and products of halves are quarters.
            total = _run(_widened(text), {**sizes, "v": self._wide["v"]})
            if total is None or not (total[out] < limit).all() or (sizes[operands[0]] * 2 % 1 != 0).any():
                return False
        # Both evaluations round integers alike that become floating numbers.
        return all(bool((sizes[name] <= _EXACT_INTEGERS).all()) for name in operands)


def _is_open(step: Step, text: str, x: torch.Tensor, z: torch.Tensor) -> bool:
    """Return whether nothing defines the numbers of a call, by its operand and by the input that gives signs."""
    if step.operator == "copysign":  # the sign of NaN
        return "math.nan" in text or ("{z}" in step.text and bool(z.isnan().any()))
    if step.operator in ("abs", "neg", "square") and _kind(x) == "i":
        return bool((x == torch.iinfo(x.dtype).min).any())
    if step.operator in ("bucketize", "topk"):
        return bool(x.isnan().any())
    # C leaves it open what becomes of floating numbers that do not fit.
    is_cast = step.operator == "to" and x.is_floating_point() and not step.text.endswith(_FLOATS)
    return is_cast and not bool((x.isfinite() & (x >= 0) & (x < _BYTES)).all())


def _is_same(found: torch.Tensor, wide: torch.Tensor) -> bool:
    """Return whether a result has a size that programs have, and the numbers that it has in float64."""
    if not 0 < found.numel() <= _LARGEST or found.dim() > _DIMENSIONS:
        return False
    if found.is_floating_point():
        return torch.equal(found.double().nan_to_num(7), wide.double().nan_to_num(7))
    return torch.equal(found, wide)


def _kind(value: torch.Tensor) -> str:
    return "b" if value.dtype == torch.bool else "f" if value.is_floating_point() else "i"


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
