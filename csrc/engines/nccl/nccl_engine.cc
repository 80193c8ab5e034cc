#include "csrc/engines/nccl/nccl_engine.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "csrc/base/env.h"
#include "csrc/base/log.h"
#include "csrc/engines/members.h"
#include "csrc/engines/nccl/nccl_settings.h"

// What is done on communicators; how they begin and end is in nccl_connect.cc.

namespace aiacc {
namespace {

const std::byte* at(const void* base, std::size_t offset) {
  return static_cast<const std::byte*>(base) + offset;
}

std::byte* at(void* base, std::size_t offset) { return static_cast<std::byte*>(base) + offset; }

bool failed(NcclResult result) { return result != kNcclSuccess && result != kNcclInProgress; }

bool all_equal(const std::vector<std::size_t>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
}

}  // namespace

NcclEngine::NcclEngine(const CudaDriver& cuda, const NcclApi& nccl, const EngineContext& context)
    : NcclEngine(std::make_shared<NcclDevices>(cuda, nccl, context.lanes, context.device),
                 context,
                 all_ranks(context.size),
                 0) {
  const std::string problem = launch_order_problem(
      nccl.version, context.lanes, library_variable(kLaunchOrderVariable), context.nccl_in_use);
  if (!problem.empty()) {
    throw Error(Code::kUnsupported, "[nccl] " + problem);
  }
  if (needs_launch_order_variable(nccl.version, context.lanes)) {
    set_library_variable(kLaunchOrderVariable, "1");
  }
}

NcclEngine::NcclEngine(std::shared_ptr<NcclDevices> devices,
                       EngineContext context,
                       std::vector<int> members,
                       std::uint32_t split_id)
    : devices_(std::move(devices)),
      nccl_(devices_->nccl()),
      context_(std::move(context)),
      members_(std::move(members)),
      split_id_(split_id) {}

std::unique_ptr<DeviceEngine> NcclEngine::split(const std::vector<int>& members,
                                                std::uint32_t split_id) {
  cancellation_.check();
  EngineContext context = context_;
  context.rank = index_among(members, context_.rank, context_.size);
  context.size = static_cast<int>(members.size());
  return std::unique_ptr<DeviceEngine>(
      new NcclEngine(devices_, std::move(context), translated(members_, members), split_id));
}

std::shared_ptr<Device> NcclEngine::device(int ordinal) {
  if (device_ == nullptr) {
    device_ = devices_->on(ordinal);
  }
  AIACC_CHECK(ordinal < 0 || ordinal == device_->device()->ordinal());
  return device_->device();
}

void* NcclEngine::buffer(int lane, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  cancellation_.check();
  // Not smaller than `join` takes them, which may come later: it must not outgrow one that is
  // packed.
  void* memory = device_->buffer(lane, std::max(bytes, context_.unit_bytes)).memory;
  if (!comms_.empty()) {
    register_buffer(lane, memory);  // so that no group has to
  }
  return memory;
}

/// If it is that of a buffer. All ranks do so before the same operation, and give buffers to the
/// same operations. That of an outgrown buffer stays registered: work with it may be queued. With
/// the lock.
void NcclEngine::register_buffer(int lane, const void* memory) {
  const NcclDevice::Buffer* buffer = device_->find(lane, memory);
  Lane& here = lane_at(lane);
  if (buffer == nullptr || here.registrations.count(buffer->memory) > 0) {
    return;
  }
  void*& registration = here.registrations[buffer->memory];
  if (nccl_.comm_register(here.comm, buffer->memory, buffer->capacity, &registration) !=
      kNcclSuccess) {
    registration = nullptr;
    AIACC_LOG(kDebug) << "[nccl] buffers are not registered: this library or network cannot";
  }
}

std::string NcclEngine::refusal(const DeviceReduction& reduction) const {
  return context_.gpu_capability > 0
             ? nccl_refusal(reduction, context_.gpu_capability, context_.gpu_capability_rank)
             : nccl_refusal(reduction, devices_->attribute(kCudaCapabilityMajor));
}

/// `call(comm, stream)` queues one operation on `memory`.
template <class Call>
void NcclEngine::issue(int lane,
                       const char* name,
                       std::initializer_list<const void*> memory,
                       Call call) {
  if (open_group_) {
    return issue_in_group(lane, name, call);
  }
  connect();
  const std::lock_guard lock(mutex_);
  cancellation_.check();
  for (const void* part : memory) {
    register_buffer(lane, part);
  }
  NcclComm comm = lane_at(lane).comm;
  settle(comm, call(comm, device_->stream(lane)), name);
}

/// Memory is registered already, by `buffer`.
template <class Call>
void NcclEngine::issue_in_group(int lane, const char* name, Call call) {
  NcclComm comm = lane_at(lane).comm;
  grouped_.push_back(comm);
  const NcclResult result = call(comm, device_->stream(lane));
  if (failed(result)) {
    nccl_.group_end();  // gives up what the group has so far
    open_group_ = {};
    cancellation_.check();
    check_nccl(nccl_, result, name);
  }
}

void NcclEngine::begin_group() {
  connect();
  std::unique_lock lock(mutex_);
  cancellation_.check();
  grouped_.clear();
  AIACC_NCCL_CHECK(nccl_, group_start);
  open_group_ = std::move(lock);
}

/// The thread that NCCL makes for a call that does not block is one for all of them.
void NcclEngine::end_group() {
  const std::unique_lock lock = std::move(open_group_);
  const NcclResult result = nccl_.group_end();
  cancellation_.check();
  for (NcclComm comm : grouped_) {
    settle(comm, result, "ncclGroupEnd");
  }
}

/// `call(comm, stream)` queues parts of one operation and returns the first result that is bad.
template <class Call>
void NcclEngine::issue_group(int lane,
                             const char* name,
                             std::initializer_list<const void*> memory,
                             Call call) {
  issue(lane, name, memory, [&](NcclComm comm, CudaStream stream) {
    NcclResult result = nccl_.group_start();
    if (failed(result)) {
      return result;
    }
    result = call(comm, stream);
    const NcclResult ended = nccl_.group_end();
    return failed(result) ? result : ended;
  });
}

void NcclEngine::all_reduce(
    int lane, const void* send, void* recv, std::size_t count, const DeviceReduction& reduction) {
  const NcclDataType type = nccl_type_of(reduction.dtype, reduction.wire);
  const NcclRedOp op = nccl_op_of(reduction.dtype, reduction.op);
  if (count == 0) {
    return;
  }
  issue(lane, "ncclAllReduce", {send, recv}, [&](NcclComm comm, CudaStream stream) {
    if (reduction.algorithm == Algorithm::kAny || nccl_.all_reduce_config == nullptr) {
      return nccl_.all_reduce(send, recv, count, type, op, comm, stream);
    }
    const NcclCollConfig settings = call_settings(reduction.algorithm);
    return nccl_.all_reduce_config(send, recv, count, type, op, comm, stream, &settings);
  });
}

void NcclEngine::broadcast(int lane, void* buffer, std::size_t bytes, int root) {
  if (bytes == 0) {
    return;
  }
  issue(lane, "ncclBroadcast", {buffer}, [&](NcclComm comm, CudaStream stream) {
    return nccl_.broadcast(buffer, buffer, bytes, kNcclUint8, root, comm, stream);
  });
}

void NcclEngine::all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) {
  AIACC_CHECK(bytes_of.size() == members_.size());
  if (all_equal(bytes_of)) {
    if (bytes_of.front() > 0) {
      issue(lane, "ncclAllGather", {send, recv}, [&](NcclComm comm, CudaStream stream) {
        return nccl_.all_gather(send, recv, bytes_of.front(), kNcclUint8, comm, stream);
      });
    }
    return;
  }
  issue_group(
      lane, "ncclBroadcast of every rank", {send, recv}, [&](NcclComm comm, CudaStream stream) {
        NcclResult result = kNcclSuccess;
        std::size_t offset = 0;
        for (std::size_t root = 0; root < bytes_of.size() && !failed(result); ++root) {
          const std::size_t bytes = bytes_of[root];
          void* part = at(recv, offset);
          const bool mine = root == static_cast<std::size_t>(context_.rank);
          if (bytes > 0) {
            result = nccl_.broadcast(
                mine ? send : part, part, bytes, kNcclUint8, static_cast<int>(root), comm, stream);
          }
          offset += bytes;
        }
        return result;
      });
}

