#pragma once

#include <cstdint>
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

  /// Gives a unit to the lane that it is planned for, and an old one back. The runner's.
  void push(Unit& unit);

  /// A caller whose operation is alone runs a unit of it itself instead of waking a lane's worker:
  /// until `take_kept`, the lane of the first one on the express lane, or of at most `bytes`, is
  /// kept for it. Others may take long, and the caller has signals to look after. The runner's.
  void keep_for(const Operation& operation, std::uint64_t bytes) {
    kept_for_ = &operation;
    kept_bytes_ = bytes;
  }
  /// The lane that is kept, or null; whoever calls has to `help` it before it waits for anything.
  Lane* take_kept();

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
  const Operation* kept_for_ = nullptr;  ///< the runner's, like what follows
  std::uint64_t kept_bytes_ = 0;
  Lane* kept_ = nullptr;
};

}  // namespace aiacc
