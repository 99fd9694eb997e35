// Packs signs as bits, most significant bit first: 1 where x >= 0 (also for -0.0), 0 where x < 0 and for NaN.

#include <cstddef>
#include <cstdint>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// All 256 bytes' answers, made once: AVX's movemask gives the first element in the lowest bit, so bits are reversed.
struct Tables {
  uint8_t reversed[256];
  float signs[256][8];
  Tables() {
    for (int byte = 0; byte < 256; ++byte) {
      reversed[byte] = 0;
      for (int bit = 0; bit < 8; ++bit) {
        reversed[byte] |= uint8_t(((byte >> bit) & 1) << (7 - bit));
        signs[byte][bit] = (byte >> (7 - bit)) & 1 ? 1.0f : -1.0f;
      }
    }
  }
};

const Tables tables;

uint8_t pack_some(const float* in, size_t count) {
  uint8_t byte = 0;
  for (size_t i = 0; i < count; ++i) byte |= uint8_t((in[i] >= 0.0f) << (7 - i));
  return byte;
}

}  // namespace

// out: (count + 7) / 8 bytes; bits past count are 0.
EXPORT void pack_signs(const float* in, uint64_t count, uint8_t* out) {
  const uint64_t full = count / 8;
  for (uint64_t i = 0; i < full; ++i) {
#if defined(__AVX__)
    const __m256 positive = _mm256_cmp_ps(_mm256_loadu_ps(in + 8 * i), _mm256_setzero_ps(), _CMP_GE_OQ);
    out[i] = tables.reversed[_mm256_movemask_ps(positive)];
#else
    out[i] = pack_some(in + 8 * i, 8);
#endif
  }
  if (count % 8) out[full] = pack_some(in + 8 * full, count % 8);
}

// out: 8 * bytes floats, each 1 or -1.
EXPORT void unpack_signs(const uint8_t* in, uint64_t bytes, float* out) {
  for (uint64_t i = 0; i < bytes; ++i)
    for (int bit = 0; bit < 8; ++bit) out[8 * i + bit] = tables.signs[in[i]][bit];
}
