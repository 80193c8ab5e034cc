#pragma once

// The body of the kernels that move batches, for the device (batch_copy.cu) and for the host
// (batch_copy.cc), which runs it thread by thread. A codec widens elements to float or double and
// narrows them.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "csrc/kernels/batch_copy.h"
#include "csrc/kernels/float8.h"
#include "csrc/kernels/host_device.h"

namespace aiacc {

struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};
struct Bool8 {
  std::uint8_t bits;
};

/// Accesses in flight in every thread, to hide the latency of memory.
inline constexpr std::uint32_t kCopyUnroll = 4;

/// Elements of an access of 16 bytes on the wider side.
template <class In, class Out>
inline constexpr std::uint32_t kCopyVector =
    16 / (sizeof(In) > sizeof(Out) ? sizeof(In) : sizeof(Out));

template <class In, class Out>
inline constexpr std::uint32_t kCopyChunk = kCopyThreads * kCopyUnroll * kCopyVector<In, Out>;

/// Bits without sign of the smallest float that rounds to no finite `Out`.
template <class Out>
inline constexpr std::uint32_t kOverflowBits = 0x7f800000;
template <>
inline constexpr std::uint32_t kOverflowBits<Float16> = 0x477ff000;  // 65520
template <>
inline constexpr std::uint32_t kOverflowBits<BFloat16> = 0x7f7f8000;
template <>
inline constexpr std::uint32_t kOverflowBits<Float8E4M3> = 0x43e80001;  // above 464, which is a tie
template <>
inline constexpr std::uint32_t kOverflowBits<Float8E5M2> = 0x47700000;  // 61440

/// Moves bits.
template <class T, class, class>
struct RawCopy {
  using In = T;
  using Out = T;
  AIACC_HOST_DEVICE RawCopy(double, double) {}
  AIACC_HOST_DEVICE T operator()(T value) { return value; }
  AIACC_HOST_DEVICE void report(CopyReport*) {}
};

/// Divides by a whole number, or, if that is 0, multiplies in double; truncates toward zero. Out of
/// range becomes the nearest bound, NaN zero.
template <class T, class, class>
struct IntegerCopy {
  using In = T;
  using Out = T;
  using Wide = std::conditional_t<(sizeof(T) > 4), std::int64_t, std::int32_t>;
  static constexpr T kLow = std::numeric_limits<T>::min();
  static constexpr T kHigh = std::numeric_limits<T>::max();
  double factor;
  Wide divisor;

  AIACC_HOST_DEVICE IntegerCopy(double times, double by)
      : factor(times), divisor(static_cast<Wide>(by)) {}
  AIACC_HOST_DEVICE T operator()(T element) {
    if (divisor != 0) {
      return static_cast<T>(element / divisor);
    }
    const double value = static_cast<double>(element) * factor;
    if (value >= static_cast<double>(kHigh)) {
      return kHigh;
    }
    if (value <= static_cast<double>(kLow)) {
      return kLow;
    }
    return value == value ? static_cast<T>(value) : T{0};
  }
  AIACC_HOST_DEVICE void report(CopyReport*) {}
};

template <class Codec>
struct IntegerCopy<Bool8, Bool8, Codec> {
  using In = Bool8;
  using Out = Bool8;
  bool keeps;  ///< the factor truncates to something else than zero

  AIACC_HOST_DEVICE IntegerCopy(double factor, double) : keeps(factor >= 1.0 || factor <= -1.0) {}
  AIACC_HOST_DEVICE Bool8 operator()(Bool8 value) {
    return {static_cast<std::uint8_t>((value.bits != 0) & keeps)};
  }
  AIACC_HOST_DEVICE void report(CopyReport*) {}
};

/// Widens, multiplies, narrows; remembers the largest input, among which NaN counts as larger than
/// infinity.
template <class I, class O, class Codec>
struct FloatCopy {
  using In = I;
  using Out = O;
  using Wide = std::conditional_t<std::is_same_v<In, double>, double, float>;
  using Bits = std::conditional_t<std::is_same_v<In, double>, std::uint64_t, std::uint32_t>;
  static constexpr Bits kInfinity =
      std::is_same_v<In, double> ? static_cast<Bits>(0x7ff0000000000000ull) : Bits{0x7f800000};
  static constexpr Bits kOverflow = std::is_same_v<In, double> ? kInfinity : kOverflowBits<Out>;
  Wide high;
  Wide low;
  Bits largest = 0;

  AIACC_HOST_DEVICE FloatCopy(double factor_high, double factor_low)
      : high(static_cast<Wide>(factor_high)), low(static_cast<Wide>(factor_low)) {}

