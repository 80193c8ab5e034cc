#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "csrc/control/control_plane.h"

namespace aiacc {

/// What the ranks of one process share: create one, give it to every InProcessPlane.
class InProcessHub {
 public:
  explicit InProcessHub(int size) : size_(size), shares_(static_cast<std::size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) {
      blocks_.emplace_back(std::vector<int>{rank});
    }
  }

 private:
  friend class InProcessPlane;
  std::mutex mutex_;
  std::condition_variable changed_;
  int size_;
  int arrived_ = 0;
  int left_ = 0;
  std::uint64_t round_ = 0;
  std::vector<std::optional<Bytes>> shares_;
  std::vector<RankBlock> blocks_;  ///< by rank
  Bytes result_;
  std::optional<Status> aborted_;
};

/// Control plane between threads: ranks = threads, no sockets, no clock.
class InProcessPlane : public ControlPlane {
 public:
  InProcessPlane(std::shared_ptr<InProcessHub> hub, int rank);

  int rank() const override { return rank_; }
  int size() const override { return hub_->size_; }
  void all_reduce(Bytes& message, const Combine& combine, Runner runner) override;
  bool lets_callers_run() const override { return true; }
  void service() override;
  bool round_pending() const override;
  std::uint32_t pending_flags() const override;
  bool wait(Clock::time_point deadline) override;
  void wake() noexcept override;
  void wake_at(Clock::time_point deadline) noexcept override;
  void watch_peers() override {}
  void interrupt(const Status& status) noexcept override;
  void abort(const Status& status) noexcept override;
  std::uint64_t rounds() const override;
  std::uint64_t bytes_sent() const override { return 0; }

 private:
  void throw_if_over() const;
  bool is_pending() const;
  bool is_noticed() const;

  std::shared_ptr<InProcessHub> hub_;
  int rank_;
  std::uint64_t joined_ = 0;   ///< rounds this rank has completed
  std::uint64_t noticed_ = 0;  ///< the round that the last `wait` has seen pending, from 1
  int noticed_shares_ = 0;     ///< how many ranks had joined it by then
  bool woken_ = false;
  Clock::time_point timer_ = Clock::time_point::max();
  std::optional<Status> interrupted_;
};

}  // namespace aiacc
