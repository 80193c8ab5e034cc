#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "csrc/base/socket.h"
#include "csrc/engines/engine.h"
#include "csrc/planning/lane_weights.h"

namespace aiacc {

/// Measures the throughput of an engine's lanes on this rank and suggests weights for them.
///
/// Only units of nearly full size count, since the time of small ones is latency. No lane is judged
/// before all have worked for kWindow, and twice in a row: one odd step changes nothing.
class LaneThroughput {
 public:
  /// How long every lane works before they are judged: long against the steps of the kernel's
  /// clock.
  static constexpr std::chrono::milliseconds kWindow{200};

  explicit LaneThroughput(const Engine& engine) : engine_(engine) {}

  /// A unit took so long. Any thread, one at a time for each lane.
  void note(int lane, std::uint64_t bytes, Clock::duration taken);

  /// Weights to propose to all ranks, or nothing. The loop thread's; cheap, allocates nothing.
  std::optional<LaneWeights> suggest(const Parameters& parameters);

 private:
  struct Lane {
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> ran_ns{0};
    // As they stood when the window began; the loop thread's.
    std::uint64_t bytes_before = 0;
    std::uint64_t ran_ns_before = 0;
    double sent_s_before = 0;
  };

  void begin_window(std::uint32_t lanes);

  const Engine& engine_;
  std::array<Lane, kMaxLanes> lanes_;
  std::atomic<std::uint64_t> least_bytes_{0};  ///< of a unit that counts; 0: none does yet
  std::optional<std::uint32_t> epoch_;         ///< of the window
  bool suspected_ = false;  ///< the last judgement would have changed the weights
};

}  // namespace aiacc
