#include "csrc/control/tcp/control_connection.h"

#include <algorithm>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/control/tcp/heartbeat.h"

namespace aiacc {
namespace {

/// Frames of rounds that a rank can have sent before this one has taken any: a few of this round
/// and of the next.
constexpr std::size_t kMostRounds = 16;

/// The slowest that a message may come.
constexpr std::size_t kBytesPerTimeout = std::size_t{256} << 10;

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
    out_ += socket_.send_some(outbox_.data() + out_, unsent(), name_);
  }
  if (flushed()) {
    clear_outbox();
  }
  return flushed();
}

void ControlConnection::clear_outbox() noexcept {
  outbox_.clear();
  out_ = 0;
}

bool ControlConnection::receive_some(std::vector<std::uint8_t>& buffer) {
  const std::size_t got = end_ ? 0 : socket_.recv_some(buffer.data(), buffer.size(), name_);
  if (got == 0) {
    return false;
  }
  begun_ = decoder_.begun() == 0 ? Clock::now() : begun_;
  decoder_.add(buffer.data(), got);
  while (!end_ && decoder_.next(next_)) {
    begun_ = Clock::now();
    if (next_.type == FrameType::kAbort) {
      end_ = decode_status(next_.payload, name_);
    } else if (rounds_.size() == kMostRounds) {
      throw Error(Code::kPeerLost,
                  "[control] " + name_ + " sent " + std::to_string(kMostRounds + 1) +
                      " rounds ahead (expected its share of this one and the next); the "
                      "connection cannot be trusted");
    } else {
      std::swap(rounds_.push(), next_);
    }
  }
  return true;
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
  if (decoder_.begun() == 0 || end_) {
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
