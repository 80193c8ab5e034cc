#include "csrc/core/execution/host_unit.h"

#include <cstring>
#include <new>
#include <numeric>

#include "csrc/core/execution/chance_seeds.h"
#include "csrc/core/execution/finite_check.h"
#include "csrc/engines/adasum.h"
#include "csrc/kernels/narrow.h"
#include "csrc/kernels/scale.h"

namespace aiacc {
namespace {

constexpr std::align_val_t kAlignment{256};

using Slices = std::vector<SliceMemory>;

/// Puts the elements one after another, in the format in which they travel.
void pack(
    std::byte* packed, const Slices& slices, DataType dtype, DataType sent, double factor = 1.0) {
  for (const SliceMemory& slice : slices) {
    const std::size_t count = slice.bytes / size_of(dtype);
    if (sent == dtype) {
      copy_scaled(packed, slice.input, count, dtype, factor);
    } else {
      narrow(packed, slice.input, count, sent, factor);
    }
    packed += count * size_of(sent);
  }
}

/// The factor comes where the elements have their own format again, so it costs no second rounding.
void unpack(
    const Slices& slices, const std::byte* packed, DataType dtype, DataType sent, double factor) {
  for (const SliceMemory& slice : slices) {
    const std::size_t count = slice.bytes / size_of(dtype);
    if (sent == dtype) {
      copy_scaled(slice.output, packed, count, dtype, factor);
    } else {
      widen(slice.output, packed, count, sent, factor);
    }
    packed += count * size_of(sent);
  }
}

/// Nothing is packed: a single slice that travels as it is.
void reduce_in_place(const Unit& unit, const SliceMemory& slice, int lane) {
  const Reduction reduction = reduction_of(unit);
  const double prescale = unit.request().prescale;
  const void* send = slice.input;
  if (prescale != 1.0) {
    scale(slice.output, send, unit.elements(), reduction.dtype, prescale);
    send = slice.output;
  }
  unit.communicator->engine->all_reduce(lane, send, slice.output, unit.elements(), reduction);
}

/// The elements are packed as floats, and coded from there: whole units, whatever they are of. A
/// single slice is packed at its output.
void reduce_coded(const Unit& unit, const Slices& slices, int lane, PackBuffer& buffer) {
  const Request& request = unit.request();
  const Communicator& communicator = *unit.communicator;
  const Reduction whole = reduction_of(unit);
  const bool alone = slices.size() == 1;
  const bool feedback = feeds_back(slices);
  std::byte* values =
      alone ? slices.front().output : buffer.reserve(unit.plan.bytes * (feedback ? 2 : 1));
  std::byte* residuals = alone      ? slices.front().residual
                         : feedback ? values + unit.plan.bytes
                                    : nullptr;
  for (const SliceMemory& slice : slices) {
    if (!alone && slice.residual != nullptr) {
      std::memcpy(residuals + slice.offset, slice.residual, slice.bytes);
    } else if (!alone && feedback) {
      std::memset(residuals + slice.offset, 0, slice.bytes);
    }
  }
  pack(values, slices, whole.dtype, whole.dtype, request.prescale);
  coded_all_reduce(*communicator.engine,
                   lane,
                   {reinterpret_cast<float*>(values),
                    reinterpret_cast<float*>(residuals),
                    unit.elements(),
                    {request.wire, request.wire_detail},
                    seed_of_rank(unit.seed, communicator.rank),
                    unit.seed},
                   communicator.rank,
                   communicator.size(),
                   buffer.coded());
  unpack(slices, values, whole.dtype, whole.dtype, whole.factor);
  for (const SliceMemory& slice : slices) {
    if (!alone && slice.residual != nullptr) {
      std::memcpy(slice.residual, residuals + slice.offset, slice.bytes);
    }
  }
}

void all_reduce(const Unit& unit, const Slices& slices, int lane, PackBuffer& buffer) {
  const Request& request = unit.request();
  const bool adaptive = request.op == ReduceOp::kAdasum;
  if (is_coded(request.wire)) {
    return reduce_coded(unit, slices, lane, buffer);
  }
  if (slices.size() == 1 && request.wire == WireFormat::kTensor && !adaptive) {
    return reduce_in_place(unit, slices.front(), lane);
  }
  const Communicator& communicator = *unit.communicator;
  Reduction reduction = reduction_of(unit);
  double factor = 1.0;  // what the engine leaves to be done
  const DataType dtype = reduction.dtype;
  reduction.dtype = dtype_on_wire(dtype, request.wire);
  if (adaptive || reduction.dtype != dtype) {
    std::swap(factor, reduction.factor);
  }
  std::byte* packed = buffer.reserve(unit.elements() * size_of(reduction.dtype));
  pack(packed, slices, dtype, reduction.dtype, request.prescale);
  if (adaptive) {  // every slice is a tensor, and combined with weights of its own
    std::vector<std::size_t> counts;
    for (const SliceMemory& slice : slices) {
      counts.push_back(slice.bytes / size_of(dtype));
    }
    adasum(*communicator.engine,
           lane,
           packed,
           packed,
           counts,
           dtype,
           communicator.rank,
           communicator.size());
  } else {
    communicator.engine->all_reduce(lane, packed, packed, unit.elements(), reduction);
  }
  unpack(slices, packed, dtype, reduction.dtype, factor);
}

void broadcast(const Unit& unit, const Slices& slices, int lane, PackBuffer& buffer) {
  const DataType dtype = unit.dtype();
  const int root = index_in(unit.communicator->ranks, unit.request().root);
  const bool alone = slices.size() == 1;
  std::byte* data = alone ? slices.front().output : buffer.reserve(unit.plan.bytes);
  if (unit.is_root()) {
    pack(data, slices, dtype, dtype);
  }
  unit.communicator->engine->broadcast(lane, data, unit.plan.bytes, root);
  for (const SliceMemory& slice : slices) {
    if (!alone && (!unit.is_root() || slice.input != slice.output)) {
      std::memcpy(slice.output, data + slice.offset, slice.bytes);
    }
  }
}

void reduce_scatter(const Unit& unit, const SliceMemory& slice, int lane, PackBuffer& buffer) {
  const std::byte* send = slice.input;
  if (unit.request().prescale != 1.0) {
    std::byte* scaled = buffer.reserve(slice.bytes);
    copy_scaled(scaled, send, unit.elements(), unit.dtype(), unit.request().prescale);
    send = scaled;
  }
  unit.communicator->engine->reduce_scatter(
      lane, send, slice.output, scattered_elements(unit), reduction_of(unit));
}

/// All-gather and all-to-all.
void gather(const Unit& unit, int lane) {
  const Piece& piece = unit.pieces.front();
  const Request& request = piece.request();
  const bool all_to_all = request.kind == OpKind::kAlltoall;
  TensorBuffers& buffers = piece.buffers();
  const PerRank received = received_bytes(unit);
  const std::size_t total = std::accumulate(received.begin(), received.end(), std::size_t{0});
  Completion* completion = piece.operation->completion.get();
  // The caller's, who has room for equal shapes of all members; the front-end's; else the core's.
  void* output = nullptr;
  if (completion != nullptr) {
    output = completion->allocate(*piece.operation, piece.tensor);
  } else if (!all_to_all &&
             total == piece.spec().bytes() * static_cast<std::size_t>(unit.communicator->size())) {
    output = buffers.output;
  }
  if (output == nullptr) {
    output = make_result(buffers, total, *piece.operation);
  }
  Engine& engine = *unit.communicator->engine;
  if (all_to_all) {
    engine.all_to_all(lane, buffers.input, output, sent_bytes(unit), received);
  } else {
    engine.all_gather(lane, buffers.input, output, received);
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

void execute_unit(Unit& unit, int lane, PackBuffer& buffer) {
  const OpKind kind = unit.request().kind;
  if (kind == OpKind::kAllgather || kind == OpKind::kAlltoall) {
    return gather(unit, lane);
  }
  find_memory(unit, unit.memory);
  for (std::size_t i = 0; i < unit.pieces.size(); ++i) {
    const SliceMemory& slice = unit.memory[i];
    if (unit.pieces[i].operation->zeros && slice.bytes > 0) {
      std::memset(slice.output, 0, slice.bytes);  // what a rank that has joined gives
    }
  }
  if (unit.finite != nullptr) {
    unit.finite->inspect(unit, unit.memory);
  }
  execute_slices(unit, unit.memory, lane, buffer);
}

void execute_slices(const Unit& unit, const Slices& slices, int lane, PackBuffer& buffer) {
  const OpKind kind = unit.request().kind;
  if (kind == OpKind::kAllreduce) {
    all_reduce(unit, slices, lane, buffer);
  } else if (kind == OpKind::kBroadcast) {
    broadcast(unit, slices, lane, buffer);
  } else {
    AIACC_CHECK(kind == OpKind::kReducescatter);  // other kinds never become units
    reduce_scatter(unit, slices.front(), lane, buffer);
  }
}

}  // namespace aiacc
