#include "csrc/kernels/selection/threshold_track.h"

#include <algorithm>

namespace aiacc {

std::size_t candidate_room(std::size_t count, std::size_t k) {
  return std::min(count, 2 * k + count / 64 + 1024);
}

}  // namespace aiacc
