#include "csrc/planning/parameters.h"

#include <algorithm>
#include <string>

#include "csrc/base/error.h"

namespace aiacc {

const char* name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAny:
      return "auto";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kTree:
      return "tree";
  }
  return "unknown";
}

Algorithm algorithm_from(const std::string& name) {
  for (int number = 0; number < kAlgorithms; ++number) {
    if (name == name_of(static_cast<Algorithm>(number))) {
      return static_cast<Algorithm>(number);
    }
  }
  throw Error(Code::kInvalidArgument,
              "[planning] algorithm \"" + name + "\" (expected auto, ring or tree)");
}

Parameters next_parameters(const Parameters& current, const std::vector<Parameters>& proposals) {
  for (const Parameters& proposal : proposals) {
    if (proposal.epoch == current.epoch + 1) {
      return proposal;
    }
  }
  return current;
}

void check_parameters(const Parameters& parameters, std::uint32_t engine_lanes) {
  if (parameters.unit_bytes == 0 || parameters.lanes == 0 || parameters.lanes > engine_lanes) {
    throw Error(Code::kInvalidArgument,
                "[planning] unit_bytes " + std::to_string(parameters.unit_bytes) + ", lanes " +
                    std::to_string(parameters.lanes) + " (expected unit_bytes > 0 and lanes 1.." +
                    std::to_string(engine_lanes) + ")");
  }
  if (parameters.gpu_unit_bytes == 0) {
    throw Error(Code::kInvalidArgument, "[planning] gpu_unit_bytes 0 (expected more)");
  }
  const auto wrong =
      std::find_if(parameters.weights.begin(), parameters.weights.end(), [](std::uint8_t weight) {
        return weight == 0 || weight > kFullWeight;
      });
  if (wrong != parameters.weights.end()) {
    throw Error(Code::kInvalidArgument,
                "[planning] weight " + std::to_string(*wrong) + " of lane " +
                    std::to_string(wrong - parameters.weights.begin()) + " (expected 1.." +
                    std::to_string(kFullWeight) + ", the weight of the fastest lane)");
  }
}

}  // namespace aiacc
