#pragma once

#include <cstdint>
#include <string>

#include "csrc/base/error.h"
#include "csrc/core/negotiation/request.h"

namespace aiacc {

// What every front-end's numbers are checked for before they become a Request; what is more is
// checked in Coordinator::submit. All throw Error(kInvalidArgument).

inline OpKind kind_from(long long kind) {
  // Process sets change through functions of their own.
  if (kind < 0 || kind > static_cast<int>(OpKind::kJoin)) {
    throw Error(Code::kInvalidArgument,
                "[submit] operation kind " + std::to_string(kind) + " (expected 0.." +
                    std::to_string(static_cast<int>(OpKind::kJoin)) + ")");
  }
  return static_cast<OpKind>(kind);
}

/// A wire format in the lowest 8 bits, and the numbers of a coded one in those above.
inline void assign_wire(Request& request, long long wire) {
  constexpr long long kFormats = 256;
  constexpr long long kMost = (1LL << 31) - 1;
  if (wire < 0 || wire > kMost || wire % kFormats >= kWireFormats) {
    throw Error(Code::kInvalidArgument,
                "[submit] wire format " + std::to_string(wire) + " (expected 0.." +
                    std::to_string(kWireFormats - 1) + ", plus " + std::to_string(kFormats) +
                    " times the number of a coded one)");
  }
  request.wire = static_cast<WireFormat>(wire % kFormats);
  request.wire_detail = static_cast<std::uint32_t>(wire / kFormats);
}

inline void check_extents(const TensorSpec& spec) {
  for (const std::int64_t extent : spec.shape) {
    if (extent < 0) {
      throw Error(
          Code::kInvalidArgument,
          "[submit] shape with extent " + std::to_string(extent) + " (expected extents >= 0)");
    }
  }
}

/// Whether a group of tensors may be of this kind.
inline void check_group(OpKind kind) {
  if (kind != OpKind::kAllreduce && kind != OpKind::kAllgather && kind != OpKind::kReducescatter) {
    throw Error(Code::kInvalidArgument,
                std::string("[submit] a group of ") + name_of(kind) +
                    " (expected allreduce, allgather or reducescatter)");
  }
}

}  // namespace aiacc
