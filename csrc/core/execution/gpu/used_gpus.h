#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "csrc/core/execution/gpu/device_resources.h"
#include "csrc/core/execution/gpu/staging.h"

namespace aiacc {

/// The GPUs that this rank uses, opened when they are first needed, and what units on them need.
///
/// Threads: any. Opening a GPU and loading kernels for it can take many seconds: only who needs them
/// waits for that. `abort` and `staged`, which the driver calls, never do.
class UsedGpus {
 public:
  struct Setup {
    std::function<std::shared_ptr<Device>(int ordinal)> open;  ///< -1: the one that is proposed
    bool kernels = false;                                      ///< see DeviceTools
    bool check = false;
    int lanes = 0;  ///< of staging
  };
  struct Gpu {
    std::shared_ptr<Device> device;
    std::shared_ptr<DeviceTools> tools;  ///< null before `tools_of`
    std::unique_ptr<Staging> staging;    ///< null before `staging_of`
  };

  explicit UsedGpus(Setup setup) : setup_(std::move(setup)) {}
  ~UsedGpus();
  UsedGpus(const UsedGpus&) = delete;
  UsedGpus& operator=(const UsedGpus&) = delete;

  /// The one of that number; -1: the first one that was used, or a proposal. None goes before the
  /// end. Throws what Setup::open throws.
  Gpu& at(int ordinal);
  /// Throws what DeviceTools throws.
  DeviceTools& tools_of(Gpu& gpu);
  /// Needs a Device::Scope. Throws what Staging throws.
  Staging& staging_of(Gpu& gpu);

  /// Those with a Staging.
  std::vector<Gpu*> staged();
  /// Ends the waits for copies to the host, also those of a Staging that comes later.
  void abort(const Status& status) noexcept;

 private:
  Gpu* find(int ordinal);

  const Setup setup_;
  std::mutex loading_;  ///< held for as long as it takes; before the other one
  std::mutex mutex_;    ///< guards what follows
  std::map<int, Gpu> gpus_;
  int first_ = -1;
  std::optional<Status> aborted_;
};

}  // namespace aiacc
