"""Exact values of elementary and special functions, computed by mpmath with rising precision.

A function of ``FUNCTIONS`` has the name of its operator in PyTorch's database. It takes an mpmath context, the
elements of the operator's arguments as mpmath numbers, and the operator's own keywords; it computes PyTorch's
definition in the precision of the context.

An element has no exact value (NaN) if an argument or the result is not finite, if the result is complex, or if mpmath
finds no value. There IEEE 754 or PyTorch's convention decides, and the caller keeps the host's value.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import mpmath

#: Working precisions in bits. A value is taken once two of them round alike; hard ties of gelu and i1 need 250 digits.
PRECISIONS = (113, 160, 400, 1200, 2500)

#: Bits in which two precisions have to agree: float64 has 53, and the rest decides how it rounds.
AGREEMENT = 80

#: Relative step, in bits, of the central differences that give derivatives, in the first precision or nearly so.
#: The work is done in three times as many bits.
DERIVATIVE_STEP = 60

Function = Callable[..., Any]
FUNCTIONS: dict[str, Function] = {}

#: Derivatives of functions of one argument whose differences take long, because mpmath iterates for each value.
DERIVATIVES: dict[str, Function] = {
    "erfinv": lambda m, x: m.sqrt(m.pi) / 2 * m.exp(m.erfinv(x) ** 2),
    "special.ndtri": lambda m, p: m.sqrt(2 * m.pi) * m.exp(m.erfinv(2 * p - 1) ** 2),
}


class Undefined(ValueError):
    """The function has no finite real value here."""


def exact(name: str, arguments: tuple[float, ...], keywords: Mapping[str, Any]) -> mpmath.mpf | None:
    """Return the value of the function ``name``, accurate far beyond float64; None if there is none."""
    return _decided(name, arguments, tuple(sorted(keywords.items())), None)


def exact_derivative(
    name: str, arguments: tuple[float, ...], keywords: Mapping[str, Any], position: int
) -> mpmath.mpf | None:
    """Return the partial derivative by the argument at ``position``; None if there is none."""
    return _decided(name, arguments, tuple(sorted(keywords.items())), position)


@functools.cache
def _context() -> Any:
    # A context of our own: the precision of mpmath's global one belongs to whoever else uses mpmath.
    return mpmath.MPContext()


@functools.lru_cache(maxsize=100_000)
def _decided(
    name: str, arguments: tuple[float, ...], keywords: tuple[tuple[str, Any], ...], position: int | None
) -> mpmath.mpf | None:
    """Raise the precision until two results agree (Ziv's strategy), and return the last one."""
    context, before = _context(), None
    for precision in PRECISIONS:
        context.prec = precision
        try:
            value = _value(context, name, arguments, dict(keywords), position)
        except (Undefined, ArithmeticError, ValueError, TypeError, NotImplementedError, mpmath.libmp.NoConvergence):
            return None
        # A zero can be a cancellation of all digits, so it is believed in the last precision only.
        if value and before is not None and abs(value - before) <= abs(value) * context.ldexp(1, -AGREEMENT):
            return value
        before = value
    return None if before else before


def _value(
    context: Any, name: str, arguments: tuple[float, ...], keywords: dict[str, Any], position: int | None
) -> Any:
    function, numbers = FUNCTIONS[name], [context.mpf(argument) for argument in arguments]
    if position is None:
        return _real(context, function(context, *numbers, **keywords))
    if slope := DERIVATIVES.get(name):
        return _real(context, slope(context, *numbers, **keywords))
    bits = DERIVATIVE_STEP + context.prec // 8
    step = (abs(numbers[position]) or context.mpf(1)) * context.ldexp(1, -bits)
    context.prec = 3 * bits
    ends = []
    for sign in (1, -1):
        moved = [*numbers]
        moved[position] += sign * step
        ends.append(_real(context, function(context, *moved, **keywords)))
    return (ends[0] - ends[1]) / (2 * step)


def _real(context: Any, value: Any) -> Any:
    value = context.convert(value)
    if isinstance(value, context.mpc) and not value.imag:
        value = value.real
    if not isinstance(value, context.mpf) or not context.isfinite(value):
        raise Undefined
    return value


def rounded(value: mpmath.mpf, digits: int = 53, smallest: int = -1074) -> float:
    """Return the number with ``digits`` significant bits nearest to ``value``, ties to even.

    ``smallest`` is the exponent of the format's smallest subnormal number. The range above is that of float64.
    """
    if not value:
        return 0.0
    mantissa, exponent = value.man_exp  # mpmath keeps the sign apart
    length = mantissa.bit_length()
    # The last bit that the format keeps of this number.
    last = max(exponent + length - digits, smallest)
    shift = last - exponent
    if shift > length + 1:
        mantissa = 0
    elif shift > 0:
        mantissa, rest = divmod(mantissa, 1 << shift)
        half = 1 << (shift - 1)
        mantissa, exponent = mantissa + (rest > half or (rest == half and mantissa & 1)), last
    try:
        size = math.ldexp(mantissa, exponent)
    except OverflowError:
        size = math.inf
    return -size if value < 0 else size


def function(*names: str) -> Callable[[Function], Function]:
    """Return a decorator that enters a function under these names."""

    def enter(entered: Function) -> Function:
        FUNCTIONS.update(dict.fromkeys(names, entered))
        return entered

    return enter


def _plain(**members: str) -> None:
    """Enter functions of one argument that mpmath has under another name."""
    for name, member in members.items():
        FUNCTIONS[name] = lambda m, x, member=member: getattr(m, member)(x)


# --- elementary functions of one argument ---------------------------------------------------------------------------

_plain(
    acos="acos", acosh="acosh", asin="asin", asinh="asinh", atan="atan", atanh="atanh", cos="cos", cosh="cosh",
    exp="exp", expm1="expm1", log="log", log1p="log1p", sin="sin", sinh="sinh", sqrt="sqrt", tan="tan", tanh="tanh",
    erf="erf", erfc="erfc", digamma="digamma", ceil="ceil", floor="floor", sign="sign",
)  # fmt: skip
FUNCTIONS.update(
    {
        "abs": lambda m, x: abs(x),
        "angle": lambda m, x: +m.pi if x < 0 else m.zero,
        "deg2rad": lambda m, x: x * m.pi / 180,
        "exp2": lambda m, x: m.power(2, x),
        "frac": lambda m, x: x - _truncated(m, x),
        "log10": lambda m, x: m.log(x) / m.log(10),
        "log2": lambda m, x: m.log(x) / m.log(2),
        "neg": lambda m, x: -x,
        "positive": lambda m, x: x,
        "rad2deg": lambda m, x: x * 180 / m.pi,
        "reciprocal": lambda m, x: 1 / x,
        "rsqrt": lambda m, x: 1 / m.sqrt(x),
        "sgn": lambda m, x: m.sign(x),
        "sinc": lambda m, x: m.sincpi(x),
        "square": lambda m, x: x * x,
        "trunc": lambda m, x: _truncated(m, x),
    }
)


def _truncated(m: Any, x: Any) -> Any:
    return m.floor(x) if x > 0 else m.ceil(x)


@function("round")
def _round(m: Any, x: Any, decimals: int = 0) -> Any:
    if decimals:
        raise Undefined  # PyTorch defines the result by rounding products, and not by the exact decimal
    return m.nint(x)


@function("sigmoid")
def _sigmoid(m: Any, x: Any) -> Any:
    return 1 / (1 + m.exp(-x))


@function("logit")
def _logit(m: Any, x: Any, eps: float | None = None) -> Any:
    if eps is not None:
        x = min(max(x, m.mpf(eps)), 1 - m.mpf(eps))
    return m.log(x / (1 - x))


# --- activations ----------------------------------------------------------------------------------------------------

#: Constants of F.selu, as PyTorch writes them.
SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946

FUNCTIONS.update(
    {
        "nn.functional.hardsigmoid": lambda m, x: min(max(x + 3, 0), 6) / 6,
        "nn.functional.hardswish": lambda m, x: x * min(max(x + 3, 0), 6) / 6,
        "nn.functional.hardtanh": lambda m, x, min_val=-1.0, max_val=1.0: min(max(x, min_val), max_val),
        "nn.functional.hardshrink": lambda m, x, lambd=0.5: m.zero if -lambd <= x <= lambd else x,
        "nn.functional.leaky_relu": lambda m, x, negative_slope=0.01: x if x > 0 else x * negative_slope,
        "nn.functional.logsigmoid": lambda m, x: -m.log1p(m.exp(-x)) if x > 0 else x - m.log1p(m.exp(x)),
        "nn.functional.mish": lambda m, x: x * m.tanh(m.log1p(m.exp(x))),
        "nn.functional.relu": lambda m, x: max(x, m.zero),
        "nn.functional.relu6": lambda m, x: min(max(x, m.zero), m.mpf(6)),
        "nn.functional.silu": lambda m, x: x * _sigmoid(m, x),
        "nn.functional.softsign": lambda m, x: x / (1 + abs(x)),
        "nn.functional.tanhshrink": lambda m, x: x - m.tanh(x),
        "nn.functional.threshold": lambda m, x, threshold, value: x if x > threshold else m.mpf(value),
    }
)


@function("nn.functional.softshrink")
def _softshrink(m: Any, x: Any, lambd: float = 0.5) -> Any:
    return x - lambd if x > lambd else x + lambd if x < -lambd else m.zero


@function("nn.functional.elu")
def _elu(m: Any, x: Any, alpha: float = 1.0) -> Any:
    return x if x > 0 else alpha * m.expm1(x)


@function("nn.functional.celu")
def _celu(m: Any, x: Any, alpha: float = 1.0) -> Any:
    return x if x > 0 else alpha * m.expm1(x / m.mpf(alpha))


@function("nn.functional.selu")
def _selu(m: Any, x: Any) -> Any:
    return m.mpf(SELU_SCALE) * (x if x > 0 else m.mpf(SELU_ALPHA) * m.expm1(x))


@function("nn.functional.softplus")
def _softplus(m: Any, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return x if x * beta > threshold else m.log1p(m.exp(x * beta)) / beta


@function("nn.functional.gelu")
def _gelu(m: Any, x: Any, approximate: str = "none") -> Any:
    if approximate == "none":
        return x * _ndtr(m, x)
    inner = m.sqrt(2 / m.pi) * (x + m.mpf(0.044715) * x**3)
    return x * _sigmoid(m, 2 * inner)


# --- special functions of one argument ------------------------------------------------------------------------------

FUNCTIONS.update(
    {
        "i0": lambda m, x: m.besseli(0, x),
        "special.airy_ai": lambda m, x: m.airyai(x),
        "special.bessel_j0": lambda m, x: m.besselj(0, x),
        "special.bessel_j1": lambda m, x: m.besselj(1, x),
        "special.bessel_y0": lambda m, x: m.bessely(0, x),
        "special.bessel_y1": lambda m, x: m.bessely(1, x),
        "special.erfcx": lambda m, x: m.exp(x * x) * m.erfc(x),
        "special.i0e": lambda m, x: m.exp(-abs(x)) * m.besseli(0, x),
        "special.i1": lambda m, x: m.besseli(1, x),
        "special.i1e": lambda m, x: m.exp(-abs(x)) * m.besseli(1, x),
        "special.modified_bessel_i0": lambda m, x: m.besseli(0, x),
        "special.modified_bessel_i1": lambda m, x: m.besseli(1, x),
        "special.modified_bessel_k0": lambda m, x: m.besselk(0, x),
        "special.modified_bessel_k1": lambda m, x: m.besselk(1, x),
        "special.scaled_modified_bessel_k0": lambda m, x: m.exp(x) * m.besselk(0, x),
        "special.scaled_modified_bessel_k1": lambda m, x: m.exp(x) * m.besselk(1, x),
        "special.spherical_bessel_j0": lambda m, x: m.sinc(x),
    }
)


@function("special.ndtr")
def _ndtr(m: Any, x: Any) -> Any:
    return m.erfc(-x / m.sqrt(2)) / 2


@function("special.log_ndtr")
def _log_ndtr(m: Any, x: Any) -> Any:
    return m.log1p(-_ndtr(m, -x)) if x > 0 else m.log(_ndtr(m, x))


@function("special.ndtri")
def _ndtri(m: Any, p: Any) -> Any:
    return m.sqrt(2) * m.erfinv(2 * p - 1)


@function("erfinv")
def _erfinv(m: Any, x: Any) -> Any:
    return m.erfinv(x)


@function("special.entr")
def _entr(m: Any, x: Any) -> Any:
    return m.zero if x == 0 else -x * m.log(x)


@function("lgamma")
def _lgamma(m: Any, x: Any) -> Any:
    if x <= 0 and m.isint(x):
        raise Undefined
    return m.re(m.loggamma(x))


@function("mvlgamma")
def _mvlgamma(m: Any, x: Any, p: int) -> Any:
    order = int(p)
    terms = [_lgamma(m, x - m.mpf(j) / 2) for j in range(order)]
    return m.log(m.pi) * (order * (order - 1)) / 4 + sum(terms, m.zero)


@function("polygamma", "special.polygamma")
def _polygamma(m: Any, x: Any, n: int) -> Any:
    if x <= 0 and m.isint(x):
        raise Undefined
    return m.psi(int(n), x)


# --- functions of two arguments -------------------------------------------------------------------------------------

FUNCTIONS.update(
    {
        "mul": lambda m, x, y: x * y,
        "true_divide": lambda m, x, y: x / y,
        "__radd__": lambda m, x, y: y + x,
        "__rdiv__": lambda m, x, y: y / x,
        "__rmul__": lambda m, x, y: y * x,
        "__rsub__": lambda m, x, y: y - x,
        "clamp_max": lambda m, x, y: min(x, y),
        "clamp_min": lambda m, x, y: max(x, y),
        "fmax": lambda m, x, y: max(x, y),
        "fmin": lambda m, x, y: min(x, y),
        "max": lambda m, x, y: max(x, y),
        "maximum": lambda m, x, y: max(x, y),
        "min": lambda m, x, y: min(x, y),
        "minimum": lambda m, x, y: min(x, y),
        "heaviside": lambda m, x, y: y if x == 0 else m.mpf(x > 0),
        "hypot": lambda m, x, y: m.sqrt(x * x + y * y),
        "logaddexp": lambda m, x, y: m.log(m.exp(x) + m.exp(y)),
        "logaddexp2": lambda m, x, y: m.log(m.power(2, x) + m.power(2, y)) / m.log(2),
        "__rpow__": lambda m, x, y: _power(m, y, x),
        "__rmod__": lambda m, x, y: _remainder(m, y, x),
        "fmod": lambda m, x, y: x - _truncated(m, _quotient(m, x, y)) * y,
        "ldexp": lambda m, x, n: x * m.power(2, n),
        "floor_divide": lambda m, x, y: m.floor(_quotient(m, x, y)),
    }
)


@function("add")
def _add(m: Any, x: Any, y: Any, alpha: float = 1) -> Any:
    return x + y * alpha


@function("sub")
def _sub(m: Any, x: Any, y: Any, alpha: float = 1) -> Any:
    return x - y * alpha


@function("rsub")
def _rsub(m: Any, x: Any, y: Any, alpha: float = 1) -> Any:
    return y - x * alpha


def _quotient(m: Any, x: Any, y: Any) -> Any:
    """Return x / y with so many digits that its integer part is exact."""
    if not y:
        raise Undefined
    if x:
        m.prec += max(0, int(m.mag(x) - m.mag(y))) + 64
    return x / y


@function("atan2")
def _atan2(m: Any, y: Any, x: Any) -> Any:
    if y == 0:
        raise Undefined  # the sign of the zero decides
    return m.atan2(y, x)


@function("copysign")
def _copysign(m: Any, x: Any, y: Any) -> Any:
    if not y:
        raise Undefined  # the sign of the zero decides
    return abs(x) * m.sign(y)


@function("remainder")
def _remainder(m: Any, x: Any, y: Any) -> Any:
    return x - m.floor(_quotient(m, x, y)) * y


@function("div")
def _divided(m: Any, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return x / y
    quotient = _quotient(m, x, y)
    return m.floor(quotient) if rounding_mode == "floor" else _truncated(m, quotient)


@function("pow", "float_power")
def _power(m: Any, x: Any, y: Any) -> Any:
    return m.power(x, y)


@function("xlogy")
def _xlogy(m: Any, x: Any, y: Any) -> Any:
    return m.zero if x == 0 else x * m.log(y)


@function("special.xlog1py")
def _xlog1py(m: Any, x: Any, y: Any) -> Any:
    return m.zero if x == 0 else x * m.log1p(y)


#: Arguments of zeta and of the incomplete gamma functions; their series become slow beyond them.
SMALLEST_OF_GAMMA, LARGEST_OF_GAMMA = 1e-30, 1000.0


@function("special.zeta")
def _zeta(m: Any, x: Any, q: Any) -> Any:
    if x <= 1 or q < SMALLEST_OF_GAMMA or max(x, q) > LARGEST_OF_GAMMA:
        raise Undefined
    return m.zeta(x, q)


@function("igamma")
def _igamma(m: Any, a: Any, x: Any) -> Any:
    if min(a, x) < SMALLEST_OF_GAMMA or max(a, x) > LARGEST_OF_GAMMA:
        raise Undefined
    return m.gammainc(a, 0, x, regularized=True)


@function("igammac")
def _igammac(m: Any, a: Any, x: Any) -> Any:
    if min(a, x) < SMALLEST_OF_GAMMA or max(a, x) > LARGEST_OF_GAMMA:
        raise Undefined
    return m.gammainc(a, x, m.inf, regularized=True)


# --- orthogonal polynomials: the recurrences that define them -------------------------------------------------------

#: Largest degree. PyTorch's own limits begin above it.
LARGEST_DEGREE = 64


def _polynomial(name: str, first: Function, following: Function, *, shifted: bool = False) -> None:
    """Enter a polynomial p(x, n) with p0 = 1, p1 = ``first(x)`` and p(k+1) = ``following(x, k, p(k), p(k-1))``."""

    def value(m: Any, x: Any, n: Any) -> Any:
        degree = int(n)  # PyTorch truncates the degree
        if not 0 <= degree <= LARGEST_DEGREE:
            raise Undefined
        x = 2 * x - 1 if shifted else x
        last, current = m.one, first(x)
        for k in range(1, degree):
            last, current = current, following(x, k, current, last)
        return m.one if degree == 0 else current

    FUNCTIONS[f"special.{name}"] = value


_CHEBYSHEV: dict[str, Function] = {
    "t": lambda x: x,
    "u": lambda x: 2 * x,
    "v": lambda x: 2 * x - 1,
    "w": lambda x: 2 * x + 1,
}
for _kind, _first in _CHEBYSHEV.items():
    for _prefix, _shifted in (("", False), ("shifted_", True)):
        _name = f"{_prefix}chebyshev_polynomial_{_kind}"
        _polynomial(_name, _first, lambda x, k, p, q: 2 * x * p - q, shifted=_shifted)
_polynomial("hermite_polynomial_h", lambda x: 2 * x, lambda x, k, p, q: 2 * x * p - 2 * k * q)
_polynomial("hermite_polynomial_he", lambda x: x, lambda x, k, p, q: x * p - k * q)
_polynomial("laguerre_polynomial_l", lambda x: 1 - x, lambda x, k, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1))
_polynomial("legendre_polynomial_p", lambda x: x, lambda x, k, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1))
