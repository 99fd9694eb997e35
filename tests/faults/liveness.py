"""Direct calls that show a fault's effect outside the suite: the same call on a healthy and on a broken device.

The calls are those of torch's own databases, changed so that the fault's condition is met: larger, with other layouts,
with arguments that are not their defaults. They run in a copy of the process: a wrong kernel may destroy memory.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from conformance.coverage import backward, databases
from conformance.suites.operators.calls.facts import facts
from tests.defects import bench

from . import corpus, derivatives, encoding, forks, further_calls, refusals
from .fault import Fault, Hits
from .outputs import other_values
from .overloads import kernel_behind, operator_of, overload, schema
from .overloads import kind_of as kind_name
from .overriding import overridden
from .population import kind_of
from .recording import Map, call, key_of
from .values import alike, alternatives, few_values, filled, is_tensors, over_tensors, spread, with_specials

#: Pairs of calls with unlike values of an argument that say that a kernel does not read it.
_ENOUGH = 2
#: Seconds of processor time for all direct calls of one fault.
_SECONDS = 6.0


@dataclass(frozen=True)
class Shown:
    """Whether a direct call showed an effect, the call, and the number of calls that met the fault's condition.

    ``impossible`` says why no legal call can show one. ``calls`` counts the direct calls that have begun.
    """

    live: bool
    by: str = ""
    hits: int = 0
    impossible: str = ""
    calls: int = 0


def armed(fault: Fault, hit: Hits, device: torch.device) -> AbstractContextManager[Any]:
    """Break the device with a fault inside the context."""
    kind = kind_of(fault)
    if kind is None:
        return backward.hooked(derivatives.breaking(fault, hit), only=fault.target)
    return overridden({fault.target: kind.behave(fault, hit)}, key_of(device))


def show(fault: Fault, found: Map, known: corpus.Corpus, accelerator: str, send: forks.Send, after: int = 0) -> None:
    """Send a ``Shown`` for a fault before each direct call ``after`` the first ones, and the last one at the end."""
    forks.limit(_SECONDS * 2)
    device = str(bench.Bench(accelerator=accelerator).device)
    hits = Hits()
    deadline = time.process_time() + _SECONDS
    for never, said in ((_lacks_the_axis, _NO_AXIS), (_never_have_one_shape, _NO_SHAPE)):
        if never(fault, known):
            send(Shown(False, impossible=said))
            return
    works = _backward(fault, known, device) if fault.family == "F" else _forward(fault, found, known, device)
    signs = fault.family == "F" or zeros_have_signs(fault.target, found)
    for number, (name, work) in enumerate(works):
        if time.process_time() > deadline:
            break
        if number < after:
            continue
        begun = Shown(False, "", hits.count, calls=number + 1)
        send(begun)
        # A process that ends on the broken device, and not on the healthy one before, shows the fault.
        if _differs(
            fault, hits, work, device, signs=signs, broken=functools.partial(send, replace(begun, live=True, by=name))
        ):
            send(Shown(True, name, hits.count))
            return
        send(begun)
    send(Shown(False, "", hits.count, _no_effect(fault, hits, found, known, device, signs=signs)))


_NO_AXIS = "no call gives this tensor such an axis, where others have it"
_NO_SHAPE = "the two tensors have other numbers of dimensions in every call"
#: Wrong calls that reach a kernel, from which on one that refuses none has nothing to refuse.
_MANY = 20


def _no_effect(fault: Fault, hits: Hits, found: Map, known: corpus.Corpus, device: str, *, signs: bool) -> str:
    """Return why no direct call can have shown an effect of a fault; "" if nothing says so."""
    if fault.kind == "swallowed" and not (hits.count or hits.refused) and hits.computed >= _MANY:
        return "the kernel computes all wrong calls that reach it"
    if not hits.count:
        return "PyTorch's CPU refuses every call that meets the condition" if _is_refused(fault, found, known) else ""
    if fault.kind.startswith("negative zero") and not signs:
        return "nothing says which sign a zero of this kernel has, and nothing else depends on it"
    if fault.kind.startswith("int through") and _is_of_floats(fault, found, known):
        return "the kernel itself computes integers in floating point"
    if hits.unsound >= _ENOUGH:
        return "PyTorch's CPU itself takes this argument for contiguous"
    return "" if _reads(fault, found, known, device) else "the kernel does not read the values of this argument"


def _is_of_floats(fault: Fault, found: Map, known: corpus.Corpus) -> bool:
    """Return whether the results for integers are numbers of floating point in every known call."""
    argument, made = schema(fault.target).arguments[int(fault.place)].name, []
    for name in (*found.public.get(fault.target, ())[:6], fault.target):
        for values in itertools.islice(_known_values(name, known), _TRIED):
            given = list(databases.tensors_of(values.get(argument)))
            if given and not any(tensor.is_floating_point() for tensor in given):
                with contextlib.suppress(Exception):
                    made += databases.tensors_of(_result(overload(name), list(values.values()), "cpu")())
    return bool(made) and all(tensor.is_floating_point() for tensor in made)


#: Parts of the names of kinds that change the values that a kernel reads of one argument.
_OF_VALUES = (
    "strides", "offset", "expansion", "input cut", "NaN", "infinity", "subnormals", "bfloat16", "float32"
)  # fmt: skip


def _reads(fault: Fault, found: Map, known: corpus.Corpus, device: str) -> bool:
    """Return whether a result depends on the values of a fault's argument, or whether nothing says so.

    The backward of a maximum takes its input for the shape alone: whatever is misread there, no call can show it.
    """
    if not fault.kind.startswith((*_OF_VALUES, "neighbour")):
        return True
    argument, compared = schema(fault.target).arguments[int(fault.place)].name, 0
    for name in (*found.public.get(fault.target, ())[:6], fault.target):
        function = overload(name)
        for values in _known_values(name, known):
            if not is_tensors(values.get(argument)):
                continue
            other = {**values, argument: over_tensors(values[argument], other_values)}
            works = [_result(function, list(each.values()), device) for each in (values, other)]
            (one, error), (two, other_error) = (_outcome(work, device) for work in works)
            if error or other_error:
                continue
            compared += 1
            if not same(one, two):
                return True
    return compared < _ENOUGH


#: Words of kinds that spoil a part of a result that has several elements, or several rows.
_OF_AXES = frozenset(("row", "last", "block", "sparse", "tail"))


def _never_have_one_shape(fault: Fault, known: corpus.Corpus) -> bool:
    """Return whether the two tensors that a fault mixes up have unlike numbers of dimensions in every known call."""
    if fault.kind != "neighbour":
        return False
    pairs = [
        [next(iter(databases.tensors_of(list(values.values())[int(at)])), None) for at in (fault.place, fault.detail)]
        for values in itertools.islice(_known_values(fault.target, known), _TRIED)
    ]
    dims = [(one.dim(), other.dim()) for one, other in pairs if one is not None and other is not None]
    return len(dims) >= _ENOUGH and all(one != other for one, other in dims)


def _lacks_the_axis(fault: Fault, known: corpus.Corpus) -> bool:
    """Return whether a tensor has no axis such as a fault needs in any known call, while another one of the call has.

    The weight of a batch norm is a vector. Its kernel checks none, and computes something for a matrix too.
    """
    word = fault.kind.partition(",")[0]
    if fault.family != "L" and word not in _OF_AXES:
        return False
    least, compared = 2 if word == "row" or fault.detail.startswith("second") else 1, 0
    for values in itertools.islice(_known_values(fault.target, known), _TRIED):
        given = [tensor for value in values.values() for tensor in databases.tensors_of(value) if tensor.numel()]
        found: list[torch.Tensor] = []
        if fault.place.isdigit():
            found = list(databases.tensors_of(list(values.values())[int(fault.place)]))
        else:
            with contextlib.suppress(Exception):
                made = _result(overload(fault.target), list(values.values()), "cpu")()
                found = list(databases.tensors_of(made))[int(fault.place[1:]) :][:1]
        if any(tensor.dim() >= least and tensor.numel() for tensor in found):
            return False
        compared += bool(found) and any(tensor.dim() >= least for tensor in given)
    return compared >= _ENOUGH


class _Stub:
    """A call of a kernel that returns nothing: whether its values meet the condition of a fault is all that it says."""

    def __init__(self, fault: Fault, values: dict[str, Any]) -> None:
        self.arguments, self.schema = list(schema(fault.target).arguments), schema(fault.target)
        self.name, self.values = fault.target, list(values.values())

    def run(self, values: Any = None) -> None:
        """Compute nothing."""


def _is_refused(fault: Fault, found: Map, known: corpus.Corpus) -> bool:
    """Return whether several direct calls of the kernel meet the condition of a fault, and the host refuses them all.

    That an operand has no dimensions and another one has gaps, for example, no ``index_select`` takes.
    """
    kind = kind_of(fault)
    if kind is None or not fault.kind.startswith((*_OF_VALUES, "default")):
        return False
    hits, refused, function = Hits(), 0, overload(fault.target)
    for values in _known_values(fault.target, known):
        for given in itertools.islice(_safely(kind.variants(fault, values)), _TRIED):
            before = hits.count
            with contextlib.suppress(Exception):
                kind.behave(fault, hits)(_Stub(fault, given))  # type: ignore[arg-type]
            if hits.count == before:
                continue
            if not _host_refuses(function, given):
                return False
            refused += 1
    return refused >= _ENOUGH


def _result(function: Any, values: list[Any], device: str) -> Callable[[], Any]:
    return lambda: call(function, [_placed(value, device) for value in values])


def zeros_have_signs(kernel: str, found: Map) -> bool:
    """Return whether a zero with the other sign is another result.

    It is one where a standard defines the sign (``signed_zeros`` in ``facts.toml``), and where a kernel moves bits. By
    the suite's own rule, a kernel that also takes booleans and complex numbers may do so. Elsewhere, as in a pooling
    over two zeros or in a solver, nothing says which zero is right, and no test could.
    """
    operator = operator_of(kernel).partition("::")[2].removeprefix("_foreach_")
    taken = {flag for flags in found.flags.get(kernel, {}).values() for flag in flags}
    return facts(operator).signed_zeros or {"bool", "complex64"} <= taken


def _differs(
    fault: Fault, hits: Hits, work: Callable[[], Any], device: str, *, signs: bool, broken: Callable[[], None]
) -> bool:
    right, error = _outcome(work, device)
    if error and fault.family != "G":
        return False  # what the healthy device refuses says nothing
    before = hits.count
    broken()
    with armed(fault, hits, torch.device(device)):
        wrong, other_error = _outcome(work, device)
    if hits.count == before:
        return False
    if bool(error) != bool(other_error):
        return True
    if error or same(right, wrong, signs=signs):
        return False
    if fault.kind.startswith(_OF_LAYOUTS) and not _is_sound(work, right, device):
        hits.unsound += 1
        return False
    # A call that gives other results on the healthy device as well shows nothing.
    return same(right, _outcome(work, device)[0], signs=signs)


#: Parts of the names of kinds that misread a layout.
_OF_LAYOUTS = ("strides", "offset", "expansion")


def _is_sound(work: Callable[[], Any], right: Any, device: str) -> bool:
    """Return whether a call has near the same result for contiguous tensors with the same values, as far as is known.

    Some kernels of PyTorch's CPU take what they get for contiguous, because PyTorch itself gives them nothing else.
    """
    if (usual := getattr(work, "contiguous", None)) is None:
        return True
    due, error = _outcome(usual, device)
    pairs = zip(databases.tensors_of(right[0]), databases.tensors_of(due[0] if due else ()), strict=False)
    return bool(error) or all(one.shape == other.shape and _is_near(one.cpu(), other.cpu()) for one, other in pairs)


def _is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    wide = torch.complex128 if one.is_complex() else torch.float64
    return torch.allclose(one.to(wide), other.to(wide), 1e-2, 1e-3, equal_nan=True)


def _outcome(work: Callable[[], Any], device: str) -> tuple[Any, str]:
    torch.manual_seed(7)
    torch.get_device_module(torch.device(device).type).manual_seed_all(7)
    try:
        return work(), ""
    except Exception as error:
        return None, type(error).__name__


def same(one: Any, other: Any, *, signs: bool = True) -> bool:
    """Return whether two results have the same values, bit for bit, and the same metadata.

    Without ``signs``, zeros of both signs are the same.
    """
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        facts = [(t.shape, t.dtype, t.device, t.stride() if t.numel() > 1 else ()) for t in (one, other)]
        return facts[0] == facts[1] and _bits(one, signs=signs) == _bits(other, signs=signs)
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        # An undefined gradient stands for zeros.
        there = one if isinstance(one, torch.Tensor) else other
        return (one is None or other is None) and not there.any().item()
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(same(a, b, signs=signs) for a, b in zip(one, other, strict=True))
    return bool(one == other) or (one != one and other != other)


def _bits(tensor: torch.Tensor, *, signs: bool) -> bytes:
    host = tensor.detach().cpu().resolve_conj().resolve_neg()
    # A copy into new memory: contiguous() keeps odd strides of dimensions with one element.
    host = torch.empty(host.numel(), dtype=host.dtype).copy_(host.reshape(-1))
    # One NaN is as good as another.
    if host.is_floating_point() and host.itemsize > 1:
        host = host.nan_to_num(nan=123.0, posinf=float("inf"), neginf=float("-inf"))
        host = host if signs else host + 0.0
    return host.view(torch.uint8).numpy().tobytes() if host.numel() else b""


# --- kernels ----------------------------------------------------------------------------------------------------------


def _forward(fault: Fault, found: Map, known: corpus.Corpus, device: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    kind = kind_of(fault)
    assert kind is not None
    # First the calls whose own kernel it is.
    public = sorted(found.public.get(fault.target, ()), key=lambda name: kernel_behind(name) != fault.target)
    names = list(dict.fromkeys([*public[:6], fault.target]))
    if fault.family in "NO":
        yield from _sequences(fault, names, known, device)
        return
    for change in (_as_known, _varied, _with_few_values, _with_equal_tensors, _with_special_values, _set):
        for name in names:
            function = overload(name)
            for values in _known_values(name, known):
                for given in change(name, values, lambda values: _safely(kind.variants(fault, values))):
                    yield name, _on_device(function, list(given.values()), device)


#: What changes the values of a call so that the condition of a fault is met.
Vary = Callable[[dict[str, Any]], Iterator[dict[str, Any]]]


def _as_known(name: str, values: dict[str, Any], vary: Vary) -> Iterator[dict[str, Any]]:
    yield values


def _varied(name: str, values: dict[str, Any], vary: Vary) -> Iterator[dict[str, Any]]:
    return vary(values)


def _with_few_values(name: str, values: dict[str, Any], vary: Vary) -> Iterator[dict[str, Any]]:
    """Yield the values so that some are equal: a comparison of unlike numbers gives one result, whatever is read."""
    few = few_values(values)
    for given in itertools.chain([few], itertools.islice(vary(few), 12)):
        yield few_values(given)


def _with_equal_tensors(name: str, values: dict[str, Any], vary: Vary) -> Iterator[dict[str, Any]]:
    """Yield the values with equal tensors: most comparisons are false for unlike ones, whatever is read."""
    for given in itertools.chain([values], itertools.islice(vary(values), 12)):
        yield alike(given)


def _with_special_values(name: str, values: dict[str, Any], vary: Vary) -> Iterator[dict[str, Any]]:
    """Yield the values with NaN, infinities and a negative zero, which some arguments are about."""
    for given in itertools.chain([values], itertools.islice(vary(values), 12)):
        yield with_specials(given)


def _set(name: str, values: dict[str, Any], vary: Vary) -> Iterator[dict[str, Any]]:
    """Yield the values with other settings."""
    for set_ in _with_settings(name, values):
        yield from itertools.chain([set_], itertools.islice(vary(set_), 12))


#: Arguments that have one value in every legal call: with another one, the CPU's kernel reads no memory of its own.
_FIXED = {
    "aten::_native_batch_norm_legit.no_stats": {"training": True},
    "aten::_native_batch_norm_legit.no_stats_out": {"training": True},
}


def _with_settings(name: str, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the values with another value of each argument that is no tensor, such as the reduction of a loss."""
    for argument in overload(name)._schema.arguments:
        is_free = argument.name in values and argument.name not in _FIXED.get(name, ())
        if "Tensor" not in kind_name(argument) and is_free:
            for other in itertools.islice(alternatives(values[argument.name], kind_name(argument)), 2):
                yield {**values, argument.name: other}