  AIACC_HOST_DEVICE static Bits magnitude(Wide value) {
    Bits bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits & (~Bits{0} >> 1);
  }
  /// The low part would turn infinity into NaN, and minus zero into zero.
  AIACC_HOST_DEVICE Wide scaled(Wide value, Bits bits) const {
    const Wide plain = value * high;
    const Wide precise = std::fma(value, high, value * low);
    return bits - 1 < kInfinity - 1 ? precise : plain;
  }
  AIACC_HOST_DEVICE Out operator()(In element) {
    const Wide value = Codec::widen(element);
    const Bits bits = magnitude(value);
    largest = bits > largest ? bits : largest;
    return Codec::template narrow<Out>(scaled(value, bits));
  }
  AIACC_HOST_DEVICE void report(CopyReport* to) {
    if (largest > kInfinity) {
      to->nan = 1;
    } else if (largest == kInfinity) {
      to->infinite = 1;
    } else {
      Wide value;
      std::memcpy(&value, &largest, sizeof value);
      // Scaling keeps the order: if the largest input does not overflow, none does.
      if (magnitude(scaled(value, largest)) >= kOverflow) {
        to->overflow = 1;
      }
    }
    largest = 0;
  }
};

/// 16 bytes on the wider side of a copy, less on the other.
template <class T, std::uint32_t kCount>
struct [[gnu::may_alias]] alignas(sizeof(T) * kCount) ElementPack {
  T element[kCount];
};

/// What one thread does of chunk `chunk` of `item`.
template <class Operation>
AIACC_HOST_DEVICE void copy_chunk(const PlannedCopy& item,
                                  std::uint32_t chunk,
                                  std::uint32_t thread,
                                  Operation& operation) {
  using In = typename Operation::In;
  using Out = typename Operation::Out;
  constexpr std::uint32_t kVector = kCopyVector<In, Out>;
  constexpr std::uint32_t kChunk = kCopyChunk<In, Out>;
  using InPack = ElementPack<In, kVector>;
  using OutPack = ElementPack<Out, kVector>;

  const bool aligned = item.head != kCopyUnaligned;
  const std::uint64_t head = aligned ? item.head : 0;
  const std::uint64_t end_of_full = head + (std::uint64_t{chunk} + 1) * kChunk;
  const std::uint64_t body = head + std::uint64_t{chunk} * kChunk;
  const std::uint64_t begin = chunk == 0 ? 0 : body;
  const std::uint64_t end = item.count < end_of_full ? item.count : end_of_full;
  const In* in = static_cast<const In*>(item.in);
  Out* out = static_cast<Out*>(item.out);
  if (!aligned) {
    for (std::uint64_t i = begin + thread; i < end; i += kCopyThreads) {
      out[i] = operation(in[i]);
    }
    return;
  }

  const auto* from = reinterpret_cast<const InPack*>(in + body);
  auto* to = reinterpret_cast<OutPack*>(out + body);
  const auto vectors = static_cast<std::uint32_t>((end - body) / kVector);
  if (vectors == kCopyThreads * kCopyUnroll) {
    InPack loaded[kCopyUnroll];
    AIACC_UNROLL
    for (std::uint32_t u = 0; u < kCopyUnroll; ++u) {
      loaded[u] = from[thread + u * kCopyThreads];
    }
    AIACC_UNROLL
    for (std::uint32_t u = 0; u < kCopyUnroll; ++u) {
      OutPack result;
      AIACC_UNROLL
      for (std::uint32_t e = 0; e < kVector; ++e) {
        result.element[e] = operation(loaded[u].element[e]);
      }
      to[thread + u * kCopyThreads] = result;
    }
  } else {
    for (std::uint32_t v = thread; v < vectors; v += kCopyThreads) {
      const InPack pack = from[v];
      OutPack result;
      AIACC_UNROLL
      for (std::uint32_t e = 0; e < kVector; ++e) {
        result.element[e] = operation(pack.element[e]);
      }
      to[v] = result;
    }
  }
  // The elements before the first pack, and those after the last: fewer than threads.
  if (begin + thread < body) {
    out[begin + thread] = operation(in[begin + thread]);
  }
  const std::uint64_t rest = body + std::uint64_t{vectors} * kVector + thread;
  if (rest < end) {
    out[rest] = operation(in[rest]);
  }
}

/// What one thread of block `block` of `blocks` does: the blocks have equal shares of the chunks,
/// each an unbroken run.
template <class Operation, class Batch>
AIACC_HOST_DEVICE void copy_share(const Batch& batch,
                                  std::uint32_t block,
                                  std::uint32_t blocks,
                                  std::uint32_t thread) {
  Operation operation(batch.factor_high, batch.factor_low);
  const std::uint64_t chunks = batch.chunks;
  const auto first = static_cast<std::uint32_t>(chunks * block / blocks);
  const auto last = static_cast<std::uint32_t>(chunks * (block + 1) / blocks);
  if (first == last) {
    return;
  }
  // The last item that begins at or before the first chunk; those without elements are never it.
  std::uint32_t low = 0;
  std::uint32_t high = batch.items;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    if (batch.item[middle].first_chunk <= first) {
      low = middle;
    } else {
      high = middle;
    }
  }
  for (std::uint32_t chunk = first; chunk < last; ++low) {
    const std::uint32_t next = low + 1 < batch.items ? batch.item[low + 1].first_chunk : last;
    const std::uint32_t end = next < last ? next : last;
    if (chunk >= end) {
      continue;
    }
    for (; chunk < end; ++chunk) {
      copy_chunk(batch.item[low], chunk - batch.item[low].first_chunk, thread, operation);
    }
    if (batch.reports != nullptr) {
      operation.report(&batch.reports[low]);
    }
  }
}

}  // namespace aiacc
