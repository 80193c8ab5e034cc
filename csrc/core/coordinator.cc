#include "csrc/core/coordinator.h"

#include <algorithm>
#include <utility>

#include "csrc/base/thread.h"
#include "csrc/core/execution/gpu/queued_executor.h"
#include "csrc/core/negotiation/request_checks.h"
#include "csrc/core/negotiation/request_matching.h"

namespace aiacc {
namespace {

Clock::duration tick_of(const CoordinatorOptions& options) {
  double tick_s = options.peer_timeout_s / kLooksPerTimeout;
  for (const double limit : {options.stall_warn_s, options.stall_fail_s, options.unit_timeout_s}) {
    if (limit > 0) {
      tick_s = std::min(tick_s, limit / 2);
    }
  }
  return duration_of(tick_s);
}

/// Lets an operation end that nobody waits for.
class Forgotten final : public Completion {
 public:
  Forgotten() : Completion(true) {}
  void* allocate(Operation&, std::size_t) noexcept override { return nullptr; }
  void done(Operation&) noexcept override {}
};

[[noreturn]] void refuse_null(const std::string& operation, const std::string& what) {
  throw Error(Code::kInvalidArgument,
              "[submit] " + operation + ": " + what +
                  " NULL (expected an address); give tensors that have memory of their own");
}

/// Throws Error(kInvalidArgument) if something that rank `rank` reads or writes is at address 0.
void check_addresses(Operation& operation, const Communicator& communicator, int rank) {
  const Request& request = operation.request;
  const bool scatters = request.kind == OpKind::kReducescatter;
  const bool reads = request.kind == OpKind::kBroadcast
                         ? request.root == rank
                         : request.kind == OpKind::kAllreduce || has_rows(request.kind);
  // The memory of an all-gather and of an all-to-all may come later.
  const bool writes =
      scatters || request.kind == OpKind::kAllreduce || request.kind == OpKind::kBroadcast;
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    const TensorSpec& tensor = request.tensors[i];
    const TensorBuffers& memory = operation.buffers[i];
    if (tensor.elements() == 0) {
      continue;
    }
    const bool has_result =
        writes &&
        (!scatters ||
         scattered_rows(tensor.shape.front(), communicator.size(), communicator.rank) > 0);
    const bool input = reads && memory.input == nullptr;
    if (input || (has_result && memory.output == nullptr)) {
      refuse_null(operation_text(request),
                  (input ? "input of tensor " : "output of tensor ") + std::to_string(i));
    }
  }
}

/// Throws Error(kInvalidArgument) unless this rank may submit the operation as it is.
void check(Operation& operation, const CommunicatorTable& communicators, int rank) {
  const Request& request = operation.request;
  std::shared_ptr<const Communicator> of_set;
  if (request.process_set != 0) {
    of_set = communicators.find(request.process_set);
    std::string problem;
    if (of_set == nullptr) {
      problem = "is not registered (expected one that add_process_set returned)";
    } else if (of_set->rank < 0) {
      problem = "has the ranks " + shape_text({of_set->ranks.begin(), of_set->ranks.end()}) +
                "; rank " + std::to_string(rank) + " is not among them (expected a member)";
    } else if (of_set->engine == nullptr) {
      problem = "is being connected; wait until add_process_set returns";
    }
    if (!problem.empty()) {
      throw Error(Code::kInvalidArgument,
                  "[submit] " + operation_text(request.kind, 0, request.name) + ": process set " +
                      std::to_string(request.process_set) + " " + problem);
    }
  }
  const Communicator& communicator = of_set != nullptr ? *of_set : communicators.everyone();
  check_request(request, communicator.ranks);
  check_addresses(operation, communicator, rank);
}

}  // namespace

Coordinator::Coordinator(ControlPlane& plane,
                         Engine& engine,
                         Timeline& timeline,
                         CoordinatorOptions options,
                         DeviceEngine* gpu,
                         Connector* connector)
    : plane_(plane),
      engine_(engine),
      timeline_(timeline),
      options_(std::move(options)),
      tick_(tick_of(options_)),
      negotiator_(plane.rank(), plane.size(), options_.cache_capacity, options_.parameters),
      stalls_(options_.stall_warn_s, options_.stall_fail_s),
      stall_file_(options_.stall_file),
      unit_watch_(options_.unit_timeout_s),
      finite_(options_.check_finite == FiniteMode::kOff
                  ? nullptr
                  : std::make_unique<FiniteCheck>(options_.check_finite, plane.rank())),
      device_path_(make_device_executor(gpu,
                                        {options_.staging,
                                         options_.staged_device,
                                         engine.lanes() + 1,
                                         options_.stall_warn_s,
                                         options_.stall_fail_s,
                                         finite_.get()})),
      communicators_(plane.rank(), plane.size(), engine, *device_path_),
      dispatcher_(engine,
                  communicators_,
                  *device_path_,
                  finite_.get(),
                  timeline,
                  table_,
                  [this] { plane_.wake(); }),
      messenger_(connector,
                 plane.rank(),
                 options_.peer_timeout_s,
                 {[this](std::uint64_t ticket, int source, const Status& status) {
                    auto* operation = reinterpret_cast<Operation*>(ticket);
                    operation->value = source;
                    table_.complete({operation}, status);
                  },
                  [this](const Status& status) { dispatcher_.record_failure(status); }}) {
  check_parameters(options_.parameters, static_cast<std::uint32_t>(engine_.lanes()));
  publish(options_.parameters);
  loop_ = start_thread("aiacc loop", [this] { loop(); });
}

