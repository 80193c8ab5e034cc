#include "csrc/core/execution/gpu/device_unit.h"

#include <numeric>
#include <utility>

#include "csrc/core/execution/chance_seeds.h"
#include "csrc/core/execution/host_unit.h"

namespace aiacc {
namespace {

const std::byte* at(const void* base, std::uint64_t offset) {
  return static_cast<const std::byte*>(base) + offset;
}

std::byte* at(void* base, std::uint64_t offset) { return static_cast<std::byte*>(base) + offset; }

CudaAddress address_of(const void* memory) { return reinterpret_cast<CudaAddress>(memory); }

}  // namespace

DeviceUnit::DeviceUnit(const Unit& unit, int lane, DeviceEngine& engine, DeviceResources& resources)
    : unit_(unit),
      lane_(lane),
      engine_(engine),
      resources_(resources),
      driver_(resources.device->driver()),
      stream_(engine_.stream(lane)),
      current_(stream_),
      piece_(unit.pieces.front()),
      request_(piece_.request()),
      dtype_(piece_.spec().dtype),
      packed_as_(is_coded(request_.wire) ? WireFormat::kTensor : request_.wire) {
  if (unit.finite != nullptr && has_checked_inputs(unit)) {
    checked_ = resources.reports->take(unit);
  }
}

void DeviceUnit::run(CopyDirection direction,
                     double factor,
                     const std::vector<CopySegment>& segments,
                     CopyReport* reports) {
  if (segments.empty()) {
    return;
  }
  CopyJob job;
  job.dtype = dtype_;
  job.wire = packed_as_;
  job.direction = direction;
  job.factor = factor;
  job.check = reports != nullptr;
  const std::lock_guard lock(resources_.copier_mutex);
  resources_.copier->enqueue(current_, job, segments, reports);
}

/// A buffer of the lane's. Kernels run beside its stream from now on, as soon as the inputs are
/// there and nobody uses the buffer any more.
std::byte* DeviceUnit::start_packing(std::size_t bytes) {
  packed_ = static_cast<std::byte*>(engine_.buffer(lane_, bytes));
  current_ = engine_.pack_stream(lane_);
  const auto user = resources_.buffer_users.find(packed_);
  if (user != resources_.buffer_users.end()) {
    resources_.device->wait(current_, user->second);
  }
  wait_for_inputs(unit_, current_, *resources_.device);
  return packed_;
}

/// The lane's stream goes on after what was packed; the inputs, which it may overwrite, are read
/// then.
void DeviceUnit::end_packing() {
  resources_.device->wait(stream_, resources_.device->record(current_));
  current_ = stream_;
}

/// Whether a tensor of the root's holds its result already.
bool DeviceUnit::keeps(const Piece& piece) const {
  return request_.kind == OpKind::kBroadcast && is_root() &&
         piece.buffers().input == piece.buffers().output;
}

void DeviceUnit::pack(std::byte* packed, double factor) {
  std::vector<CopySegment> segments;
  for (std::size_t i = 0; i < unit_.pieces.size(); ++i) {
    const Slice& slice = unit_.plan.slices[i];
    const void* input = unit_.pieces[i].buffers().input;
    if (input == nullptr) {
      AIACC_CUDA_CHECK(driver_, fill_async, address_of(packed), 0, on_wire(slice.bytes), current_);
    } else {
      segments.push_back({at(input, slice.offset), packed, slice.bytes / size_of(dtype_)});
    }
    packed += on_wire(slice.bytes);
  }
  run(CopyDirection::kPack, factor, segments, reports());
}

void DeviceUnit::unpack(const std::byte* packed, double factor) {
  std::vector<CopySegment> segments;
  for (std::size_t i = 0; i < unit_.pieces.size(); ++i) {
    const Slice& slice = unit_.plan.slices[i];
    void* output = unit_.pieces[i].buffers().output;
    if (output != nullptr && !keeps(unit_.pieces[i])) {
      segments.push_back({packed, at(output, slice.offset), slice.bytes / size_of(dtype_)});
    }
    packed += on_wire(slice.bytes);
  }
  run(CopyDirection::kUnpack, factor, segments);
}

/// What the sum is multiplied by.
double DeviceUnit::factor_after() const {
  return request_.op == ReduceOp::kAverage
             ? average_factor(dtype_, unit_.communicator->size(), request_.postscale)
             : request_.postscale;
}

ReduceOp DeviceUnit::op() const {
  return request_.op == ReduceOp::kAverage ? ReduceOp::kSum : request_.op;
}

/// Bytes of these numbers of rows.
std::vector<std::size_t> DeviceUnit::bytes_of(const std::vector<std::int64_t>& rows) const {
  const std::uint64_t row_bytes = piece_.spec().row_bytes();
  std::vector<std::size_t> bytes;
  bytes.reserve(rows.size());
  for (const std::int64_t count : rows) {
    bytes.push_back(row_bytes * static_cast<std::uint64_t>(count));
  }
  return bytes;
}

void DeviceUnit::pack_residuals(std::byte* packed) {
  std::vector<CopySegment> segments;
  for (std::size_t i = 0; i < unit_.pieces.size(); ++i) {
    const Slice& slice = unit_.plan.slices[i];
    const void* residual = unit_.pieces[i].buffers().residual;
    if (residual == nullptr) {
      AIACC_CUDA_CHECK(driver_, fill_async, address_of(packed), 0, slice.bytes, current_);
    } else {
      segments.push_back({at(residual, slice.offset), packed, slice.bytes / size_of(dtype_)});
    }
    packed += slice.bytes;
  }
  run(CopyDirection::kPack, 1.0, segments);
}

void DeviceUnit::unpack_residuals(const std::byte* packed) {
  std::vector<CopySegment> segments;
  for (std::size_t i = 0; i < unit_.pieces.size(); ++i) {
    const Slice& slice = unit_.plan.slices[i];
    void* residual = unit_.pieces[i].buffers().residual;
    if (residual != nullptr) {
      segments.push_back({packed, at(residual, slice.offset), slice.bytes / size_of(dtype_)});
    }
    packed += slice.bytes;
  }
  run(CopyDirection::kUnpack, 1.0, segments);
}

/// The codes lie in a buffer of the lane, where several tensors are packed behind them. Those
/// travel, and so begin it, at the same places on all ranks.
void DeviceUnit::prepare_coded() {
  const Coding coding{request_.wire, request_.wire_detail};
  const auto ranks = static_cast<std::size_t>(unit_.communicator->size());
  const std::size_t codes = DeviceCodedAllReduce::memory_bytes(elements(), coding, ranks);
  const bool alone = unit_.pieces.size() == 1;
  std::byte* memory =
      start_packing(codes + (alone ? 0 : unit_.plan.bytes * (feeds_back(unit_) ? 2 : 1)));
  const void* given = nullptr;
  void* residual = nullptr;
  if (alone) {
    const std::uint64_t offset = unit_.plan.slices.front().offset;
    const TensorBuffers& buffers = piece_.buffers();
    values_ = at(buffers.output, offset);
    given = at(buffers.input, offset);
    residual = buffers.residual == nullptr ? nullptr : at(buffers.residual, offset);
    if (converts()) {
      scale(values_, given, elements(), request_.prescale, reports());
      given = values_;
    }
  } else {
    values_ = memory + codes;
    given = values_;
    pack(values_, request_.prescale);
    if (feeds_back(unit_)) {
      residuals_ = values_ + unit_.plan.bytes;
      pack_residuals(residuals_);
    }
    residual = residuals_;
  }
  coded_.emplace(resources_.coding(),
                 engine_,
                 lane_,
                 DeviceCodedReduce{static_cast<const float*>(given),
                                   reinterpret_cast<float*>(values_),
                                   static_cast<float*>(residual),
                                   elements(),
                                   coding,
                                   seed_of_rank(unit_.seed, unit_.communicator->rank)},
                 static_cast<std::size_t>(unit_.communicator->rank),
                 ranks,
                 memory);
  coded_->encode(current_);
  end_packing();
}

void DeviceUnit::complete_coded() {
  if (unit_.pieces.size() > 1) {
    unpack(values_, factor_after());
    if (residuals_ != nullptr) {
      unpack_residuals(residuals_);
    }
  } else if (factor_after() != 1.0) {
    scale(values_, values_, elements(), factor_after());
  }
}

void DeviceUnit::prepare_all_reduce() {
  if (is_coded(request_.wire)) {
    return prepare_coded();
  }
  if (!in_place()) {
    recv_ = start_packing(on_wire(unit_.plan.bytes));
    send_ = recv_;
    pack(packed_, request_.prescale);
    end_packing();
    return;
  }
  start_in_place();
  const TensorBuffers& buffers = piece_.buffers();
  if (buffers.output == nullptr) {
    // Zeros. Where the others give their tensors' memory, this must not be a registered buffer.
    zeros_ = resources_.pool->take(unit_.plan.bytes, stream_);
    AIACC_CUDA_CHECK(driver_, fill_async, zeros_->address, 0, unit_.plan.bytes, stream_);
    recv_ = reinterpret_cast<void*>(zeros_->address);
    send_ = recv_;
    return;
  }
  const std::uint64_t offset = unit_.plan.slices.front().offset;
  send_ = at(buffers.input, offset);
  recv_ = at(buffers.output, offset);
  if (converts()) {
    scale(recv_, send_, elements(), request_.prescale, reports());
    send_ = recv_;
  }
}

void DeviceUnit::complete_all_reduce() {
  if (coded_) {
    complete_coded();
  } else if (packed_ != nullptr) {
    unpack(packed_, factor_after());
  } else if (zeros_ != nullptr) {
    zeros_->users = {resources_.device->record(stream_)};
    zeros_.reset();
  } else if (factor_after() != 1.0) {
    scale(recv_, recv_, elements(), factor_after());
  }
}

void DeviceUnit::prepare_broadcast() {
  if (!in_place()) {
    recv_ = start_packing(unit_.plan.bytes);
    if (is_root()) {
      pack(packed_, 1.0);
    }
    end_packing();
    return;
  }
  start_in_place();
  const Slice& slice = unit_.plan.slices.front();
  recv_ = at(piece_.buffers().output, slice.offset);
  const void* input = at(piece_.buffers().input, slice.offset);
  if (is_root() && recv_ != input && slice.bytes > 0) {
    AIACC_CUDA_CHECK(
        driver_, copy_async, address_of(recv_), address_of(input), slice.bytes, stream_);
  }
}

/// All-gather and all-to-all, whose results go to memory of the core.
void DeviceUnit::prepare_gathering() {
  TensorBuffers& buffers = piece_.buffers();
  if (request_.kind == OpKind::kAlltoall) {
    sent_ = bytes_of(request_.numbers);
  }
  received_ = bytes_of(buffers.first_extents);
  start_in_place();
  send_ = buffers.input;
  const std::size_t total = std::accumulate(received_.begin(), received_.end(), std::size_t{0});
  buffers.gathered_on_gpu = resources_.pool->take(total, stream_);
  recv_ = reinterpret_cast<void*>(buffers.gathered_on_gpu->address);
}

void DeviceUnit::prepare_reduce_scatter() {
  const TensorSpec& spec = piece_.spec();
  const int size = unit_.communicator->size();
  received_.reserve(static_cast<std::size_t>(size));
  for (int member = 0; member < size; ++member) {
    received_.push_back(spec.row_elements() * static_cast<std::uint64_t>(scattered_rows(
                                                  spec.shape.front(), size, member)));
  }
  send_ = piece_.buffers().input;
  recv_ = piece_.buffers().output;
  if (!converts()) {
    start_in_place();
    return;
  }
  std::byte* scaled = start_packing(spec.bytes());
  scale(scaled, send_, spec.elements(), request_.prescale, reports());
  end_packing();
  send_ = scaled;
}

void DeviceUnit::prepare() {
  switch (request_.kind) {
    case OpKind::kAllreduce:
      return prepare_all_reduce();
    case OpKind::kBroadcast:
      return prepare_broadcast();
    case OpKind::kAllgather:
    case OpKind::kAlltoall:
      return prepare_gathering();
    case OpKind::kReducescatter:
      return prepare_reduce_scatter();
    case OpKind::kBarrier:
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
    case OpKind::kFormProcessSet:
    case OpKind::kLeaveProcessSet:
    case OpKind::kSend:
    case OpKind::kReceive:
      return;  // The response is all; it never becomes a unit.
  }
}

void DeviceUnit::issue() {
  if (coded_) {
    return coded_->issue();
  }
  if (std::exchange(issued_, true)) {
    return;
  }
  switch (request_.kind) {
    case OpKind::kAllreduce:
      return engine_.all_reduce(
          lane_, send_, recv_, elements(), {dtype_, op(), request_.wire, unit_.algorithm});
    case OpKind::kBroadcast:
      return engine_.broadcast(
          lane_, recv_, unit_.plan.bytes, index_in(unit_.communicator->ranks, request_.root));
    case OpKind::kAllgather:
      return engine_.all_gather(lane_, send_, recv_, received_);
    case OpKind::kAlltoall:
      return engine_.all_to_all(lane_, send_, recv_, sent_, received_);
    case OpKind::kReducescatter:
      return engine_.reduce_scatter(lane_, send_, recv_, received_, {dtype_, op()});
    case OpKind::kBarrier:
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
    case OpKind::kFormProcessSet:
    case OpKind::kLeaveProcessSet:
    case OpKind::kSend:
    case OpKind::kReceive:
      return;
  }
}

Mark DeviceUnit::complete() {
  if (request_.kind == OpKind::kAllreduce) {
    complete_all_reduce();
  } else if (request_.kind == OpKind::kBroadcast && packed_ != nullptr) {
    unpack(packed_, 1.0);
  } else if (request_.kind == OpKind::kReducescatter && factor_after() != 1.0) {
    const std::size_t own = received_[static_cast<std::size_t>(unit_.communicator->rank)];
    if (own > 0) {
      scale(recv_, recv_, own, factor_after());
    }
  }
  const Mark done = resources_.device->record(stream_);
  if (packed_ != nullptr) {
    resources_.buffer_users[packed_] = done;
  }
  return done;
}

}  // namespace aiacc
