// The ops of the library: their names, inputs, outputs and attributes, in TensorFlow's words.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/bindings/c_api.h"

namespace aiacc::tensorflow {

/// Ops that are none of the core's operations.
inline constexpr int kToken = -1;
inline constexpr int kProbe = -2;
inline constexpr int kTopology = -3;
inline constexpr int kMoment = -4;

struct OpSpec {
  const char* name;
  int kind;  ///< aiacc_kind, or one of the above.
  std::vector<const char*> inputs;
  std::vector<const char*> outputs;
  std::vector<const char*> attributes;
  /// Runs in program order, though nobody needs its result. Collectives on tensors are not: they
  /// may run in any order, so that none waits for another. `tokens` keeps them from being folded
  /// into constants when a graph is optimised.
  bool stateful;
};

const std::vector<OpSpec>& op_specs();

/// What a successful AiaccProbe gives.
inline constexpr std::int64_t kProbeAnswer = 0x41494143;

}  // namespace aiacc::tensorflow
