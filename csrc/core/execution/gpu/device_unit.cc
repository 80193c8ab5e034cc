#include "csrc/core/execution/gpu/device_unit.h"

#include <numeric>

#include "csrc/core/execution/chance_seeds.h"

namespace aiacc {
namespace {

CudaAddress address_of(const void* memory) { return reinterpret_cast<CudaAddress>(memory); }

}  // namespace

DeviceUnit::DeviceUnit(Unit& unit, int lane, DeviceEngine& engine, DeviceResources& resources)
    : unit_(unit),
      request_(unit.request()),
      slices_(unit.memory),
      lane_(lane),
      engine_(engine),
      resources_(resources),
      device_(*resources.device),
      reduction_(reduction_of(unit)),
      packed_as_(is_coded(request_.wire) ? WireFormat::kTensor : request_.wire),
      stream_(engine_.stream(lane)),
      current_(stream_) {
  if (request_.kind == OpKind::kAllreduce || request_.kind == OpKind::kReducescatter) {
    before_ = request_.prescale;
    after_ = reduction_.factor;
  }
  find_memory(unit, unit.memory);
  if (unit.finite != nullptr && has_checked_inputs(unit)) {
    checked_ = resources.reports->take(unit);
  }
}

void DeviceUnit::run(CopyDirection direction,
                     double factor,
                     const std::vector<CopySegment>& segments,
                     CopyReport* reports) {
  if (!segments.empty()) {
    const CopyJob job{reduction_.dtype, packed_as_, direction, factor, reports != nullptr};
    resources_.copier.enqueue(current_, job, segments, reports);
  }
}

void DeviceUnit::scale(
    void* out, const void* in, std::size_t count, double factor, CopyReport* reports) {
  run(CopyDirection::kPack, factor, {{in, out, count}}, reports);
}

/// A buffer of the lane's. Kernels run beside its stream from now on, as soon as the inputs are
/// there and nobody uses the buffer any more.
std::byte* DeviceUnit::start_packing(std::size_t bytes) {
  buffer_ = static_cast<std::byte*>(engine_.buffer(lane_, bytes));
  current_ = engine_.pack_stream(lane_);
  const auto user = resources_.buffer_users.find(buffer_);
  if (user != resources_.buffer_users.end()) {
    device_.wait(current_, user->second);
  }
  wait_for_inputs(unit_, current_, device_);
  return buffer_;
}

/// The lane's stream goes on after what was packed; the inputs, which it may overwrite, are read
/// then.
void DeviceUnit::end_packing() {
  device_.wait(stream_, device_.record(current_));
  current_ = stream_;
}

/// What is not there is zeros.
void DeviceUnit::pack(std::byte* packed, bool residuals) {
  std::vector<CopySegment> segments;
  for (const SliceMemory& slice : slices_) {
    const std::byte* from = residuals ? slice.residual : slice.input;
    if (from == nullptr) {
      AIACC_CUDA_CHECK(
          device_.driver(), fill_async, address_of(packed), 0, on_wire(slice.bytes), current_);
    } else {
      segments.push_back({from, packed, slice.bytes / size_of(reduction_.dtype)});
    }
    packed += on_wire(slice.bytes);
  }
  run(CopyDirection::kPack, residuals ? 1.0 : before_, segments, residuals ? nullptr : reports());
}

/// A tensor of a broadcast's root may hold its result already.
void DeviceUnit::unpack(const std::byte* packed, bool residuals) {
  const bool has_result = request_.kind == OpKind::kBroadcast && unit_.is_root();
  std::vector<CopySegment> segments;
  for (const SliceMemory& slice : slices_) {
    std::byte* to = residuals ? slice.residual : slice.output;
    if (to != nullptr && !(has_result && slice.input == slice.output)) {
      segments.push_back({packed, to, slice.bytes / size_of(reduction_.dtype)});
    }
    packed += on_wire(slice.bytes);
  }
  run(CopyDirection::kUnpack, residuals ? 1.0 : after_, segments, nullptr);
}

/// The codes lie in a buffer of the lane, where several tensors are packed behind them. Those
/// travel, and so begin it, at the same places on all ranks.
void DeviceUnit::prepare_coded() {
  const Coding coding{request_.wire, request_.wire_detail};
  const auto ranks = static_cast<std::size_t>(unit_.communicator->size());
  const std::size_t codes = DeviceCodedAllReduce::memory_bytes(unit_.elements(), coding, ranks);
  const bool alone = slices_.size() == 1;
  const bool feedback = feeds_back(slices_);
  std::byte* memory = start_packing(codes + (alone ? 0 : unit_.plan.bytes * (feedback ? 2 : 1)));
  const std::byte* given = nullptr;
  std::byte* residual = nullptr;
  if (alone) {
    const SliceMemory& slice = slices_.front();
    recv_ = slice.output;
    given = slice.input;
    residual = slice.residual;
    if (converts()) {
      scale(recv_, given, unit_.elements(), before_, reports());
      given = slice.output;
    }
  } else {
    packed_ = memory + codes;
    recv_ = packed_;
    given = packed_;
    pack(packed_);
    if (feedback) {
      residuals_ = packed_ + unit_.plan.bytes;
      pack(residuals_, true);
    }
    residual = residuals_;
  }
  coded_.emplace(resources_.coding(),
                 engine_,
                 lane_,
                 DeviceCodedReduce{reinterpret_cast<const float*>(given),
                                   static_cast<float*>(recv_),
                                   reinterpret_cast<float*>(residual),
                                   unit_.elements(),
                                   coding,
                                   seed_of_rank(unit_.seed, unit_.communicator->rank)},
                 static_cast<std::size_t>(unit_.communicator->rank),
                 ranks,
                 memory);
  coded_->encode(current_);
  end_packing();
}

/// The one tensor of an all-reduce or a broadcast.
void DeviceUnit::prepare_in_place() {
  wait_for_inputs(unit_, stream_, device_);
  const SliceMemory& slice = slices_.front();
  send_ = slice.input;
  recv_ = slice.output;
  if (recv_ == nullptr) {
    // Zeros. Where the others give their tensors' memory, this must not be a registered buffer.
    zeros_ = resources_.pool->take(slice.bytes, stream_);
    AIACC_CUDA_CHECK(device_.driver(), fill_async, zeros_->address, 0, slice.bytes, stream_);
    recv_ = reinterpret_cast<void*>(zeros_->address);
    send_ = recv_;
  } else if (request_.kind == OpKind::kBroadcast) {
    if (unit_.is_root() && recv_ != send_ && slice.bytes > 0) {
      AIACC_CUDA_CHECK(
          device_.driver(), copy_async, address_of(recv_), address_of(send_), slice.bytes, stream_);
    }
  } else if (converts()) {
    scale(recv_, send_, unit_.elements(), before_, reports());
    send_ = recv_;
  }
}

/// All-gather and all-to-all, whose results go to memory of the core.
void DeviceUnit::prepare_gathering() {
  wait_for_inputs(unit_, stream_, device_);
  TensorBuffers& buffers = unit_.pieces.front().buffers();
  sent_ = sent_bytes(unit_);
  received_ = received_bytes(unit_);
  const std::size_t total = std::accumulate(received_.begin(), received_.end(), std::size_t{0});
  buffers.gathered_on_gpu = resources_.pool->take(total, stream_);
  send_ = buffers.input;
  recv_ = reinterpret_cast<void*>(buffers.gathered_on_gpu->address);
}

void DeviceUnit::prepare_reduce_scatter() {
  const SliceMemory& slice = slices_.front();
  received_ = scattered_elements(unit_);
  results_ = received_[static_cast<std::size_t>(unit_.communicator->rank)];
  recv_ = slice.output;
  send_ = slice.input;
  if (!converts()) {
    wait_for_inputs(unit_, stream_, device_);
    return;
  }
  std::byte* scaled = start_packing(slice.bytes);
  scale(scaled, send_, unit_.elements(), before_, reports());
  end_packing();
  send_ = scaled;
}

void DeviceUnit::prepare() {
  results_ = request_.kind == OpKind::kAllreduce ? unit_.elements() : 0;
  if (request_.kind == OpKind::kAllgather || request_.kind == OpKind::kAlltoall) {
    prepare_gathering();
  } else if (request_.kind == OpKind::kReducescatter) {
    prepare_reduce_scatter();
  } else if (is_coded(request_.wire)) {
    prepare_coded();
  } else if (slices_.size() == 1 && packed_as_ == WireFormat::kTensor) {
    prepare_in_place();
  } else {
    packed_ = start_packing(on_wire(unit_.plan.bytes));
    send_ = packed_;
    recv_ = packed_;
    if (request_.kind != OpKind::kBroadcast || unit_.is_root()) {
      pack(packed_);
    }
    end_packing();
  }
}

void DeviceUnit::issue() {
  if (coded_) {
    return coded_->issue();
  }
  if (std::exchange(issued_, true)) {
    return;
  }
  const DeviceReduction reduction{
      reduction_.dtype, reduction_.op, request_.wire, 0, unit_.algorithm};
  if (request_.kind == OpKind::kAllreduce) {
    engine_.all_reduce(lane_, send_, recv_, unit_.elements(), reduction);
  } else if (request_.kind == OpKind::kBroadcast) {
    const int root = index_in(unit_.communicator->ranks, request_.root);
    engine_.broadcast(lane_, recv_, unit_.plan.bytes, root);
  } else if (request_.kind == OpKind::kAllgather) {
    engine_.all_gather(lane_, send_, recv_, received_);
  } else if (request_.kind == OpKind::kAlltoall) {
    engine_.all_to_all(lane_, send_, recv_, sent_, received_);
  } else {
    AIACC_CHECK(request_.kind == OpKind::kReducescatter);  // other kinds never become units
    engine_.reduce_scatter(lane_, send_, recv_, received_, {reduction_.dtype, reduction_.op});
  }
}

Mark DeviceUnit::complete() {
  if (packed_ != nullptr) {
    unpack(packed_);
    if (residuals_ != nullptr) {
      unpack(residuals_, true);
    }
  } else if (zeros_ == nullptr && results_ > 0 && after_ != 1.0) {
    scale(recv_, recv_, results_, after_, nullptr);
  }
  const Mark done = device_.record(stream_);
  if (zeros_ != nullptr) {
    zeros_->users = {done};
    zeros_.reset();
  }
  if (buffer_ != nullptr) {
    resources_.buffer_users[buffer_] = done;
  }
  return done;
}

}  // namespace aiacc
