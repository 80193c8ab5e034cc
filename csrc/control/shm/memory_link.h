#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/socket.h"

namespace aiacc {

/// "rank 3"
std::string rank_name(int rank);

/// The time and the interruption that end every wait of ranks that share memory.
class Patience {
 public:
  Patience(double seconds, int interrupt);

  double seconds() const { return seconds_; }
  Clock::time_point until() const { return until_; }

  /// Sleeps until something happens to one of `entries`, at most for `nap`. False when the time is
  /// over. Throws Error(kShutdown) if it was interrupted.
  bool sleep(std::vector<pollfd> entries,
             std::chrono::milliseconds nap = std::chrono::milliseconds(60'000)) const;

 private:
  const double seconds_;
  const Clock::time_point until_;
  const int interrupt_;
};

/// An authenticated connection between two ranks that share memory. A message is a Status: whether
/// all is well, and a text, or what else is to be said then.
class MemoryLink {
 public:
  /// Begins every message, little endian. Part of the wire format.
  struct Header {
    std::uint32_t code;
    std::uint32_t bytes;  ///< that follow
  };
  static constexpr std::uint32_t kMostBytes = 4096;

  MemoryLink(Socket socket, int rank) : socket_(std::move(socket)), rank_(rank) {}

  int rank() const { return rank_; }
  pollfd readable() const { return {socket_.fd(), POLLIN, 0}; }

  /// Texts are cut where they are too long. Throws what Socket::send_all throws.
  void send(const Status& message, Clock::time_point deadline);

  /// A message if all of it has come. Throws Error(kPeerLost) if the rank has gone, and
  /// Error(kInternal) if that is no message.
  std::optional<Status> receive();

 private:
  bool read_up_to(std::size_t bytes);

  Socket socket_;
  int rank_;
  std::string got_;
};

}  // namespace aiacc
