"""Laws of indexing and of long sums: what a kernel's fast path for the usual index, rank or length gets wrong."""

from __future__ import annotations

import torch

from conformance.accelerators.capabilities import Cell, Mode
from conformance.numerics.transfer import copied_with_memory
from conformance.plan.case import case


def _computes(*operators: str, mode: Mode = Mode.INFERENCE) -> list[Cell]:
    return [Cell(f"operators.{operator}", "float32", mode.value) for operator in operators]


#: Functions of a tensor of 5 columns or more, an index with the source's shape, and the source.
INDEXED = {
    "scatter": lambda t, index, source: t.scatter(-1, index, source),
    "scatter_in_place": lambda t, index, source: t.clone().scatter_(-1, index, source),
    "scatter_number": lambda t, index, source: t.scatter(-1, index, 7.0),
    "scatter_add": lambda t, index, source: t.scatter_add(-1, index, source),
    "scatter_reduce": lambda t, index, source: t.scatter_reduce(-1, index, source, "amax"),
    "gather": lambda t, index, source: t.gather(-1, index),
}
CELLS = {"scatter_in_place": "scatter", "scatter_number": "scatter", "scatter_reduce": "scatter_reduce.amax"}


def _layouts():
    """Yield a name, and a tensor, an index and a source of this layout on the host."""
    # Every row of an index is a permutation: then no function depends on an order.
    column = torch.tensor([3, 0, 4, 1, 2])
    rows = torch.stack([column.roll(shift) for shift in range(6)])
    values, source = torch.arange(30.0).reshape(6, 5), 100.0 + torch.arange(30.0).reshape(6, 5)
    yield "an expanded row", values, column.expand(6, 5), source
    # Every element of a row goes to one place, with one value: the order does not matter.
    single = torch.tensor([[3], [0], [4], [1], [2], [0]])
    yield "an expanded column", values, single.expand(6, 5), source[:, 1:2].expand(6, 5)
    yield "a transposed index", values, rows.t().contiguous().t(), source
    yield "an index with an offset", values, torch.cat([rows, rows])[4:10], source
    yield "every second column", values, rows.repeat_interleave(2, 1)[:, ::2], source
    yield "a strided source", values, rows, source.t().contiguous().t()
    yield "an expanded source", values, rows, source[:1].expand(6, 5)
    yield "a strided tensor", values.t().contiguous().t(), rows, source
    yield "an empty index", values, rows[:, :0], source[:, :0]
    yield "an empty index of no rows", values, rows[:0], source[:0]
    yield "fewer rows than the tensor", values, rows[:4], source[:4]
    cube = torch.arange(2.0 * 3 * 2 * 2 * 5).reshape(2, 3, 2, 2, 5)
    deep = column.expand(2, 2, 2, 2, 5).contiguous()
    yield "five dimensions, fewer in front", cube, deep, 100.0 + torch.arange(80.0).reshape(2, 2, 2, 2, 5)


def _by_hand(function: str, tensor: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Return the result, element by element."""
    writes = function.startswith("scatter")
    result = tensor.clone() if writes else torch.empty(index.shape)
    for place in torch.cartesian_prod(*map(torch.arange, index.shape)).tolist() if index.numel() else []:
        target = (*place[:-1], int(index[tuple(place)]))
        given = float(source[tuple(place)])
        if not writes:
            result[tuple(place)] = tensor[target]
        elif function == "scatter_add":
            result[target] += given
        elif function == "scatter_reduce":
            result[target] = max(float(result[target]), given)
        else:
            result[target] = 7.0 if function == "scatter_number" else given
    return result


@case(
    "accelerator.laws.indices",
    axes={"function": {name: _computes(CELLS.get(name, name)) for name in INDEXED}},
)
def test_indices(device, function, check):
    """Indices that are expanded, strided, empty or of five dimensions give what a loop over elements gives."""
    for name, tensor, index, source in _layouts():
        found = INDEXED[function](*(copied_with_memory(each, device) for each in (tensor, index, source)))

        check.equal(found.cpu(), _by_hand(function, tensor, index, source), name)


#: Terms of a long sum: more than an index of 16 bits or one launch of a grid counts.
TERMS = (1 << 16) + 4099


def _gradient(left, right):
    weight = torch.zeros(right.shape[1], left.shape[0], device=left.device, requires_grad=True)
    output = torch.nn.functional.linear(left.t(), weight)
    return torch.autograd.grad(output, weight, right)[0].t()


#: Functions of (3, TERMS) and (TERMS, 2) whose result is the product.
PRODUCTS = {
    "mm": torch.mm,
    "matmul": torch.matmul,
    "bmm": lambda a, b: torch.bmm(a[None], b[None])[0],
    "addmm": lambda a, b: torch.addmm(torch.zeros(3, 2, device=a.device), a, b),
    "mv": lambda a, b: torch.stack([torch.mv(a, b[:, 0]), torch.mv(a, b[:, 1])], 1),
    "einsum": lambda a, b: torch.einsum("ik,kj->ij", a, b),
}


def _products(function, device):
    """Return the product on the device, and the product that is due: a long sum of small integers."""
    # Small integers with few ones: sums are exact in any precision and in any order.
    left = torch.zeros(3, TERMS)
    left[0, ::4097], left[1, -1], left[2, 1 << 15 :: 8191] = 1.0, 2.0, 1.0
    right = torch.stack([torch.arange(TERMS) % 3.0, (torch.arange(TERMS) + 1) % 2.0], 1)

    return function(left.to(device), right.to(device)).cpu(), (left.double() @ right.double()).float()


@case("accelerator.laws.long_products", axes={"function": {name: _computes(name) for name in PRODUCTS}})
def test_long_products(device, function, check):
    """A product adds up more terms than an index of 16 bits counts."""
    found, due = _products(PRODUCTS[function], device)

    check.equal(found, due, f"a product that adds up {TERMS} terms")


@case("accelerator.laws.long_gradient", requires=_computes("nn.functional.linear", mode=Mode.TRAINING))
def test_long_gradient(device, check):
    """The gradient of a layer's weight adds up more rows than an index of 16 bits counts."""
    found, due = _products(_gradient, device)

    check.equal(found, due, f"a gradient that adds up {TERMS} rows")
