#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/bit_vector.h"
#include "csrc/base/dtype.h"
#include "csrc/control/control_plane.h"
#include "csrc/planning/parameters.h"

namespace aiacc {

enum class OpKind : std::uint8_t { kAllreduce = 0, kAllgather = 1, kBroadcast = 2, kBarrier = 3 };
inline constexpr int kOpKinds = 4;

/// Limits of what travels; a request beyond them is refused where it is submitted.
inline constexpr std::size_t kMaxNameBytes = std::size_t{1} << 16;
inline constexpr std::size_t kMaxDimensions = 64;

/// "allreduce", "allgather", ...
const char* name_of(OpKind kind);

/// What a rank asks for: everything that the ranks must agree on before bytes move.
struct Request {
  std::string name;
  OpKind kind = OpKind::kAllreduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t root = 0;          ///< global rank; broadcast only
  std::int32_t device = -1;       ///< -1: host memory
  std::uint32_t process_set = 0;  ///< 0: all ranks
  bool cacheable = true;          ///< false for automatic names: they never come again
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<std::int64_t> shape;

  std::uint64_t elements() const;
  std::uint64_t bytes() const { return elements() * size_of(dtype); }
};

/// Same operation in every respect: a cached agreement may be used again.
bool same_signature(const Request& a, const Request& b);

/// What one rank contributes to a round besides its bits.
struct Report {
  std::int32_t rank = 0;
  std::vector<Request> requests;     ///< new to the others
  std::vector<std::string> pending;  ///< answer to a stall query: names submitted and not ready
  bool has_pending = false;
  std::vector<Parameters> proposals;  ///< at most one
};

/// Flags are combined with OR, slot bits with AND.
enum RoundFlag : std::uint32_t {
  kFlagStallQuery = 1U << 0,  ///< somebody asks what everybody waits for
};

/// The message of one round: AND bits per slot, OR flags, reports of the ranks merged so far.
struct RoundMessage {
  std::uint32_t flags = 0;
  std::uint32_t epoch = 0;  ///< parameter epoch of the sender; equal everywhere
  BitVector ready;          ///< bit = slot; 1 = submitted here
  std::vector<Report> reports;

  void encode(Bytes& out) const;
  /// Bytes come from the network: throws Error(kPeerLost) on anything malformed, never reads
  /// beyond the end and never allocates more than the input justifies.
  static RoundMessage decode(const Bytes& in);
};

/// Folds one encoded message into another. Throws Error(kInternal) if their slot tables differ.
void combine_rounds(Bytes& mine, const Bytes& theirs);

}  // namespace aiacc
