#pragma once

#include <cstdint>

namespace aiacc {

/// The size of a unit between hosts that are near to each other, and on one host.
inline constexpr std::uint64_t kNearUnitBytes = std::uint64_t{1} << 20;
/// The same between hosts that are far from each other.
inline constexpr std::uint64_t kFarUnitBytes = std::uint64_t{8} << 20;
/// From this round trip on hosts are far from each other.
inline constexpr double kFarRoundTripS = 5e-3;

/// The size of a unit, in bytes, if nobody asked for one. Each step of a unit's ring waits for the
/// network: where hosts are far, a unit has to be large to be worth the waits; where they are near,
/// small units share the lanes better. Pure.
///
/// `round_trip_s`: seconds from a host to another and back; 0 if that is not known.
std::uint64_t unit_bytes_for(double round_trip_s);

}  // namespace aiacc
