#include "csrc/core/dispatch/planner_input.h"

#include <algorithm>
#include <numeric>

#include "csrc/engines/coding.h"

namespace aiacc {
namespace {

/// Bytes that the ranks move for one tensor: a number that is equal on all of them.
std::uint64_t planned_bytes(const Piece& piece) {
  const OpKind kind = piece.request().kind;
  if (kind == OpKind::kAllgather) {
    const auto& rows = piece.buffers().first_extents;
    const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    return static_cast<std::uint64_t>(total) * piece.spec().row_bytes();
  }
  if (kind == OpKind::kAlltoall) {
    return static_cast<std::uint64_t>(piece.operation->value) * piece.spec().row_bytes();
  }
  const bool moves =
      kind == OpKind::kAllreduce || kind == OpKind::kBroadcast || kind == OpKind::kReducescatter;
  return moves ? piece.spec().bytes() : 0;
}

/// A rank has so many connections over all numbered lanes for the all-to-alls of coded all-reduces.
/// Small ones take the express lane, and connect every two ranks once more.
constexpr int kMostConnections = 512;

/// How many lanes a tensor takes at most. Only blocks go by all-to-all, which connects every two of
/// `exchanging` ranks once more for each lane.
std::uint32_t lanes_of(const Request& request, int exchanging) {
  constexpr std::uint32_t kAll = kMaxLanes;
  if (!is_coded(request.wire) || !Coding{request.wire, request.wire_detail}.in_blocks()) {
    return kAll;
  }
  return std::clamp(static_cast<std::uint32_t>(kMostConnections / exchanging), 1U, kAll);
}

/// What is coded waits for the network several times, whatever its size.
constexpr std::uint32_t kCodedStretch = 16;

bool packs_with(const Piece& left, const Piece& right) {
  const Request& a = left.request();
  const Request& b = right.request();
  return a.kind == b.kind && left.spec().dtype == right.spec().dtype && a.op == b.op &&
         a.root == b.root && same_placement(left.operation->devices, right.operation->devices) &&
         same_factor(a.prescale, b.prescale) && same_factor(a.postscale, b.postscale) &&
         a.wire == b.wire && a.wire_detail == b.wire_detail;
}

}  // namespace

void take_response(Operation& operation, const Response& response) {
  operation.value = response.value;
  operation.devices = response.devices;
  if (response.joined && is_coded(operation.request.wire)) {
    // What is lost of a sum would be lost for ever where a rank without residuals codes it.
    operation.request.wire = WireFormat::kTensor;
    operation.request.wire_detail = 0;
  }
  if (response.first_extents.empty()) {
    return;
  }
  const std::size_t tensors = operation.request.tensors.size();
  const auto members = static_cast<std::ptrdiff_t>(response.first_extents.size() / tensors);
  operation.buffers.resize(tensors);
  auto first = response.first_extents.begin();
  for (std::size_t i = 0; i < tensors; ++i, first += members) {
    operation.buffers[i].first_extents.assign(first, first + members);
  }
}

std::unique_ptr<Operation> answer_with_zeros(const Response& response) {
  const Request& request = *response.zeros;
  auto operation = std::make_unique<Operation>();
  operation->request = request;
  operation->zeros = !request.on_gpu();
  take_response(*operation, response);
  operation->buffers.resize(request.tensors.size());
  // No memory means zeros on a GPU.
  for (std::size_t i = 0; i < request.tensors.size() && !request.on_gpu(); ++i) {
    TensorBuffers& buffers = operation->buffers[i];
    buffers.output = make_result(buffers, request.tensors[i].bytes(), *operation);
    buffers.input = buffers.output;
  }
  return operation;
}

bool is_empty(Operation& operation) {
  for (std::uint32_t i = 0; i < operation.request.tensors.size(); ++i) {
    if (planned_bytes({&operation, i}) > 0) {
      return false;
    }
  }
  return true;
}

void drop_wire_formats(const std::vector<Operation*>& operations, bool gpu_engine, int members) {
  for (Operation* operation : operations) {
    const Request& request = operation->request;
    if (members == 1 || !request.on_gpu() || (!gpu_engine && is_coded(request.wire))) {
      operation->request.wire = WireFormat::kTensor;
      operation->request.wire_detail = 0;
    }
  }
}

void fill_planner_input(const std::vector<Operation*>& operations,
                        bool gpu_engine,
                        int exchanging,
                        PlannerInput& plan) {
  auto& [tensors, pieces, classes] = plan;
  tensors.clear();
  pieces.clear();
  classes.clear();
  std::uint32_t next_class = 0;
  for (Operation* operation : operations) {
    const Request& request = operation->request;
    const bool elementwise =
        request.kind == OpKind::kAllreduce || request.kind == OpKind::kBroadcast;
    const bool coded = is_coded(request.wire);
    // The weights of an adaptive summation are those of the whole tensor.
    const bool whole = request.kind == OpKind::kAllreduce && request.op == ReduceOp::kAdasum;
    const std::size_t narrowing = request.narrowing();
    const std::uint32_t lanes = lanes_of(request, exchanging);
    // What is lost of a tensor must not depend on what travels with it by chance: what is coded
    // packs with its own operation alone.
    const auto others = static_cast<std::ptrdiff_t>(coded ? classes.size() : 0);
    for (std::uint32_t i = 0; i < request.tensors.size(); ++i) {
      const Piece piece{operation, i};
      auto found = std::find_if(classes.begin() + others, classes.end(), [&](const auto& known) {
        return packs_with(known.first, piece);
      });
      if (found == classes.end()) {
        found = classes.insert(found, {piece, next_class++});
      }
      pieces.push_back(piece);
      tensors.push_back({planned_bytes(piece) / narrowing,
                         static_cast<std::uint32_t>(size_of(piece.spec().dtype) / narrowing),
                         found->second,
                         elementwise,
                         elementwise && !whole,
                         // Both use the connections between every two ranks (engines/adasum.h).
                         request.kind == OpKind::kAlltoall || whole || lanes == 1,
                         gpu_engine && request.on_gpu(),
                         static_cast<std::uint32_t>(narrowing),
                         coded ? Coding{request.wire, request.wire_detail}.thinning() : 1,
                         coded ? kCodedStretch : 1,
                         lanes});
    }
    if (coded) {
      classes.erase(classes.begin() + others, classes.end());
    }
  }
}

}  // namespace aiacc
