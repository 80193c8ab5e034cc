#include "csrc/core/execution/gpu/staged_unit.h"

#include <cstdint>
#include <cstring>
#include <numeric>

#include "csrc/core/execution/finite_check.h"
#include "csrc/planning/staging_chunks.h"

namespace aiacc {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

std::size_t sum(const PerRank& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::size_t{0});
}

void add_copy(std::vector<StagedCopy>& copies,
              const void* device,
              std::size_t host_offset,
              std::size_t bytes) {
  if (device != nullptr && bytes > 0) {
    copies.push_back({number(device), host_offset, bytes});
  }
}

bool gathers(const Unit& unit) {
  return unit.request().kind == OpKind::kAllgather || unit.request().kind == OpKind::kAlltoall;
}

/// Adds what a step copies of every part, and returns the bytes of each.
PerRank cut(const PerRank& parts,
            std::size_t steps,
            std::size_t index,
            std::uintptr_t device,
            std::size_t host_offset,
            std::vector<StagedCopy>& copies) {
  PerRank bytes;
  bytes.reserve(parts.size());
  for (const std::size_t part : parts) {
    const ByteRange range = staging_chunk(part, steps, index);
    if (range.bytes > 0) {
      copies.push_back({device + range.begin, host_offset, range.bytes});
    }
    bytes.push_back(range.bytes);
    device += part;
    host_offset += range.bytes;
  }
  return bytes;
}

StagedStep gathering_step(const Unit& unit, std::size_t index) {
  const Piece& piece = unit.pieces.front();
  const TensorBuffers& buffers = piece.buffers();
  const std::size_t steps = staged_steps(unit);
  const bool all_to_all = unit.request().kind == OpKind::kAlltoall;
  const PerRank sent = all_to_all ? sent_bytes(unit) : PerRank{piece.spec().bytes()};
  const CudaAddress gathered =
      buffers.gathered_on_gpu == nullptr ? 0 : buffers.gathered_on_gpu->address;
  StagedStep step;
  step.sent = cut(sent, steps, index, number(buffers.input), 0, step.in);
  step.output = aligned(sum(step.sent));
  step.received = cut(received_bytes(unit), steps, index, gathered, step.output, step.out);
  step.bytes = step.output + sum(step.received);
  return step;
}

}  // namespace

std::size_t staged_steps(const Unit& unit) {
  return gathers(unit) ? staging_chunks(unit.plan.bytes) : 1;
}

std::size_t gathered_bytes(const Unit& unit) {
  return gathers(unit) ? sum(received_bytes(unit)) : 0;
}

StagedStep staged_step(const Unit& unit, std::size_t index) {
  if (gathers(unit)) {
    return gathering_step(unit, index);
  }
  StagedStep step;
  find_memory(unit, step.slices);
  step.residuals = feeds_back(step.slices) ? aligned(unit.plan.bytes) : 0;
  const bool broadcasts = unit.request().kind == OpKind::kBroadcast;
  const bool scatters = unit.request().kind == OpKind::kReducescatter;
  const bool given = !broadcasts || unit.is_root();
  std::size_t scattered = 0;
  if (scatters) {
    scattered = scattered_elements(unit)[static_cast<std::size_t>(unit.communicator->rank)];
    step.output = aligned(unit.plan.bytes);
  }
  step.bytes = step.output + step.residuals + unit.plan.bytes;
  for (const SliceMemory& slice : step.slices) {
    if (given) {
      add_copy(step.in, slice.input, slice.offset, slice.bytes);
      add_copy(step.in, slice.residual, step.residuals + slice.offset, slice.bytes);
    }
    if (scatters) {
      add_copy(step.out, slice.output, step.output, scattered * size_of(unit.dtype()));
    } else if (!broadcasts || !given || slice.input != slice.output) {
      add_copy(step.out, slice.output, slice.offset, slice.bytes);
      add_copy(step.out, slice.residual, step.residuals + slice.offset, slice.bytes);
    }
  }
  return step;
}

void run_step(
    const Unit& unit, const StagedStep& step, int lane, std::byte* host, PackBuffer& buffer) {
  Engine& engine = *unit.communicator->engine;
  std::byte* output = host + step.output;
  if (unit.request().kind == OpKind::kAllgather) {
    return engine.all_gather(lane, host, output, step.received);
  }
  if (unit.request().kind == OpKind::kAlltoall) {
    return engine.all_to_all(lane, host, output, step.sent, step.received);
  }
  std::vector<SliceMemory> slices = step.slices;
  for (SliceMemory& slice : slices) {
    std::byte* input = host + slice.offset;
    if (slice.input == nullptr) {
      std::memset(input, 0, slice.bytes);  // zeros of a rank that has joined
    }
    std::byte* residual = step.residuals == 0 ? nullptr : input + step.residuals;
    if (residual != nullptr && slice.residual == nullptr) {
      std::memset(residual, 0, slice.bytes);
    }
    slice = {input, output + slice.offset, residual, slice.offset, slice.bytes};
  }
  if (unit.finite != nullptr) {
    unit.finite->inspect(unit, slices);
  }
  // Adasum has weights for every tensor; for others the packed tensors are as good as one.
  if (unit.request().op != ReduceOp::kAdasum) {
    slices.resize(1);
    slices.front().bytes = unit.plan.bytes;
  }
  execute_slices(unit, slices, lane, buffer);
}

bool fits_slots(const Unit& unit) {
  const Request& request = unit.request();
  return request.kind == OpKind::kAllreduce && request.op != ReduceOp::kAdasum &&
         request.wire == WireFormat::kTensor && unit.finite == nullptr &&
         unit.plan.bytes >= Engine::kLeastMovedBytes;
}

}  // namespace aiacc
