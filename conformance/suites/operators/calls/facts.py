"""What is special about single operators, kernels and arguments: the rows of facts.toml, checked when they are read."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from fnmatch import fnmatchcase
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from conformance.base.errors import ConformanceError
from conformance.numerics.budgets import load_table

Row = TypeVar("Row")
#: Positions of tensors among those of a sample.
Places = tuple[int, ...]


@dataclass(frozen=True)
class Facts:
    """What is special about one operator, or about a function of the same name. Most have none of these."""

    # --- classes ---
    narrow: bool = False  # accumulates in float32 on device types that PyTorch knows by name, elsewhere in the dtype
    selects: bool = False  # each value of its results is an element of the input; so it is of all that make choices
    fourier: bool = False  # a Fourier transform beside those of torch.fft
    multiplies: bool = False  # of torch.linalg or LAPACK, but it neither factorises nor solves
    inverts: bool = False  # householder_product_backward of FunctionsManual.cpp: the gradient undoes each reflection
    moves_factors: bool = False  # PyTorch needs LAPACK to test it, but it only moves the factors that it is given

    # --- results that are open ---
    signed_zeros: str = ""  # standard that defines the signs of its zeros: IEEE 754-2019, 5.3-5.5 and 6.3; C17, F.10
    open_for_nan: bool = False  # the Python array API and NumPy give NaN for NaN, and PyTorch's CPU gives 0
    open_for_negative_zero: bool = False  # documented: -inf for 0; PyTorch's CPU gives inf for -0
    open_for_specials: bool = False  # nothing defines the result for NaN and infinities
    open_for_repeated: bool = False  # for repeated values: the index of a tie, or a quotient of rounding errors
    open_at_ends: bool = False  # C leaves results open at the ends of integers: shifts, quotients by 0, large powers
    open_order: bool = False  # torch.linalg.eig: the eigenvalues are not in any specific order
    open_signs: bool = False  # of factors that are determined but for signs
    determined: bool = False  # the database's post-processing only picks outputs: nothing in them is open
    by_memory: bool = False  # reads where its arguments say in memory, so that each arrangement has a result of its own
    positions: bool = False  # "the indices of the first maximal value are returned" (torch.argmax); NaN is maximal

    # --- choices among equal elements ---
    choice_dim: int | None = None  # position of ``dim`` among the arguments after the input
    window_dims: int | None = None  # a maximum's index counts in so many last dimensions; 0: in the argument ``dim``
    stable: bool = False  # takes ``stable=True``
    gathers: bool = False  # the results are input.gather(dim, index) and index
    hides_choice: bool = False  # it chooses, and does not return the index

    # --- roundings ---
    eps_of_accumulator: bool = False  # eps=None means that of the dtype in which it accumulates, also for the oracle
    casts_last: bool = False  # computes in the dtype of the input, and casts the result to ``dtype``
    rounds_between: bool = False  # a composed projection: what is left of its terms depends on the terms' roundings
    rounds: bool = False  # attention to one position rounds nothing on the host; another order of operations rounds

    # --- inputs, by their positions ---
    eliminated: Places = ()  # of an elimination without iterations: a NaN in these inputs is in the result
    factorised: Places = ()  # in a fixed number of steps: NaN and infinity are refused, or in some factor
    triangular: Places = ()  # an infinity beside the diagonal is a factor, and never a pivot
    one_triangle: Places = ()  # one triangle of these is read, which the call names (torch.linalg.eigh: ``UPLO``)
    in_products: Places = ()  # of linear algebra: they take part in products alone, such as right-hand sides
    unequal: tuple[tuple[int, int], ...] = ()  # input and dimension that may differ, and are equal in most samples
    degree: bool = False  # its second input is a degree: a number of steps
    scalar: str = ""  # argument that may be a tensor of one number, and is a number in each sample of the database

    # --- indices ---
    int32_indices: bool = False  # "IntTensor or LongTensor", by its documentation
    equal_indices: bool = False  # defined for equal indices: they are read, or what they write is added up
    bounded_indices: bool = False  # PyTorch's CPU refuses each index beyond the end; a device reads or writes elsewhere
    accumulates: bool = False  # with accumulate=True, what is written to one place is added up
    flat_indices: bool = False  # its indices count all elements
    far_coordinates: bool = False  # its coordinates may be far beyond the image

    # --- memory ---
    unchecked: bool = False  # PyTorch calls it with checked arguments alone: it reads beyond a tensor that does not fit
    batches: bool = False  # its batch may grow, although it is not checked
    distinct: bool = False  # results have as many elements as the input has different ones
    squared: bool = False  # its derivative has a row and a column for each row of the sample
    untrained: bool = False  # gradients are open in large samples
    draws_pairs: bool = False  # no long draw: scores between all pairs of rows would not fit into memory
    short_in_16_bits: bool = False  # in 16 bits, oneDNN reads beyond long columns where a strided window fits once
    stays_short: bool = False  # over three long dimensions, PyTorch's CPU writes beyond its memory
    needs_rows: bool = False  # without rows, PyTorch ends the process, divides by zero, or returns unwritten memory
    unsigned: bool = False  # for numbers below zero, PyTorch returns memory that nobody wrote
    resizes: bool = False  # a smaller tensor that grows has memory that nobody wrote

    @property
    def is_selection(self) -> bool:
        """Return whether each value of its results is an element of the input: nothing is rounded."""
        return self.selects or self.gathers or self.window_dims is not None


@dataclass(frozen=True)
class KernelFacts:
    """What is special about one kernel that is called directly."""

    foreign: bool = False  # of a library, or of one kind of device or tensor
    checked: bool = False  # it checks all arguments itself, as the meta functions do
    finite: bool = False  # for NaN, the host's kernel ends the process, or returns memory that nobody wrote
    memory: bool = False  # memory without a rule for values, or with parts that nobody writes
    private: bool = False  # arguments or results that each device has in a form of its own


@dataclass(frozen=True)
class ArgumentFacts:
    """What is special about arguments of one name."""

    kept: bool = False  # not set to something else: it says where and how memory is, or needs sparse tensors
    order: bool = False  # the order of a norm or of a distance
    words: tuple[str, ...] = ()  # values of an argument that takes words; the host refuses some
    coded: bool = False  # its integers 0, 1 and 2 stand for words


#: Facts of an operator without a row.
_NONE = Facts()


def facts(operator: str) -> Facts:
    """Return the facts of an operator, by its name in PyTorch's database."""
    found: Facts = _rows("operators", Facts).get(operator, _NONE)
    return found


