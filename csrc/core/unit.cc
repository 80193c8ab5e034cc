#include "csrc/core/unit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "csrc/kernels/scale.h"

namespace aiacc {
namespace {

constexpr std::align_val_t kAlignment{256};

bool is_integral(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
    case DataType::kBFloat16:
    case DataType::kFloat32:
    case DataType::kFloat64:
      return false;
    case DataType::kUInt8:
    case DataType::kInt8:
    case DataType::kUInt16:
    case DataType::kInt16:
    case DataType::kInt32:
    case DataType::kInt64:
    case DataType::kBool:
      return true;
  }
  return false;
}

const std::byte* at(const void* base, std::uint64_t offset) {
  return static_cast<const std::byte*>(base) + offset;
}

std::byte* at(void* base, std::uint64_t offset) { return static_cast<std::byte*>(base) + offset; }

void all_reduce_unit(const Unit& unit, Engine& engine, int lane, int size, PackBuffer& buffer) {
  const Request& request = unit.operations.front()->request;
  const bool average = request.op == ReduceOp::kAverage;
  const Reduction reduction{
      request.dtype,
      average ? ReduceOp::kSum : request.op,
      request.postscale * (average ? average_factor(request.dtype, size) : 1.0)};
  const std::size_t count = unit.plan.bytes / size_of(request.dtype);
  if (unit.operations.size() == 1) {
    const Slice& slice = unit.plan.slices.front();
    Operation& operation = *unit.operations.front();
    const void* send = at(operation.input, slice.offset);
    void* recv = at(operation.output, slice.offset);
    if (request.prescale != 1.0) {
      scale(recv, send, count, request.dtype, request.prescale);
      send = recv;
    }
    engine.all_reduce(lane, send, recv, count, reduction);
    return;
  }
  std::byte* packed = buffer.reserve(unit.plan.bytes);
  std::byte* cursor = packed;
  for (std::size_t i = 0; i < unit.operations.size(); ++i) {
    const Slice& slice = unit.plan.slices[i];
    copy_scaled(cursor,
                at(unit.operations[i]->input, slice.offset),
                slice.bytes / size_of(request.dtype),
                request.dtype,
                request.prescale);
    cursor += slice.bytes;
  }
  engine.all_reduce(lane, packed, packed, count, reduction);
  cursor = packed;
  for (std::size_t i = 0; i < unit.operations.size(); ++i) {
    const Slice& slice = unit.plan.slices[i];
    std::memcpy(at(unit.operations[i]->output, slice.offset), cursor, slice.bytes);
    cursor += slice.bytes;
  }
}

void broadcast_unit(const Unit& unit, Engine& engine, int lane, int rank, PackBuffer& buffer) {
  const Request& request = unit.operations.front()->request;
  const bool root = request.root == rank;
  if (unit.operations.size() == 1) {
    const Slice& slice = unit.plan.slices.front();
    Operation& operation = *unit.operations.front();
    void* data = at(operation.output, slice.offset);
    if (root && operation.input != operation.output) {
      std::memcpy(data, at(operation.input, slice.offset), slice.bytes);
    }
    engine.broadcast(lane, data, slice.bytes, request.root);
    return;
  }
  std::byte* packed = buffer.reserve(unit.plan.bytes);
  std::byte* cursor = packed;
  for (std::size_t i = 0; root && i < unit.operations.size(); ++i) {
    std::memcpy(cursor, unit.operations[i]->input, unit.plan.slices[i].bytes);
    cursor += unit.plan.slices[i].bytes;
  }
  engine.broadcast(lane, packed, unit.plan.bytes, request.root);
  cursor = packed;
  for (std::size_t i = 0; i < unit.operations.size(); ++i) {
    Operation& operation = *unit.operations[i];
    if (!root || operation.input != operation.output) {
      std::memcpy(operation.output, cursor, unit.plan.slices[i].bytes);
    }
    cursor += unit.plan.slices[i].bytes;
  }
}

void all_gather_unit(const Unit& unit, Engine& engine, int lane) {
  Operation& operation = *unit.operations.front();
  const Request& request = operation.request;
  std::uint64_t row = size_of(request.dtype);
  for (std::size_t d = 1; d < request.shape.size(); ++d) {
    row *= static_cast<std::uint64_t>(request.shape[d]);
  }
  std::vector<std::size_t> bytes_of;
  std::size_t total = 0;
  for (const std::int64_t extent : operation.first_extents) {
    bytes_of.push_back(row * static_cast<std::uint64_t>(extent));
    total += bytes_of.back();
  }
  operation.gathered.resize(total);
  engine.all_gather(lane, operation.input, operation.gathered.data(), bytes_of);
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

double average_factor(DataType dtype, int size) {
  const double factor = 1.0 / size;
  return is_integral(dtype) && size > 1
             ? std::nextafter(factor, std::numeric_limits<double>::infinity())
             : factor;
}

void execute_unit(
    const Unit& unit, Engine& engine, int lane, int rank, int size, PackBuffer& buffer) {
  switch (unit.operations.front()->request.kind) {
    case OpKind::kAllreduce:
      all_reduce_unit(unit, engine, lane, size, buffer);
      return;
    case OpKind::kBroadcast:
      broadcast_unit(unit, engine, lane, rank, buffer);
      return;
    case OpKind::kAllgather:
      all_gather_unit(unit, engine, lane);
      return;
    case OpKind::kBarrier:
      return;  // Agreement is the barrier; it never becomes a unit.
  }
}

}  // namespace aiacc
