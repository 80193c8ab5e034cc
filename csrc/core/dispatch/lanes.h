#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/core/dispatch/lane.h"
#include "csrc/core/execution/device_executor.h"
#include "csrc/core/negotiation/message.h"
#include "csrc/core/submission/tensor_table.h"

namespace aiacc {

/// What this rank says of a lane that is at `unit`. Stuck is who has waited for `limit_s`.
LaneReport report_of(std::size_t lane, const UnitWait& unit, double limit_s);

/// The lanes of the engine for host memory: the numbered ones, then the express lane.
///
/// Threads: any, except where it says so.
class Lanes {
 public:
  /// See Lane; `prepare` may be empty.
  using Run = std::function<bool(int lane, Unit& unit, PackBuffer& buffer)>;
  using Prepare = std::function<void(int lane, const Unit& unit)>;

  Lanes(int numbered, const Run& run, const Prepare& prepare);

  /// Gives a unit to the lane that it is planned for, and an old one back. The progress thread's.
  void push(Unit& unit);

  /// A caller that will wait anyway runs one lane itself instead of waking its worker: until
  /// `take_kept`, the lane of the first unit that is pushed is kept for it. The progress thread's,
  /// like the next two.
  void keep_first() { keeping_ = true; }
  /// Wakes the lane that is kept, if there is one; that of the next unit is kept then.
  void start_kept();
  /// The lane that is kept, or null; whoever calls has to `help` it before it waits for anything.
  Lane* take_kept();

  /// Runs lanes that nobody runs, `first` at first unless it is null, until `operation` is done,
  /// the deadline has come or no lane is left; the lanes' own threads go on. A unit that has begun
  /// is brought to its end.
  void help(Lane* first, const Operation& operation, Clock::time_point deadline);

  /// What the lanes are at, those with work. Stuck is who has waited for `limit_s`.
  std::vector<LaneReport> reports(const TensorTable& table, double limit_s) const;
  /// Seconds for which the lane that is stuck for longest has waited for others; 0 if none is.
  double longest_wait() const;
  std::size_t count() const { return lanes_.size(); }

  /// Lets what is queued end until the deadline; whether it has.
  bool drain(Clock::time_point deadline);

  const std::string& name_of(std::size_t lane) const { return lanes_[lane]->name(); }

 private:
  std::vector<std::unique_ptr<Lane>> lanes_;
  bool keeping_ = false;  ///< the progress thread's
  Lane* kept_ = nullptr;  ///< the same
};

}  // namespace aiacc
