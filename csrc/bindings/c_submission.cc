// The part of the C interface that submits and waits.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "csrc/bindings/c_api.h"
#include "csrc/bindings/c_guard.h"
#include "csrc/bindings/request_arguments.h"
#include "csrc/core/runtime.h"

namespace aiacc {
namespace {

static_assert(AIACC_NOT_FINITE == static_cast<int>(Code::kNotFinite) &&
              AIACC_SHUTDOWN == static_cast<int>(Code::kShutdown) &&
              AIACC_MISMATCH == static_cast<int>(Code::kMismatch));
static_assert(AIACC_JOIN == static_cast<int>(OpKind::kJoin) &&
              AIACC_REDUCESCATTER == static_cast<int>(OpKind::kReducescatter));
static_assert(AIACC_UINT64 == kDataTypes - 1 &&
              AIACC_FLOAT32 == static_cast<int>(DataType::kFloat32));
static_assert(AIACC_PRODUCT == static_cast<int>(ReduceOp::kProduct));
static_assert(AIACC_WIRE_RANDOM == kWireFormats - 1);

/// What callers of ABI 1 have at least, whatever members come later.
constexpr std::size_t kFirstSize = 128;
static_assert(offsetof(aiacc_submission, context) + sizeof(void*) == kFirstSize);
/// What a submission of any version is smaller than: more is a caller's mistake.
constexpr std::size_t kMostSize = 4096;

bool gives_rows(OpKind kind) { return kind == OpKind::kAllgather || kind == OpKind::kAlltoall; }

/// Whether this thread runs a callback of the caller's.
thread_local bool in_callback = false;

template <class Call>
auto as_callback(Call call) {
  struct Restore {
    const bool before = std::exchange(in_callback, true);
    Restore() = default;
    Restore(const Restore&) = delete;
    Restore& operator=(const Restore&) = delete;
    ~Restore() { in_callback = before; }
  };
  const Restore restore;
  return call();
}

/// The callbacks of a submission.
class Callbacks final : public Completion {
 public:
  Callbacks(const aiacc_submission& submission, DeviceExecutor& device_path)
      : Completion(submission.done != nullptr),
        allocate_(submission.allocate),
        received_(submission.received),
        done_(submission.done),
        context_(submission.context),
        device_path_(device_path),
        memory_(submission.tensor_count),
        claimed_(submission.done != nullptr) {}

  /// Whether the outcome is this caller's: one of the threads that wait for the handle, and none
  /// if somebody is told.
  bool claim() { return !claimed_.exchange(true); }

  void* allocate(Operation& operation, std::size_t index) noexcept override {
    std::vector<std::int64_t> shape = operation.request.tensors[index].shape;
    const auto& rows = operation.buffers[index].first_extents;
    shape.front() = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    memory_[index].address = as_callback([&] {
      return allocate_(context_,
                       static_cast<std::uint32_t>(index),
                       shape.data(),
                       static_cast<std::uint32_t>(shape.size()));
    });
    memory_[index].asked = true;
    return memory_[index].address;
  }

  void done(Operation& operation) noexcept override {
    const Status status = finish(operation);
    const aiacc_status told{static_cast<std::int32_t>(status.code()), status.message().c_str()};
    as_callback([&] { done_(context_, &told); });
  }

  /// What is left to do when the operation is over, and how that went.
  Status finish(Operation& operation) noexcept {
    try {
      if (operation.status.ok()) {
        collect(operation);
      }
      return operation.status;
    } catch (...) {
      return current_exception_status();
    }
  }

 private:
  struct Memory {
    void* address = nullptr;
    bool asked = false;
  };

  void collect(Operation& operation) {
    const Request& request = operation.request;
    if (request.on_gpu()) {
      device_path_.order_after(operation, operation.stream);
    }
    if (gives_rows(request.kind)) {
      for (std::size_t i = 0; i < memory_.size(); ++i) {
        collect_rows(operation, i);
      }
    } else if (request.kind == OpKind::kJoin && received_ != nullptr) {
      *received_ = operation.value;
    }
  }

