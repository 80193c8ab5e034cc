#pragma once

#include <sys/uio.h>

#include <cstddef>

#include "csrc/base/spin.h"
#include "csrc/engines/cancellation.h"
#include "csrc/engines/tcp/channel.h"

namespace aiacc {

/// One message of an operation: a header and up to two stretches of payload.
class Message {
 public:
  /// Nothing to send or to receive.
  Message() = default;
  static Message sent(const OpHeader& header);
  /// The header that arrives is written to `theirs` and must be equal to `expected`.
  static Message received(OpHeader& theirs, const OpHeader& expected);

  Message& add(const void* data, std::size_t bytes);

  bool done() const { return count_ == 0; }
  /// Bytes moved now, 0 if the call would block. Throw Error.
  std::size_t send_some(Channel& channel);
  std::size_t recv_some(Channel& channel);

 private:
  void advance(std::size_t bytes);

  iovec list_[3] = {};
  int count_ = 0;
  std::size_t header_left_ = 0;  // bytes of a header in front that are still to come
  const OpHeader* theirs_ = nullptr;
  const OpHeader* expected_ = nullptr;
};

/// A copy in this rank's memory, made in steps while nothing arrives.
class LocalCopy {
 public:
  LocalCopy(void* to, const void* from, std::size_t bytes)
      : to_(static_cast<std::byte*>(to)),
        from_(static_cast<const std::byte*>(from)),
        left_(bytes) {}

  /// Makes a step. False if there was none left to make.
  bool step() noexcept;

 private:
  std::byte* to_;
  const std::byte* from_;
  std::size_t left_;
};

/// Sends to `to` and receives from `from`, which may be the same channel, until both are done.
/// Blocks: goes on with `meanwhile` if there is one, then spins, then sleeps. Throws Error.
void exchange(Channel& to,
              Message outgoing,
              Channel& from,
              Message incoming,
              Spin& spin,
              const Cancellation& cancellation,
              LocalCopy* meanwhile = nullptr);

}  // namespace aiacc
