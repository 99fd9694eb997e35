// Optimizer steps on host memory: Adam, its reverse, Adagrad and Lion.
//
// Numbers are stored as float32, float16 or bfloat16; arithmetic is in float32. Sixteen numbers at a time are widened
// into registers, updated and narrowed again. Meanwhile the processor fetches the next ones.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "floats16.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int64_t kBlock = 4096;                // elements that a thread gets at a time
constexpr int64_t kWorthThreads = 8 * kBlock;  // with fewer elements, one thread does the work

enum Type : int32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };

// --- steps over one element, or over as many as fit a register ------------------------------------------------------

inline float root(float one) { return std::sqrt(one); }
#if defined(__AVX2__) && defined(__F16C__)
inline __m256 root(__m256 eight) { return _mm256_sqrt_ps(eight); }
#endif

struct Settings {
  double rate, beta1, beta2, epsilon, decay, correction1, correction2;
  int32_t decoupled;
};

// Parameter, gradient, mean and square of one element, or of eight. A step does not change the ones that it lacks.
template <class Float>
struct Numbers {
  Float p, g, m, v;
};

struct Adam {
  static constexpr bool kMean = true, kSquare = true;
  float beta1, rest1, beta2, rest2, epsilon, size, scale, coupled, kept;

  explicit Adam(const Settings& s)
      : beta1(float(s.beta1)), rest1(float(1 - s.beta1)), beta2(float(s.beta2)), rest2(float(1 - s.beta2)),
        epsilon(float(s.epsilon)), size(float(s.rate / s.correction1)), scale(float(1 / std::sqrt(s.correction2))),
        coupled(s.decoupled ? 0.0f : float(s.decay)), kept(s.decoupled ? float(1 - s.rate * s.decay) : 1.0f) {}

  template <class F>
  Numbers<F> operator()(Numbers<F> n) const {
    const F gradient = coupled == 0.0f ? n.g : n.g + coupled * n.p;
    const F mean = beta1 * n.m + rest1 * gradient;
    const F square = beta2 * n.v + rest2 * gradient * gradient;
    return {kept * n.p - size * (mean / (root(square) * scale + epsilon)), n.g, mean, square};
  }
};

// The reverse of Adam's step: p, m and v get the values that they had before it.
struct AdamBack {
  static constexpr bool kMean = true, kSquare = true;
  Adam step;
  float back1, back2, unkept;

  explicit AdamBack(const Settings& s)
      : step(s), back1(float(1 / s.beta1)), back2(float(1 / s.beta2)),
        unkept(s.decoupled ? float(1 / (1 - s.rate * s.decay)) : 1.0f) {}

  template <class F>
  Numbers<F> operator()(Numbers<F> n) const {
    const F old = (n.p + step.size * (n.m / (root(n.v) * step.scale + step.epsilon))) * unkept;
    const F gradient = step.coupled == 0.0f ? n.g : n.g + step.coupled * old;
    return {old, n.g, (n.m - step.rest1 * gradient) * back1, (n.v - step.rest2 * gradient * gradient) * back2};
  }
};

struct Adagrad {
  static constexpr bool kMean = false, kSquare = true;
  float rate, epsilon, decay;

  explicit Adagrad(const Settings& s) : rate(float(s.rate)), epsilon(float(s.epsilon)), decay(float(s.decay)) {}

  template <class F>
  Numbers<F> operator()(Numbers<F> n) const {
    const F gradient = decay == 0.0f ? n.g : n.g + decay * n.p;
    const F square = n.v + gradient * gradient;
    return {n.p - rate * (gradient / (root(square) + epsilon)), n.g, n.m, square};
  }
};

struct Lion {
  static constexpr bool kMean = true, kSquare = false;
  float rate, kept, beta1, rest1, beta2, rest2;

  explicit Lion(const Settings& s)
      : rate(float(s.rate)), kept(float(1 - s.rate * s.decay)), beta1(float(s.beta1)), rest1(float(1 - s.beta1)),
        beta2(float(s.beta2)), rest2(float(1 - s.beta2)) {}

  template <class F>
  Numbers<F> operator()(Numbers<F> n) const {
    const F blend = beta1 * n.m + rest1 * n.g;
    const F one = F{} + 1.0f;
    // The sign of 0 is 0, and the sign of NaN is NaN.
    const F sign = blend > 0.0f ? one : (blend < 0.0f ? -one : blend);
    return {kept * n.p - rate * sign, n.g, beta2 * n.m + rest2 * n.g, n.v};
  }
};