/// What submitting threads need of the parameters of an epoch.
void Coordinator::publish(const Parameters& parameters) {
  unit_bytes_.store(parameters.unit_bytes, std::memory_order_relaxed);
  lanes_.store(parameters.lanes, std::memory_order_relaxed);
  const double gpu_unit = device_path_->queues() ? static_cast<double>(parameters.gpu_unit_bytes)
                                                 : static_cast<double>(parameters.unit_bytes);
  gpu_byte_weight_.store(static_cast<double>(parameters.unit_bytes) / gpu_unit,
                         std::memory_order_relaxed);
}

Handle Coordinator::submit(std::shared_ptr<Operation> operation) {
  const Request& request = operation->request;
  if (is_message(request.kind)) {
    return submit_message(std::move(operation));
  }
  check(*operation, communicators_, plane_.rank());
  if (request.on_gpu()) {
    admit_on_gpu(*operation);
    operation->byte_weight = gpu_byte_weight_.load(std::memory_order_relaxed);
  }
  operation->byte_weight /= static_cast<double>(request.narrowing());
  const std::uint64_t bytes = operation->weighted_bytes();
  TensorTable::Queued queued;
  const Handle handle = table_.submit(std::move(operation), queued);
  const std::uint64_t enough = unit_bytes_.load(std::memory_order_relaxed);
  if (queued.bytes >= enough && queued.bytes - bytes < enough) {
    plane_.wake();
  } else if (queued.first) {
    plane_.has_share(true);
    plane_.wake_at(Clock::now() + options_.linger);
  }
  return handle;
}

Handle Coordinator::submit_message(std::shared_ptr<Operation> operation) {
  static_assert(kMaxMessageKeyBytes <= MessageLink::kMostKeyBytes &&
                kMaxTensorBytes <= MessageLink::kMostBytes);
  Operation& message = *operation;
  const Request& request = message.request;
  check_message(request, message.series, plane_.size());
  const void* memory = request.kind == OpKind::kSend ? message.buffers.front().input
                                                     : message.buffers.front().output;
  if (memory == nullptr && request.tensors[0].bytes() > 0) {
    refuse_null(operation_text(request.kind, 0, message.series), "memory");
  }
  TensorTable::Queued queued;
  const Handle handle = table_.submit(std::move(operation), queued);
  plane_.wake_at(Clock::now() + tick_);  // Somebody has to look after the peers.
  const auto ticket = reinterpret_cast<std::uint64_t>(&message);
  if (request.kind == OpKind::kSend) {
    messenger_.send(request.root,
                    message.series,
                    message.buffers.front().input,
                    request.tensors[0].bytes(),
                    ticket);
  } else {
    messenger_.receive(
        message.series,
        {request.root, message.buffers.front().output, request.tensors[0].bytes(), ticket});
  }
  return handle;
}

/// A GPU that cannot be opened, or has failed, ends the job: the other ranks would wait for this
/// one.
void Coordinator::admit_on_gpu(Operation& operation) {
  try {
    device_path_->admit(operation);
  } catch (const Error& error) {
    if (error.code() != Code::kEngine) {
      throw;
    }
    const Status status(Code::kEngine,
                        "[gpu] rank " + std::to_string(plane_.rank()) + ", GPU " +
                            std::to_string(operation.request.device) + ": " + error.what());
    dispatcher_.record_failure(status);
    throw Error(status);
  }
}

std::uint32_t Coordinator::add_process_set(std::vector<int> ranks,
                                           const std::function<void()>& on_tick) {
  check_ranks(ranks, plane_.size());
  return static_cast<std::uint32_t>(
      change_process_sets(OpKind::kAddProcessSet, "", {ranks.begin(), ranks.end()}, on_tick));
}

