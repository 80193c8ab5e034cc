#include "csrc/base/tcp_info.h"

// The kernel's own header: the C library's structure ends before the field. The two clash.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace aiacc {

double tcp_busy_s(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 ||
      bytes < offsetof(tcp_info, tcpi_busy_time) + sizeof info.tcpi_busy_time) {
    return 0;
  }
  return static_cast<double>(info.tcpi_busy_time) * 1e-6;
}

}  // namespace aiacc
