"""Script of a call: it repeats the call with torch alone, on PyTorch's CPU and on a device, and prints what differs.

Everything in it comes from the fields of the call. Inputs are written out bit by bit, with their strides, storage
offset and shared memory; numbers that are too many to read are compressed.
"""

from __future__ import annotations

import base64
import math
import textwrap
import zlib
from collections.abc import Iterator
from typing import Any, Final

import torch

from conformance.numerics.layout import storage_address
from conformance.numerics.transfer import has_other_bytes, memory_behind
from conformance.suites.operators.calls.calls import Around, Call
from conformance.suites.operators.calls.execution import OnCopy, Statement, host_call
from conformance.suites.operators.calls.factors import with_positive_diagonal
from conformance.suites.operators.calls.joined import TURNED, Joined
from conformance.suites.operators.calls.passes import Pass

from .aspects import Aspect
from .cells import Failure

#: Numbers of a tensor that are written so that they can be read; more are compressed.
_READABLE: Final = 500
#: Characters of a script. One of a million different numbers would have more.
_LONGEST: Final = 4_000_000
#: Width of a line.
_WIDTH: Final = 110
#: Types whose ``repr`` is an expression.
_LITERALS: Final = (
    bool,
    int,
    float,
    complex,
    str,
    slice,
    type(None),
    type(...),
    torch.dtype,
    torch.memory_format,
    torch.layout,
)


class Unwritable(Exception):
    """A call that no script can repeat: an argument cannot be written with torch alone."""


def script(failure: Failure, about: str, *, device: str, package: str = "", profiled: bool = False) -> str:
    """Return a script that repeats a call on the CPU and on a device, and prints what differs.

    ``about`` is the sentence of the first comment, and ``package`` what has to be imported for the device. With
    ``profiled``, the profile of the device's call is printed. Raises Unwritable if the call has no short text.
    """
    text = _surrounded(failure.call, failure.info, _Text(failure.call, failure.info).text())
    head = textwrap.fill(" ".join(about.split())[:600], _WIDTH, initial_indent="# ", subsequent_indent="# ")
    imports = ["from math import inf, nan", ""] if "inf" in text or "nan" in text else []
    imports += ["import base64, zlib"] if "zlib" in text else []
    imports += ["from concurrent.futures import ThreadPoolExecutor"] if Around.THREAD in failure.call.around else []
    imports += ["import torch", *([f"import {package}"] if package else [])]
    end = _PROFILED if profiled else _COMPARED
    signs = _SIGNS if failure.aspect is Aspect.BITS else ""
    ended = end.format(device=device, near=_near(failure), signs=signs)
    found = "\n".join([head, *imports, "", text, ended])
    if len(found) > _LONGEST:
        raise Unwritable(f"its inputs need {len(found):,} characters")
    return found


def _near(failure: Failure) -> str:
    """Return how near two tensors ``due`` and ``got`` must be, as keywords of torch.testing.assert_close.

    Only what has failed is compared closely: other roundings are no failure.
    """
    if failure.aspect is Aspect.BITS:
        return "rtol=0, atol=0"
    if failure.aspect is Aspect.LOST:
        return "rtol=0.5, atol=0"
    if failure.aspect is Aspect.NUMBERS and math.isfinite(failure.allowed):
        return f"rtol=0, atol={failure.allowed}"
    strides = ", check_stride=True" if failure.aspect is Aspect.STRIDES else ""
    return f"rtol=1e-2, atol=1e-2 * size(due){strides}"


def _surrounded(call: Call, info: Any, text: str) -> str:
    """Return the text of a call, with what is made before it and around it."""
    if not (call.around or call.before) or "def run(device):" not in text:
        return text
    before = [_Text(other, info).text() for other in call.before]
    before = [each for each in before if "def run(device):" in each]
    functions = [each.replace("def run(", f"def before_{order}(") for order, each in enumerate(before)]
    run = _AROUND.format(
        before="".join(f"before_{order}, " for order in range(len(functions))),
        gradients=Around.NO_GRAD not in call.around,
        asked='device != "cpu"' if Around.DETERMINISTIC in call.around else "False",
        made="ThreadPoolExecutor(1).submit(work).result()" if Around.THREAD in call.around else "work()",
    )
    return "\n\n".join([*functions, text.replace("def run(", "def call("), run])


