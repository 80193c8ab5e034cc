// What a node was made with, as the core takes it; and the core's errors as TensorFlow's.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "csrc/bindings/c_api.h"
#include "csrc/bindings/tensorflow/execution.h"

namespace aiacc::tensorflow {

/// What is the same in every run of a node.
struct Constants {
  int kind = 0;
  std::string name;
  /// So the number of the iteration says all; TensorFlow's number of the loop comes from its name.
  bool in_one_loop = false;
  std::uint32_t process_set = 0;
  int tensors = 0;
  std::int32_t op = AIACC_SUM;
  std::int32_t wire = AIACC_WIRE_TENSOR;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int32_t root = 0;
};

/// Throws OpError.
Constants constants_from(int kind, const Attributes& attributes);

/// What a kind that moves tensors is called; else "", for the others need no name.
const char* verb_of(int kind);

/// By which ranks meet in one run: iterations of a loop run at the same time, so each has its own.
std::string name_of(const Constants& constants, const Iteration& iteration);

/// TensorFlow's number for an aiacc_code.
int error_code(std::int32_t code);

/// Throws OpError for what a function of the core has returned, unless that is AIACC_OK.
void check(std::int32_t code);

/// Makes a `Run` of these, which takes `execution` when nothing can fail any more. If something
/// does before, that ends the execution, and the result is null.
template <typename Run>
std::unique_ptr<Run> make_run(const Constants& constants,
                              std::unique_ptr<Execution> execution) noexcept {
  try {
    return std::make_unique<Run>(constants, std::move(execution));
  } catch (const OpError& error) {
    execution->finish(error.code, error.message.c_str());
  } catch (const std::exception& error) {
    execution->finish(kResourceExhausted, error.what());
  }
  return nullptr;
}

}  // namespace aiacc::tensorflow
