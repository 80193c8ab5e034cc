#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "csrc/base/error.h"
#include "csrc/base/socket.h"
#include "csrc/core/execution/host_unit.h"
#include "csrc/cuda/device.h"

namespace aiacc {

/// A unit that is not over, and for how long this rank's host has waited for others in it.
struct UnitWait {
  UnitId id;
  std::string name;         ///< of its tensors
  double seconds = 0;       ///< see LaneWait
  std::uint32_t ahead = 0;  ///< see Communicator::distance_to
};

/// How units of tensors on GPUs are moved: *queued* on streams for an engine for GPUs, or *staged*
/// through pinned memory and the engine for host memory. A job has one of the two, chosen when its
/// engines are made; `queues` is all that the dispatcher asks about it.
///
/// Threads: any, except where it says so.
class DeviceExecutor {
 public:
  /// Told of a unit whose results are queued, and when work on it began. The unit is still the
  /// caller's.
  using Finished = std::function<void(Unit& unit, Clock::time_point start)>;

  DeviceExecutor() = default;
  DeviceExecutor(const DeviceExecutor&) = delete;
  DeviceExecutor& operator=(const DeviceExecutor&) = delete;
  virtual ~DeviceExecutor() = default;

  /// Whether units have the size for GPUs and are run by one launching thread, in the order of
  /// their responses; else they are units like those in host memory, and run by the threads of
  /// their lanes.
  virtual bool queues() const = 0;
  /// Where units on a lane of the plan are issued: those of one such lane follow each other.
  virtual std::uint32_t launch_lane(std::uint32_t lane) const = 0;

  /// The GPU of that number, opened if need be, which can take long; -1: the first one that was
  /// used, or a proposal. Lives as long as this. Throws Error(kInvalidArgument) if there is none of
  /// that number, Error(kEngine) if CUDA fails.
  virtual Device& device(int ordinal) = 0;
  /// The rest of the text of an error if it cannot do what is asked; else "". Needs a
  /// Device::Scope.
  virtual std::string refusal(const Request& request) const = 0;

  /// Gives a communicator what its units on GPUs need, besides `engine`. Collective over the
  /// members, in the same order on all of them; throws what DeviceEngine::split throws.
  virtual void connect(Communicator& communicator) = 0;
  /// Throws Error if a GPU, or what moves the communicator's units there, has failed. Does not
  /// wait.
  virtual void check(const Communicator& communicator) = 0;
  /// Ends the communicator's units, also those that come later.
  virtual void abort(const Communicator& communicator, const Status& status) noexcept = 0;

  /// Starts on a unit of a lane, in the thread that runs it, before `run` of the one before it.
  /// Throws what CUDA throws.
  virtual void prepare(const Unit& unit, int lane) = 0;
  /// Moves a unit of a lane of the plan, in the thread that runs it. One that is `joined` may be
  /// kept until the next ones come, and what is left in its place is to be used again: `finished`
  /// is told of each in turn. Throws what engine and CUDA throw; then it knows of none any more.
  virtual void run(Unit& unit, int lane, PackBuffer& buffer, const Finished& finished) = 0;

  /// The first of the units that were issued to the GPUs and are, as far as is known, not over.
  virtual std::optional<UnitWait> first_queued() = 0;
  /// The unit that the launching thread issues to an engine, if it does; of a group, the last one.
  virtual std::optional<UnitWait> issuing() = 0;

  /// Waits until the GPUs have done what is queued, or have failed, or the deadline; true unless
  /// the deadline came.
  virtual bool quiesce(Clock::time_point deadline) noexcept = 0;
};

}  // namespace aiacc
