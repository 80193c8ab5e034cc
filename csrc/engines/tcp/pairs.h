#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/spin.h"
#include "csrc/engines/engine_context.h"
#include "csrc/engines/tcp/channel.h"

namespace aiacc {

/// All-to-alls over a connection between every two ranks.
///
/// In round k every rank sends to rank + k and receives from rank - k, both at once. A round needs
/// only what its partners do in the same round, so no order of arrival can deadlock.
/// One thread at a time; contracts as in Engine.
class Pairs {
 public:
  /// `channels[k - 1]` leads to rank + k (modulo size). A wait spins for `spin_us` before it
  /// sleeps.
  Pairs(int rank,
        int size,
        std::vector<Channel> channels,
        const Cancellation& cancellation,
        double spin_us);

  void all_to_all(const void* send,
                  void* recv,
                  const PerRank& send_bytes,
                  const PerRank& recv_bytes);

 private:
  OpHeader header_of(std::size_t bytes) const;
  Channel& channel_to(std::size_t distance) { return channels_[distance - 1]; }

  std::size_t rank_;
  std::size_t size_;
  std::vector<Channel> channels_;
  const Cancellation& cancellation_;
  Spin spin_;
  std::uint32_t sequence_ = 0;
};

}  // namespace aiacc
