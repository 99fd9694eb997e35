// Arithmetic of a reduction for all element types: 16-bit types are summed in float and rounded once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "floats16.h"

enum class Operation : int { sum = 0, mean = 1, minimum = 2, maximum = 3 };

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

template <class T>
inline void narrow(const T* in, T* out, size_t count) {
  std::memcpy(out, in, count * sizeof(T));
}

// sums[i] = sums[i] op next[i]. A NaN on either side gives NaN.
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

// out[i] = sources[0][i] op sources[1][i] op …, always in this order. out may be one of the sources. copy is a second
// output of the same numbers, or null. Blocks are small, so that the accumulators stay in the L1 cache.
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