#: Overloads that the databases do not call, and those with the same arguments and perhaps more.
_LIKE = {"aten::_reshape_alias": "aten::as_strided"}


def _known_values(name: str, known: corpus.Corpus) -> Iterator[dict[str, Any]]:
    """Yield values of an overload that the databases call, or those of another form of its operator."""
    arguments = overload(name)._schema.arguments
    names = [argument.name for argument in arguments]
    optional = [argument.name for argument in arguments if kind_name(argument) == "Optional[Tensor]"]
    like = _calls_of(name, known) or [each[: len(names)] for each in known.calls.get(_LIKE.get(name, ""), ())]
    every = [dict(zip(names, encoding.decode(encoded), strict=True)) for encoded in like]
    if not every or any(argument.is_out for argument in arguments):  # an output of the databases may be empty
        every += itertools.islice(_values_of_other_forms(name, known), 8)
    every = [{**values, **_FIXED.get(name, {})} for values in every]
    yield from every
    for values in every[:3]:
        yield from filled(values, optional)
    given = [argument.name for argument in arguments if not argument.is_out]
    if not any(tensor.dim() for values in every for key in given for tensor in databases.tensors_of(values[key])):
        yield from itertools.chain.from_iterable(spread(values, 12) for values in every[:1])


def _calls_of(name: str, known: corpus.Corpus) -> list[list[Any]]:
    """Return the encoded values of the calls of an overload that the databases make, and of further ones."""
    return [*known.calls.get(name, ()), *map(encoding.encode, further_calls.of(name))]


