// Element types, and the arithmetic of a reduction: 16-bit types are summed in float and rounded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__F16C__)
#include <immintrin.h>
#endif

enum class Operation : int { sum = 0, mean = 1, minimum = 2, maximum = 3 };

struct Half {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float wide(BFloat16 value) { return float_of(uint32_t(value.bits) << 16); }

inline BFloat16 narrow_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  // To the nearest, ties to even; a NaN must not be rounded into an infinity.
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return {uint16_t(value != value ? 0x7fc0u : rounded)};
}

inline float wide(Half value) {
  const uint32_t sign = uint32_t(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 31u, fraction = value.bits & 0x3ffu;
  if (exponent == 31) return float_of(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {
    const float tiny = float(fraction) * 0x1p-24f;
    return sign ? -tiny : tiny;
  }
  return float_of(sign | ((exponent + 112) << 23) | (fraction << 13));
}

inline Half narrow_half(float value) {
  const uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {uint16_t(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {uint16_t(sign | 0x7c00u)};  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {
    // Below the smallest normal number: let float's own addition round at the right place.
    const float shifted = float_of(magnitude) + 0.5f;
    return {uint16_t(sign | (bits_of(shifted) - bits_of(0.5f)))};
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
  return {uint16_t(sign | (rounded >> 13))};
}

template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<Half> {
  using type = float;
};
template <>
struct Accumulator<BFloat16> {
  using type = float;
};

template <class T>
inline void widen(const T* in, T* out, size_t count) {
  std::memcpy(out, in, count * sizeof(T));
}

inline void widen(const BFloat16* in, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = wide(in[i]);
}

inline void widen(const Half* in, float* out, size_t count) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
#endif
  for (; i < count; ++i) out[i] = wide(in[i]);
}

template <class T>
inline void narrow(const T* in, T* out, size_t count) {
  std::memcpy(out, in, count * sizeof(T));
}

inline void narrow(const float* in, BFloat16* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = narrow_bfloat16(in[i]);
}

inline void narrow(const float* in, Half* out, size_t count) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < count; ++i) out[i] = narrow_half(in[i]);
}

// sums[i] = sums[i] op next[i]. A NaN on either side stays one.
template <class A>
void combine(Operation operation, A* sums, const A* next, size_t count) {
  if (operation == Operation::minimum) {
    for (size_t i = 0; i < count; ++i) sums[i] = (next[i] != next[i] || next[i] < sums[i]) ? next[i] : sums[i];
  } else if (operation == Operation::maximum) {
    for (size_t i = 0; i < count; ++i) sums[i] = (next[i] != next[i] || next[i] > sums[i]) ? next[i] : sums[i];
  } else {
    for (size_t i = 0; i < count; ++i) sums[i] = A(sums[i] + next[i]);
  }
}

// out[i] = sources[0][i] op sources[1][i] op …, always in this order. out may be one of the sources; copy is a second
// place for the same numbers, or null. Blocks are small enough for the accumulators to stay in the first cache.
template <class T>
void reduce(Operation operation, const T* const* sources, int ranks, size_t count, T* out, T* copy) {
  using A = typename Accumulator<T>::type;
  constexpr size_t block = 512;
  A sums[block], next[block];
  for (size_t start = 0; start < count; start += block) {
    const size_t length = count - start < block ? count - start : block;
    widen(sources[0] + start, sums, length);
    for (int rank = 1; rank < ranks; ++rank) {
      widen(sources[rank] + start, next, length);
      combine(operation, sums, next, length);
    }
    if constexpr (std::is_floating_point_v<A>)
      if (operation == Operation::mean)
        for (size_t i = 0; i < length; ++i) sums[i] /= A(ranks);
    narrow(sums, out + start, length);
    if (copy) std::memcpy(copy + start, out + start, length * sizeof(T));
  }
}
