#pragma once

#include <vector>

#include "csrc/core/negotiator.h"
#include "csrc/core/unit.h"

namespace aiacc {

/// Stores in the operation what was agreed on about it, besides its status.
void take_agreement(Operation& operation, const Agreement& agreement);

/// Whether no bytes move: agreement is all there is to it.
bool is_empty(Operation& operation);

/// The operations, of one process set, as the planner sees them: an item per tensor. `pieces`
/// receives the tensor of every item. Pure: equal on all members for equal operations.
std::vector<PlanItem> plan_items(const std::vector<Operation*>& operations,
                                 std::vector<Piece>& pieces);

}  // namespace aiacc
