#pragma once

namespace aiacc {

/// Seconds in which bytes that were sent over a TCP socket had not arrived yet, since it was
/// connected, in steps of the kernel's clock (1 to 10 ms). 0 for what is no TCP socket, or if the
/// kernel does not count. Any thread.
double tcp_busy_s(int fd);

}  // namespace aiacc
