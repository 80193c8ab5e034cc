#include "csrc/bindings/tensorflow/constants.h"

#include <cstring>
#include <string>

#include "csrc/bindings/tensorflow/node_calls.h"

namespace aiacc::tensorflow {
namespace {

double from_bits(std::int64_t bits) {
  double value = 0;
  static_assert(sizeof value == sizeof bits);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

/// As Horovod's ops end: what all ranks see and may survive is a failed precondition.
int error_code(std::int32_t code) {
  switch (code) {
    case AIACC_OK:
      return kOk;
    case AIACC_INVALID_ARGUMENT:
      return kInvalidArgument;
    case AIACC_UNSUPPORTED:
      return kUnimplemented;
    case AIACC_MISMATCH:
      return kFailedPrecondition;
    case AIACC_SHUTDOWN:
      return kAborted;
    default:
      return kUnknown;
  }
}

void check(std::int32_t code) {
  if (code != AIACC_OK) {
    throw OpError{error_code(code), aiacc_last_error()};
  }
}

const char* verb_of(int kind) {
  switch (kind) {
    case AIACC_ALLREDUCE:
      return "allreduce";
    case AIACC_ALLGATHER:
      return "allgather";
    case AIACC_BROADCAST:
      return "broadcast";
    case AIACC_ALLTOALL:
      return "alltoall";
    case AIACC_REDUCESCATTER:
      return "reducescatter";
    default:
      return "";  // they need no name
  }
}

Constants constants_from(int kind, const Attributes& attributes) {
  Constants constants;
  constants.kind = kind;
  constants.process_set = static_cast<std::uint32_t>(attributes.number("process_set_id"));
  constants.name = attributes.text("wire_name");
  if (*verb_of(kind) == '\0') {
    return constants;
  }
  const NodeCalls calls = calls_of(attributes.node_name());
  constants.name += attributes.number("per_call") != 0 ? calls.automatic : calls.given;
  constants.in_one_loop =
      calls.loops != kUnknownLoops && calls.loops + attributes.number("loops") == 1;
  if (kind == AIACC_ALLREDUCE || kind == AIACC_REDUCESCATTER) {
    constants.op = static_cast<std::int32_t>(attributes.number("reduce_op"));
    constants.prescale = from_bits(attributes.number("prescale_bits"));
    constants.postscale = from_bits(attributes.number("postscale_bits"));
  }
  if (kind == AIACC_ALLREDUCE) {
    constants.wire = static_cast<std::int32_t>(attributes.number("wire_format"));
  }
  if (kind == AIACC_BROADCAST) {
    constants.root = static_cast<std::int32_t>(attributes.number("root_rank"));
  }
  constants.tensors = kind == AIACC_ALLTOALL ? 1 : attributes.length("T");
  return constants;
}

std::string name_of(const Constants& constants, const Iteration& iteration) {
  if (constants.name.empty() || iteration.loop == 0) {
    return constants.name;
  }
  // Numbered anew from time to time, so that long loops use their names again and the core
  // remembers them; 10 iterations run at a time unless the user wants more.
  constexpr int kNumbers = 16;
  const std::string number = std::to_string(iteration.number % kNumbers);
  // Not a dot: "loss.1" is the second node that is called "loss".
  return constants.name + '#' +
         (constants.in_one_loop ? number : std::to_string(iteration.loop) + '.' + number);
}

}  // namespace aiacc::tensorflow