// --- arrays ---------------------------------------------------------------------------------------------------------

struct Arrays {
  void* p;
  const void* g;
  void* m;  // may be null for Adagrad
  void* v;  // may be null for Lion
  int64_t count;
  int32_t parameters, state, threads;
};

inline float wide(float one) { return one; }
inline void put(float value, float& place) { place = value; }
inline void put(float value, BFloat16& place) { place = narrow_bfloat16(value); }
inline void put(float value, Half& place) { place = narrow_half(value); }

template <class Step, class P, class S>
inline void element(const Step& step, P& p, const P& g, S* m, S* v) {
  Numbers<float> now{wide(p), wide(g), 0.0f, 0.0f};
  if constexpr (Step::kMean) now.m = wide(*m);
  if constexpr (Step::kSquare) now.v = wide(*v);
  const Numbers<float> next = step(now);
  put(next.p, p);
  if constexpr (Step::kMean) put(next.m, *m);
  if constexpr (Step::kSquare) put(next.v, *v);
}

#if defined(__AVX2__) && defined(__F16C__)
// Prefetches data that is needed some steps later. The processor's own prefetcher does not follow all seven streams,
// which costs some percent where memory bandwidth is the limit. An address after the end is harmless.
inline void soon(const void* now) { __builtin_prefetch(static_cast<const char*>(now) + 256); }

// If all numbers of a step have one type, they are widened in the order that is cheapest for it. With two types, every
// number keeps its place, so that the elements of both match.
template <class Other, class T>
inline Sixteen wide_sixteen(const T* source) {
  if constexpr (std::is_same_v<Other, T>) return widen_sixteen(source);
  return {widen_eight(source), widen_eight(source + 8)};
}

template <class Other, class T>
inline void put_sixteen(Sixteen values, T* target) {
  if constexpr (std::is_same_v<Other, T>) return narrow_sixteen(values, target);
  narrow_sixteen(values.one, values.other, target);
}

// Updates sixteen elements: a register's worth of 16-bit numbers. Without always_inline the compiler makes calls of it,
// and loads the step's constants in each. For bfloat16 that is a third of the time.
template <class Step, class P, class S>
__attribute__((always_inline)) inline void elements(const Step& step, P* p, const P* g, S* m, S* v) {
  const Sixteen parameters = wide_sixteen<S>(p), gradients = wide_sixteen<S>(g);
  Sixteen means{}, squares{};
  if constexpr (Step::kMean) means = wide_sixteen<P>(m);
  if constexpr (Step::kSquare) squares = wide_sixteen<P>(v);
  const Numbers<__m256> one = step(Numbers<__m256>{parameters.one, gradients.one, means.one, squares.one});
  const Numbers<__m256> other = step(Numbers<__m256>{parameters.other, gradients.other, means.other, squares.other});
  put_sixteen<S>({one.p, other.p}, p);
  if constexpr (Step::kMean) put_sixteen<P>({one.m, other.m}, m);
  if constexpr (Step::kSquare) put_sixteen<P>({one.v, other.v}, v);
}
#endif

template <class Step, class P, class S>
void block(const Step& given, const Arrays& a, int64_t start, int64_t count) {
  const Step step = given;  // a local copy: the compiler knows that stores into the arrays do not change it
  P* __restrict p = static_cast<P*>(a.p) + start;
  const P* __restrict g = static_cast<const P*>(a.g) + start;
  S* __restrict m = Step::kMean ? static_cast<S*>(a.m) + start : nullptr;
  S* __restrict v = Step::kSquare ? static_cast<S*>(a.v) + start : nullptr;
  int64_t i = 0;
#if defined(__AVX2__) && defined(__F16C__)
  for (; i + 16 <= count; i += 16) {
    soon(p + i), soon(g + i);
    if constexpr (Step::kMean) soon(m + i);
    if constexpr (Step::kSquare) soon(v + i);
    elements(step, p + i, g + i, Step::kMean ? m + i : m, Step::kSquare ? v + i : v);
  }
#endif
  // The rest; on other processors all elements, and the compiler vectorizes the loop.
  for (; i < count; ++i) element(step, p[i], g[i], Step::kMean ? m + i : m, Step::kSquare ? v + i : v);
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

// Returns 0, or -1 for an unsupported pair of dtypes.
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
