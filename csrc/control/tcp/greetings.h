#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "csrc/base/socket.h"
#include "csrc/control/tcp/hello.h"

namespace aiacc {

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
