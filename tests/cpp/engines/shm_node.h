#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include "csrc/engines/shm/shm_channel.h"
#include "tests/cpp/support/ranks.h"

namespace aiacc {

/// The ranks of one node as threads, which share all memory anyway.
class ShmNode {
 public:
  static constexpr std::size_t kSlotBytes = std::size_t{64} << 10;

  explicit ShmNode(int size, double spin_us = 5) : cancellations_(static_cast<std::size_t>(size)) {
    std::vector<void*> segments;
    for (int rank = 0; rank < size; ++rank) {
      memory_.emplace_back(static_cast<std::byte*>(
          ::operator new(ShmChannel::segment_bytes(kSlotBytes), kAlignment)));
      segments.push_back(memory_.back().get());
      ShmChannel::reset(segments.back());
    }
    for (int rank = 0; rank < size; ++rank) {
      channels_.push_back(std::make_unique<ShmChannel>(
          segments, rank, kSlotBytes, spin_us, cancellations_[static_cast<std::size_t>(rank)]));
    }
  }

  ShmChannel& operator[](int rank) { return *channels_[static_cast<std::size_t>(rank)]; }

  void abort(int rank, const Status& status) {
    cancellations_[static_cast<std::size_t>(rank)].set(status);
    (*this)[rank].wake();
  }

  template <class Body>
  void run(Body body) {
    run_as_ranks(static_cast<int>(channels_.size()), [&](int rank, RankThreads& rank_threads) {
      const auto guard =
          rank_threads.on_failure([this, rank](const Status& status) { abort(rank, status); });
      body(rank, (*this)[rank]);
    });
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
  };

  std::vector<std::unique_ptr<std::byte, Free>> memory_;
  std::vector<Cancellation> cancellations_;
  std::vector<std::unique_ptr<ShmChannel>> channels_;
};

}  // namespace aiacc
