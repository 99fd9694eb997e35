"""Trace transformers' default models, choose a sample of their calls, and write the data of the area ``calls``.

``python -m tests.calls.run`` traces every model of the installed transformers on the meta device, in bfloat16. It makes
each call of the sample on the host, and keeps those whose check finds every mutant of the result. What is left out is
printed with its reason. ``--traced`` keeps the traced calls, ``--coverage`` prints the shares and writes nothing.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import json
import lzma
import math
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from conformance.numerics.trees import tensors
from conformance.suites.calls import data
from conformance.suites.calls.judging import run, why_unjudged, wrong
from conformance.suites.calls.kernels import base_name, bound, is_pointwise, named
from conformance.suites.calls.samples import has_rule
from conformance.suites.calls.spec import Spec, function_of
from conformance.suites.operators.plan.catalogue import operators

from . import models, mutants
from .cover import cover, met, on_meta, sizes_of, text_of, weights
from .stretched import stretched_of

#: Seconds for the trace of one model.
_LONGEST = 30
#: Elements of the tensors of a call, and products of numbers in it, beyond which it is not in the sample; and elements
#: of a call that is judged whole.
_MOST_ELEMENTS, _MOST_PRODUCTS, _MOST_WHOLE = 1 << 24, 1 << 33, 1 << 19
#: Calls of one overload and dtype: of functions of elements, of other calls that are judged by parts, and of the rest.
_MOST_POINTWISE, _MOST_RULED, _MOST_WHOLE_OF_ONE = 2, 5, 1
#: Estimated seconds of a call: at least, for each element that it reads or writes, and for each product of numbers. So
#: many seconds of more calls are taken, those first that most models make for their time.
_SECONDS_OF_CALL, _OF_ELEMENT, _OF_PRODUCT, _ALL_MORE = 4e-3, 6e-9, 3e-11, 3.5
#: A call that is judged whole takes so many times as long: it is made in float64, several times.
_WHOLE_TAKES = 4
#: Elements of a call that is there for its size, and of one that is judged whole; seconds of such a call, and of all of
#: them. Those that fail are replaced by others, in so many rounds.
_MOST_OF_A_SIZE, _MOST_WHOLE_OF_A_SIZE, _SECONDS_OF_A_SIZE, _ALL_SIZES, _ROUNDS = 1 << 26, 3 << 21, 1.5, 14.0, 4
#: Number of the first of them where the sample's other calls stay; what a call gets depends on it.
_NUMBER_OF_A_SIZE = 10_000
#: Dtypes of these calls. One that the host does not make in its own dtype, or not in time, is made in another, for
#: which its time counts so many times.
_DTYPES_OF_A_SIZE = {"bfloat16": 1.0, "float32": 1.5}
#: Models that have to make a call. What only one of them does is its own affair.
_FEWEST_MAKERS = 3
#: Seconds for one call and its mutants; some kernels are slow on the host in 16 bits.
_PATIENCE = 12
#: Processor seconds of a call and its check from which on it is a call of the deep tier, and those of all others.
ORDINARY, _ALL_ORDINARY = 0.12, 24.0
#: Elements of all tensors of a call from which on it is of the deep tier: its check holds them in float64, and often.
_ELEMENTS = 1 << 25
#: Scores of attention from which on a call is of the deep tier: its oracle has some bytes for each, at once.
_SCORES = 1 << 25
#: Seconds beyond which not even the deep tier has a call.
_DEEP = 8.0
#: Operators whose names in PyTorch's database are no kernel's names.
_OPERATORS = {
    "_to_copy": "to", "convolution": "nn.functional.conv2d", "_safe_softmax": "torch.ops.aten._safe_softmax.default",
    "_fused_rms_norm": "nn.functional.rms_norm", "sum": "sum", "native_layer_norm": "native_layer_norm",
    "threshold": "nn.functional.threshold", "_adaptive_avg_pool2d": "nn.functional.adaptive_avg_pool2d",
    "upsample_bilinear2d": "nn.functional.interpolate.bilinear", "max_pool2d_with_indices": "nn.functional.max_pool2d",
    "nll_loss_forward": "nn.functional.nll_loss", "constant_pad_nd": "nn.functional.pad.constant",
    "div": "div.no_rounding_mode", "_softmax_backward_data": "_softmax_backward_data", "clone": "clone",
    "embedding_dense": "nn.functional.embedding", "_log_softmax_backward_data": "log_softmax",
}  # fmt: skip


@dataclass
class _Chosen:
    """Calls of one kernel and dtype that stand for others, and how many architectures make them."""

    spec: Spec
    dtype: str
    makers: int
    seconds: float = 0.0
    is_deep: bool = False
    left_out: str = ""
    killed: list[str] = field(default_factory=list)


def traced(kinds: Iterable[str]) -> tuple[dict[str, list[Spec]], dict[str, str]]:
    """Return the calls of each model, and why others have none."""
    found, failed = {}, {}
    for kind in kinds:
        try:
            with models.limited(_LONGEST):
                found[kind] = models.calls_of(kind)
        except Exception as error:  # what transformers raises is a result
            failed[kind] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
    return found, failed


def chosen(found: dict[str, list[Spec]]) -> list[_Chosen]:
    """Return one call for each kernel, dtype, class of sizes and class of strides: the one that most models make.

    After these come calls that many models make and that cost little.
    """
    makers: collections.Counter[str] = collections.Counter()
    for calls in found.values():
        makers.update(set(map(text_of, calls)))
    best: dict[Any, _Chosen] = {}
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    common = [(text, count) for text, count in makers.items() if count >= _FEWEST_MAKERS]
    common.sort(key=lambda item: (-item[1], item[0]))
    for text, count in common:
        for dtype in ("bfloat16", "float32"):
            spec = Spec(*json.loads(text.replace('"bfloat16"', f'"{dtype}"')))
            function = function_of(spec)
            if function is None or class_of(spec) in best or _why_not(spec, function):
                continue
            if counts[spec.function, main_dtype(spec)] < _most_of(function):
                counts[spec.function, main_dtype(spec)] += 1
                best[class_of(spec)] = _Chosen(spec, main_dtype(spec), count)
    return [*best.values(), *_more(common, [one.spec for one in best.values()])]


def _more(common: Sequence[tuple[str, int]], known: Sequence[Spec]) -> list[_Chosen]:
    """Return calls that are not known, by the models that make them and their estimated time."""
    texts = set(map(text_of, known))
    found: list[_Chosen] = []
    for text, count in common:
        spec = Spec(*json.loads(text))
        function = function_of(spec)
        if text not in texts and function is not None and not _why_not(spec, function):
            found.append(_Chosen(spec, main_dtype(spec), count, _estimated(spec, function)))
    found.sort(key=lambda one: one.seconds / one.makers)
    total = itertools.accumulate(one.seconds for one in found)
    return [one for one, seconds in zip(found, total, strict=True) if seconds <= _ALL_MORE]


def _estimated(spec: Spec, function: Any) -> float:
    """Return the seconds that a call and its check may take."""
    elements = spec.elements + _made_elements(spec, function)
    work = _OF_ELEMENT * elements + _OF_PRODUCT * _products(spec, function)
    return _SECONDS_OF_CALL + work * (1 if has_rule(function) else _WHOLE_TAKES)


def _most_of(function: Any) -> int:
    if is_pointwise(function):
        return _MOST_POINTWISE
    return _MOST_RULED if has_rule(function) else _MOST_WHOLE_OF_ONE


def class_of(spec: Spec) -> tuple[Any, ...]:
    """Return the class of a call: kernel, dtype, and strides and sizes (in steps of 16) of the first two tensors."""
    tensors = list(spec.tensors())
    sizes = tuple(int(math.log2(max(1, math.prod(tensor["size"])))) // 4 for tensor in tensors[:2])
    return spec.function, main_dtype(spec), sizes, tuple(_strides(tensor) for tensor in tensors[:2])


def _strides(tensor: dict[str, Any]) -> str:
    size, stride = tensor["size"], tensor["stride"]
    if 0 in stride:
        return "expanded"
    due = [math.prod(size[place + 1 :]) for place in range(len(size))]
    if all(a == b or n == 1 for a, b, n in zip(stride, due, size, strict=True)):
        return "contiguous"
    return "transposed" if stride and stride[-1] != 1 else "gaps"


def main_dtype(spec: Spec) -> str:
    """Return the dtype of a call: bfloat16 before other floating dtypes, and these before integers."""
    dtypes = [tensor["dtype"] for tensor in spec.tensors()]
    return next(
        (dtype for kind in ("bfloat16", "float32", "float64") for dtype in dtypes if dtype == kind),
        dtypes[0] if dtypes else "",
    )


def _why_not(spec: Spec, function: Any, *, is_for_size: bool = False) -> str:
    """Return why a call is not in the sample. One that is there for its size may be larger."""
    if reason := why_unjudged(function):
        return reason
    if base_name(function) in ("_local_scalar_dense", "nonzero", "histc"):
        return "its result has no shape of its own"
    if not any(True for _ in spec.tensors()):
        return "gets no tensor"
    most, whole = (_MOST_OF_A_SIZE, _MOST_WHOLE_OF_A_SIZE) if is_for_size else (_MOST_ELEMENTS, _MOST_WHOLE)
    most = most if has_rule(function) else whole
    if max(spec.elements, _made_elements(spec, function)) > most or _products(spec, function) > _MOST_PRODUCTS:
        return "is too large for the sample"
    return ""


def _made_elements(spec: Spec, function: Any) -> int:
    """Return the elements of a call's results; 0 if the meta device cannot say."""
    try:
        return sum(tensor.numel() for tensor in tensors(function(*on_meta(spec.args), **on_meta(spec.kwargs))))
    except Exception:  # a call that cannot be made has no check
        return 0