  void collect_rows(Operation& operation, std::size_t index) {
    const Request& request = operation.request;
    const auto& rows = operation.buffers[index].first_extents;
    if (received_ != nullptr) {
      std::copy(rows.begin(), rows.end(), received_ + index * rows.size());
    }
    if (!memory_[index].asked) {
      allocate(operation, index);
    }
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(std::accumulate(rows.begin(), rows.end(), std::int64_t{0})) *
        request.tensors[index].row_bytes();
    if (bytes == 0) {
      return;
    }
    if (memory_[index].address == nullptr) {
      throw Error(Code::kInvalidArgument,
                  "[submit] " + operation_text(request) +
                      ": allocate returned NULL (expected memory of " + std::to_string(bytes) +
                      " bytes for tensor " + std::to_string(index) + "); is the memory exhausted?");
    }
    if (request.on_gpu()) {
      device_path_.copy_gathered(operation, index, memory_[index].address, operation.stream);
    }
  }

  const aiacc_allocate allocate_;
  std::int64_t* const received_;
  const aiacc_done done_;
  void* const context_;
  DeviceExecutor& device_path_;
  std::vector<Memory> memory_;
  std::atomic<bool> claimed_;
};

[[noreturn]] void refuse(const std::string& problem) {
  throw Error(Code::kInvalidArgument, "[submit] " + problem);
}

/// The members that this library knows; a caller of a later version may have set none that it does
/// not.
void check_size(const aiacc_submission* submission) {
  if (submission == nullptr) {
    refuse("submission NULL (expected an aiacc_submission)");
  }
  const std::size_t size = submission->size;
  if (size < kFirstSize || size > kMostSize) {
    refuse("submission of size " + std::to_string(size) + " (expected sizeof(aiacc_submission), " +
           std::to_string(sizeof(aiacc_submission)) + " here): start from AIACC_SUBMISSION_INIT");
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(submission);
  for (std::size_t i = sizeof(aiacc_submission); i < size; ++i) {
    if (bytes[i] != 0) {
      refuse("submission with a member at offset " + std::to_string(i) +
             " that this library does not know (it has " + std::to_string(sizeof *submission) +
             " bytes); install the aiacc that the caller was compiled for");
    }
  }
}

void assign_tensors(const aiacc_submission& from, Request& request) {
  if (from.tensor_count == 0 || from.tensor_count > kMaxGroupTensors || from.tensors == nullptr) {
    refuse("tensors: " + std::to_string(from.tensor_count) +
           (from.tensors == nullptr ? " at NULL" : "") + " (expected 1.." +
           std::to_string(kMaxGroupTensors) + ")");
  }
  if (from.tensor_count > 1) {
    check_group(request.kind);
  }
  request.tensors.resize(from.tensor_count);
  for (std::uint32_t i = 0; i < from.tensor_count; ++i) {
    const aiacc_tensor& tensor = from.tensors[i];
    TensorSpec& spec = request.tensors[i];
    if (tensor.dimensions > kMaxDimensions || (tensor.dimensions > 0 && tensor.shape == nullptr)) {
      refuse("shape of " + std::to_string(tensor.dimensions) + " dimensions" +
             (tensor.shape == nullptr ? " at NULL" : "") + " (expected at most " +
             std::to_string(kMaxDimensions) + ")");
    }
    spec.dtype = dtype_from(tensor.dtype);
    spec.shape.assign(tensor.shape, tensor.shape + tensor.dimensions);
    check_extents(spec);
  }
}

/// What the ranks agree on. Throws Error(kInvalidArgument).
Request request_from(const aiacc_submission& from) {
  Request request;
  request.kind = kind_from(from.kind);
  const bool moves = request.kind != OpKind::kBarrier && request.kind != OpKind::kJoin;
  request.name = from.name == nullptr ? "" : from.name;
  if (request.name.empty() && moves) {
    refuse(std::string(name_of(request.kind)) +
           " of name NULL or \"\" (expected a name, by which " + "ranks find each other)");
  }
  if (request.kind == OpKind::kJoin) {
    request.name.clear();  // one at a time, whatever it is called
  }
  if (!moves && from.tensor_count != 0) {
    refuse(std::string(name_of(request.kind)) + " of " + std::to_string(from.tensor_count) +
           " tensors (expected 0)");
  }
  request.op = reduce_op_from(from.op);
  assign_wire(request, from.wire);
  request.prescale = from.prescale;
  request.postscale = from.postscale;
  request.root = from.root;
  request.process_set = from.process_set;
  request.device = from.device;
  if (from.split_count > 0 && from.splits == nullptr) {
    refuse(std::to_string(from.split_count) + " splits at NULL (expected their address)");
  }
  request.numbers.assign(from.splits, from.splits + from.split_count);
  request.tensors.front().dtype = DataType::kUInt8;  // of barrier and join, as Python's are
  if (moves) {
    assign_tensors(from, request);
  }
  if (gives_rows(request.kind) && from.allocate == nullptr) {
    refuse(std::string(name_of(request.kind)) +
           " without allocate (expected a function that gives " + "memory for the result)");
  }
  return request;
}

Handle submit(const aiacc_submission& from) {
  const auto session = Runtime::instance().session();
  Coordinator& coordinator = session->coordinator();
  Request request = request_from(from);
  std::shared_ptr<Operation> operation = coordinator.acquire();
  operation->request = std::move(request);
  operation->series.clear();
  operation->stream = static_cast<CudaStream>(from.stream);
  operation->buffers.resize(operation->request.tensors.size());
  operation->buffers.front().input = operation->buffers.front().output = nullptr;
  for (std::uint32_t i = 0; i < from.tensor_count; ++i) {
    operation->buffers[i].input = from.tensors[i].input;
    operation->buffers[i].output = from.tensors[i].output;
  }
  operation->completion = std::make_unique<Callbacks>(from, coordinator.device_path());
  return coordinator.submit(std::move(operation));
}

/// That of the moment; without one it throws when nobody uses memory of the last one any more.
std::shared_ptr<Session> session_to_wait_in() {
  const Runtime& runtime = Runtime::instance();
  try {
    return runtime.session();
  } catch (const Error&) {
    runtime.await_shutdown();
    throw;
  }
}

void wait(Handle handle) {
  if (in_callback) {
    throw Error(Code::kInvalidArgument,
                "[handle] aiacc_wait(" + std::to_string(handle) +
                    ") in a callback (expected outside: the core's work waits for the callback); "
                    "submit with a callback `done` instead");
  }
  const auto session = session_to_wait_in();
  Coordinator& coordinator = session->coordinator();
  std::shared_ptr<Operation> operation = coordinator.wait(handle);
  if (operation->completion == nullptr) {
    throw Error(Code::kInvalidArgument,
                "[handle] " + std::to_string(handle) +
                    " was submitted by Python (expected one of " +
                    "aiacc_submit); synchronize it there");
  }
  // No other front-end gives completions.
  auto& callbacks = static_cast<Callbacks&>(*operation->completion);
  if (!callbacks.claim()) {
    throw Error(Code::kInvalidArgument,
                "[handle] " + std::to_string(handle) +
                    " is not an outstanding handle; every handle can be waited for once, and one " +
                    "with a callback not at all");
  }
  const Status status = callbacks.finish(*operation);
  operation.reset();
  coordinator.release(handle);
  if (!status.ok()) {
    throw Error(status);
  }
}

}  // namespace
}  // namespace aiacc

int32_t aiacc_submit(const aiacc_submission* submission, int64_t* handle) {
  return aiacc::answered([&] {
    aiacc::check_size(submission);
    if (submission->done == nullptr && handle == nullptr) {
      aiacc::refuse("neither done nor a place for the handle (expected one of them)");
    }
    const aiacc::Handle submitted = aiacc::submit(*submission);
    if (handle != nullptr) {
      *handle = submission->done == nullptr ? submitted : 0;
    }
  });
}

int32_t aiacc_wait(int64_t handle) {
  return aiacc::answered([&] { aiacc::wait(handle); });
}
