#include "csrc/core/runtime.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/control/control_plane.h"
#include "csrc/engines/nccl/nccl_settings.h"
#include "csrc/engines/registry.h"
#include "csrc/planning/unit_size.h"

namespace aiacc {
namespace {

/// A rank may be stopped for less than one, and its connections take as long again to go on.
constexpr double kUnitTimeouts = 15;

/// All ranks begin with the same ones, before any knows how far the others are.
Parameters first_parameters(const Config& config, const SessionOptions& session) {
  Parameters parameters{0,
                        session.unit_bytes != 0 ? session.unit_bytes : kNearUnitBytes,
                        static_cast<std::uint32_t>(session.context.lanes)};
  parameters.algorithm = algorithm_from(config.gpu_algorithm);
  parameters.gpu_unit_bytes = config.gpu_unit_bytes;
  return parameters;
}

CoordinatorOptions coordinator_options(const Config& config, const Parameters& parameters) {
  CoordinatorOptions options;
  options.parameters = parameters;
  options.cache_capacity = static_cast<std::size_t>(config.cache_capacity);
  options.linger = std::chrono::microseconds(config.linger_us);
  options.peer_timeout_s = config.peer_timeout_s;
  options.unit_timeout_s = kUnitTimeouts * config.peer_timeout_s;
  options.stall_warn_s = config.stall_warn_s;
  options.stall_fail_s = config.stall_fail_s;
  options.stall_file = config.stall_file;
  options.check_finite = finite_mode_from(config.check_finite);
  return options;
}

/// How long after a symptom its cause may come.
constexpr std::chrono::milliseconds kCauseComes{300};

/// A wish that nobody heeds is no error: the same settings serve machines of several kinds.
void report_vain_wish(Algorithm algorithm, const std::string& gpu_engine) {
  if (algorithm == Algorithm::kAny) {
    return;
  }
  const std::string problem = gpu_engine == "nccl"
                                  ? algorithm_problem(nccl_version())
                                  : "engine " + gpu_engine + " for GPUs (expected nccl)";
  if (!problem.empty()) {
    AIACC_LOG(kInfo) << "[core] AIACC_GPU_ALGORITHM=" << name_of(algorithm)
                     << " has no effect: " << problem;
  }
}

/// Now rather than at the first stall, which may come after days.
void check_stall_file(const std::string& path) {
  if (path.empty()) {
    return;
  }
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  if (file < 0) {
    throw system_error(Code::kInvalidArgument,
                       "[config] AIACC_STALL_FILE=\"" + path +
                           "\" (expected a file that can be written); correct or unset it",
                       errno);
  }
  close(file);
}

/// Tells the other ranks why this one cannot start, and throws the first cause: another rank may
/// have told one.
[[noreturn]] void give_up(ControlPlane& plane, Error error) {
  try {
    const auto deadline = Clock::now() + kCauseComes;
    while (error.code() == Code::kPeerLost && Clock::now() < deadline) {
      plane.service();
      plane.wait(deadline);
    }
  } catch (const Error& cause) {
    // That a connection is gone is no more than a symptom, too.
    error = cause.code() == Code::kPeerLost ? error : cause;
  }
  plane.abort(reported_by(plane.rank(), error.status()));
  throw Error(error);
}

constexpr const char* kName = "libaiacc_core.so";

int note_copy(dl_phdr_info* info, std::size_t /*size*/, void* found) {
  const std::string path = info->dlpi_name;
  if (path.substr(path.rfind('/') + 1) == kName) {
    static_cast<std::vector<std::string>*>(found)->push_back(path);
  }
  return 0;
}

/// By the function of the C interface that every copy has.
bool is_started(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) {
    return false;
  }
  auto* function = reinterpret_cast<int (*)()>(dlsym(library, "aiacc_is_initialized"));
  const bool started = function != nullptr && function() != 0;
  dlclose(library);
  return started;
}

/// Path of the file that this copy of the core was loaded from: a library or the program.
std::string own_path() {
  Dl_info info{};
  const bool known = dladdr(reinterpret_cast<void*>(&own_path), &info) != 0;
  return known && info.dli_fname != nullptr ? info.dli_fname : "";
}

/// Path of another copy of libaiacc_core.so in this process whose runtime has been started, or "".
/// A copy has a runtime of its own, and ranks of its own: two of them in a job would be a mistake
/// of whoever loaded the second one.
std::string started_copy() {
  std::vector<std::string> copies;
  dl_iterate_phdr(&note_copy, &copies);
  const std::string own = own_path();
  for (const std::string& path : copies) {
    if (path != own && is_started(path)) {
      return path;
    }
  }
  return "";
}

}  // namespace

