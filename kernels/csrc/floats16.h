// Conversions of float16 and bfloat16 in memory: to float32, and back to the nearest number, ties to even.
//
// A NaN stays a NaN; as bfloat16 it is 0x7fc0. The content of this file is part of the build key of every library that
// includes it.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#endif

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

// --- one number -----------------------------------------------------------------------------------------------------

inline float wide(BFloat16 one) { return float_of(uint32_t(one.bits) << 16); }

inline BFloat16 narrow_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return {uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded)};
}

inline float wide(Half one) {
  const uint32_t sign = uint32_t(one.bits & 0x8000u) << 16;
  const uint32_t rest = one.bits & 0x7fffu;
  if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  // Read as a float32, the bits stand for a number that is too small by 2^112, also for subnormal numbers.
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
}

inline Half narrow_half(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {uint16_t(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {uint16_t(sign | 0x7c00u)};  // 65520 and more round to infinity
  if (magnitude < 0x38800000u) {
    // After adding 1/2, the last bit of the float32 is the last bit of a subnormal float16; the addition rounds.
    return {uint16_t(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)))};
  }
  const uint32_t moved = magnitude - (112u << 23);
  return {uint16_t(sign | ((moved + 0xfffu + ((moved >> 13) & 1u)) >> 13))};
}

// --- eight and sixteen numbers --------------------------------------------------------------------------------------

#if defined(__AVX2__)
inline __m256 widen_eight(const BFloat16* source) {
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(packed), 16));
}

// Eight numbers before narrow_bfloat16 takes their upper halves. The upper half is the rounded number, except of a NaN.
inline __m256i raised(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

// The same, with 0x7fc0 in the upper half of every NaN.
inline __m256i no_nan(__m256 values, __m256i raised) {
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(raised, _mm256_set1_epi32(0x7fc00000), nan);
}

// narrow_bfloat16 of eight numbers, each in the low half of its 32-bit lane.
inline __m256i narrow_eight(__m256 values) { return _mm256_srli_epi32(no_nan(values, raised(values)), 16); }

inline void narrow_sixteen(__m256 first, __m256 second, BFloat16* target) {
  const __m256i packed = _mm256_packus_epi32(narrow_eight(first), narrow_eight(second));
  // The pack instruction works on 128-bit halves separately; the permutation restores the order of the numbers.
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), _mm256_permute4x64_epi64(packed, 0xd8));
}

inline __m256 widen_eight(const float* source) { return _mm256_loadu_ps(source); }

inline void narrow_sixteen(__m256 first, __m256 second, float* target) {
  _mm256_storeu_ps(target, first);
  _mm256_storeu_ps(target + 8, second);
}
#endif

#if defined(__F16C__)
inline __m256 widen_eight(const Half* source) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
}

inline void narrow_eight(__m256 values, Half* target) {
  const __m128i packed = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(target), packed);
}

inline void narrow_sixteen(__m256 first, __m256 second, Half* target) {
  narrow_eight(first, target);
  narrow_eight(second, target + 8);
}
#endif

// --- sixteen numbers in any order -----------------------------------------------------------------------------------

#if defined(__AVX2__) && defined(__F16C__)
// Sixteen numbers for element-wise arithmetic, which does not depend on their order. For bfloat16, `one` has the even
// elements and `other` the odd ones: so they are widened and narrowed without moving them between lanes. For other
// types, they have the first and the second eight.
struct Sixteen {
  __m256 one, other;
};

inline Sixteen widen_sixteen(const BFloat16* source) {
  const __m256i packed = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
  const __m256i odd = _mm256_and_si256(packed, _mm256_set1_epi32(int32_t(0xffff0000)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(packed, 16)), _mm256_castsi256_ps(odd)};
}

inline void narrow_sixteen(Sixteen values, BFloat16* target) {
  __m256i even = raised(values.one), odd = raised(values.other);
  const __m256 nan = _mm256_cmp_ps(values.one, values.other, _CMP_UNORD_Q);
  if (__builtin_expect(!_mm256_testz_ps(nan, nan), 0)) {
    even = no_nan(values.one, even);
    odd = no_nan(values.other, odd);
  }
  const __m256i packed = _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), packed);
}

template <class T>
inline Sixteen widen_sixteen(const T* source) {
  return {widen_eight(source), widen_eight(source + 8)};
}

template <class T>
inline void narrow_sixteen(Sixteen values, T* target) {
  narrow_sixteen(values.one, values.other, target);
}
#endif

// --- many numbers ---------------------------------------------------------------------------------------------------

inline void widen(const BFloat16* source, float* target, int64_t count) {
  int64_t i = 0;
#if defined(__AVX2__)
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(target + i, widen_eight(source + i));
#endif
  for (; i < count; ++i) target[i] = wide(source[i]);
}

inline void widen(const Half* source, float* target, int64_t count) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(target + i, widen_eight(source + i));
#endif
  for (; i < count; ++i) target[i] = wide(source[i]);
}

inline void narrow(const float* source, BFloat16* target, int64_t count) {
  int64_t i = 0;
#if defined(__AVX2__)
  for (; i + 16 <= count; i += 16) {
    narrow_sixteen(_mm256_loadu_ps(source + i), _mm256_loadu_ps(source + i + 8), target + i);
  }
#endif
  for (; i < count; ++i) target[i] = narrow_bfloat16(source[i]);
}

inline void narrow(const float* source, Half* target, int64_t count) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) narrow_eight(_mm256_loadu_ps(source + i), target + i);
#endif
  for (; i < count; ++i) target[i] = narrow_half(source[i]);
}
