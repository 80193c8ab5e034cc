#include "csrc/core/execution/unit.h"

#include <algorithm>

#include "csrc/base/text.h"

namespace aiacc {

UnitId id_of(const Unit& unit) {
  // One that changes process sets may have no communicator.
  return {unit.order, unit.communicator ? unit.communicator->id : 0, unit.plan.seq};
}

bool feeds_back(const Unit& unit) {
  return std::any_of(unit.pieces.begin(), unit.pieces.end(), [](const Piece& piece) {
    return piece.buffers().residual != nullptr;
  });
}

std::string name_of(const Unit& unit) {
  constexpr std::size_t kMostBytes = 100;
  const Request& request = unit.pieces.front().request();
  std::string name = "'" + cut_text(label_of(request.process_set, request.name), kMostBytes) + "'";
  if (unit.pieces.size() > 1) {
    name += " and " + std::to_string(unit.pieces.size() - 1) + " more";
  }
  return name;
}

}  // namespace aiacc
