#pragma once

#include <linux/filter.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/socket.h"
#include "csrc/control/tcp/connector.h"

namespace aiacc {

/// Listeners and connectors of all ranks in one process, over real loopback sockets.
class TcpWorld {
 public:
  explicit TcpWorld(int size, double connect_timeout_s = 20) {
    std::vector<std::string> addresses;
    for (int rank = 0; rank < size; ++rank) {
      listeners_.push_back(std::make_unique<Listener>("127.0.0.1"));
      addresses.push_back(listeners_.back()->address());
    }
    for (int rank = 0; rank < size; ++rank) {
      connectors_.push_back(std::make_unique<Connector>(*listeners_[static_cast<std::size_t>(rank)],
                                                        addresses,
                                                        rank,
                                                        JobToken{1, 2, 3},
                                                        1,
                                                        connect_timeout_s));
    }
  }

  int size() const { return static_cast<int>(connectors_.size()); }
  /// For the thread of `rank` alone.
  Connector& connector(int rank) { return *connectors_[static_cast<std::size_t>(rank)]; }
  Listener& listener(int rank) { return *listeners_[static_cast<std::size_t>(rank)]; }
  /// As if the rank had died: whoever connects to it is refused. It must not connect any more.
  void hang_up(int rank) { listeners_[static_cast<std::size_t>(rank)].reset(); }

 private:
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::unique_ptr<Connector>> connectors_;
};

/// From now on, everything that comes is lost.
inline void cut(const Socket& socket) {
  sock_filter drop[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog program{1, drop};
  ASSERT_EQ(setsockopt(socket.fd(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

}  // namespace aiacc
