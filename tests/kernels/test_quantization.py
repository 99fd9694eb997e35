"""Quantizers: compiled and portable ones agree byte by byte, formats are what their names say, orders of bytes meet."""

from __future__ import annotations

import pytest
import torch

from conformance.base.errors import UsageError
from conformance.kernels.builders import find_builder
from conformance.kernels.implementation import Implementation
from conformance.kernels.quantization import byte_order, compiled, exact
from conformance.kernels.quantization.floats import FORMATS, decoded, encoded, from_bytes, to_bytes
from conformance.kernels.quantization.groups import QuantizationType, loaded, stored, swizzled
from conformance.kernels.specifications import fp_quantization, quantization

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Groups and their size: blocks of 1024, their tails, single pairs.
SIZES = ((1, 2), (3, 1024), (2, 1026), (5, 4098), (7, 34))


def numbers(groups: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    values = torch.randn(groups, size, generator=torch.Generator().manual_seed(size)) * torch.arange(groups)[:, None]
    return (values + torch.arange(groups)[:, None]).to(dtype)


@pytest.fixture(scope="module")
def quantizer():
    return find_builder("QuantizerBuilder", "cpu")().load()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", QuantizationType)
def test_the_compiled_quantizer_gives_the_bytes_of_the_portable_one(dtype, bits, kind):
    for groups, size in SIZES:
        vals = numbers(groups, size, dtype)

        data, params = compiled.quantize(vals, groups, bits, kind)

        portable = quantization.quantize(vals, groups, bits, kind)
        assert torch.equal(data, portable[0])
        assert torch.equal(params, portable[1])
        for back, way in ((torch.float32, quantization.dequantize_fp32), (torch.float16, quantization.dequantize)):
            assert torch.equal(compiled.dequantizer(back)(data, params, groups, bits, kind),
                               way(data, params, groups, bits, kind))  # fmt: skip


@pytest.mark.parametrize("kind", QuantizationType)
@pytest.mark.parametrize("spoiled", [float("nan"), -float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_spoils_its_group_alone(quantizer, kind, spoiled):
    for function in (compiled.quantize, quantization.quantize):
        vals = numbers(3, 1030, torch.float32)
        vals[1, 1029] = spoiled

        back = quantizer.dequantize_fp32(*function(vals, 3, 8, kind), 3, 8, kind)

        assert back.isnan().any(dim=1).tolist() == [False, True, False]
        assert back[1].isnan().all()


def test_the_compiled_one_is_taken_and_says_so(quantizer):
    quantizer.quantize(torch.ones(4), 1, 8, quantizer.Symmetric)

    assert quantizer.quantize.used.implementation is Implementation.NATIVE
    assert quantizer.QuantizationType.Asymmetric == 1


def test_products_are_rounded_to_float16_once():
    steps = torch.arange(1, 2**16, 97, dtype=torch.int32).to(torch.int16).view(torch.float16)
    params = steps[steps.isfinite()].float().view(-1, 1) / 3
    data = torch.full((len(params), 2), 0x3B, dtype=torch.int8)

    found = compiled.dequantizer(torch.float16)(data, params, len(params), 4, 0)

    codes = torch.tensor([3.0, -5.0, 3.0, -5.0])
    assert torch.equal(found, (codes * params).half())


def test_errors_name_the_argument(quantizer):
    with pytest.raises(UsageError, match=r"vals: expected elements for 3 equal groups, got 4"):
        quantizer.quantize(torch.ones(4), 3, 8, 0)
    with pytest.raises(UsageError, match=r"num_bits: expected 4 or 8, got 5"):
        quantizer.quantize(torch.ones(4), 1, 5, 0)
    with pytest.raises(UsageError, match=r"params: expected float32, got float16"):
        quantizer.dequantize(torch.ones(4, dtype=torch.int8), torch.ones(1, 1).half(), 1, 8, 0)


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: f"e{kind.exponent}m{kind.mantissa}")
def test_every_code_of_a_format_is_its_own_nearest(kind):
    codes = torch.arange(2**kind.bits, dtype=torch.int32)
    codes = codes[codes != 2 ** (kind.bits - 1)]  # -0 comes back as such, too, but equals 0
    values = decoded(codes, kind)

    assert torch.equal(encoded(values, kind, stochastic=False), codes)
    assert torch.equal(encoded(values, kind, stochastic=True), codes)
    assert len(values.unique()) == len(codes)
    whole = codes.repeat(24)[None, : 24 * (len(codes) // 24)]
    assert torch.equal(from_bytes(to_bytes(whole, kind.bits), kind.bits), whole)


def test_fp8_is_torchs_where_torch_has_it():
    codes = torch.arange(0, 127, dtype=torch.uint8)  # 127 is NaN in torch's, and 480 here
    theirs = codes.view(torch.float8_e4m3fn).float()

    assert torch.equal(decoded(codes.int(), fp_quantization.format_of(8, 3)), theirs)
    wide = torch.arange(0, 124, dtype=torch.uint8)
    assert torch.equal(decoded(wide.int(), fp_quantization.format_of(8, 2)), wide.view(torch.float8_e5m2).float())


def test_the_largest_numbers_are_those_that_were_promised():
    largest = {(k.bits, k.mantissa): float(decoded(torch.tensor([2 ** (k.bits - 1) - 1]).int(), k)) for k in FORMATS}

    assert {key: value for key, value in largest.items() if key[0] != 12} == {
        (4, 1): 6.0, (6, 2): 28.0, (8, 3): 480.0, (8, 2): 114688.0,
    }  # fmt: skip


def test_zeros_and_negative_zeros_come_back_through_few_bits():
    module = find_builder("FPQuantizerBuilder")().load()
    vals = torch.tensor([[0.0, -0.0, 1.0, -1.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.bfloat16)
    out = torch.full((2, 8), 9, dtype=torch.uint8)

    assert module.quantize(out, vals, 4, 0, 8, 3) is out
    back = torch.full_like(vals, 7.0)
    module.dequantize(back, out, 4, 3, 4)

    assert torch.equal(back, vals)
    assert module.get_scales(out, 2).tolist() == [[pytest.approx(1 / 480)], [0.0]]


def test_groups_move_to_the_devices_of_all_nodes():
    rows = torch.arange(8).float().view(8, 1)

    assert swizzled(rows, 1, 2, 4).view(-1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert swizzled(rows, 2, 2, 2).view(-1).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]


def test_the_order_of_two_numbers_in_a_byte_is_asked_for():
    def low_first(vals, groups, bits, kind):
        data, params = quantization.quantize(vals, groups, bits, kind)
        return [byte_order.turned(data) if bits == 4 else data, params]

    def asked(device):
        data, _ = low_first(torch.tensor([1.0, 0.0], device=device), 1, 4, 0)
        return (int(data.view(torch.uint8)) & 15) == 0

    vals = numbers(4, 6, torch.float16)
    adapted = byte_order.in_our_order(asked, 2, takes=False, gives=True)(low_first)

    assert torch.equal(adapted(vals, 4, 4, QuantizationType.Symmetric)[0], quantization.quantize(vals, 4, 4, 0)[0])
    assert torch.equal(adapted(vals, 4, 8, 1)[0], quantization.quantize(vals, 4, 8, 1)[0])


def test_bytes_hold_signed_numbers():
    codes = torch.arange(-8, 8).float()

    assert torch.equal(loaded(stored(codes, 4), 4, 2), codes.view(2, 8))
    assert stored(codes, 4).view(torch.uint8)[0] == 0x89


def test_an_oracle_leaves_open_what_float32_does():
    tie = torch.tensor([[3.0, 0.5 * 3.0 / 128 * 5]]).double()
    even = torch.tensor([[4.0, 0.5 * 4.0 / 128 * 5]]).double()

    assert exact.quantize(tie, 8, asymmetric=False).slack.tolist() == [[0.0, 1.0]]
    assert exact.quantize(even, 8, asymmetric=False).slack.tolist() == [[0.0, 0.0]]
    assert exact.quantize(even, 8, asymmetric=False).codes.tolist() == [[127.0, 2.0]]