def _products(spec: Spec, function: Any) -> float:
    names = bound(function, spec.args, spec.kwargs)
    shapes = [value["size"] for value in names.values() if isinstance(value, dict) and "size" in value]
    if base_name(function) in ("mm", "addmm", "bmm", "baddbmm"):
        return float(math.prod(shapes[-2]) * shapes[-1][-1])
    if base_name(function).startswith("convolution"):
        # A backward pass has two such products, of the output's gradient with the weight and with the input.
        passes, made = (2, math.prod(shapes[0])) if "grad_output" in names else (1, _made_elements(spec, function))
        return float(passes * made * math.prod(names["weight"]["size"][1:]))
    return 0.0


def measure(one: _Chosen, number: int, *, with_mutants: bool = True) -> None:
    """Make a call and its mutants on the host. A call is left out if a mutant survives."""
    try:
        with models.limited(_PATIENCE):
            _measure(one, number, with_mutants)
    except TimeoutError as error:
        one.left_out = str(error)


def _measure(one: _Chosen, number: int, with_mutants: bool) -> None:
    host = torch.device("cpu")
    begun = time.process_time()
    try:
        with torch.no_grad():
            ran = run(one.spec, host, number)
            text = wrong(ran, number)
    except TimeoutError:
        raise
    except Exception as error:  # a call that cannot be made has no check
        one.left_out = f"cannot be made: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"
        return
    one.seconds = time.process_time() - begun
    if text:
        one.left_out = f"the host is wrong: {text}"
        return
    if not any(bool(tensor.any()) for tensor in ran.after) and base_name(ran.function) not in named("zeros"):
        one.left_out = "a device that does nothing gives its result"
        return
    if not with_mutants:
        return
    for name, mutant in mutants.mutants(ran):
        if not wrong(mutant, number):
            one.left_out = f"a mutant survives: {name}"
            return
        one.killed.append(name)
    if not one.killed:
        one.left_out = "no mutant changes it"


