#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "csrc/cuda/device.h"
#include "csrc/cuda/stream_signal.h"
#include "csrc/engines/cancellation.h"

namespace aiacc {

/// What HostStagedEngine and its parts on the lanes' threads have in common.
struct HostWork {
  Cancellation cancellation;  ///< its status is the first failure, or that of the abort
  /// Ends the operations of the engine for host memory, after a failure.
  std::function<void(const Status& status)> stop;

  std::mutex mutex;
  std::condition_variable changed;
  std::size_t parts = 0;  ///< that are under way
  bool aborted = false;
};

/// What one lane does of an operation. `run` finds `sent` bytes at the start of its argument and
/// leaves `received` bytes at `received_at`.
struct HostPart {
  const void* send = nullptr;
  std::size_t sent = 0;
  void* recv = nullptr;
  std::size_t received = 0;
  std::size_t received_at = 0;
  std::function<void(std::byte* memory)> run;
};

/// Passes tensors on GPUs through one lane of a host engine, on a thread of its own.
///
/// A part is copied to pinned memory on one stream, worked on by the thread, which the driver wakes
/// up, and copied back on another stream, which waits for a number in pinned memory that the thread
/// counts up. All of that is queued in advance: who queues it waits for nothing, and the next part
/// is on its way to the host while one is worked on. The thread takes parts in the order of `pass`.
///
/// A part that fails stops its engine, and the streams stay where they are until that is aborted:
/// so no result that is none looks like one.
///
/// Threads: `pass` and the destructor: the issuing one.
class HostStagingLane {
 public:
  explicit HostStagingLane(const std::string& name);
  /// Waits for the streams, a while.
  ~HostStagingLane();
  HostStagingLane(const HostStagingLane&) = delete;
  HostStagingLane& operator=(const HostStagingLane&) = delete;

  /// Queues a part, which begins after `ready`; its result is there at the mark that is returned.
  /// Needs a Device::Scope. Takes memory, and may wait for the GPU, when parts grow.
  Mark pass(const std::shared_ptr<HostWork>& work,
            const std::shared_ptr<Device>& device,
            HostPart part,
            const Mark& ready);

 private:
  struct Slot {
    std::byte* memory = nullptr;  ///< pinned
    std::size_t capacity = 0;
    Mark drained;  ///< where the last copy back has left it
  };
  /// What one GPU has here. Its slots take turns.
  struct Way {
    std::shared_ptr<Device> device;
    CudaStream in = nullptr;
    CudaStream out = nullptr;
    std::array<Slot, 2> slots;
    std::size_t next = 0;
  };
  struct Job {
    std::shared_ptr<HostWork> work;
    std::shared_ptr<Device> device;
    std::unique_ptr<StreamSignal> filled;
    std::function<void(std::byte* memory)> run;
    std::byte* memory = nullptr;
    std::uint32_t number = 0;
  };

  Way& way_to(const std::shared_ptr<Device>& device);
  Slot& next_slot(Way& way, std::size_t bytes);
  std::unique_ptr<StreamSignal> signal();
  void work();
  void do_job(Job& job);

  // The issuing thread's.
  std::map<int, Way> ways_;
  std::vector<std::pair<std::shared_ptr<Device>, void*>> memory_;  ///< all that is pinned
  std::uint32_t* done_ = nullptr;  ///< pinned: how many jobs are over
  std::uint32_t issued_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::vector<std::unique_ptr<StreamSignal>> spare_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace aiacc
