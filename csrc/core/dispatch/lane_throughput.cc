#include "csrc/core/dispatch/lane_throughput.h"

#include <chrono>

namespace aiacc {

void LaneThroughput::note(int lane, std::uint64_t bytes, Clock::duration taken) {
  const std::uint64_t least = least_bytes_.load(std::memory_order_relaxed);
  if (least == 0 || bytes < least) {
    return;
  }
  Lane& watched = lanes_.at(static_cast<std::size_t>(lane));
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count();
  watched.bytes.fetch_add(bytes, std::memory_order_relaxed);
  watched.ran_ns.fetch_add(static_cast<std::uint64_t>(ns), std::memory_order_relaxed);
}

std::optional<LaneWeights> LaneThroughput::suggest(const Parameters& parameters) {
  if (epoch_ != parameters.epoch) {
    epoch_ = parameters.epoch;
    least_bytes_.store(parameters.unit_bytes / 4 * 3, std::memory_order_relaxed);
    suspected_ = false;
    begin_window(parameters.lanes);
    return std::nullopt;
  }
  constexpr auto kLeast = std::chrono::duration_cast<std::chrono::nanoseconds>(kWindow).count();
  for (std::uint32_t lane = 0; lane < parameters.lanes; ++lane) {
    const Lane& watched = lanes_[lane];
    if (watched.ran_ns.load(std::memory_order_relaxed) - watched.ran_ns_before <
        static_cast<std::uint64_t>(kLeast)) {
      return std::nullopt;
    }
  }
  std::array<LaneRecord, kMaxLanes> records{};
  for (std::uint32_t lane = 0; lane < parameters.lanes; ++lane) {
    const Lane& watched = lanes_[lane];
    records[lane] = {static_cast<double>(watched.bytes.load() - watched.bytes_before),
                     static_cast<double>(watched.ran_ns.load() - watched.ran_ns_before) * 1e-9,
                     engine_.send_busy_s(static_cast<int>(lane)) - watched.sent_s_before};
  }
  begin_window(parameters.lanes);
  const auto better = better_weights(records, parameters);
  const bool confirmed = suspected_ && better.has_value();
  suspected_ = better.has_value();
  return confirmed ? better : std::nullopt;
}

void LaneThroughput::begin_window(std::uint32_t lanes) {
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    Lane& watched = lanes_[lane];
    watched.bytes_before = watched.bytes.load();
    watched.ran_ns_before = watched.ran_ns.load();
    watched.sent_s_before = engine_.send_busy_s(static_cast<int>(lane));
  }
}

}  // namespace aiacc
