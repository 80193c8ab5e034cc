#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/core/negotiation/byte_io.h"
#include "csrc/core/negotiation/digest.h"
#include "csrc/core/negotiation/request.h"

namespace aiacc {

/// A rank numbers its GPUs below this.
inline constexpr std::uint64_t kMostDevices = 1 << 16;
/// Request::numbers has no more.
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
void encode_part(const OwnPart& part, Writer& writer);
OwnPart decode_part(std::string_view bytes);
std::size_t part_bytes(const OwnPart& part);
/// Whether a rank's request can have this part.
bool fits(const Request& common, const OwnPart& part);
/// The request of a rank with this part, which goes with it.
Request with_part(Request common, const OwnPart& part);

/// Everything but the own part, as bytes. At most kMaxTextBytes.
std::string text_of(const Request& request);
/// A request whose own part is blank: GPU 0, if on a GPU, and first extents of 0. Throws
/// Error(kPeerLost) on anything that no rank would send.
Request request_of(std::string_view text);

/// What ranks compare instead of texts, and all that one has to know of a process set's requests
/// that it is not a member of.
struct RequestId {
  std::uint32_t process_set = 0;
  Digest name;
  Digest signature;        ///< of the text
  bool joinable = false;   ///< see `joinable`
  bool cacheable = false;  ///< it may get a slot: Request::cacheable, and not all-to-all

  RequestId() = default;
  /// `text` is that of the request.
  RequestId(const Request& request, std::string_view text);
};

bool operator==(const RequestId& a, const RequestId& b);
void encode_id(const RequestId& id, Writer& writer);
RequestId decode_id(Reader& reader);

/// Limits of the two parts of a request. One beyond them is refused where it is submitted, so that
/// a round's message fits into a frame of the control plane: with kRoundBudget, one such request,
/// and another one as the key where entries were cut off.
inline constexpr std::size_t kMaxTextBytes = std::size_t{8} << 20;
/// All members of the process set together have no more.
inline constexpr std::size_t kMaxPartsBytes = std::size_t{32} << 20;

}  // namespace aiacc