def requirement(kernel: str, dtype: str, known: dict[str, Any]) -> list[str]:
    """Return the cell of the operator that a kernel belongs to; empty if PyTorch's database has none of that dtype."""
    plain = kernel.removesuffix("_")
    is_backward = "_backward" in plain
    forward = plain.replace("_backward_data", "").replace("_backward", "")
    names = [
        _OPERATORS.get(plain),
        _OPERATORS.get(forward),
        forward,
        forward.lstrip("_"),
        f"nn.functional.{forward.lstrip('_')}",
    ]
    for name in names:
        if name in known and dtype in (known[name].backward if is_backward else known[name].dtypes):
            return [f"operators.{name}", dtype, "training" if is_backward else "inference"]
    return []


def set_tiers(measured: Sequence[_Chosen]) -> None:
    """Leave the cheapest calls in the ordinary tier, and put the others into the deep one."""
    left = _ALL_ORDINARY
    for one in sorted(measured, key=lambda one: one.seconds):
        left -= one.seconds
        is_large = one.spec.elements > _ELEMENTS or scores_of(one.spec) > _SCORES
        one.is_deep = one.seconds > ORDINARY or left < 0 or is_large


def scores_of(spec: Spec) -> int:
    """Return how many pairs of rows attention weighs; 0 for other calls."""
    if "dot_product_attention" not in spec.function:
        return 0
    query, key = (spec.args[place]["size"] for place in (0, 1))
    return math.prod(query[:-1]) * int(key[-2])


