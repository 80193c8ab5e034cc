#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "csrc/base/recycling_queue.h"
#include "csrc/base/socket.h"
#include "csrc/core/execution/device_executor.h"
#include "csrc/core/negotiation/message.h"
#include "csrc/core/submission/tensor_table.h"

namespace aiacc {

/// What this rank says of a lane that is at `unit`. Stuck is who has waited for `limit_s`.
LaneReport report_of(std::size_t lane, const UnitWait& unit, double limit_s);

/// One of the K concurrent lanes: a queue of units, executed one at a time in order.
///
/// Threads: `push` is the loop thread's. Units are run by the lane's own worker thread, or by a
/// caller that is alone and calls `help`: never by two at once.
class Lane {
 public:
  /// Runs a unit; must not throw. Called by whichever thread runs the lane. After the first false,
  /// for a unit that failed, the lane drops all others: they would meet it on the other ranks.
  using Run = std::function<bool(Unit& unit, PackBuffer& buffer)>;
  /// Starts on a unit that will be run after the next one; must not throw. Called once for each, in
  /// their order, by whichever thread runs the lane, which goes on whatever becomes of it.
  using Prepare = std::function<void(const Unit& unit)>;

  Lane(std::string name, Run run, Prepare prepare = {});
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// Appends a unit, and swaps a finished one back so that its memory is reused. With `notify` the
  /// worker starts on it at once; without, the caller must `help` before it waits for anything.
  void push(Unit& unit, bool notify = true);
  /// Runs units in the calling thread for as long as the next one is of `operation`; what is left
  /// then is the worker's. Returns at once if another thread runs the lane. Whoever waits for the
  /// operation is not kept from its end, nor from signals for longer than one of its units takes.
  void help(const Operation& operation);
  /// Blocks until nothing is queued or running, or the deadline has come; true if it is idle.
  bool quiesce(Clock::time_point deadline);

  /// The unit that runs or, if none does, will run next.
  std::optional<UnitId> current() const;
  /// What this rank says of it. Not for a lane whose `run` takes units away.
  std::optional<LaneReport> report(const TensorTable& table, double limit_s) const;

  const std::string& name() const { return name_; }

 private:
  void work();
  bool has_work() const { return prepared_ || !queue_.empty(); }
  bool is_next(const Operation& operation) const;
  void run_one(std::unique_lock<std::mutex>& lock);
  void leave();
  const Unit& upcoming() const { return prepared_ ? next_ : queue_.front(); }

  const std::string name_;
  const Run run_;
  const Prepare prepare_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable idle_;
  RecyclingQueue<Unit> queue_;
  Unit unit_;              ///< the one that is run
  Unit next_;              ///< the one that is prepared
  bool prepared_ = false;  ///< whether there is one
  bool running_ = false;   ///< a thread runs the lane
  bool active_ = false;    ///< unit_ is being run
  UnitId id_;              ///< of the unit that is being run
  bool failed_ = false;    ///< nothing is run any more
  bool stopping_ = false;
  PackBuffer buffer_;
  std::thread worker_;
};

}  // namespace aiacc
