#pragma once

#include <cstddef>

#include "csrc/base/dtype.h"

namespace aiacc {

/// out[i] = factor * in[i], of float32 rounded to nearest even in 16 bits: too large numbers become
/// infinity, NaN stays NaN. The factor is applied in float32, by the rules of scale.h. `to` is
/// kFloat16 or kBFloat16. No overlap, any alignment.
void narrow(void* out, const void* in, std::size_t count, DataType to, double factor);

/// Its counterpart: factor * in[i] as float32, of numbers in 16 bits.
void widen(void* out, const void* in, std::size_t count, DataType from, double factor);

}  // namespace aiacc
