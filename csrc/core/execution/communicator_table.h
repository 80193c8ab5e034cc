#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/core/execution/communicator.h"
#include "csrc/core/execution/device_executor.h"

namespace aiacc {

/// The communicators of this rank, by the id of their process set. Threads: any.
class CommunicatorTable {
 public:
  /// Communicator 0 is all ranks and moves bytes with `engine`, those of tensors on GPUs as
  /// `executor` does. Both outlive this.
  CommunicatorTable(int rank, int size, Engine& engine, DeviceExecutor& executor);

  /// Null for an unknown set.
  std::shared_ptr<const Communicator> find(std::uint32_t id) const;
  const Communicator& everyone() const { return *everyone_; }
  std::vector<std::uint32_t> ids() const;

  /// Registers a communicator without engine; true if this rank has to `connect` it.
  bool add(std::uint32_t id, const std::vector<int>& ranks);
  /// Gives the communicator its engines. Collective over the members, in the same order on all of
  /// them. Blocks until they are connected; throws what Engine::split and DeviceExecutor::connect
  /// throw.
  void connect(std::uint32_t id);
  /// Forgets the communicator. Its engine ends with the last unit that uses it, or with the result.
  std::shared_ptr<const Communicator> remove(std::uint32_t id);

  /// Throws Error if a GPU, or what moves units there, has failed. Does not wait.
  void check_gpu() const;

  /// Aborts all engines, also those that come later.
  void abort(const Status& status) noexcept;

 private:
  std::shared_ptr<Communicator> communicator_of(std::uint32_t id, std::vector<int> ranks) const;

  const int rank_;
  Engine& engine_;
  DeviceExecutor& executor_;
  mutable std::mutex mutex_;
  std::map<std::uint32_t, std::shared_ptr<const Communicator>> communicators_;
  std::shared_ptr<const Communicator> everyone_;
  Status aborted_;
};

}  // namespace aiacc
