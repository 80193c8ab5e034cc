#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/base/env.h"
#include "csrc/base/fork_guard.h"
#include "csrc/base/socket.h"
#include "csrc/control/tcp/connector.h"
#include "csrc/core/coordinator.h"
#include "csrc/planning/parameters.h"

namespace aiacc {

/// The result of the bootstrap: what all ranks agreed on, and this rank's numbers.
struct RankTopology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;
};

struct SessionOptions {
  RankTopology topology;
  std::string engine = "local";
  std::string gpu_engine = "staged";  ///< "nccl" or "staged"
  int gpu_lanes = 1;                  ///< of that engine; staging uses those of `engine`
  std::uint64_t unit_bytes = 0;       ///< 0: by the way to the other hosts, see unit_bytes_for
  JobToken token{};
  std::uint32_t epoch = 0;
  std::vector<std::string> addresses;  ///< of every rank's listener; may be empty at size 1
  /// Hosts, lanes and GPUs as the ranks have agreed; the session fills in the rest.
  EngineContext context;
};

/// Everything that exists between one `init` and its `shutdown`.
///
/// Construction is collective and blocks until all ranks are connected; it throws Error and leaves
/// nothing behind when that fails.
class Session {
 public:
  Session(const Config& config, SessionOptions options, std::shared_ptr<Listener> listener);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Whether this process is a child of that of the session, which alone may use what follows here.
  bool inherited() const { return generation_ != fork_guard::generation(); }
  const SessionOptions& options() const { return options_; }
  const RankTopology& topology() const { return options_.topology; }
  /// Throw Error(kInvalidArgument) in a child of fork.
  Coordinator& coordinator() {
    refuse_if_inherited();
    return *coordinator_;
  }
  Timeline& timeline() {
    refuse_if_inherited();
    return timeline_;
  }
  const ControlPlane& plane() const { return *plane_; }
  const Engine& engine() const { return *engine_; }
  /// With which all ranks began, as the environment has them.
  const Parameters& parameters() const { return parameters_; }

 private:
  void refuse_if_inherited() const;
  void propose_units();

  const std::uint32_t generation_ = fork_guard::generation();
  const SessionOptions options_;
  const Parameters parameters_;
  std::shared_ptr<Listener> listener_;
  std::unique_ptr<Connector> connector_;
  Timeline timeline_;
  std::unique_ptr<ControlPlane> plane_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<DeviceEngine> gpu_engine_;  ///< null when tensors on GPUs are staged
  std::unique_ptr<Coordinator> coordinator_;
};

/// The one process-wide object: the session of the moment. Threads: any; a call that runs while
/// another thread shuts down fails with the shutdown, it does not crash.
class Runtime {
 public:
  static Runtime& instance();

  void init(SessionOptions options, std::shared_ptr<Listener> listener);
  /// In a child of fork: forgets the session, and leaves that of the parent alone. `how`: see
  /// Coordinator::shutdown.
  void shutdown(const std::string& how = "");
  bool initialized() const;
  /// Blocks while another thread is in `shutdown`: afterwards nobody uses the memory of what was
  /// submitted. Not for callbacks, which shutdown waits for.
  void await_shutdown() const;
  /// Throws Error(kShutdown) that says how to start when there is none.
  std::shared_ptr<Session> session() const;

 private:
  mutable std::mutex mutex_;
  std::mutex transition_;        ///< one init or shutdown at a time
  mutable std::mutex shutdown_;  ///< held while there is no session, but its coordinator drains
  std::shared_ptr<Session> session_;
};

}  // namespace aiacc
