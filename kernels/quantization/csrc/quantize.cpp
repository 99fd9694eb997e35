// Quantization to integers of 4 and 8 bits with a float32 step (and offset) per group, on host memory.
//
// A group is read twice: once for its range, once for its codes. Both passes work on blocks that fit the L1 cache;
// 16-bit numbers are widened to float32 there. Their loops are simple, so that the compiler vectorizes them. Ranges are found
// on the numbers' bits as integers, which have the same order. NaN lies beyond the infinities there, so it is not lost
// as in floating-point comparisons.

#include <cstdint>

#include "floats16.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int64_t kBlock = 1024;
constexpr int64_t kWorthThreads = 64 * kBlock;
constexpr int32_t kInfinity = 0x7f800000;
constexpr float kNegligible = 0x1p-100f;
// 1.5 * 2^23. Its sum with a float32 has the nearest integer, ties to even, in the last bits.
constexpr float kRounder = 12582912.0f;

enum Type : int32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };

// Returns the numbers from `at` on as float32: in place, or widened in the buffer.
const float* widened(const void* source, int32_t type, int64_t at, int64_t count, float* buffer) {
  if (type == kFloat32) return static_cast<const float*>(source) + at;
  if (type == kBfloat16)
    widen(static_cast<const BFloat16*>(source) + at, buffer, count);
  else
    widen(static_cast<const Half*>(source) + at, buffer, count);
  return buffer;
}

// Maps a number's bits to an integer with the same order: for negative numbers the bits are reversed. It is its own
// inverse.
inline int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

struct Scaling {
  float scale, step, offset;
  bool finite;
};

Scaling symmetric(const void* in, int32_t type, int64_t at, int64_t size, int32_t bits) {
  float buffer[kBlock];
  int32_t most = 0;
  for (int64_t done = 0; done < size; done += kBlock) {
    const int64_t count = size - done < kBlock ? size - done : kBlock;
    const float* x = widened(in, type, at + done, count, buffer);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t key = int32_t(bits_of(x[i]) & 0x7fffffffu);
      most = key > most ? key : most;
    }
  }
  const float largest = float_of(most), half = float(1 << (bits - 1));
  if (largest < kNegligible) return {1.0f, 1.0f, 0.0f, true};
  return {half / largest, largest / half, 0.0f, most < kInfinity};
}

Scaling asymmetric(const void* in, int32_t type, int64_t at, int64_t size, int32_t bits) {
  float buffer[kBlock];
  int32_t most = INT32_MIN, least = INT32_MAX;
  for (int64_t done = 0; done < size; done += kBlock) {
    const int64_t count = size - done < kBlock ? size - done : kBlock;
    const float* x = widened(in, type, at + done, count, buffer);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t key = ordered(bits_of(x[i]));
      most = key > most ? key : most;
      least = key < least ? key : least;
    }
  }
  const float high = float_of(ordered(most)), low = float_of(ordered(least));
  const float width = high - low, offset = (high + low) * 0.5f, steps = float(1 << bits);
  const bool finite = most < kInfinity && least > ordered(int32_t(0xff800000u));
  if (width < kNegligible) return {1.0f, 1.0f, offset, finite};
  return {steps / width, width / steps, offset, finite};
}

void encode(const float* x, int64_t count, const Scaling& how, int32_t bits, int8_t* codes) {
  const int32_t high = (1 << (bits - 1)) - 1, low = -high - 1;
  const float scale = how.scale, offset = how.offset;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t code = int32_t(bits_of((x[i] - offset) * scale + kRounder) - bits_of(kRounder));
    const int32_t below = code > high ? high : code;
    codes[i] = int8_t(below < low ? low : below);
  }
}

void quantize_group(const void* in, int32_t type, int64_t at, int64_t size, int32_t bits, bool offset, int8_t* out,
                    float* params) {
  const Scaling how = (offset ? asymmetric : symmetric)(in, type, at, size, bits);
  params[0] = how.finite ? how.step : float_of(0x7fc00000);
  if (offset) params[1] = how.finite ? how.offset : float_of(0x7fc00000);
  if (!how.finite) {
    std::memset(out, 0, size_t(size * bits / 8));
    return;
  }
  float buffer[kBlock];
  int8_t codes[kBlock];
  for (int64_t done = 0; done < size; done += kBlock) {
    const int64_t count = size - done < kBlock ? size - done : kBlock;
    const float* x = widened(in, type, at + done, count, buffer);
    if (bits == 8) {
      encode(x, count, how, 8, out + done);
    } else {
      encode(x, count, how, 4, codes);
      for (int64_t i = 0; i < count / 2; ++i)
        out[done / 2 + i] = int8_t(uint8_t(codes[2 * i]) << 4 | (codes[2 * i + 1] & 15));
    }
  }
}

void dequantize_group(const int8_t* in, int64_t at, int64_t size, int32_t bits, float step, float offset, void* out,
                      int32_t type) {
  float buffer[kBlock];
  int8_t codes[kBlock];
  for (int64_t done = 0; done < size; done += kBlock) {
    const int64_t count = size - done < kBlock ? size - done : kBlock;
    const int8_t* from = in + (at + done) * bits / 8;
    if (bits == 4) {
      for (int64_t i = 0; i < count / 2; ++i) {
        codes[2 * i] = int8_t(from[i] >> 4);
        codes[2 * i + 1] = int8_t(int8_t(uint8_t(from[i]) << 4) >> 4);
      }
      from = codes;
    }
    float* values = type == kFloat32 ? static_cast<float*>(out) + at + done : buffer;
    for (int64_t i = 0; i < count; ++i) values[i] = float(from[i]) * step + offset;
    if (type == kFloat16) narrow(buffer, static_cast<Half*>(out) + at + done, count);
  }
}

}  // namespace

// in: groups * size numbers. out: as many codes of `bits` bits. params: one number a group, or two with an offset.
EXPORT void quantize_groups(const void* in, int32_t type, int64_t groups, int64_t size, int32_t bits, int32_t offset,
                            int8_t* out, float* params, int32_t threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && groups * size >= kWorthThreads)
  for (int64_t group = 0; group < groups; ++group)
    quantize_group(in, type, group * size, size, bits, offset != 0, out + group * size * bits / 8,
                   params + group * (1 + (offset != 0)));
}

// Dequantizes to float32 or float16. Without an offset 0 is added, which turns -0 into 0.
EXPORT void dequantize_groups(const int8_t* in, const float* params, int64_t groups, int64_t size, int32_t bits,
                              int32_t offset, void* out, int32_t type, int32_t threads) {
  const int64_t wide = 1 + (offset != 0);
#pragma omp parallel for num_threads(threads) if (threads > 1 && groups * size >= kWorthThreads)
  for (int64_t group = 0; group < groups; ++group)
    dequantize_group(in, group * size, size, bits, params[group * wide], offset ? params[group * wide + 1] : 0.0f, out,
                     type);
}
