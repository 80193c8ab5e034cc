#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "csrc/base/socket.h"

namespace aiacc {

/// Secret shared by the ranks of one job, drawn by rank 0 for every epoch.
using JobToken = std::array<std::uint8_t, 16>;

/// First bytes on every connection, little endian, sent by the side that connects.
struct Hello {
  static constexpr std::uint32_t kMagic = 0x43414941;  // "AIAC"
  static constexpr std::uint16_t kVersion = 5;

  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t lane;
  std::uint32_t epoch;
  std::uint32_t from;
  std::uint32_t to;
  std::uint32_t split_id;
  std::uint8_t kind;
  std::uint8_t reserved[3];
  JobToken token;
};
static_assert(sizeof(Hello) == 44, "Hello is a wire format");

/// One byte answers a hello.
enum Answer : std::uint8_t {
  kWelcome = 1,
  kWrongVersion = 2,
  kWrongToken = 3,
  kWrongEpoch = 4,
  kWrongRank = 5,
  kDuplicate = 6,
  kNoDescriptors = 7,
  kCrossed = 8,  ///< this rank opens one to that one itself
};

/// What it means that a connection was answered so.
std::string explain(std::uint8_t answer);

/// Accepted connections whose handshake is not complete.
///
/// Anybody can open one, so they get neither much time nor many descriptors: `patience` for the
/// whole hello, and at most kMost at a time, or fewer where descriptors are short; the oldest gives
/// way. A rank to which that happens connects again (Connector). One thread at a time.
class Greetings {
 public:
  static constexpr std::size_t kMost = 64;
  static constexpr std::chrono::seconds kPatience{5};

  explicit Greetings(Listener& listener, Clock::duration patience = kPatience)
      : listener_(listener), patience_(patience) {}

  /// Takes a connection with its hello, which is whole and starts with the right magic. Returns why
  /// it was refused, or "".
  using Verify = std::function<std::string(const Hello&, Socket)>;

  /// Adds what has to be readable for `serve` to have something to do, save that somebody's
  /// patience ends.
  void watch(std::vector<pollfd>& entries) const;

  /// Accepts some of what has come, reads what is there, and closes what took too long. Never
  /// blocks. Throws Error(kEngine) if no descriptor is left although nobody can give way; whoever
  /// connects is told.
  void serve(const Verify& verify);

  /// Closes all of them.
  void clear();
  std::size_t count() const { return greetings_.size(); }

 private:
  struct Greeting {
    Socket socket;
    Clock::time_point deadline;
    std::array<std::uint8_t, sizeof(Hello)> bytes{};
    std::size_t got = 0;
  };

  Socket accept();
  void give_way();
  bool advance(Greeting& greeting, const Verify& verify);
  void report(const std::string& what);

  Listener& listener_;
  const Clock::duration patience_;
  std::list<Greeting> greetings_;  ///< the oldest first
  std::size_t most_ = kMost;       ///< fewer once descriptors were short
  int reported_ = 0;
};

}  // namespace aiacc