def _values_of_other_forms(name: str, known: corpus.Corpus) -> Iterator[dict[str, Any]]:
    """Yield values from calls of the other forms of an operator, with outputs that have the results' shapes."""
    arguments = overload(name)._schema.arguments
    outs = [argument.name for argument in arguments if argument.is_out]
    every = {*known.calls, *further_calls.NAMES}
    for form in sorted(other for other in every if operator_of(other) == operator_of(name)):
        names = [argument.name for argument in overload(form)._schema.arguments]
        for encoded in reversed(_calls_of(form, known)) if form in further_calls.NAMES else known.calls[form]:
            given = dict(zip(names, encoding.decode(encoded), strict=True))
            first = next(iter(databases.tensors_of(list(given.values()))), None)
            values = {}
            for place, argument in enumerate(argument for argument in arguments if not argument.is_out):
                value = given.get(argument.name, argument.default_value)
                # ``isin`` has "elements" or "element" in one place, ``scatter`` a "src" or a "value".
                if argument.name not in given and not argument.has_default_value():
                    value = first.dtype if argument.name == "dtype" and first is not None else _at(given, place)
                values[argument.name] = _as_taken(value, kind_name(argument), first)
            if not outs:
                yield values
                continue
            with contextlib.suppress(Exception):
                results = databases.tensors_of(
                    call(overload(form), [_placed(value, "cpu") for value in given.values()])
                )
                empty = [torch.zeros_like(result) for result in results]
                is_list = kind_name(arguments[-1]) == "List[Tensor]"
                yield {**values, **({outs[0]: empty} if is_list else dict(zip(outs, empty, strict=False)))}


