#pragma once

#include <vector>

#include "csrc/base/error.h"
#include "csrc/core/message.h"

namespace aiacc {

/// Whether the ranks' requests for one name fit together. Pure; every rank gets the same answer.
///
/// `by_rank[r]` is rank r's request. A disagreement is Status(kMismatch) whose text names the
/// tensor, the first two ranks that differ and both values.
Status validate(const std::vector<Request>& by_rank);

/// "[2, 3]"
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace aiacc
