#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/core/negotiation/byte_io.h"
#include "csrc/core/negotiation/request.h"

namespace aiacc {

/// A rank numbers its GPUs below this.
inline constexpr std::uint64_t kMostDevices = 1 << 16;
/// Of Request::numbers.
inline constexpr std::size_t kMostNumbers = std::size_t{1} << 16;

/// Fields of a request that may legitimately differ between ranks. Without them the requests of all
/// ranks for a tensor are equal, and travel as one.
struct OwnPart {
  std::int32_t device = -1;  ///< Request::device
  /// The first extent of every tensor of an all-gather; that of an all-to-all, then its splits.
  std::vector<std::int64_t> numbers;
};

bool operator==(const OwnPart& a, const OwnPart& b);
bool operator<(const OwnPart& a, const OwnPart& b);

OwnPart own_part(const Request& request);
/// Appends everything else.
void encode_common(const Request& request, Writer& writer);
/// A request whose own part is blank: GPU 0, if on a GPU, and first extents of 0. Throws
/// Error(kPeerLost) on anything that no rank would send.
Request decode_common(std::string_view bytes);
/// Throws Error(kPeerLost) unless a rank's request can have this part.
void check_part(const Request& common, const OwnPart& part);
/// The request of a rank with this part, which goes with it.
Request with_part(Request common, const OwnPart& part);

void encode_part(const OwnPart& part, Writer& writer);
OwnPart decode_part(std::string_view bytes);
std::size_t part_bytes(const OwnPart& part);

/// What the two parts of a request take. A request beyond these limits is refused where it is
/// submitted, so that a round's message fits into a frame of the control plane: with kRoundBudget,
/// one such request, and another one as the key where entries were cut off.
std::size_t common_bytes(const Request& request);
std::size_t own_part_bytes(const Request& request);
inline constexpr std::size_t kMaxCommonBytes = std::size_t{8} << 20;
/// Of all members of the process set together.
inline constexpr std::size_t kMaxPartsBytes = std::size_t{32} << 20;

}  // namespace aiacc