def _at(values: dict[str, Any], place: int) -> Any:
    return [*values.values(), None][min(place, len(values))]


def _as_taken(value: Any, kind: str, first: torch.Tensor | None) -> Any:
    """Return the value of another form as this form takes it: a tensor for a number, a list for one, or the reverse.

    Of an empty tensor, the number is one.
    """
    is_number = type(value) in (bool, int, float, complex)
    if kind == "Tensor" and is_number:
        # Beside a tensor of 16 bits, a number in float32 would promote the result.
        dtype = first.dtype if first is not None and (first.is_floating_point() or type(value) is int) else None
        return torch.tensor(value, dtype=dtype)
    if kind in ("Tensor", "number", "float", "int") and isinstance(value, (list, tuple)) and value:
        return _as_taken(value[0], kind, first)
    if kind in ("number", "float", "int") and isinstance(value, torch.Tensor):
        return value.flatten()[0].item() if value.numel() else 1
    if kind == "List[number]" and is_tensors(value):
        return [_as_taken(item, "number", first) for item in value]
    return value


#: Wrong calls that are tried on the host.
_TRIED = 30
#: Calls of a sequence with the same values, beside the others.
_AGAIN = 22


def _sequences(
    fault: Fault, names: list[str], known: corpus.Corpus, device: str
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield sequences of calls: other data, shapes and dtypes, refused calls, without gradients, the same one often."""
    kind = kind_of(fault)
    assert kind is not None
    for name in names:
        function, every = overload(name), list(_known_values(name, known))
        for values in every:
            changed = [values, *itertools.islice(_safely(kind.variants(fault, values)), 12)]
            for set_ in _with_settings(name, values):
                if _has_a_new_zero(values, set_) or not _describes(function, set_):
                    continue  # a kernel that is called all the same may end the process, and the whole sequence with it
                changed += [set_, *itertools.islice(_safely(kind.variants(fault, set_)), 2)]
            turned = {at: over_tensors(value, _turned) for at, value in values.items()}
            refused = list(itertools.islice(_refused(function, _safely(refusals.invalid(fault, values))), 4))
            given = [*changed, turned, values, turned, *_with_other_numbers(name, values)]
            if fault.family == "N":
                given += [*every, *refused, *[values, turned] * (_AGAIN // 2)]
                # Before each changed call one of another shape, one of another dtype, and one that is refused.
                before = itertools.cycle([*every, *refused] or [values])
                given += [each for one in changed for each in (next(before), one)]
                given += [each for one in (*changed, turned) for each in (*refused[:1], one)]
            works = [_on_device(function, list(each.values()), device) for each in given]
            both = functools.partial(_all_of, works)
            yield name, _on_a_thread(both) if fault.family == "O" else both


def _refused(function: Any, values: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield those values of the first ones that PyTorch refuses.

    The meta function is asked: it has no memory that a wrong call could read. Of public functions, the CPU is too.
    """
    name = function._schema.name.partition("::")[2]
    places = ("meta",) if name.startswith("_") or "backward" in name else ("meta", "cpu")
    for given in itertools.islice(values, _TRIED):
        if any(_host_refuses(function, given, place) for place in places):
            yield given


def _host_refuses(function: Any, values: dict[str, Any], device: str = "cpu") -> bool:
    try:
        call(function, [_placed(value, device) for value in values.values()])
    except NotImplementedError:  # it has no such kernel
        return False
    except Exception:  # each function refuses in its own way
        return True
    return False


def _has_a_new_zero(values: dict[str, Any], set_: dict[str, Any]) -> bool:
    """Return whether an integer has become 0, alone or in a list: some kernels divide by it."""
    for name, value in set_.items():
        numbers = value if isinstance(value, (list, tuple)) else [value]
        if value is not values[name] and any(type(number) is int and number == 0 for number in numbers):
            return True
    return False


def _describes(function: Any, values: dict[str, Any]) -> bool:
    """Return whether the meta function takes a call."""
    try:
        call(function, [_placed(value, "meta") for value in values.values()])
    except Exception:  # each function refuses in its own way
        return False
    return True


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values in reverse order, with the last one twice: a sum over them is another one."""
    if tensor.numel() < 2 or tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return tensor
    turned = tensor.flip(tuple(range(tensor.dim()))).contiguous()
    turned.view(-1)[-1] = turned.view(-1)[0]
    return turned


def _with_other_numbers(name: str, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the values with another number in each place that takes any."""
    for argument in overload(name)._schema.arguments:
        if kind_name(argument) in ("number", "float"):
            yield from ({**values, argument.name: other} for other in alternatives(values[argument.name], "number"))


def _all_of(works: list[Callable[[], Any]]) -> list[Any]:
    """Return what each work returns, with gradients and without, or the name of its error."""
    results = []
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            for work in works:
                try:
                    results.append(work())
                except Exception as error:
                    results.append(type(error).__name__)
    return results


def _on_a_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    def threaded() -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result()

    return threaded


def _safely(values: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the values until PyTorch refuses to make more of them."""
    with contextlib.suppress(RuntimeError, IndexError, TypeError, ValueError):
        yield from values


def _on_device(function: Any, values: list[Any], device: str) -> Callable[[], Any]:
    makes = not any(True for _ in databases.tensors_of(values))
    arguments = function._schema.arguments

    def work() -> Any:
        placed = [
            torch.device(device) if makes and argument.name == "device" else _placed(value, device)
            for argument, value in zip(arguments, values, strict=True)
        ]
        result = call(function, placed)
        return result, _sharing(placed, result), placed

    def contiguous() -> Any:
        copies = [over_tensors(value, lambda t: t.clone(memory_format=torch.contiguous_format)) for value in values]
        return _on_device(function, copies, device)()

    if not any(argument.alias_info is not None for argument in arguments):
        work.contiguous = contiguous  # type: ignore[attr-defined]
    return work


def _placed(value: Any, device: str) -> Any:
    """Return a fresh copy of a value on the device, with the same strides and offset."""
    if isinstance(value, torch.device):
        return torch.device(device)
    return over_tensors(value, lambda tensor: _copied(tensor, device)) if value is not None else None


def _copied(tensor: torch.Tensor, device: str) -> torch.Tensor:
    storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return storage.to(device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _sharing(given: Any, result: Any) -> list[bool]:
    """Return which results share memory with an argument."""
    memory = {tensor.untyped_storage().data_ptr() for tensor in databases.tensors_of(given)}
    return [tensor.untyped_storage().data_ptr() in memory for tensor in databases.tensors_of(result)]


# --- derivative rules -------------------------------------------------------------------------------------------------


def _backward(fault: Fault, known: corpus.Corpus, device: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    infos = databases.database()
    for sample in known.nodes.get(fault.target, ()):
        info = infos[sample.operator]
        every = databases.samples(info, sample.dtype, trains=True)
        if sample.number >= len(every):
            continue
        made = every[sample.number]
        arguments = [made.input, list(made.args), made.kwargs]
        count = sum(tensor.requires_grad for tensor in _leaves(arguments))
        for number in sorted(range(1, 2 ** min(count, 4)), key=lambda mask: -mask.bit_count()):
            yield f"{sample.operator} {sample.number}", _gradients(info, arguments, number, device)


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, torch.Tensor):
        yield value


def _gradients(info: Any, arguments: list[Any], mask: int, device: str) -> Callable[[], Any]:
    """Return the work that differentiates by those tensors whose bits are set."""

    def work() -> Any:
        chosen: list[torch.Tensor] = []
        numbers = iter(range(64))

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            copy = tensor.detach().to(device)
            if tensor.requires_grad and mask >> min(next(numbers), 3) & 1:
                chosen.append(copy.requires_grad_())
            return copy

        def deep(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: deep(item) for key, item in value.items()}
            if isinstance(value, (list, tuple)):
                return type(value)(deep(item) for item in value)
            if isinstance(value, torch.device):
                return torch.device(device)
            return moved(value) if isinstance(value, torch.Tensor) else value

        first, args, kwargs = deep(arguments)
        outputs = [t for t in databases.tensors_of(info.op(first, *args, **kwargs)) if t.requires_grad]
        cotangents = [torch.linspace(0.5, 1.7, t.numel()).to(device, t.dtype).view(t.shape) for t in outputs]
        rounds = []
        for factor in (1, 3):  # what is stale shows in the second round
            given = [cotangent * factor for cotangent in cotangents]
            rounds.append(torch.autograd.grad(outputs, chosen, given, allow_unused=True, retain_graph=True))
        return rounds

    return work
