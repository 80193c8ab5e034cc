#include "csrc/bindings/tensorflow/op_specs.h"

// The dtypes that the core knows.
#define AIACC_TENSOR_TYPES                                                                   \
  "{uint8, int8, uint16, int16, int32, int64, half, float, double, bool, bfloat16, uint32, " \
  "uint64}"

namespace aiacc::tensorflow {
namespace {

constexpr const char* kType = "T: " AIACC_TENSOR_TYPES;
constexpr const char* kTypes = "T: list(" AIACC_TENSOR_TYPES ") >= 1";
constexpr const char* kTokens = "tokens: token_count * int64";
constexpr const char* kTokenCount = "token_count: int >= 0 = 0";
// By which ranks meet.
constexpr const char* kName = "wire_name: string = ''";
// 1: nobody gave it. In either case each call of the function that the node is in has its own.
constexpr const char* kPerCall = "per_call: int = 0";
// Around the node in its function.
constexpr const char* kLoops = "loops: int = 0";
constexpr const char* kProcessSet = "process_set_id: int >= 0 = 0";
constexpr const char* kOp = "reduce_op: int";
// The bits of a double: attributes of TensorFlow are floats.
constexpr const char* kPrescale = "prescale_bits: int";
constexpr const char* kPostscale = "postscale_bits: int";

}  // namespace

const std::vector<OpSpec>& op_specs() {
  static const std::vector<OpSpec> specs{
      {"AiaccToken", kToken, {}, {"token: int64"}, {}, true},
      {"AiaccProbe", kProbe, {}, {"answer: int64"}, {}, true},
      {"AiaccTopology",
       kTopology,
       {},
       {"value: int32"},
       {"quantity: {'rank', 'size', 'local_rank', 'local_size', 'process_set_included', "
        "'process_set_rank'}",
        kProcessSet},
       true},
      // Not stateful either: each waits for its own inputs alone.
      {"AiaccMoment",
       kMoment,
       {"tensors: T", kTokens},
       {"nanoseconds: int64"},
       {"T: list(" AIACC_TENSOR_TYPES ") >= 0", kTokenCount},
       false},
      {"AiaccAllreduce",
       AIACC_ALLREDUCE,
       {"tensors: T", kTokens},
       {"sums: T"},
       {kTypes,
        kTokenCount,
        kName,
        kPerCall,
        kLoops,
        kProcessSet,
        kOp,
        kPrescale,
        kPostscale,
        "wire_format: int = 0"},
       false},
      {"AiaccAllgather",
       AIACC_ALLGATHER,
       {"tensors: T", kTokens},
       {"gathered: T", "rows: int64"},
       {kTypes, kTokenCount, kName, kPerCall, kLoops, kProcessSet},
       false},
      {"AiaccBroadcast",
       AIACC_BROADCAST,
       {"tensors: T", kTokens},
       {"copies: T"},
       {kTypes, kTokenCount, kName, kPerCall, kLoops, kProcessSet, "root_rank: int"},
       false},
      {"AiaccAlltoall",
       AIACC_ALLTOALL,
       {"tensor: T", "splits: int64", kTokens},
       {"received: T", "rows: int64"},
       {kType, kTokenCount, kName, kPerCall, kLoops, kProcessSet},
       false},
      {"AiaccReducescatter",
       AIACC_REDUCESCATTER,
       {"tensors: T", kTokens},
       {"parts: T"},
       {kTypes, kTokenCount, kName, kPerCall, kLoops, kProcessSet, kOp, kPrescale, kPostscale},
       false},
      {"AiaccBarrier", AIACC_BARRIER, {}, {}, {kName, kProcessSet}, true},
      {"AiaccJoin", AIACC_JOIN, {}, {"last: int64"}, {kName, kProcessSet}, true},
  };
  return specs;
}

}  // namespace aiacc::tensorflow
