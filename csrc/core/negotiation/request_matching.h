#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/core/negotiation/request.h"

namespace aiacc {

/// Whether the ranks' requests for one name fit together. Pure; every rank gets the same answer.
///
/// `requests[i]` is that of rank `ranks[i]`. A disagreement is Status(kMismatch) whose text names
/// the tensor, the first two ranks that differ and both values.
Status validate(const std::vector<Request>& requests, const std::vector<int>& ranks);

/// "[2, 3]"
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace aiacc
