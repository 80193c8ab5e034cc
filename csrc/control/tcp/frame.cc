#include "csrc/control/tcp/frame.h"

#include <algorithm>
#include <cstring>

namespace aiacc {
namespace {

/// Wire format, little endian.
struct Header {
  std::uint32_t bytes;
  std::uint16_t check;
  std::uint8_t type;
  std::uint8_t stage;
  std::uint32_t round;
};
static_assert(sizeof(Header) == 12, "Header is a wire format");
constexpr std::uint16_t kCheck = 0xA1AC;

}  // namespace

void encode_frame(const Frame& frame, Bytes& out) {
  if (frame.payload.size() > FrameDecoder::kMaxPayload) {
    throw Error(Code::kInternal,
                "[control] a message of " + std::to_string(frame.payload.size()) +
                    " bytes (expected at most " + std::to_string(FrameDecoder::kMaxPayload) + ")");
  }
  const Header header{static_cast<std::uint32_t>(frame.payload.size()),
                      kCheck,
                      static_cast<std::uint8_t>(frame.type),
                      frame.stage,
                      frame.round};
  const std::size_t start = out.size();
  out.resize(start + sizeof header + frame.payload.size());
  std::memcpy(out.data() + start, &header, sizeof header);
  if (!frame.payload.empty()) {
    std::memcpy(out.data() + start + sizeof header, frame.payload.data(), frame.payload.size());
  }
}

void FrameDecoder::add(const std::uint8_t* data, std::size_t bytes) {
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = 0;
  buffer_.insert(buffer_.end(), data, data + bytes);
}

bool FrameDecoder::next(Frame& frame) {
  if (begun() < sizeof(Header)) {
    return false;
  }
  Header header{};
  std::memcpy(&header, buffer_.data() + taken_, sizeof header);
  if (header.check == kCheck && header.bytes > kMaxPayload) {
    throw Error(Code::kPeerLost,
                "[control] " + peer_ + " announced a message of " + std::to_string(header.bytes) +
                    " bytes (expected at most " + std::to_string(kMaxPayload) + ")");
  }
  if (header.check != kCheck || header.type < static_cast<std::uint8_t>(FrameType::kRound) ||
      header.type > static_cast<std::uint8_t>(FrameType::kAbort)) {
    throw Error(Code::kPeerLost,
                "[control] " + peer_ + " sent " + std::to_string(header.bytes) + " bytes of type " +
                    std::to_string(header.type) +
                    ", which is not aiacc's protocol; do all ranks run the same version?");
  }
  if (begun() - sizeof header < header.bytes) {
    return false;
  }
  const std::uint8_t* payload = buffer_.data() + taken_ + sizeof header;
  frame.type = static_cast<FrameType>(header.type);
  frame.stage = header.stage;
  frame.round = header.round;
  frame.payload.assign(payload, payload + header.bytes);
  taken_ += sizeof header + header.bytes;
  return true;
}

std::size_t FrameDecoder::announced() const {
  Header header{};
  std::memcpy(&header, buffer_.data() + taken_, std::min(begun(), sizeof header.bytes));
  return sizeof header + header.bytes;
}

Bytes encode_status(const Status& status) {
  // Sized at once: growing a vector of one byte sets off a false warning of GCC 12.
  Bytes payload(1 + status.message().size());
  payload[0] = static_cast<std::uint8_t>(status.code());
  std::copy(status.message().begin(), status.message().end(), payload.begin() + 1);
  return payload;
}

Status decode_status(const Bytes& payload, const std::string& from) {
  if (payload.empty() || payload[0] == static_cast<std::uint8_t>(Code::kOk) ||
      payload[0] > static_cast<std::uint8_t>(Code::kNotFinite)) {
    return {Code::kPeerLost, "[control] " + from + " ended the job and gave no readable reason"};
  }
  return {static_cast<Code>(payload[0]), std::string(payload.begin() + 1, payload.end())};
}

}  // namespace aiacc
