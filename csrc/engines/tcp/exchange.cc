#include "csrc/engines/tcp/exchange.h"

#include <algorithm>
#include <cstring>

namespace aiacc {

Message Message::sent(const OpHeader& header) {
  Message message;
  message.add(&header, sizeof header);
  return message;
}

Message Message::received(OpHeader& theirs, const OpHeader& expected) {
  Message message;
  message.add(&theirs, sizeof theirs);
  message.header_left_ = sizeof theirs;
  message.theirs_ = &theirs;
  message.expected_ = &expected;
  return message;
}

Message& Message::add(const void* data, std::size_t bytes) {
  if (bytes > 0) {
    list_[count_++] = {const_cast<void*>(data), bytes};
  }
  return *this;
}

std::size_t Message::send_some(Channel& channel) {
  const std::size_t sent = channel.send_some(list_, count_);
  advance(sent);
  return sent;
}

std::size_t Message::recv_some(Channel& channel) {
  const std::size_t got = channel.recv_some(list_, count_);
  const bool had_header = header_left_ == 0;
  advance(got);
  if (!had_header && header_left_ == 0) {
    channel.check_header(*expected_, *theirs_);
  }
  return got;
}

void Message::advance(std::size_t bytes) {
  header_left_ -= std::min(header_left_, bytes);
  int finished = 0;
  while (finished < count_ && bytes >= list_[finished].iov_len) {
    bytes -= list_[finished++].iov_len;
  }
  std::move(list_ + finished, list_ + count_, list_);
  count_ -= finished;
  if (bytes > 0) {
    list_[0].iov_base = static_cast<char*>(list_[0].iov_base) + bytes;
    list_[0].iov_len -= bytes;
  }
}

bool LocalCopy::step() noexcept {
  constexpr std::size_t kStep = std::size_t{128} << 10;
  if (left_ == 0) {
    return false;
  }
  const std::size_t bytes = std::min(left_, kStep);
  std::memcpy(to_, from_, bytes);
  to_ += bytes;
  from_ += bytes;
  left_ -= bytes;
  return true;
}

void exchange(Channel& to,
              Message outgoing,
              Channel& from,
              Message incoming,
              Spin& spin,
              const Cancellation& cancellation,
              LocalCopy* meanwhile) {
  spin.begin();
  while (true) {
    std::size_t moved = 0;
    if (!outgoing.done()) {
      moved = outgoing.send_some(to);
    }
    if (!incoming.done()) {
      moved += incoming.recv_some(from);
    }
    if (outgoing.done() && incoming.done()) {
      spin.end();
      return;
    }
    cancellation.check();
    if (moved == 0 && meanwhile != nullptr && meanwhile->step()) {
      spin.begin();
    } else if (moved > 0) {
      spin.end();
      spin.begin();
    } else if (!spin.again()) {
      wait_until_ready(to, !outgoing.done(), from, !incoming.done(), cancellation);
    }
  }
}

}  // namespace aiacc
