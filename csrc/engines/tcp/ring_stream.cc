#include "csrc/engines/tcp/ring_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/kernels/reduce.h"

namespace aiacc {
namespace {

// Received bytes wait here for their reduction; blocks of several lanes fit into one core's cache.
constexpr std::size_t kBlockBytes = std::size_t{128} * 1024;
// Less than this is not reduced while more is coming.
constexpr std::size_t kFoldBytes = std::size_t{64} * 1024;
// Most bytes of one system call: sending and receiving take turns.
constexpr std::size_t kReceiveBytes = std::size_t{256} * 1024;
constexpr std::size_t kSendBytes = std::size_t{256} * 1024;
// Less than this is not sent while more is coming.
constexpr std::size_t kWorthSending = std::size_t{64} * 1024;

}  // namespace

void RingSchedule::clear() {
  sends = true;
  receives = true;
  out.clear();
  in.clear();
  ready = 0;
  reduction = {DataType::kUInt8, ReduceOp::kSum};
}

RingStream::RingStream(Channel next, Channel previous, const Cancellation& cancellation)
    : next_(std::move(next)), previous_(std::move(previous)), cancellation_(cancellation) {}

RingSchedule& RingStream::prepare() {
  AIACC_CHECK(started_ - finished_ < entries_.size());
  RingSchedule& schedule = entry(started_).schedule;
  schedule.clear();
  return schedule;
}

void RingStream::start(int ticket) {
  Entry& fresh = entry(started_);
  fresh.ticket = ticket;
  fresh.element = size_of(fresh.schedule.reduction.dtype);
  fresh.out_total = fresh.schedule.sends ? sizeof(OpHeader) : 0;
  for (const RingSchedule::Out& piece : fresh.schedule.out) {
    fresh.out_total += piece.bytes;
  }
  fresh.in_total = fresh.schedule.receives ? sizeof(OpHeader) : 0;
  for (const RingSchedule::In& piece : fresh.schedule.in) {
    fresh.in_total += piece.bytes;
  }
  ++started_;
  go_on();
  while (move()) {
  }
}

void RingStream::finish(int ticket) {
  AIACC_CHECK(finished_ < started_ && entry(finished_).ticket == ticket);
  while (!is_done(finished_)) {
    if (!move()) {
      wait_until_ready(next_, sendable() > 0, previous_, in_number_ < started_, cancellation_);
    }
  }
  ++finished_;
}

void RingStream::run() {
  AIACC_CHECK(started_ == finished_);
  start(0);
  finish(0);
}

bool RingStream::move() {
  cancellation_.check();
  const bool received = receive();
  // Small pieces wait for more as long as more keeps coming; otherwise the successor may wait.
  const bool sent = send(!received);
  go_on();
  return received || sent;
}

/// To the next schedule, on the streams that are through with theirs.
void RingStream::go_on() {
  while (out_number_ < started_ && out_sent_ == entry(out_number_).out_total) {
    ++out_number_;
    out_sent_ = out_piece_ = out_offset_ = 0;
  }
  while (in_number_ < started_ && in_finished_ == entry(in_number_).in_total) {
    ++in_number_;
    in_finished_ = in_header_ = in_piece_ = in_offset_ = held_ = 0;
  }
}

std::size_t RingStream::sendable() const {
  if (out_number_ == started_) {
    return 0;
  }
  const Entry& sending = entry(out_number_);
  if (in_number_ > out_number_) {
    return sending.out_total - out_sent_;
  }
  const std::size_t received = in_number_ == out_number_ ? in_finished_ - in_header_ : 0;
  const std::size_t limit = sizeof(OpHeader) + sending.schedule.ready + received;
  return std::min(limit, sending.out_total) - out_sent_;
}

bool RingStream::send(bool eager) {
  std::size_t left = sendable();
  if (left == 0) {
    return false;
  }
  const Entry& sending = entry(out_number_);
  if (!eager && left < kWorthSending && out_sent_ + left < sending.out_total) {
    return false;
  }
  const RingSchedule& schedule = sending.schedule;
  left = std::min(left, kSendBytes);
  iovec parts[4] = {};
  int count = 0;
  if (out_sent_ < sizeof(OpHeader)) {
    const std::size_t bytes = sizeof(OpHeader) - out_sent_;
    parts[count++] = {
        const_cast<char*>(reinterpret_cast<const char*>(&schedule.header)) + out_sent_, bytes};
    left -= std::min(left, bytes);
  }
  std::size_t offset = out_offset_;
  for (std::size_t i = out_piece_; left > 0 && count < 4; ++i) {
    const RingSchedule::Out& piece = schedule.out[i];
    const std::size_t bytes = std::min(left, piece.bytes - offset);
    if (bytes > 0) {
      parts[count++] = {const_cast<char*>(piece.data) + offset, bytes};
      left -= bytes;
    }
    offset = 0;
  }
  std::size_t sent = next_.send_some(parts, count);
  const bool moved = sent > 0;
  const std::size_t header =
      out_sent_ < sizeof(OpHeader) ? std::min(sent, sizeof(OpHeader) - out_sent_) : 0;
  out_sent_ += sent;
  sent -= header;
  while (sent > 0) {
    const std::size_t bytes = std::min(sent, schedule.out[out_piece_].bytes - out_offset_);
    out_offset_ += bytes;
    sent -= bytes;
    if (out_offset_ == schedule.out[out_piece_].bytes) {
      ++out_piece_;
      out_offset_ = 0;
    }
  }
  return moved;
}

bool RingStream::receive() {
  if (in_number_ == started_) {
    return false;
  }
  const RingSchedule& schedule = entry(in_number_).schedule;
  while (in_piece_ < schedule.in.size() && schedule.in[in_piece_].bytes == 0) {
    ++in_piece_;
  }
  iovec parts[2] = {};
  int count = 0;
  const std::size_t header = sizeof(OpHeader) - in_header_;
  if (header > 0) {
    parts[count++] = {reinterpret_cast<char*>(&their_header_) + in_header_, header};
  }
  std::size_t asked = 0;
  if (in_piece_ < schedule.in.size()) {
    const RingSchedule::In& piece = schedule.in[in_piece_];
    const std::size_t left = piece.bytes - in_offset_ - held_;
    if (piece.operand == nullptr) {
      asked = std::min(left, kReceiveBytes);
      parts[count++] = {piece.into + in_offset_, asked};
    } else {
      block_.resize(kBlockBytes);
      asked = std::min(left, kBlockBytes - held_);
      parts[count++] = {block_.data() + held_, asked};
    }
  }
  std::size_t got = previous_.recv_some(parts, count);
  if (got == 0) {
    return false;
  }
  if (header > 0) {
    const std::size_t bytes = std::min(got, header);
    in_header_ += bytes;
    in_finished_ += bytes;
    got -= bytes;
    if (in_header_ == sizeof(OpHeader)) {
      previous_.check_header(schedule.header, their_header_);
    }
  }
  if (got > 0) {
    take(got);
    // A short read means that nothing more is there now, so this is the time to reduce.
    fold(got < asked);
  }
  return true;
}

void RingStream::take(std::size_t bytes) {
  const RingSchedule::In& piece = entry(in_number_).schedule.in[in_piece_];
  if (piece.operand != nullptr) {
    held_ += bytes;
    return;
  }
  in_offset_ += bytes;
  in_finished_ += bytes;
  if (in_offset_ == piece.bytes) {
    ++in_piece_;
    in_offset_ = 0;
  }
}

void RingStream::fold(bool everything) {
  if (held_ == 0) {
    return;
  }
  const Entry& receiving = entry(in_number_);
  const RingSchedule::In& piece = receiving.schedule.in[in_piece_];
  const bool complete = in_offset_ + held_ == piece.bytes;
  if (!everything && !complete && held_ < kFoldBytes) {
    return;
  }
  const std::size_t count = held_ / receiving.element;
  const std::size_t bytes = count * receiving.element;
  const Reduction& all = receiving.schedule.reduction;
  reduce_scaled(piece.into + in_offset_,
                piece.operand + in_offset_,
                block_.data(),
                count,
                {all.dtype, all.op, piece.last ? all.factor : 1.0});
  held_ -= bytes;
  std::memmove(block_.data(), block_.data() + bytes, held_);  // part of an element
  in_offset_ += bytes;
  in_finished_ += bytes;
  if (in_offset_ == piece.bytes) {
    ++in_piece_;
    in_offset_ = 0;
  }
}

}  // namespace aiacc
