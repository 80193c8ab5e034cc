#include "csrc/planning/unit_size.h"

namespace aiacc {

std::uint64_t unit_bytes_for(double round_trip_s) {
  return round_trip_s < kFarRoundTripS ? kNearUnitBytes : kFarUnitBytes;
}

}  // namespace aiacc
