#pragma once

#include <cstdint>

namespace aiacc {

/// Seconds in which bytes that were sent over a TCP socket had not arrived yet, since it was
/// connected, in steps of the kernel's clock (1 to 10 ms). 0 for what is no TCP socket, or if the
/// kernel does not count. Any thread.
double tcp_busy_s(int fd);

/// Seconds that a byte takes to the other end of a TCP socket and its acknowledgement back, at
/// best. 0 for what is no TCP socket, or if nothing was acknowledged yet. Any thread.
double tcp_round_trip_s(int fd);

/// What the kernel knows about the other end of a TCP socket.
struct TcpLink {
  std::uint32_t unacknowledged = 0;  ///< packets that are under way
  std::uint64_t acknowledged = 0;    ///< bytes, since it was connected
  bool tells_window = false;         ///< whether the kernel says `window` (Linux 5.4)
  std::uint32_t window = 0;          ///< bytes that the other end has room for
  int repeats = 0;                   ///< timeouts of the packet that was lost, so far
  int probes = 0;       ///< questions without answer: keepalive, or about a full window
  double silent_s = 0;  ///< since the last packet that came
  double sent_s = 0;    ///< since the last packet with bytes that went
};

/// All zero, as of a link on which nothing is amiss, for what is no TCP socket. Any thread.
TcpLink tcp_link(int fd);

}  // namespace aiacc