void NcclEngine::reduce_scatter(int lane,
                                const void* send,
                                void* recv,
                                const PerRank& counts,
                                const DeviceReduction& reduction) {
  AIACC_CHECK(reduction.wire == WireFormat::kTensor && counts.size() == members_.size());
  const NcclDataType type = nccl_type_of(reduction.dtype);
  const NcclRedOp op = nccl_op_of(reduction.dtype, reduction.op);
  if (all_equal(counts)) {
    if (counts.front() > 0) {
      issue(lane, "ncclReduceScatter", {send, recv}, [&](NcclComm comm, CudaStream stream) {
        return nccl_.reduce_scatter(send, recv, counts.front(), type, op, comm, stream);
      });
    }
    return;
  }
  issue_group(
      lane, "ncclReduce to every rank", {send, recv}, [&](NcclComm comm, CudaStream stream) {
        NcclResult result = kNcclSuccess;
        std::size_t offset = 0;
        for (std::size_t root = 0; root < counts.size() && !failed(result); ++root) {
          if (counts[root] > 0) {
            result = nccl_.reduce(at(send, offset),
                                  recv,
                                  counts[root],
                                  type,
                                  op,
                                  static_cast<int>(root),
                                  comm,
                                  stream);
          }
          offset += counts[root] * size_of(reduction.dtype);
        }
        return result;
      });
}

void NcclEngine::all_to_all(
    int lane, const void* send, void* recv, const PerRank& send_bytes, const PerRank& recv_bytes) {
  AIACC_CHECK(send_bytes.size() == members_.size() && recv_bytes.size() == members_.size());
  issue_group(lane, "ncclSend and ncclRecv", {send, recv}, [&](NcclComm comm, CudaStream stream) {
    NcclResult result = kNcclSuccess;
    std::size_t sent = 0;
    std::size_t received = 0;
    for (std::size_t peer = 0; peer < members_.size() && !failed(result); ++peer) {
      const int rank = static_cast<int>(peer);
      if (send_bytes[peer] > 0) {
        result = nccl_.send(at(send, sent), send_bytes[peer], kNcclUint8, rank, comm, stream);
      }
      if (recv_bytes[peer] > 0 && !failed(result)) {
        result =
            nccl_.receive(at(recv, received), recv_bytes[peer], kNcclUint8, rank, comm, stream);
      }
      sent += send_bytes[peer];
      received += recv_bytes[peer];
    }
    return result;
  });
}

}  // namespace aiacc
