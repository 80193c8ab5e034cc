#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace aiacc {

class Connector;

/// A number for every rank of an engine: bytes, or elements.
using PerRank = std::vector<std::size_t>;

/// Where each rank's part begins when they follow one another.
inline PerRank offsets_of(const PerRank& lengths) {
  PerRank offsets(lengths.size(), 0);
  std::partial_sum(lengths.begin(), lengths.end() - 1, offsets.begin() + 1);
  return offsets;
}

/// What an engine of either kind is given to come up. Everything here is equal on all ranks except
/// `rank`, `device` and `nccl_in_use`.
struct EngineContext {
  int rank = 0;
  int size = 1;
  std::vector<int> host_of{0};       ///< by rank: a number that is equal for ranks of one host
  int lanes = 1;                     ///< concurrent lanes, numbered 0 .. lanes-1
  double peer_timeout_s = 5.0;       ///< how long nothing may arrive over a link
  double connect_timeout_s = 30.0;   ///< how long ranks wait for each other to come up
  std::size_t unit_bytes = 1 << 20;  ///< what a packed unit has at most, to begin with
  double spin_us = 50.0;             ///< how long a wait may spin before it sleeps
  std::size_t pace_bytes = 0;        ///< most bytes per second of a connection; 0: no limit
  Connector* connector = nullptr;    ///< opens authenticated sockets to peers; null at size 1
  std::uint32_t split_id = 0;        ///< keeps engines of one kind among all ranks apart
  int device = 0;                    ///< GPU of a rank that has no tensor to tell one; may differ
  /// The lowest compute capability (before the point) of the GPUs that ranks see, and the first
  /// rank that has it; 0: not known.
  int gpu_capability = 0;
  int gpu_capability_rank = 0;
  bool nccl_in_use = false;  ///< others in this process may have made NCCL communicators
};

/// Whether an engine can run in this process, and if not, why and what to do about it.
struct Viability {
  bool viable = false;
  std::string detail;  ///< version when viable, otherwise the reason and the remedy
};

}  // namespace aiacc
