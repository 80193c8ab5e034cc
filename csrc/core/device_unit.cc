#include "csrc/core/device_unit.h"

#include <numeric>
#include <utility>

namespace aiacc {
namespace {

const std::byte* at(const void* base, std::uint64_t offset) {
  return static_cast<const std::byte*>(base) + offset;
}

std::byte* at(void* base, std::uint64_t offset) { return static_cast<std::byte*>(base) + offset; }

CudaAddress address_of(const void* memory) { return reinterpret_cast<CudaAddress>(memory); }

/// A unit on its way: where it runs, and what moves bytes there.
class DeviceUnit {
 public:
  DeviceUnit(const Unit& unit,
             int lane,
             DeviceEngine& engine,
             DeviceTools& tools,
             const WaitForInputs& wait)
      : unit_(unit),
        lane_(lane),
        engine_(engine),
        tools_(tools),
        driver_(tools.device->driver()),
        wait_(wait),
        stream_(engine_.stream(lane)),
        current_(stream_),
        piece_(unit.pieces.front()),
        request_(piece_.request()),
        dtype_(piece_.spec().dtype) {
    if (unit.finite != nullptr && has_checked_inputs(unit)) {
      checked_ = tools.reports->take(unit);
    }
  }

  void all_reduce();
  void broadcast();
  void all_gather();
  void all_to_all();
  void reduce_scatter();

  /// Marks the end.
  Mark finish();
  ReportPool::Taken take_checked() { return std::move(checked_); }

 private:
  /// Whether the operation can work on the memory of the one tensor of the unit.
  bool in_place() const { return unit_.pieces.size() == 1 && request_.wire == WireFormat::kTensor; }
  std::size_t on_wire(std::size_t bytes) const {
    return bytes / size_of(dtype_) * size_on_wire(dtype_, request_.wire);
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    if (to != from && bytes > 0) {
      AIACC_CUDA_CHECK(driver_, copy_async, address_of(to), address_of(from), bytes, stream_);
    }
  }
  void scale(
      void* out, const void* in, std::size_t count, double factor, CopyReport* reports = nullptr) {
    run(CopyDirection::kPack, factor, {{in, out, count}}, reports);
  }
  void run(CopyDirection direction,
           double factor,
           const std::vector<CopySegment>& segments,
           CopyReport* reports = nullptr);
  /// Whether the input has to pass through a kernel.
  bool converts() const { return request_.prescale != 1.0 || checked_ != nullptr; }
  CopyReport* reports() const { return checked_ == nullptr ? nullptr : checked_->reports; }
  /// For a unit that is worked on where its tensors are.
  void start_in_place() { wait_(unit_, stream_); }
  std::byte* start_packing(std::size_t bytes);
  void end_packing();
  bool keeps(const Piece& piece) const;
  void pack(std::byte* packed, double factor);
  void unpack(const std::byte* packed, double factor);
  double factor_after() const;
  ReduceOp op() const;
  std::byte* gathered(std::size_t bytes);
  std::vector<std::size_t> bytes_of(const std::vector<std::int64_t>& rows) const;

