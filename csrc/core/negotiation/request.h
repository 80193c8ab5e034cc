#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/dtype.h"

namespace aiacc {

enum class OpKind : std::uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kBarrier = 3,
  kAlltoall = 4,
  kReducescatter = 5,
  kJoin = 6,
  kAddProcessSet = 7,
  kRemoveProcessSet = 8,
  kFormProcessSet = 9,    ///< adds a set, asked for by its members alone
  kLeaveProcessSet = 10,  ///< removes it; the same
  kSend = 11,             ///< a message to another rank, which is not agreed on with all
  kReceive = 12,          ///< the same, from another rank
};
/// Kinds that are agreed on; they come first.
inline constexpr int kOpKinds = 11;

inline bool is_message(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kReceive; }

/// Whether it changes which process sets there are.
inline bool changes_sets(OpKind kind) {
  return kind == OpKind::kAddProcessSet || kind == OpKind::kRemoveProcessSet ||
         kind == OpKind::kFormProcessSet || kind == OpKind::kLeaveProcessSet;
}
/// The same, of a kind that registers one.
inline bool adds_set(OpKind kind) {
  return kind == OpKind::kAddProcessSet || kind == OpKind::kFormProcessSet;
}

/// What the name of a request that forms a process set begins with, and no other name.
inline constexpr char kFormedNames[] = "form_process_set.";

/// Limits of what travels; a request beyond them is refused where it is submitted.
inline constexpr std::size_t kMaxNameBytes = std::size_t{1} << 16;
inline constexpr std::size_t kMaxMessageKeyBytes = 1000;
inline constexpr std::size_t kMaxDimensions = 64;
inline constexpr std::size_t kMaxGroupTensors = std::size_t{1} << 20;
/// All tensors of a request have no more, with extents of 0 taken as 1. It is more than a memory
/// holds, and so little that sums over the ranks of a job, in bytes and in rows, fit into 63 bits.
inline constexpr std::uint64_t kMaxTensorBytes = std::uint64_t{1} << 46;

/// "allreduce", "allgather", ...
const char* name_of(OpKind kind);

/// One tensor, without its memory.
struct TensorSpec {
  DataType dtype = DataType::kFloat32;
  std::vector<std::int64_t> shape;

  std::uint64_t elements() const;
  std::uint64_t bytes() const { return elements() * size_of(dtype); }
  /// Elements and bytes of one index of dimension 0, which the shape has.
  std::uint64_t row_elements() const;
  std::uint64_t row_bytes() const { return row_elements() * size_of(dtype); }
};

bool operator==(const TensorSpec& a, const TensorSpec& b);
inline bool operator!=(const TensorSpec& a, const TensorSpec& b) { return !(a == b); }

/// A request for an operation: everything that the ranks must agree on before data moves.
struct Request {
  std::string name;
  /// At least one; those of a group become ready together.
  std::vector<TensorSpec> tensors = std::vector<TensorSpec>(1);
  OpKind kind = OpKind::kAllreduce;
  ReduceOp op = ReduceOp::kSum;
  /// Global rank: of a broadcast; of a message that is sent the target, of one that is received the
  /// source, or -1 for any.
  std::int32_t root = 0;
  /// -1: host memory; else the number of this rank's GPU, which may be another one on every rank.
  std::int32_t device = -1;
  std::uint32_t process_set = 0;  ///< 0: all ranks
  bool cacheable = true;          ///< false for what never comes again, such as automatic names
  double prescale = 1.0;
  double postscale = 1.0;
  /// How the elements of an all-reduce travel, and are added up: narrower than they are.
  WireFormat wire = WireFormat::kTensor;
  std::uint32_t wire_detail = 0;  ///< the numbers of a coded one, see Coding
  /// All-to-all: rows for every member of the process set. Adding and forming a set: its ranks.
  /// Removing: its id. Receiving from any source: the ranks that may send.
  std::vector<std::int64_t> numbers;

  bool on_gpu() const { return device >= 0; }
  /// Bytes of its tensors for each byte that travels.
  std::size_t narrowing() const {
    const DataType dtype = tensors.front().dtype;
    return size_of(dtype) / size_on_wire(dtype, wire);
  }
  std::uint64_t total_bytes() const;
};

/// A request that this rank has submitted. The submitter derives from it what else it knows.
struct Submitted {
  Request request;
};

/// Whether two scales are equal, or both NaN.
bool same_factor(double a, double b);

/// Same operation in every respect on which ranks agree: a cached response can be reused. Of
/// the device that is its kind.
bool same_signature(const Request& a, const Request& b);

/// The id of the process set that this, of a kind that removes one, is about.
std::uint32_t set_to_remove(const Request& request);

/// Whether a rank that has joined can answer this with zeros.
bool joinable(const Request& request);

/// "x", or "x (process set 3)": names are unique within a set.
std::string label_of(std::uint32_t process_set, const std::string& name);

/// "broadcast 'x'", or "an unnamed broadcast" as long as it has no name; of a long name its
/// beginning.
std::string operation_text(OpKind kind, std::uint32_t process_set, const std::string& name);
inline std::string operation_text(const Request& request) {
  return operation_text(request.kind, request.process_set, request.name);
}

/// Whether the first dimension counts rows that are concatenated or distributed.
inline bool has_rows(OpKind kind) {
  return kind == OpKind::kAllgather || kind == OpKind::kAlltoall || kind == OpKind::kReducescatter;
}

/// Rows of a reduce-scatter that member `index` of `size` gets: the first ones get one row more
/// when they do not come out even.
std::int64_t scattered_rows(std::int64_t rows, int size, int index);

}  // namespace aiacc