class _Text:
    """Text of the function that makes the call on a device. Tensors become variables."""

    def __init__(self, call: Call, info: Any) -> None:
        self._call, self._info = call, info
        self._names: dict[int, str] = {}
        self._memory: dict[int, str] = {}
        self._lines: list[str] = []
        self._stay = {id(call.tensors[position]) for position in call.on_host}

    def text(self) -> str:
        """Return the text of the function that makes the call, and of the one that makes its cotangents."""
        call = self._call
        arguments = [self._expression(value) for value in (call.input, *call.args)]
        named = {**call.kwargs, **call.extra}
        arguments += [f"{name}={self._expression(value)}" for name, value in named.items()]
        called = self._called(arguments)
        derived = call.backward is not None
        if not derived and _draws(call, self._info):
            return self._drawing(called)
        body = [*self._lines, f"torch.manual_seed({call.seed})"]
        if derived:
            made = len(self._lines)
            body += self._derivative(call.backward, called)
            body[:0] = self._lines[made:]  # tensors of the derivative
        else:
            body += [f"result = {called}", f"return {self._seen()}"]
        needs = [_COTANGENTS] if "cotangents(" in "\n".join(body) else []
        needs += [_JOINED] if isinstance(call.function, Joined) else []
        needs += [call.function.definition] if isinstance(call.function, Statement) else []
        return "\n\n".join([*needs, "def run(device):\n" + textwrap.indent("\n".join(body), "    ") + "\n"])

    def _seen(self) -> str:
        """Return the expression of what the script compares: the result, and all memory that the call may write."""
        seen = {"result": "result"}
        seen |= {f"memory of {names}": names for names in dict.fromkeys(self._memory.values())}
        tensors = [name for name in self._names.values() if name.startswith("t")]
        seen |= {f"{name} after the call": name for name in tensors}
        seen["result in the memory of an input"] = f"shared(result, [{', '.join(tensors)}])"
        return "{" + ", ".join(f"{name!r}: {value}" for name, value in seen.items()) + "}"

    def _drawing(self, called: str) -> str:
        """Return the function for a call that draws random numbers: the same seed twice, and statistics of many."""
        body = [*self._lines, f"return {called}"]
        return "def draw(device):\n" + textwrap.indent("\n".join(body), "    ") + "\n\n" + _DRAWN

    def _called(self, arguments: list[str]) -> str:
        """Return the text of the call with the texts of its arguments."""
        function = self._call.function or self._info.op
        if isinstance(function, OnCopy):
            first, *others = arguments
            return f"{self._function(function.function)}({', '.join([f'{first}.clone()', *others])})"
        if isinstance(function, Statement):
            return f"statement({', '.join(arguments)})"
        if isinstance(function, Joined):
            if not isinstance(function.backend, str):
                raise Unwritable("the backend of torch.compile has no name")
            self._lines.append(f"joined = between({self._function(function.function)}, {function.backend!r})")
            return f"joined({', '.join(arguments)})"
        overload, place = getattr(function, "overload", None), getattr(function, "place", "")
        if overload is not None:  # the sibling of a kernel that writes to an output of this name
            arguments = [f"{place}{text[3:]}" if text.startswith("out=") else text for text in arguments]
            function = overload
        return f"{self._function(function)}({', '.join(arguments)})"

    def _function(self, function: Any) -> str:
        """Return the expression that names a function in torch; of PyTorch's tests, if only these have it."""
        full_name = str(getattr(self._info, "full_name", ""))
        names = (torch.overrides.resolve_name(function), f"torch.{full_name}", f"torch.ops.{function}")
        for name in filter(None, names):
            try:
                found = eval(name, {"torch": torch})  # the names are torch's own
            except (AttributeError, SyntaxError, RuntimeError, NameError):
                continue
            if found is function:
                return str(name)
        for attribute in ("op", "inplace_variant"):
            if function == getattr(self._info, attribute, None):
                self._lines.append(f"# {full_name} is a function of PyTorch's own tests.")
                self._lines.append("from torch.testing._internal.common_methods_invocations import op_db")
                self._lines.append(f"info = next(info for info in op_db if info.full_name == {full_name!r})")
                return f"info.{attribute}"
        raise Unwritable(f"{function} has no name in torch")

    # --- derivatives --------------------------------------------------------------------------------------------------

    def _derivative(self, kind: Pass, called: str) -> Iterator[str]:
        """Yield the lines that compute a backward pass or a further derivative of a call, and return their results."""
        trained = [t for t in {id(t): t for t in self._call.tensors}.values() if t.requires_grad]
        inputs = ", ".join(self._expression(tensor) for tensor in trained)
        if kind.of == "forward_mode":
            yield from _forward_mode(called, inputs, self._call.seed)
            return
        if kind.of == "vmap":
            first = self._expression(self._call.input)
            yield f"batch = torch.stack(({first}, {first}.flip(0) if {first}.dim() else {first})).detach()"
            yield f"return {{'result': torch.func.vmap(lambda {first}: {called})(batch)}}"
            return
        yield f"result = {called}"
        if self._call.process is with_positive_diagonal:
            yield "# The signs of the factors are open; the suite compares what is determined of them."
        yield "outputs = [leaf for leaf in leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]"
        yield f"inputs = [{inputs}]"
        given = f"cotangents(outputs, {self._call.seed})"
        if kind.of == "gradients" and kind != Pass():
            given = f"[{', '.join(self._arranged(kind))}]"
        if kind.of == "second_order":
            yield f"given = [cotangent.requires_grad_() for cotangent in {given}]"
            yield "first = torch.autograd.grad(outputs, inputs, given, allow_unused=True, create_graph=True)"
            yield "kept = [gradient for gradient in first if gradient is not None and gradient.requires_grad]"
            second = f"cotangents(kept, {self._call.seed + 1})"
            yield f"return {{'second': torch.autograd.grad(kept, [*inputs, *given], {second}, allow_unused=True)}}"
            return
        yield f"given = {given}"
        if kind.of == "gradients_twice":
            again = "torch.autograd.grad(outputs, inputs, given, allow_unused=True, retain_graph=True)"
            yield f"return {{'first': {again}, 'second': {again}}}"
            return
        yield "gradients = torch.autograd.grad(outputs, inputs, given, allow_unused=True)"
        yield "return {'result': result, 'gradients': gradients, 'cotangents after the backward': given}"

    def _arranged(self, kind: Pass) -> list[str]:
        """Return the names of the cotangents in their arrangement, as the host's backward gets them."""
        given: list[torch.Tensor] = []

        def keep(outputs: Any, inputs: Any, cotangents: list[torch.Tensor]) -> list[Any]:
            given.extend(cotangents)
            return []

        from conformance.suites.operators.calls.execution import call

        kind.run(self._info, call, keep, self._call.on(torch.device("cpu")), self._call.seed)
        return [self._expression(cotangent) for cotangent in given]

    # --- values -------------------------------------------------------------------------------------------------------

    def _expression(self, value: Any) -> str:
        """Return the text of an argument. Raises Unwritable if it has none."""
        if isinstance(value, torch.Tensor):
            return self._variable(value)
        if isinstance(value, torch.Size):
            return f"torch.Size({list(value)})"
        if isinstance(value, list | tuple | dict):
            return self._collection(value)
        if isinstance(value, torch.device) or value == "cpu":
            return "device"
        if isinstance(value, torch.Generator):
            return f"torch.Generator(device).manual_seed({value.initial_seed()})"
        if isinstance(value, _LITERALS):
            return repr(value)
        if isinstance(value, type) and value.__module__ == "builtins":
            return value.__name__
        raise Unwritable(f"an argument is a {type(value).__name__}")

    def _collection(self, value: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> str:
        """Return the text of a list, tuple or dictionary."""
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key!r}: {self._expression(item)}" for key, item in value.items()) + "}"
        items = ", ".join(map(self._expression, value))
        if isinstance(value, list):
            return f"[{items}]"
        return f"({items}{',' if len(value) == 1 else ''})"

    def _variable(self, tensor: torch.Tensor) -> str:
        """Return the name of the variable for a tensor; the first time, its definition is added to the lines."""
        known = self._names.get(id(tensor))
        if known is None:
            known = self._names[id(tensor)] = f"t{len(self._names)}"
            self._line(f"{known} = {self._made(tensor)}{'.requires_grad_()' if tensor.requires_grad else ''}")
        return known

    def _made(self, tensor: torch.Tensor) -> str:
        """Return the expression that makes a tensor on the device; memory that it shares gets a line of its own first.

        Raises Unwritable for a layout that has no such expression.
        """
        move = "" if id(tensor) in self._stay else ".to(device)"
        source = tensor.detach()
        if source.layout is torch.sparse_coo:
            parts = f"{_numbers(source._indices())}, {_numbers(source._values())}"
            is_coalesced = source.is_coalesced()
            return f"torch.sparse_coo_tensor({parts}, {tuple(source.shape)}, is_coalesced={is_coalesced}){move}"
        if source.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = f"{_numbers(source.crow_indices())}, {_numbers(source.col_indices())}, {_numbers(source.values())}"
            return f"torch.sparse_compressed_tensor({parts}, {tuple(source.shape)}, layout={source.layout}){move}"
        if source.layout is not torch.strided or source.is_quantized:
            raise Unwritable(f"an argument has the layout {source.layout}")
        if source.is_conj():
            return f"{self._made_lazy(source.conj(), tensor)}.conj()"
        if source.is_neg():
            return f"torch._neg_view({self._made_lazy(torch._neg_view(source), tensor)})"
        address, whole = storage_address(source), memory_behind(source)
        if address in self._memory or not _is_plain(source, whole):
            name = self._memory.setdefault(address or -id(tensor), f"m{len(self._memory)}")
            if not any(line.startswith(f"{name} = ") for line in self._lines):
                self._line(f"{name} = {_numbers(whole)}{move}")
            return f"{name}.as_strided({tuple(source.shape)}, {source.stride()}, {source.storage_offset()}).detach()"
        return f"{_numbers(source)}{move}"

    def _made_lazy(self, source: torch.Tensor, tensor: torch.Tensor) -> str:
        """Return the text of the tensor behind a lazy bit; it stays on the host if the tensor with the bit does."""
        if id(tensor) in self._stay:
            self._stay.add(id(source))
        return self._made(source)

    def _line(self, text: str) -> None:
        """Add a line to the text, broken at the width of a page."""
        if "b85decode" not in text:  # a compressed text has no place to break
            text = textwrap.fill(text, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        self._lines.append(text)


def _forward_mode(called: str, inputs: str, seed: int) -> Iterator[str]:
    """Yield the lines that compute the tangents of a call in forward mode."""
    yield "from torch.autograd import forward_ad"
    yield f"inputs = [{inputs}]"
    yield "with forward_ad.dual_level():"
    yield f"    tangents = cotangents(inputs, {seed})"
    yield f"    {inputs}, = map(forward_ad.make_dual, [each.detach() for each in inputs], tangents)"
    yield f"    result = leaves({called})"
    yield "    return {'tangents': [forward_ad.unpack_dual(leaf).tangent for leaf in result]}"


def _is_plain(source: torch.Tensor, whole: torch.Tensor) -> bool:
    """Return whether a tensor is contiguous, and its memory has no other element."""
    return source.is_contiguous() and source.storage_offset() == 0 and whole.numel() == source.numel()


def _draws(call: Call, info: Any) -> bool:
    """Return whether the call draws random numbers on the host."""
    made = host_call(info.op, call.into("", None))
    return made.error is None and made.draws


def _numbers(tensor: torch.Tensor) -> str:
    """Return an expression with the bits of a contiguous tensor."""
    dense = tensor.detach().contiguous()
    shape = "" if dense.dim() == 1 else f".reshape({tuple(dense.shape)})"
    if dense.numel() > _READABLE:
        data = dense.reshape(-1).view(torch.uint8).numpy().tobytes()
        text = base64.b85encode(zlib.compress(data, 9)).decode()
        raw = f"bytearray(zlib.decompress(base64.b85decode({text!r})))"
        return f"torch.frombuffer({raw}, dtype={dense.dtype}){shape}"
    if dense.is_complex():
        parts = torch.view_as_real(dense)
        real, imaginary = (_texts(parts[..., part].reshape(-1)) for part in (0, 1))
        kind = parts.dtype
        made = f"torch.complex(torch.tensor([{real}], dtype={kind}), torch.tensor([{imaginary}], dtype={kind}))"
        return f"{made}{shape}"
    if dense.dtype is torch.bool and has_other_bytes(dense):
        values = _texts(dense.reshape(-1).view(torch.uint8))
        return f"torch.tensor([{values}], dtype=torch.uint8).view(torch.bool){shape}"
    return f"torch.tensor([{_texts(dense.reshape(-1))}], dtype={dense.dtype}){shape}"


def _texts(vector: torch.Tensor) -> str:
    """Return the numbers of a vector as text, separated by commas; each reads back as the same number of its dtype."""
    if vector.is_floating_point():
        # The shortest text that gives the same number again in this dtype.
        exact = vector.float() if vector.dtype is not torch.float64 else vector
        return ", ".join(str(number) for number in exact.numpy())
    return ", ".join(str(number) for number in vector.tolist())


_COTANGENTS = """def cotangents(outputs, seed):
    generator, drawn = torch.Generator().manual_seed(seed), []
    for output in outputs:
        parts = [torch.randn(output.shape, generator=generator).bfloat16().float() for _ in range(2)]
        numbers = torch.complex(*parts) if output.is_complex() else parts[0]
        drawn.append(numbers.to(output.dtype).to(output.device))
    return drawn
"""
#: ``joined.Joined`` of a function. The first run of a script is the CPU's, without a compiler.
_JOINED = f"""TURNED = {TURNED}


def mapped(value, change):
    if isinstance(value, (tuple, list)):
        return [mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {{key: mapped(item, change) for key, item in value.items()}}
    return change(value) if isinstance(value, torch.Tensor) else value


def between(function, backend):
    def joined(*args, one, **kwargs):
        product = lambda t: t * one if t.dtype == one.dtype else t
        turned = lambda t: t.flip(-1) if t.dim() and t.dtype in TURNED else t
        return mapped(function(*mapped(args, product), **mapped(kwargs, product)), turned)

    return torch.compile(joined, backend=backend) if found else joined
"""
_DRAWN = """def run(device):
    draws = []
    for seed in (0, *range(40)):
        torch.manual_seed(seed)
        draws.append([leaf.cpu() for leaf in leaves(draw(device)) if isinstance(leaf, torch.Tensor)])
    numbers = [torch.view_as_real(d[0]) if d[0].is_complex() else d[0] for d in draws[1:]]
    numbers = torch.stack([n.double().nan_to_num(0, 0, 0).reshape(-1) for n in numbers])
    kinds = (numbers == 0).double(), numbers, numbers**2, numbers.atan()
    return {
        "the same seed repeats": all(map(torch.equal, draws[0], draws[1])),
        "the draws": len({tuple(row) for row in numbers.tolist()}) > 1,
        "zeros, mean, square, atan": torch.stack([kind.mean(1) for kind in kinds]),
    }
"""
_HELPERS = """def leaves(value):
    return [x for v in value for x in leaves(v)] if isinstance(value, (list, tuple)) else [value]


def shared(result, inputs):
    def address(t):
        try:
            return t.untyped_storage().data_ptr() if t.layout == torch.strided and t.numel() else None
        except RuntimeError:  # tensors of this device have no address
            return None
    tensors = [t for t in leaves(result) if isinstance(t, torch.Tensor)]
    return [[address(t) == address(i) is not None for i in inputs] for t in tensors]


"""
#: What is made before a call and around it. The host computes as usual.
_AROUND = """def run(device):
    def work():
        torch.set_num_threads(1)
        with torch.set_grad_enabled({gradients}):
            for before in ({before}):
                try:
                    before(device)
                except Exception:
                    pass
            return call(device)

    torch.use_deterministic_algorithms({asked})
    try:
        return {made}
    finally:
        torch.use_deterministic_algorithms(False)
"""
_COMPARED = (
    _HELPERS
    + """def size(tensor):
    numbers = tensor.detach().to(torch.complex128).abs().nan_to_num(0, 0, 0)
    return float(numbers.max()) if numbers.numel() else 0.0


def differs(due, got):
    if not (isinstance(due, torch.Tensor) and isinstance(got, torch.Tensor)):
        return "" if due == got else f"{{got}}, on the CPU {{due}}"
    if due.dtype == torch.float64 and due.dim() == 2 and due.shape == (4, 40):  # statistics of 40 draws
        error = ((due.var(1) + got.var(1)) / 40).sqrt()
        far = (due - got).mean(1).abs() > 6 * error + 1e-6
        return f"{{got.mean(1)}}, on the CPU {{due.mean(1)}}" if far.any() else ""
    try:
        torch.testing.assert_close(got.detach().cpu(), due.detach(), equal_nan=True, {near}){signs}
    except AssertionError as error:
        return f"{{error}}\\n{{got.detach().cpu()}}\\non the CPU:\\n{{due}}"  # a device need not print its tensors
    return ""


found = []
for device in ("cpu", {device!r}):
    try:
        found.append(run(device))
    except Exception as error:
        print(f"{{device}} refuses: {{type(error).__name__}}: {{error}}")
        found.append({{"refused": True}})
for name in found[0].keys() | found[1].keys():
    due, got = (leaves(each.get(name, "nothing")) for each in found)
    for i, pair in enumerate(zip(due, got) if len(due) == len(got) else [(due, got)]):
        if text := differs(*pair):
            print(f"DIFFERENT: {{name}} {{i}}: {{text}}")
"""
)
_SIGNS = """
        zeros = [t.signbit() & (t == 0) for t in (due, got.cpu()) if t.is_floating_point()]
        assert not zeros or torch.equal(*zeros), "zeros have other signs"
"""[:-1]
_PROFILED = (
    _HELPERS
    + """with torch.profiler.profile(record_shapes=True) as profile:
    run({device!r})
print(profile.key_averages(group_by_input_shape=True).table(sort_by="cpu_time_total"))
"""
)
