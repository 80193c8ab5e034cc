#pragma once

#include <cstdint>
#include <istream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "csrc/core/negotiation/request.h"

namespace aiacc {

/// One tensor per line: its name, then the extents of its shape.
inline std::vector<Request> read_tensors(std::istream& lines) {
  std::vector<Request> tensors;
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    Request request;
    words >> request.name;
    for (std::int64_t extent = 0; words >> extent;) {
      request.shape.push_back(extent);
    }
    tensors.push_back(std::move(request));
  }
  return tensors;
}

}  // namespace aiacc