Session::Session(const Config& config, SessionOptions options, std::shared_ptr<Listener> listener)
    : options_(std::move(options)),
      parameters_(first_parameters(config, options_)),
      listener_(std::move(listener)),
      timeline_(options_.topology.rank) {
  const RankTopology& topology = options_.topology;
  if (topology.size < 1 || topology.rank < 0 || topology.rank >= topology.size) {
    throw Error(Code::kInvalidArgument,
                "[core] rank " + std::to_string(topology.rank) + " of " +
                    std::to_string(topology.size) + " (expected 0 <= rank < size)");
  }
  configure_log(log_level_from(config.log_level), topology.rank);
  check_stall_file(config.stall_file);
  EngineContext context = options_.context;
  context.rank = topology.rank;
  context.size = topology.size;
  context.device = topology.local_rank;
  context.unit_bytes = parameters_.unit_bytes;
  context.peer_timeout_s = config.peer_timeout_s;
  context.connect_timeout_s = config.connect_timeout_s;
  context.spin_us = config.spin_us;
  context.pace_bytes = config.test_pace_bytes;
  if (topology.size > 1) {
    const auto size = static_cast<std::size_t>(topology.size);
    if (listener_ == nullptr || options_.addresses.size() != size ||
        context.host_of.size() != size) {
      throw Error(Code::kInvalidArgument,
                  "[core] " + std::to_string(options_.addresses.size()) + " addresses and " +
                      std::to_string(context.host_of.size()) + " hosts for " +
                      std::to_string(topology.size) + " ranks, or no listener");
    }
    connector_ = std::make_unique<Connector>(*listener_,
                                             options_.addresses,
                                             topology.rank,
                                             options_.token,
                                             options_.epoch,
                                             config.connect_timeout_s);
    context.connector = connector_.get();
  }
  ControlPlaneOptions plane;
  plane.peer_timeout_s = config.peer_timeout_s;
  plane.spin_us = config.spin_us;
  plane.stall_fail_s = config.stall_fail_s;
  plane.host_of = context.host_of;
  plane.connect_timeout_s = config.connect_timeout_s;
  plane_ = std::make_unique<ControlPlane>(connector_.get(), plane);
  try {
    engine_ = create_engine(options_.engine, context);
    if (options_.gpu_engine != "staged") {
      context.lanes = options_.gpu_lanes;
      context.unit_bytes = config.gpu_unit_bytes;
      gpu_engine_ = create_device_engine(options_.gpu_engine, context, options_.context.lanes);
    }
    report_vain_wish(parameters_.algorithm, options_.gpu_engine);
    // Before the coordinator, which would tell the others of an end in order.
    if (!config.timeline.empty() && config.timeline != "DYNAMIC") {
      timeline_.start(config.timeline, config.timeline_mark_cycles);
    }
    CoordinatorOptions chosen = coordinator_options(config, parameters_);
    chosen.staged_device = topology.local_rank;
    coordinator_ = std::make_unique<Coordinator>(
        *plane_, *engine_, timeline_, std::move(chosen), gpu_engine_.get(), connector_.get());
    if (options_.unit_bytes == 0) {
      propose_units();
    }
  } catch (...) {
    give_up(*plane_, Error(current_exception_status()));
  }
}

/// Every rank that has a far neighbour does it, for those of rank 0 may all be on its own host.
/// They propose the same, and the others hear of it in the first round.
void Session::propose_units() {
  Parameters parameters = parameters_;
  const double round_trip_s = plane_->round_trip_s();
  const std::uint64_t unit_bytes = unit_bytes_for(round_trip_s);
  if (unit_bytes == parameters.unit_bytes) {
    return;
  }
  AIACC_LOG(kInfo) << "[core] units of " << (unit_bytes >> 20) << " MiB: hosts are up to "
                   << round_trip_s * 1e3 << " ms away, there and back";
  parameters.unit_bytes = unit_bytes;
  coordinator_->propose(parameters);
}

void Session::refuse_if_inherited() const {
  if (inherited()) {
    throw Error(Code::kInvalidArgument,
                "[core] process " + std::to_string(getpid()) + " was forked from rank " +
                    std::to_string(topology().rank) +
                    " (expected that rank itself): only that may communicate; use it there, or " +
                    "call shutdown() and then init() here, to start a job of its own");
  }
}

Session::~Session() {
  // The coordinator first: its threads use everything else. The plane last: it says goodbye.
  coordinator_.reset();
  timeline_.stop();
  gpu_engine_.reset();
  engine_.reset();
  plane_.reset();
}

Runtime& Runtime::instance() {
  // Leaked on purpose: threads of a process that exits without shutdown may still use it.
  static auto* const runtime = new Runtime;
  return *runtime;
}

void Runtime::init(SessionOptions options, std::shared_ptr<Listener> listener) {
  const std::lock_guard transition(transition_);
  if (initialized()) {
    return;
  }
  const std::string other = started_copy();
  if (!other.empty()) {
    throw Error(Code::kInvalidArgument,
                "[core] init in " + own_path() + ", but this process is a rank already, by " +
                    other +
                    " (expected one libaiacc_core.so in a process); import aiacc from one folder");
  }
  const Config config = Config::from_environment();
  auto session = std::make_shared<Session>(config, std::move(options), std::move(listener));
  const std::lock_guard lock(mutex_);
  session_ = std::move(session);
}

void Runtime::shutdown(const std::string& how) {
  const std::lock_guard transition(transition_);
  const std::lock_guard draining(shutdown_);
  std::shared_ptr<Session> session;
  {
    const std::lock_guard lock(mutex_);
    session = std::move(session_);
    session_ = nullptr;
  }
  if (session != nullptr && session->inherited()) {
    // Its threads are not here to be joined; nobody frees it.
    static_cast<void>(new std::shared_ptr<Session>(std::move(session)));
    return;
  }
  if (session != nullptr) {
    // Ends every wait first: other threads may hold the session a moment longer.
    session->coordinator().shutdown(how);
    if (session.use_count() > 1) {
      // What they hold would end the timeline later than the caller may read it.
      session->timeline().stop();
    }
  }
}

bool Runtime::initialized() const {
  const std::lock_guard lock(mutex_);
  return session_ != nullptr;
}

void Runtime::await_shutdown() const { const std::lock_guard drained(shutdown_); }

std::shared_ptr<Session> Runtime::session() const {
  {
    const std::lock_guard lock(mutex_);
    if (session_ != nullptr) {
      return session_;
    }
  }
  const std::string other = started_copy();
  throw Error(Code::kShutdown,
              other.empty()
                  ? "[core] aiacc has not been initialized; use hvd.init()."
                  : "[core] " + own_path() + " has not been initialized, but " + other +
                        " has (expected one libaiacc_core.so in a process); load that one");
}

}  // namespace aiacc