def sized(
    found: dict[str, list[Spec]], kept: Sequence[_Chosen], number: int, known: Collection[str] = ()
) -> list[_Chosen]:
    """Return stretched calls, for the faults of sizes that calls of the models meet and no ordinary call of the sample.

    They are ordinary, although one may take longer than others there. The mutants of ``known`` calls were run before.
    """
    makers = collections.Counter(text for calls in found.values() for text in set(map(text_of, calls)))
    weight, seconds = weights(found.values()), {}
    ordinary = [one.spec for one in kept if not one.is_deep]
    have = set(map(text_of, ordinary))
    for text, (dtype, times) in itertools.product(stretched_of(makers), _DTYPES_OF_A_SIZE.items()):
        spec = Spec(*json.loads(text.replace('"bfloat16"', f'"{dtype}"')))
        if text_of(spec) in have or (dtype != "bfloat16" and '"bfloat16"' not in text):
            continue
        if sizes_of(spec) is not None and not _why_not(spec, function_of(spec), is_for_size=True):
            seconds[text_of(spec)] = times * _estimated(spec, function_of(spec))
    more: list[_Chosen] = []
    for _ in range(_ROUNDS):
        left = _ALL_SIZES - sum(one.seconds for one in more)
        new = list(cover(seconds, weight, met([*ordinary, *(one.spec for one in more)]), left))
        for text in new:
            seconds.pop(text, None)
            spec = Spec(*json.loads(text))
            one = _Chosen(spec, main_dtype(spec), makers[text])
            measure(one, number + len(more), with_mutants=text not in known)
            if "scalar type" in one.left_out:  # the host has no such kernel in this dtype, at any size
                for other in [other for other in seconds if _is_alike(Spec(*json.loads(other)), one)]:
                    del seconds[other]
            if one.left_out or one.seconds > _SECONDS_OF_A_SIZE:
                print(f"left out {spec}: {one.left_out or f'{one.seconds:.1f} s'}", flush=True)
            elif sum(other.seconds for other in more) + one.seconds <= _ALL_SIZES:
                more.append(one)
    return more


def _is_alike(spec: Spec, one: _Chosen) -> bool:
    return spec.function == one.spec.function and main_dtype(spec) == one.dtype


def written(measured: Sequence[_Chosen]) -> list[dict[str, Any]]:
    """Return the groups of the cases."""
    known = {operator.name: operator for operator in operators()}
    groups = collections.defaultdict(list)
    for one in sorted(measured, key=lambda one: one.seconds):
        if one.seconds <= _DEEP:
            groups[base_name(function_of(one.spec)), one.dtype, one.is_deep].append(one)
    return [
        {
            "kernel": kernel, "dtype": dtype, "requires": requirement(kernel, dtype, known), "deep": is_deep,
            "calls": [[one.spec.function, one.spec.args, one.spec.kwargs, one.makers] for one in calls],
        }
        for (kernel, dtype, is_deep), calls in sorted(groups.items())
    ]  # fmt: skip


def telling(row: dict[str, Any]) -> list[list[Any]]:
    """Leave calls out of a group whose result is zeros with the numbers of their place, and return the others.

    A device that does nothing gives that result. A call that cannot be made with them is left out too. What it
    gets depends on its place in the group.
    """
    found: list[list[Any]] = []
    for call in row["calls"]:
        try:
            with torch.no_grad():
                ran = run(Spec(*call), torch.device("cpu"), len(found))
        except RuntimeError:  # such as a mask that chooses more numbers than there are
            continue
        if any(bool(tensor.any()) for tensor in ran.after) or base_name(ran.function) in named("zeros"):
            found.append(call)
    row["calls"] = found
    return found


def coverage(found: dict[str, list[Spec]], kept: Iterable[Spec]) -> tuple[float, float]:
    """Return two shares of the calls of all models: those in the sample, and those whose class has a call there."""
    exact = {text_of(spec) for spec in kept}
    classes = {class_of(spec) for spec in kept}
    every = [call for calls in found.values() for call in calls]
    same = sum(text_of(call) in exact for call in every)
    return same / len(every), sum(class_of(call) in classes for call in every) / len(every)


