#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "csrc/base/error.h"
#include "csrc/control/round.h"

namespace aiacc {

enum class FrameType : std::uint8_t {
  kRound = 1,  ///< a rank's share of round `round`, doubling stage `stage`
  kJoin = 2,   ///< round `round` has started, with these flags: fold your share in
  kAbort = 3,  ///< the job ends; payload is a code and a text
};

struct Frame {
  FrameType type = FrameType::kRound;
  std::uint8_t stage = 0;
  std::uint32_t round = 0;
  Bytes payload;
};

/// Appends the encoded frame to `out`. Throws Error(kInternal) if it is larger than receivers
/// accept.
void encode_frame(const Frame& frame, Bytes& out);

/// Turns a byte stream into frames. Bytes come from the network: anything that is not exactly a
/// frame of this protocol throws Error(kPeerLost), whatever its length claims to be.
class FrameDecoder {
 public:
  /// Upper bound of a payload; a larger claim is an attack or a broken stream.
  static constexpr std::size_t kMaxPayload = std::size_t{64} << 20;

  explicit FrameDecoder(std::string peer) : peer_(std::move(peer)) {}

  /// Adds bytes in any cut.
  void add(const std::uint8_t* data, std::size_t bytes);
  /// Takes the next frame that is complete, if there is one.
  bool next(Frame& frame);

  /// Bytes of a frame that is not complete, and of all of it as far as it is announced.
  std::size_t begun() const { return buffer_.size() - taken_; }
  std::size_t announced() const;

 private:
  std::string peer_;
  Bytes buffer_;
  std::size_t taken_ = 0;  ///< bytes of `buffer_` that were taken as frames
};

/// Status <-> payload of a kAbort frame. Decoding never throws: an unreadable one is kPeerLost and
/// names the sender.
Bytes encode_status(const Status& status);
Status decode_status(const Bytes& payload, const std::string& from = "a rank");

}  // namespace aiacc
