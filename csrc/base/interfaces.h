#pragma once

#include <string>
#include <vector>

namespace aiacc {

/// An address of this host.
struct InterfaceAddress {
  std::string interface;
  std::string address;  ///< IPv4 or IPv6, without the scope of a link-local one
  int prefix_bits = 0;
  bool running = false;  ///< the interface is up and has a carrier
};

/// All addresses of all interfaces, in the kernel's order. Throws Error(kInternal).
std::vector<InterfaceAddress> interface_addresses();

}  // namespace aiacc