@functools.cache
def kernel_facts(kernel: str) -> KernelFacts:
    """Return the facts of a kernel, by its name without ``aten::``; a name of the table may be a pattern."""
    known = [vars(row) for pattern, row in _rows("kernels", KernelFacts).items() if fnmatchcase(kernel, pattern)]
    return KernelFacts(**{name: any(row[name] for row in known) for name in vars(KernelFacts())})


def argument_facts(argument: str) -> ArgumentFacts:
    """Return the facts of an argument."""
    found: ArgumentFacts = _rows("arguments", ArgumentFacts).get(argument, ArgumentFacts())
    return found


def operators() -> tuple[str, ...]:
    """Return the operators that have facts."""
    return tuple(_rows("operators", Facts))


@functools.cache
def _rows(section: str, kind: type[Row]) -> Mapping[str, Row]:
    """Return the rows of a section of facts.toml, by operator."""
    table = load_table(__file__, "facts.toml")[section]
    return {name: read(kind, row, f"facts.toml, {section}, {name}") for name, row in table.items()}


def read(kind: type[Row], row: Mapping[str, Any], where: str) -> Row:
    """Return a row of a table as a frozen dataclass. ``where`` names the row in the error about a wrong name."""
    hints, values = get_type_hints(kind), {name: _frozen(value) for name, value in row.items()}
    for name, value in values.items():
        if name not in hints:
            raise ConformanceError(f"{where}: there is no '{name}'; the names are {', '.join(hints)}.")
        allowed = get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],)
        if type(value) not in {get_origin(each) or each for each in allowed}:
            raise ConformanceError(f"{where}: '{name}' is {value!r}, and has to be {kind.__annotations__[name]}.")
    for field in fields(kind):  # type: ignore[arg-type]  # every kind is a dataclass
        if field.default is MISSING and field.name not in values:
            raise ConformanceError(f"{where}: '{field.name}' is missing.")
    return kind(**values)


def _frozen(value: Any) -> Any:
    """Return a value with tuples in the place of its lists, so that it can be hashed."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
