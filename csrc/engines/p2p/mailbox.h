#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "csrc/base/raw_bytes.h"

namespace aiacc {

class MessageLink;

/// A message that a rank has offered to this one.
struct MessageOffer {
  int source = 0;
  MessageLink* link = nullptr;  ///< by which it came; null: of this rank's own
  std::uint32_t id = 0;         ///< the link's number for it
  std::uint64_t bytes = 0;
  RawBytes payload;            ///< of a small one, which comes with the offer
  const void* here = nullptr;  ///< of one of this rank's own, where it is,
  std::uint64_t ticket = 0;    ///< and what the sender calls it
};

/// A receive that waits for a message.
struct MessageReceive {
  static constexpr int kAnySource = -1;

  int source = kAnySource;
  void* data = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t ticket = 0;
};

/// Which message goes to which receive: those with equal keys, in the order of their coming, if the
/// receive wants any source or that of the message. Pure; one thread at a time.
class Mailbox {
 public:
  /// The receive that was waiting for this, or none: then it is kept, and `offer` is moved from.
  std::optional<MessageReceive> offer(const std::string& key, MessageOffer& offer);
  /// The message that was waiting for this, or none: then the receive is kept.
  std::optional<MessageOffer> receive(const std::string& key, const MessageReceive& receive);

  /// Whether a receive waits for this source and no other.
  bool awaits(int source) const { return awaited_.find(source) != awaited_.end(); }

 private:
  struct Slot {
    std::deque<MessageOffer> offers;
    std::deque<MessageReceive> receives;
  };

  void tidy(std::map<std::string, Slot>::iterator slot);

  std::map<std::string, Slot> slots_;
  std::multiset<int> awaited_;  ///< sources of all receives that wait
};

}  // namespace aiacc
