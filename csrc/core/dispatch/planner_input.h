#pragma once

#include <vector>

#include "csrc/core/execution/unit.h"
#include "csrc/core/negotiation/negotiator.h"

namespace aiacc {

/// Stores in the operation what was agreed on about it, besides its status.
void take_agreement(Operation& operation, const Agreement& agreement);

/// Whether no bytes move: agreement is all there is to it.
bool is_empty(Operation& operation);

/// Operations of one process set as the planner sees them. Reused for its memory.
struct PlanItems {
  std::vector<PlanItem> items;  ///< one per tensor
  std::vector<Piece> pieces;    ///< the tensor of every item
  std::vector<Piece> classes;   ///< scratch: the first tensor of every pack class
};

/// `gpu_engine`: whether tensors on GPUs have an engine of their own. Pure: equal on all members for
/// equal operations.
void plan_items(const std::vector<Operation*>& operations, bool gpu_engine, PlanItems& plan);

}  // namespace aiacc