  const Unit& unit_;
  const int lane_;
  DeviceEngine& engine_;
  DeviceTools& tools_;
  const CudaDriver& driver_;
  const WaitForInputs& wait_;
  const CudaStream stream_;  ///< the lane's
  CudaStream current_;       ///< that of kernels: the lane's, or the one where it packs
  std::byte* packed_ = nullptr;
  const Piece& piece_;  ///< the first one: the others are alike
  const Request& request_;
  const DataType dtype_;
  ReportPool::Taken checked_;  ///< null: nobody looks at the inputs
};

void DeviceUnit::run(CopyDirection direction,
                     double factor,
                     const std::vector<CopySegment>& segments,
                     CopyReport* reports) {
  if (segments.empty()) {
    return;
  }
  CopyJob job;
  job.dtype = dtype_;
  job.wire = request_.wire;
  job.direction = direction;
  job.factor = factor;
  job.check = reports != nullptr;
  const std::lock_guard lock(tools_.copier_mutex);
  tools_.copier->enqueue(current_, job, segments, reports);
}

/// A buffer of the lane's. Kernels run beside its stream from now on, as soon as the inputs are there
/// and nobody uses the buffer any more.
std::byte* DeviceUnit::start_packing(std::size_t bytes) {
  packed_ = static_cast<std::byte*>(engine_.buffer(lane_, bytes));
  current_ = engine_.pack_stream(lane_);
  const auto user = tools_.buffer_users.find(packed_);
  if (user != tools_.buffer_users.end()) {
    tools_.device->wait(current_, user->second);
  }
  wait_(unit_, current_);
  return packed_;
}

/// The lane's stream goes on after what was packed; the inputs, which it may overwrite, are read then.
void DeviceUnit::end_packing() {
  tools_.device->wait(stream_, tools_.device->record(current_));
  current_ = stream_;
}

Mark DeviceUnit::finish() {
  const Mark done = tools_.device->record(stream_);
  if (packed_ != nullptr) {
    tools_.buffer_users[packed_] = done;
  }
  return done;
}

/// Whether a tensor of the root's holds its result already.
bool DeviceUnit::keeps(const Piece& piece) const {
  return request_.kind == OpKind::kBroadcast &&
         request_.root == unit_.team->ranks[static_cast<std::size_t>(unit_.team->rank)] &&
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
  return request_.postscale *
         (request_.op == ReduceOp::kAverage ? average_factor(dtype_, unit_.team->size()) : 1.0);
}

ReduceOp DeviceUnit::op() const {
  return request_.op == ReduceOp::kAverage ? ReduceOp::kSum : request_.op;
}

void DeviceUnit::all_reduce() {
  const std::size_t count = unit_.plan.bytes / size_of(dtype_);
  const DeviceReduction reduction{dtype_, op(), request_.wire, unit_.algorithm};
  if (!in_place()) {
    std::byte* packed = start_packing(on_wire(unit_.plan.bytes));
    pack(packed, request_.prescale);
    end_packing();
    engine_.all_reduce_on_wire(lane_, packed, packed, count, reduction);
    unpack(packed, factor_after());
    return;
  }
  start_in_place();
  const std::uint64_t offset = unit_.plan.slices.front().offset;
  const TensorBuffers& buffers = piece_.buffers();
  if (buffers.output == nullptr) {
    // Zeros. Where the others give their tensors' memory, this must not be a registered buffer.
    const auto zeros = tools_.pool->take(unit_.plan.bytes, stream_);
    AIACC_CUDA_CHECK(driver_, fill_async, zeros->address, 0, unit_.plan.bytes, stream_);
    auto* memory = reinterpret_cast<void*>(zeros->address);
    engine_.all_reduce_on_wire(lane_, memory, memory, count, reduction);
    zeros->users = {tools_.device->record(stream_)};
    return;
  }
  const void* send = at(buffers.input, offset);
  void* recv = at(buffers.output, offset);
  if (converts()) {
    scale(recv, send, count, request_.prescale, reports());
    send = recv;
  }
  engine_.all_reduce_on_wire(lane_, send, recv, count, reduction);
  if (factor_after() != 1.0) {
    scale(recv, recv, count, factor_after());
  }
}

void DeviceUnit::broadcast() {
  const int root = index_in(unit_.team->ranks, request_.root);
  const bool mine = root == unit_.team->rank;
  if (in_place()) {
    start_in_place();
    const Slice& slice = unit_.plan.slices.front();
    void* data = at(piece_.buffers().output, slice.offset);
    if (mine) {
      copy(data, at(piece_.buffers().input, slice.offset), slice.bytes);
    }
    engine_.broadcast(lane_, data, slice.bytes, root);
    return;
  }
  std::byte* packed = start_packing(unit_.plan.bytes);
  if (mine) {
    pack(packed, 1.0);
  }
  end_packing();
  engine_.broadcast(lane_, packed, unit_.plan.bytes, root);
  unpack(packed, 1.0);
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

std::byte* DeviceUnit::gathered(std::size_t bytes) {
  TensorBuffers& buffers = piece_.buffers();
  buffers.gathered_on_gpu = tools_.pool->take(bytes, stream_);
  return reinterpret_cast<std::byte*>(buffers.gathered_on_gpu->address);
}

void DeviceUnit::all_gather() {
  const TensorBuffers& buffers = piece_.buffers();
  const auto parts = bytes_of(buffers.first_extents);
  const std::size_t total = std::accumulate(parts.begin(), parts.end(), std::size_t{0});
  start_in_place();
  engine_.all_gather(lane_, buffers.input, gathered(total), parts);
}

void DeviceUnit::all_to_all() {
  const TensorBuffers& buffers = piece_.buffers();
  const auto sent = bytes_of(request_.numbers);
  const auto received = bytes_of(buffers.first_extents);
  const std::size_t total = std::accumulate(received.begin(), received.end(), std::size_t{0});
  start_in_place();
  engine_.all_to_all(lane_, buffers.input, gathered(total), sent, received);
}

void DeviceUnit::reduce_scatter() {
  const TensorSpec& spec = piece_.spec();
  const TensorBuffers& buffers = piece_.buffers();
  const int size = unit_.team->size();
  std::vector<std::size_t> counts;
  counts.reserve(static_cast<std::size_t>(size));
  for (int member = 0; member < size; ++member) {
    counts.push_back(spec.row_elements() *
                     static_cast<std::uint64_t>(scattered_rows(spec.shape.front(), size, member)));
  }
  const std::size_t own = counts[static_cast<std::size_t>(unit_.team->rank)];
  const void* send = buffers.input;
  if (!converts()) {
    start_in_place();
  } else {
    std::byte* scaled = start_packing(spec.bytes());
    scale(scaled, send, spec.elements(), request_.prescale, reports());
    end_packing();
    send = scaled;
  }
  engine_.reduce_scatter(lane_, send, buffers.output, counts, {dtype_, op(), 1.0});
  if (own > 0 && factor_after() != 1.0) {
    scale(buffers.output, buffers.output, own, factor_after());
  }
}

}  // namespace

Mark execute_device_unit(const Unit& unit,
                         int lane,
                         DeviceEngine& engine,
                         DeviceTools& tools,
                         const WaitForInputs& wait,
                         ReportPool::Taken& checked) {
  DeviceUnit work(unit, lane, engine, tools, wait);
  switch (unit.pieces.front().request().kind) {
    case OpKind::kAllreduce:
      work.all_reduce();
      break;
    case OpKind::kBroadcast:
      work.broadcast();
      break;
    case OpKind::kAllgather:
      work.all_gather();
      break;
    case OpKind::kAlltoall:
      work.all_to_all();
      break;
    case OpKind::kReducescatter:
      work.reduce_scatter();
      break;
    case OpKind::kBarrier:
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
      break;  // The agreement is all; it never becomes a unit.
  }
  checked = work.take_checked();
  return work.finish();
}

}  // namespace aiacc
