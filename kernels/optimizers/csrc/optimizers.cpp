// Optimizer steps on host memory: Adam, its reverse, Adagrad and Lion.
//
// Numbers are stored as float32, float16 or bfloat16 and computed with as float32. An array is cut into blocks that stay in
// the first cache: 16-bit numbers are widened into buffers there, float32 is used where it lies. The loops over a block
// are plain, so that the compiler makes them as wide as the machine is, tail included.

#include <cmath>
#include <cstdint>

#include "floats16.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Four buffers of a block fill 4 KiB: with longer ones, addresses a multiple of 4 KiB apart wait for each other.
constexpr int64_t kBlock = 256;
constexpr int64_t kWorthThreads = 128 * kBlock;

enum Type : int32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };

// --- widening where numbers do not lie in float32 already -------------------------------------------------------------

inline float* widened(float* source, float*, int64_t) { return source; }
inline const float* widened(const float* source, float*, int64_t) { return source; }

template <class T>
inline float* widened(const T* source, float* buffer, int64_t count) {
  widen(source, buffer, count);
  return buffer;
}

inline void keep(const float*, float*, int64_t) {}

template <class T>
inline void keep(const float* buffer, T* target, int64_t count) {
  narrow(buffer, target, count);
}

// --- steps over one block in float32 --------------------------------------------------------------------------------

struct Settings {
  double rate, beta1, beta2, epsilon, decay, correction1, correction2;
  int32_t decoupled;
};

struct Adam {
  float beta1, rest1, beta2, rest2, epsilon, size, scale, coupled, kept;

  explicit Adam(const Settings& s)
      : beta1(float(s.beta1)), rest1(float(1 - s.beta1)), beta2(float(s.beta2)), rest2(float(1 - s.beta2)),
        epsilon(float(s.epsilon)), size(float(s.rate / s.correction1)), scale(float(1 / std::sqrt(s.correction2))),
        coupled(s.decoupled ? 0.0f : float(s.decay)), kept(s.decoupled ? float(1 - s.rate * s.decay) : 1.0f) {}

  void operator()(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v,
                  int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const float gradient = coupled == 0.0f ? g[i] : g[i] + coupled * p[i];
      const float mean = beta1 * m[i] + rest1 * gradient;
      const float square = beta2 * v[i] + rest2 * gradient * gradient;
      m[i] = mean;
      v[i] = square;
      p[i] = kept * p[i] - size * (mean / (std::sqrt(square) * scale + epsilon));
    }
  }
};

// What Adam's step made of p, m and v becomes what they were before it.
struct AdamBack {
  Adam step;
  float back1, back2, unkept;

  explicit AdamBack(const Settings& s)
      : step(s), back1(float(1 / s.beta1)), back2(float(1 / s.beta2)),
        unkept(s.decoupled ? float(1 / (1 - s.rate * s.decay)) : 1.0f) {}

  void operator()(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v,
                  int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const float old = (p[i] + step.size * (m[i] / (std::sqrt(v[i]) * step.scale + step.epsilon))) * unkept;
      const float gradient = step.coupled == 0.0f ? g[i] : g[i] + step.coupled * old;
      m[i] = (m[i] - step.rest1 * gradient) * back1;
      v[i] = (v[i] - step.rest2 * gradient * gradient) * back2;
      p[i] = old;
    }
  }
};

struct Adagrad {
  float rate, epsilon, decay;

  explicit Adagrad(const Settings& s) : rate(float(s.rate)), epsilon(float(s.epsilon)), decay(float(s.decay)) {}

  void operator()(float* __restrict p, const float* __restrict g, float* __restrict, float* __restrict v,
                  int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const float gradient = decay == 0.0f ? g[i] : g[i] + decay * p[i];
      const float square = v[i] + gradient * gradient;
      v[i] = square;
      p[i] -= rate * (gradient / (std::sqrt(square) + epsilon));
    }
  }
};

struct Lion {
  float rate, kept, beta1, rest1, beta2, rest2;

  explicit Lion(const Settings& s)
      : rate(float(s.rate)), kept(float(1 - s.rate * s.decay)), beta1(float(s.beta1)), rest1(float(1 - s.beta1)),
        beta2(float(s.beta2)), rest2(float(1 - s.beta2)) {}

  void operator()(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict,
                  int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const float blend = beta1 * m[i] + rest1 * g[i];
      // 0 and NaN are their own sign.
      const float sign = blend > 0.0f ? 1.0f : (blend < 0.0f ? -1.0f : blend);
      m[i] = beta2 * m[i] + rest2 * g[i];
      p[i] = kept * p[i] - rate * sign;
    }
  }
};

// --- arrays -----------------------------------------------------------------------------------------------------------

struct Arrays {
  void* p;
  const void* g;
  void* m;  // may be null for Adagrad
  void* v;  // may be null for Lion
  int64_t count;
  int32_t parameters, state, threads;
};

template <class Step, class P, class S>
void block(const Step& step, const Arrays& a, int64_t start, int64_t count) {
  alignas(64) float buffers[4][kBlock];
  P* p = static_cast<P*>(a.p) + start;
  const P* g = static_cast<const P*>(a.g) + start;
  S* m = a.m ? static_cast<S*>(a.m) + start : nullptr;
  S* v = a.v ? static_cast<S*>(a.v) + start : nullptr;
  float* wide_p = widened(p, buffers[0], count);
  const float* wide_g = widened(g, buffers[1], count);
  float* wide_m = m ? widened(m, buffers[2], count) : nullptr;
  float* wide_v = v ? widened(v, buffers[3], count) : nullptr;
  step(wide_p, wide_g, wide_m, wide_v, count);
  keep(wide_p, p, count);
  if (m) keep(wide_m, m, count);
  if (v) keep(wide_v, v, count);
}

template <class Step, class P, class S>
void over_blocks(const Step& step, const Arrays& a) {
  const int64_t blocks = (a.count + kBlock - 1) / kBlock;
#if defined(_OPENMP)
#pragma omp parallel for schedule(static) num_threads(a.threads) if (a.threads > 1 && a.count >= kWorthThreads)
#endif
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t start = i * kBlock;
    block<Step, P, S>(step, a, start, a.count - start < kBlock ? a.count - start : kBlock);
  }
}

// 0, or -1 for a pair of dtypes that nobody stores.
template <class Step>
int run(const Arrays& a, const Settings& settings) {
  const Step step(settings);
  switch (a.parameters * 4 + a.state) {
    case kFloat32 * 4 + kFloat32: over_blocks<Step, float, float>(step, a); return 0;
    case kFloat16 * 4 + kFloat32: over_blocks<Step, Half, float>(step, a); return 0;
    case kFloat16 * 4 + kFloat16: over_blocks<Step, Half, Half>(step, a); return 0;
    case kBfloat16 * 4 + kFloat32: over_blocks<Step, BFloat16, float>(step, a); return 0;
    case kBfloat16 * 4 + kBfloat16: over_blocks<Step, BFloat16, BFloat16>(step, a); return 0;
    default: return -1;
  }
}

}  // namespace

EXPORT int adam(const Arrays* a, const Settings* s) { return run<Adam>(*a, *s); }
EXPORT int adam_back(const Arrays* a, const Settings* s) { return run<AdamBack>(*a, *s); }
EXPORT int adagrad(const Arrays* a, const Settings* s) { return run<Adagrad>(*a, *s); }
EXPORT int lion(const Arrays* a, const Settings* s) { return run<Lion>(*a, *s); }

EXPORT int has_threads() {
#if defined(_OPENMP)
  return 1;
#else
  return 0;
#endif
}
