#include "csrc/control/tcp/control_connection.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

/// Frames of rounds that a rank can have sent before this one has taken any: a few of this round
/// and of the next.
constexpr std::size_t kMostRounds = 16;

/// Of a message that comes, as slow as it may be.
constexpr std::size_t kBytesPerTimeout = std::size_t{256} << 10;

std::string seconds_text(std::chrono::nanoseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", std::chrono::duration<double>(duration).count());
  return text;
}

bool is_of_a_round(const Frame& frame) {
  return frame.type == FrameType::kRound || frame.type == FrameType::kJoin;
}

}  // namespace

ControlConnection::ControlConnection(int peer, Socket connected)
    : rank_(peer),
      name_("rank " + std::to_string(peer)),
      socket_(std::move(connected)),
      decoder_(name_) {}

std::size_t ControlConnection::put(const Frame& frame) {
  const std::size_t before = outbox_.size();
  encode_frame(frame, outbox_);
  return outbox_.size() - before;
}

bool ControlConnection::send_some() {
  if (!flushed()) {
    const std::size_t sent = socket_.send_some(outbox_.data() + out_, outbox_.size() - out_, name_);
    out_ += sent;
  }
  return flushed();
}

void ControlConnection::clear_outbox() noexcept {
  outbox_.clear();
  out_ = 0;
}

bool ControlConnection::receive_some(std::vector<std::uint8_t>& buffer) {
  const std::size_t got = socket_.recv_some(buffer.data(), buffer.size(), name_);
  if (got == 0) {
    return false;
  }
  if (decoder_.feed(buffer.data(), got, arrived_) || begun_ == Clock::time_point{}) {
    begun_ = Clock::now();
  }
  if (decoder_.begun() == 0) {
    begun_ = {};
  }
  return true;
}

bool ControlConnection::discard_some(std::vector<std::uint8_t>& buffer) {
  return socket_.recv_some(buffer.data(), buffer.size(), name_) > 0;
}

bool ControlConnection::next_notice(Frame& notice) {
  while (!arrived_.empty()) {
    Frame& frame = arrived_.front();
    const bool queued = is_of_a_round(frame);
    if (queued && rounds_.size() == kMostRounds) {
      throw Error(Code::kPeerLost,
                  "[control] " + name_ + " sent " + std::to_string(kMostRounds + 1) +
                      " rounds ahead (expected its share of this one and the next); the "
                      "connection cannot be trusted");
    }
    std::swap(queued ? rounds_.push() : notice, frame);
    arrived_.pop();
    if (!queued) {
      return true;
    }
  }
  return false;
}

bool ControlConnection::has_round(std::uint32_t round) const {
  return !rounds_.empty() && rounds_.front().round == round;
}

std::uint32_t ControlConnection::round_flags(std::uint32_t round) const {
  return has_round(round) ? flags_of(rounds_.front().payload) : 0;
}

bool ControlConnection::take_round(std::uint32_t round, std::uint8_t stage, Bytes& payload) {
  while (!rounds_.empty() && rounds_.front().type == FrameType::kJoin &&
         rounds_.front().round <= round) {
    rounds_.pop();
  }
  if (rounds_.empty()) {
    return false;
  }
  Frame& frame = rounds_.front();
  if (frame.type != FrameType::kRound || frame.round != round || frame.stage != stage) {
    throw Error(Code::kInternal,
                "[control] expected round " + std::to_string(round) + " stage " +
                    std::to_string(stage) + " from " + name_ + ", got round " +
                    std::to_string(frame.round) + " stage " + std::to_string(frame.stage));
  }
  payload.swap(frame.payload);
  rounds_.pop();
  return true;
}

void ControlConnection::check_frame(Clock::time_point now,
                                    bool absent,
                                    std::chrono::nanoseconds timeout) {
  if (begun_ == Clock::time_point{}) {
    return;
  }
  begun_ = absent ? now : begun_;
  const std::size_t bytes = decoder_.announced();
  if (now - begun_ >= timeout * static_cast<int>(1 + bytes / kBytesPerTimeout)) {
    throw Error(Code::kPeerLost,
                "[control] " + name_ + " announced a message of " + std::to_string(bytes) +
                    " bytes and has sent " + std::to_string(decoder_.begun()) + " of them in " +
                    seconds_text(now - begun_) +
                    " s (AIACC_PEER_TIMEOUT_S); the connection cannot be trusted");
  }
}

}  // namespace aiacc