def _write_traced(path: Path, versions: dict[str, str], traced: dict[str, list[Spec]], failed: dict[str, str]) -> None:
    """Write the calls of architectures, each call once, and why others have none."""
    numbers: dict[str, int] = {}
    rows: dict[str, list[int]] = {}
    for name, calls in traced.items():
        texts = {json.dumps([call.function, call.args, call.kwargs], separators=(",", ":")) for call in calls}
        places = sorted(numbers.setdefault(text, len(numbers)) for text in sorted(texts))
        rows[name] = [after - before for before, after in zip([0, *places], places, strict=False)]
    head = json.dumps(
        {"version": data.VERSION, **versions, "architectures": rows, "failed": failed}, separators=(",", ":")
    )
    text = head[:-1] + ',"calls":[' + ",".join(numbers) + "]}"
    path.write_bytes(lzma.compress(text.encode(), preset=9))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the data, and print what is left out."""
    parser = argparse.ArgumentParser(prog="python -m tests.calls.run", description=__doc__)
    parser.add_argument("--traced", action="store_true", help="take the traced calls as they are, and choose again")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="processor time for the sample; the rest is left out"
    )
    parser.add_argument(
        "--keep", action="store_true", help="with --traced: run mutants only of calls that are new in the sample"
    )
    parser.add_argument(
        "--sizes", action="store_true", help="keep the sample, but for the calls that are there for their size"
    )
    parser.add_argument("--coverage", action="store_true", help="print the shares of the data as it is")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if not (options.traced or options.coverage or options.sizes):
        found, failed = traced(models.kinds())
        _write_traced(data.TRACED, _versions(), found, failed)
        for kind, why in failed.items():
            print(f"no calls of {kind}: {why}")
    found = {name: data.calls_of(name) for name in data.architectures()}
    if options.sizes:
        _write(_with_sizes(found, kept_of_sample(), _NUMBER_OF_A_SIZE))
    elif not options.coverage:
        _choose(found, 60 * options.minutes, keep=options.keep)
    kept = [call for group in data.sample() for call in group.calls]
    same, alike = coverage(found, kept)
    print(f"{len(found)} architectures; {len(kept)} calls in {len(data.sample())} cases")
    halves = {name: [call for call in calls if main_dtype(call) == "bfloat16"] for name, calls in found.items()}
    print(f"{same:.1%} of the architectures' calls are made by cases; {alike:.1%} have the class of one that is")
    print(f"of the calls in bfloat16, {coverage(halves, kept)[0]:.1%} are made by cases")
    return 0


def _choose(found: dict[str, list[Spec]], seconds: float, *, keep: bool) -> None:
    candidates = chosen(found)
    known = {text_of(call) for group in data.sample() for call in group.calls} if keep else set()
    for number, one in enumerate(candidates):
        if time.process_time() > seconds:
            one.left_out = "there was no time left to run its mutants"
            continue
        measure(one, number, with_mutants=text_of(one.spec) not in known)
        if number % 50 == 0:
            print(f"{number} of {len(candidates)}", file=sys.stderr, flush=True)
        if one.left_out:
            print(f"left out {one.spec}: {one.left_out}", flush=True)
    kept = [one for one in candidates if not one.left_out]
    set_tiers(kept)
    _write(_with_sizes(found, kept, len(candidates), known))


def _with_sizes(
    found: dict[str, list[Spec]], kept: Sequence[_Chosen], number: int, known: Collection[str] = ()
) -> list[_Chosen]:
    more = sized(found, kept, number, known)
    replaced = set(map(text_of, (one.spec for one in more)))
    return [*(one for one in kept if text_of(one.spec) not in replaced), *more]


def kept_of_sample() -> list[_Chosen]:
    """Return the calls of the sample that are not there for their size alone, in their order; no case loses all."""
    found = [
        _Chosen(call, group.dtype, call.count, is_deep=group.is_deep)
        for group in data.sample()
        for call in group.calls
        if group.is_deep or call.count >= min(_FEWEST_MAKERS, max(other.count for other in group.calls))
    ]
    return [dataclasses.replace(one, seconds=number * 1e-9) for number, one in enumerate(found)]


def _write(kept: Sequence[_Chosen]) -> None:
    rows = [row for row in written(kept) if telling(row)]
    text = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    data.SAMPLE.write_text(f'{{"version":{data.VERSION},"groups":[\n{text}\n]}}\n', encoding="utf-8")
    data.sample.cache_clear()
    for is_deep in (False, True):
        calls = [one for one in kept if one.is_deep is is_deep]
        print(f"{'deep' if is_deep else 'ordinary'}: {len(calls)} calls, {sum(one.seconds for one in calls):.0f} s")


def _versions() -> dict[str, str]:
    import transformers

    return {"transformers": transformers.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    sys.exit(main())
