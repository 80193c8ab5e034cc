#include "csrc/core/execution/host_unit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "csrc/core/execution/chance_seeds.h"
#include "csrc/core/execution/finite_check.h"
#include "csrc/engines/adasum.h"
#include "csrc/kernels/divisor.h"
#include "csrc/kernels/narrow.h"
#include "csrc/kernels/scale.h"

namespace aiacc {
namespace {

constexpr std::align_val_t kAlignment{256};

const std::byte* at(const void* base, std::uint64_t offset) {
  return static_cast<const std::byte*>(base) + offset;
}

std::byte* at(void* base, std::uint64_t offset) { return static_cast<std::byte*>(base) + offset; }

/// The elements travel, and are combined, in 16 bits. The factor comes after that, where they have
/// their own format again, so it costs no second rounding.
void narrow_all_reduce_unit(const Unit& unit, int lane, PackBuffer& buffer) {
  const Request& request = unit.pieces.front().request();
  const Reduction whole = reduction_of(unit);
  const DataType sent = dtype_on_wire(whole.dtype, request.wire);
  const std::size_t element = size_of(whole.dtype);
  const std::size_t count = unit.plan.bytes / element;
  std::byte* packed = buffer.reserve(count * size_of(sent));
  std::byte* cursor = packed;
  for (std::size_t i = 0; i < unit.pieces.size(); ++i) {
    const Slice& slice = unit.plan.slices[i];
    const std::size_t elements = slice.bytes / element;
    const void* input = at(unit.pieces[i].buffers().input, slice.offset);
    narrow(cursor, input, elements, sent, request.prescale);
    cursor += elements * size_of(sent);
  }
  unit.communicator->engine->all_reduce(lane, packed, packed, count, {sent, whole.op});
  cursor = packed;
  for (std::size_t i = 0; i < unit.pieces.size(); ++i) {
    const Slice& slice = unit.plan.slices[i];
    const std::size_t elements = slice.bytes / element;
    void* output = at(unit.pieces[i].buffers().output, slice.offset);
    widen(output, cursor, elements, sent, whole.factor);
    cursor += elements * size_of(sent);
  }
}

/// The elements are packed as floats, and coded from there: whole units, whatever they are of.
void coded_all_reduce_unit(const Unit& unit, int lane, PackBuffer& buffer) {
  constexpr std::size_t kElement = sizeof(float);
  const Request& request = unit.pieces.front().request();
  const Reduction whole = reduction_of(unit);
  const bool alone = unit.pieces.size() == 1;
  const bool feedback = feeds_back(unit);
  std::byte* packed = alone ? nullptr : buffer.reserve(unit.plan.bytes * (feedback ? 2 : 1));
  std::byte* values = packed;
  std::byte* residuals = !alone && feedback ? packed + unit.plan.bytes : nullptr;
  for (std::size_t i = 0, offset = 0; i < unit.pieces.size(); ++i) {
    const Slice& slice = unit.plan.slices[i];
    const TensorBuffers& buffers = unit.pieces[i].buffers();
    void* kept = buffers.residual == nullptr ? nullptr : at(buffers.residual, slice.offset);
    if (alone) {
      values = at(buffers.output, slice.offset);
      residuals = static_cast<std::byte*>(kept);
    } else if (kept != nullptr) {
      std::memcpy(residuals + offset, kept, slice.bytes);
    } else if (feedback) {
      std::memset(residuals + offset, 0, slice.bytes);
    }
    copy_scaled(values + offset,
                at(buffers.input, slice.offset),
                slice.bytes / kElement,
                whole.dtype,
                request.prescale);
    offset += slice.bytes;
  }
  coded_all_reduce(*unit.communicator->engine,
                   lane,
                   {reinterpret_cast<float*>(values),
                    reinterpret_cast<float*>(residuals),
                    unit.plan.bytes / kElement,
                    {request.wire, request.wire_detail},
                    seed_of_rank(unit.seed, unit.communicator->rank),
                    unit.seed},
                   unit.communicator->rank,
                   unit.communicator->size(),
                   buffer.coded());
  for (std::size_t i = 0, offset = 0; i < unit.pieces.size(); ++i) {
    const Slice& slice = unit.plan.slices[i];
    const TensorBuffers& buffers = unit.pieces[i].buffers();
    copy_scaled(at(buffers.output, slice.offset),
                values + offset,
                slice.bytes / kElement,
                whole.dtype,
                whole.factor);
    if (!alone && buffers.residual != nullptr) {
      std::memcpy(at(buffers.residual, slice.offset), residuals + offset, slice.bytes);
    }
    offset += slice.bytes;
  }
}

void all_reduce_unit(const Unit& unit, int lane, PackBuffer& buffer) {
  if (is_coded(unit.pieces.front().request().wire)) {
    return coded_all_reduce_unit(unit, lane, buffer);
  }
  if (unit.pieces.front().request().wire != WireFormat::kTensor) {
    return narrow_all_reduce_unit(unit, lane, buffer);
  }
  Engine& engine = *unit.communicator->engine;
  const double prescale = unit.pieces.front().request().prescale;
  const Reduction reduction = reduction_of(unit);
  const std::size_t element = size_of(reduction.dtype);
  const std::size_t count = unit.plan.bytes / element;
  if (unit.pieces.size() == 1) {
    const Slice& slice = unit.plan.slices.front();
    const TensorBuffers& buffers = unit.pieces.front().buffers();
    const void* send = at(buffers.input, slice.offset);
    void* recv = at(buffers.output, slice.offset);
    if (prescale != 1.0) {
      scale(recv, send, count, reduction.dtype, prescale);
      send = recv;
    }
    engine.all_reduce(lane, send, recv, count, reduction);
    return;
  }
  std::byte* packed = buffer.reserve(unit.plan.bytes);
  std::byte* cursor = packed;
  for (std::size_t i = 0; i < unit.pieces.size(); ++i) {
    const Slice& slice = unit.plan.slices[i];
    copy_scaled(cursor,
                at(unit.pieces[i].buffers().input, slice.offset),
                slice.bytes / element,
                reduction.dtype,
                prescale);
    cursor += slice.bytes;
  }
  engine.all_reduce(lane, packed, packed, count, reduction);
  cursor = packed;
  for (std::size_t i = 0; i < unit.pieces.size(); ++i) {
    const Slice& slice = unit.plan.slices[i];
    std::memcpy(at(unit.pieces[i].buffers().output, slice.offset), cursor, slice.bytes);
    cursor += slice.bytes;
  }
}

/// Every tensor of the unit is whole, and combined with weights of its own.
void adasum_unit(const Unit& unit, int lane, PackBuffer& buffer) {
  const Request& request = unit.pieces.front().request();
  const DataType dtype = unit.pieces.front().spec().dtype;
  std::byte* packed = buffer.reserve(unit.plan.bytes);
  std::byte* cursor = packed;
  std::vector<std::size_t> counts;
  for (const Piece& piece : unit.pieces) {
    counts.push_back(piece.spec().elements());
    copy_scaled(cursor, piece.buffers().input, counts.back(), dtype, request.prescale);
    cursor += piece.spec().bytes();
  }
  adasum(*unit.communicator->engine,
         lane,
         packed,
         packed,
         counts,
         dtype,
         unit.communicator->rank,
         unit.communicator->size());
  cursor = packed;
  for (std::size_t i = 0; i < unit.pieces.size(); ++i) {
    copy_scaled(unit.pieces[i].buffers().output, cursor, counts[i], dtype, request.postscale);
    cursor += unit.pieces[i].spec().bytes();
  }
}

void broadcast_unit(const Unit& unit, int lane, PackBuffer& buffer) {
  Engine& engine = *unit.communicator->engine;
  const int root = index_in(unit.communicator->ranks, unit.pieces.front().request().root);
  const bool mine = root == unit.communicator->rank;
  if (unit.pieces.size() == 1) {
    const Slice& slice = unit.plan.slices.front();
    const TensorBuffers& buffers = unit.pieces.front().buffers();
    void* data = at(buffers.output, slice.offset);
    if (mine && buffers.input != buffers.output) {
      std::memcpy(data, at(buffers.input, slice.offset), slice.bytes);
    }
    engine.broadcast(lane, data, slice.bytes, root);
    return;
  }
  std::byte* packed = buffer.reserve(unit.plan.bytes);
  std::byte* cursor = packed;
  for (std::size_t i = 0; mine && i < unit.pieces.size(); ++i) {
    std::memcpy(cursor, unit.pieces[i].buffers().input, unit.plan.slices[i].bytes);
    cursor += unit.plan.slices[i].bytes;
  }
  engine.broadcast(lane, packed, unit.plan.bytes, root);
  cursor = packed;
  for (std::size_t i = 0; i < unit.pieces.size(); ++i) {
    const TensorBuffers& buffers = unit.pieces[i].buffers();
    if (!mine || buffers.input != buffers.output) {
      std::memcpy(buffers.output, cursor, unit.plan.slices[i].bytes);
    }
    cursor += unit.plan.slices[i].bytes;
  }
}

/// Bytes of these numbers of rows; `total` receives their sum.
std::vector<std::size_t> bytes_of(const std::vector<std::int64_t>& rows,
                                  std::uint64_t row_bytes,
                                  std::size_t& total) {
  std::vector<std::size_t> bytes;
  bytes.reserve(rows.size());
  total = 0;
  for (const std::int64_t count : rows) {
    bytes.push_back(row_bytes * static_cast<std::uint64_t>(count));
    total += bytes.back();
  }
  return bytes;
}

/// Whether the `total` bytes of an all-gather go to memory of the caller, who has room for equal
/// shapes of all members.
bool has_room(const Unit& unit, std::size_t total) {
  const Piece& piece = unit.pieces.front();
  return piece.request().kind == OpKind::kAllgather && piece.operation->completion == nullptr &&
         piece.buffers().output != nullptr &&
         total == piece.spec().bytes() * static_cast<std::size_t>(unit.communicator->size());
}

/// Where the `total` bytes go that a tensor gets from all members.
void* output_for(const Unit& unit, std::size_t total) {
  const Piece& piece = unit.pieces.front();
  TensorBuffers& buffers = piece.buffers();
  if (has_room(unit, total)) {
    return buffers.output;
  }
  Completion* completion = piece.operation->completion.get();
  void* output =
      completion == nullptr ? nullptr : completion->allocate(*piece.operation, piece.tensor);
  return output != nullptr ? output : make_result(buffers, total, *piece.operation);
}

void all_gather_unit(const Unit& unit, int lane) {
  const Piece& piece = unit.pieces.front();
  const TensorBuffers& buffers = piece.buffers();
  std::size_t total = 0;
  const auto parts = bytes_of(buffers.first_extents, piece.spec().row_bytes(), total);
  unit.communicator->engine->all_gather(lane, buffers.input, output_for(unit, total), parts);
}

void all_to_all_unit(const Unit& unit, int lane) {
  const Piece& piece = unit.pieces.front();
  const TensorBuffers& buffers = piece.buffers();
  const std::uint64_t row = piece.spec().row_bytes();
  std::size_t total = 0;
  const auto sent = bytes_of(piece.request().numbers, row, total);
  const auto received = bytes_of(buffers.first_extents, row, total);
  unit.communicator->engine->all_to_all(
      lane, buffers.input, output_for(unit, total), sent, received);
}

void reduce_scatter_unit(const Unit& unit, int lane, PackBuffer& buffer) {
  const Piece& piece = unit.pieces.front();
  const TensorSpec& spec = piece.spec();
  const TensorBuffers& buffers = piece.buffers();
  std::vector<std::size_t> counts;
  counts.reserve(static_cast<std::size_t>(unit.communicator->size()));
  for (int member = 0; member < unit.communicator->size(); ++member) {
    counts.push_back(spec.row_elements() *
                     static_cast<std::uint64_t>(
                         scattered_rows(spec.shape.front(), unit.communicator->size(), member)));
  }
  const void* send = buffers.input;
  if (piece.request().prescale != 1.0) {
    std::byte* scaled = buffer.reserve(unit.plan.bytes);
    copy_scaled(scaled, send, spec.elements(), spec.dtype, piece.request().prescale);
    send = scaled;
  }
  unit.communicator->engine->reduce_scatter(lane, send, buffers.output, counts, reduction_of(unit));
}

/// What a rank that has joined gives to all-reduces.
void clear_zeros(const Unit& unit) {
  for (std::size_t i = 0; i < unit.pieces.size(); ++i) {
    const Slice& slice = unit.plan.slices[i];
    if (unit.pieces[i].operation->zeros && slice.bytes > 0) {
      std::memset(at(unit.pieces[i].buffers().output, slice.offset), 0, slice.bytes);
    }
  }
}

}  // namespace

void PackBuffer::Free::operator()(std::byte* memory) const {
  ::operator delete(memory, kAlignment);
}

std::byte* PackBuffer::reserve(std::size_t bytes) {
  if (bytes > capacity_) {
    memory_.reset();
    memory_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
    capacity_ = bytes;
  }
  return memory_.get();
}

double average_factor(DataType dtype, int size, double postscale) {
  const double factor = postscale / size;
  return is_floating(dtype) || size == 1 || reciprocal_of(factor) != 0
             ? factor
             : std::nextafter(factor, std::copysign(HUGE_VAL, factor));
}

Reduction reduction_of(const Unit& unit) {
  const Request& request = unit.pieces.front().request();
  const DataType dtype = unit.pieces.front().spec().dtype;
  const bool average = request.op == ReduceOp::kAverage;
  return {dtype,
          average ? ReduceOp::kSum : request.op,
          average ? average_factor(dtype, unit.communicator->size(), request.postscale)
                  : request.postscale};
}

void execute_unit(const Unit& unit, int lane, PackBuffer& buffer) {
  clear_zeros(unit);
  if (unit.finite != nullptr) {
    unit.finite->inspect(unit);
  }
  switch (unit.pieces.front().request().kind) {
    case OpKind::kAllreduce:
      if (unit.pieces.front().request().op == ReduceOp::kAdasum) {
        adasum_unit(unit, lane, buffer);
      } else {
        all_reduce_unit(unit, lane, buffer);
      }
      return;
    case OpKind::kBroadcast:
      broadcast_unit(unit, lane, buffer);
      return;
    case OpKind::kAllgather:
      all_gather_unit(unit, lane);
      return;
    case OpKind::kAlltoall:
      all_to_all_unit(unit, lane);
      return;
    case OpKind::kReducescatter:
      reduce_scatter_unit(unit, lane, buffer);
      return;
    case OpKind::kBarrier:
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
    case OpKind::kFormProcessSet:
    case OpKind::kLeaveProcessSet:
    case OpKind::kSend:
    case OpKind::kReceive:
      return;  // These never become units.
  }
}

}  // namespace aiacc
