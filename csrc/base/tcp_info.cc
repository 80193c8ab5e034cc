#include "csrc/base/tcp_info.h"

// The kernel's own header: the C library's structure ends before the field. The two clash.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace aiacc {
namespace {

/// Where tcpi_snd_wnd is, which headers of kernels before 5.4 do not have: fields only ever follow.
constexpr std::size_t kWindowAt = 228;

/// As much of the structure as the running kernel fills in; the rest is zero.
class TcpInfo {
 public:
  explicit TcpInfo(int fd) {
    socklen_t bytes = sizeof raw_;
    bytes_ = getsockopt(fd, IPPROTO_TCP, TCP_INFO, raw_, &bytes) == 0 ? bytes : 0;
  }
  tcp_info fields() const {
    tcp_info info{};
    std::memcpy(&info, raw_, std::min(bytes_, sizeof info));
    return info;
  }
  bool has_window() const { return bytes_ >= kWindowAt + sizeof(std::uint32_t); }
  std::uint32_t window() const {
    std::uint32_t window = 0;
    std::memcpy(&window, raw_ + kWindowAt, sizeof window);
    return window;
  }

 private:
  unsigned char raw_[512] = {};
  std::size_t bytes_ = 0;
};

}  // namespace

double tcp_busy_s(int fd) {
  return static_cast<double>(TcpInfo(fd).fields().tcpi_busy_time) * 1e-6;
}

double tcp_round_trip_s(int fd) {
  const std::uint32_t least_us = TcpInfo(fd).fields().tcpi_min_rtt;
  return least_us == ~std::uint32_t{0} ? 0 : least_us * 1e-6;
}

TcpLink tcp_link(int fd) {
  const TcpInfo info(fd);
  const tcp_info fields = info.fields();
  TcpLink link;
  link.unacknowledged = fields.tcpi_unacked;
  link.acknowledged = fields.tcpi_bytes_acked;
  link.tells_window = info.has_window();
  link.window = info.has_window() ? info.window() : 0;
  link.repeats = fields.tcpi_retransmits;
  link.probes = fields.tcpi_probes;
  link.silent_s = std::min(fields.tcpi_last_ack_recv, fields.tcpi_last_data_recv) * 1e-3;
  link.sent_s = fields.tcpi_last_data_sent * 1e-3;
  return link;
}

}  // namespace aiacc