bool Coordinator::remove_process_set(std::uint32_t id, const std::function<void()>& on_tick) {
  return id != 0 && change_process_sets(OpKind::kRemoveProcessSet, "", {id}, on_tick) != 0;
}

std::uint32_t Coordinator::form_process_set(const std::string& name,
                                            std::vector<int> ranks,
                                            const std::function<void()>& on_tick) {
  check_ranks(ranks, plane_.size());
  if (name.empty() || index_in(ranks, plane_.rank()) < 0) {
    throw Error(Code::kInvalidArgument,
                "[process set] '" + name + "' of ranks " +
                    shape_text({ranks.begin(), ranks.end()}) + ", formed by rank " +
                    std::to_string(plane_.rank()) + " (expected a name, and one of these ranks)");
  }
  return static_cast<std::uint32_t>(change_process_sets(
      OpKind::kFormProcessSet, kFormedNames + name, {ranks.begin(), ranks.end()}, on_tick));
}

void Coordinator::leave_process_set(std::uint32_t id) {
  std::shared_ptr<Operation> operation = table_.acquire();
  operation->request = {};
  operation->request.kind = OpKind::kLeaveProcessSet;
  operation->request.process_set = id;
  operation->completion = std::make_unique<Forgotten>();
  submit(std::move(operation));
  flush();
}

std::int64_t Coordinator::change_process_sets(OpKind kind,
                                              std::string name,
                                              std::vector<std::int64_t> numbers,
                                              const std::function<void()>& on_tick) {
  std::shared_ptr<Operation> operation = table_.acquire();
  operation->request = {};
  operation->request.kind = kind;
  operation->request.name = std::move(name);
  operation->request.numbers = std::move(numbers);
  const Handle handle = submit(std::move(operation));
  operation = wait(handle, on_tick);
  const std::int64_t value = operation->value;
  operation.reset();
  table_.release(handle);
  return value;
}

bool Coordinator::poll(Handle handle) const { return table_.find(handle)->done.load(); }

void Coordinator::flush() {
  flush_.store(true);
  if (table_.has_queued()) {
    plane_.wake();
  }
}

void Coordinator::propose(const Parameters& parameters) {
  check_parameters(parameters, static_cast<std::uint32_t>(engine_.lanes()));
  {
    // Not the mutex of rounds, which is held while a round waits for other ranks.
    const std::lock_guard lock(proposal_mutex_);
    proposal_ = parameters;
  }
  plane_.wake();
}

std::shared_ptr<Operation> Coordinator::wait(Handle handle, const std::function<void()>& on_tick) {
  std::shared_ptr<Operation> operation = table_.find(handle);
  if (!operation->done.load()) {
    const auto start = Clock::now();
    wait_until_done(*operation, on_tick);
    const std::chrono::nanoseconds waited = Clock::now() - start;
    wait_ns_.fetch_add(static_cast<std::uint64_t>(waited.count()), std::memory_order_relaxed);
  }
  if (!operation->status.ok()) {
    const Status status = operation->status;
    table_.release(handle);
    throw Error(status);
  }
  return operation;
}

void Coordinator::wait_until_done(const Operation& operation,
                                  const std::function<void()>& on_tick) {
  // What is on its way, as a message always is, needs no round.
  if (!operation.dispatched.load()) {
    flush_.store(true);
    run_alone(operation);
    if (!operation.dispatched.load()) {
      plane_.wake();
    }
  } else if (!is_message(operation.request.kind) && table_.has_queued()) {
    flush();
  }
  while (!table_.wait(operation, Clock::now() + tick_)) {
    if (on_tick) {
      on_tick();
    }
  }
}

/// With which this rank leaves: a failure that the others have not heard of, or in order.
Status Coordinator::end_status() const {
  const auto failure = dispatcher_.failure();
  if (failure && failure->status.code() != Code::kPeerLost) {
    return failure->status;
  }
  return {Code::kShutdown,
          "[core] rank " + std::to_string(plane_.rank()) +
              (ending_.empty() ? " has shut down; call init on every rank to go on" : ending_)};
}

void Coordinator::shutdown(std::string how) {
  const std::lock_guard guard(shutdown_mutex_);
  if (!loop_.joinable()) {
    return;
  }
  ending_ = std::move(how);
  stopping_.store(true);
  plane_.interrupt(end_status());
  plane_.wake();
  loop_.join();
}

CoordinatorStats Coordinator::stats() const {
  return {tensors_.load(),
          dispatcher_.units(),
          dispatcher_.data_bytes(),
          wait_ns_.load(),
          lanes_.load(),
          unit_bytes_.load()};
}

}  // namespace aiacc
