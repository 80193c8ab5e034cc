#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/core/execution/unit.h"
#include "csrc/core/negotiation/negotiator.h"

namespace aiacc {

/// Stores in the operation what was agreed on about it, besides its status.
void take_response(Operation& operation, const Response& response);

/// An operation of nobody, with which a rank that has joined answers those of the others: it gives
/// zeros, and its result is dropped. The caller answers other ranks, so memory is not touched,
/// which takes long: lanes clear what they are about to give.
std::unique_ptr<Operation> answer_with_zeros(const Response& response);

/// Whether no bytes move: the response is all there is to it.
bool is_empty(Operation& operation);

/// Operations of one process set as the planner sees them. Reused for its memory.
struct PlannerInput {
  std::vector<PlannedTensor> tensors;  ///< one per tensor
  std::vector<Piece> pieces;           ///< by tensor
  /// Scratch: the first tensor of every pack class, and the number of the class.
  std::vector<std::pair<Piece, std::uint32_t>> classes;
};

/// For ranks that share memory, and for one alone: nothing travels, and to narrow and widen would
/// cost more than the bytes that it saves. Tensors on GPUs keep their wire formats if there are
/// several ranks, but are not coded if they are staged. Pure, as the next.
void drop_wire_formats(const std::vector<Operation*>& operations, bool gpu_engine, int members);

/// `gpu_engine`: whether tensors on GPUs have an engine of their own. `exchanging`: see
/// Engine::exchanging; all-reduces in blocks among many take few lanes, for each lane connects
/// every two of them. Pure: equal on all members for equal operations.
void fill_planner_input(const std::vector<Operation*>& operations,
                        bool gpu_engine,
                        int exchanging,
                        PlannerInput& plan);

}  // namespace aiacc
