#include "csrc/base/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <bitset>
#include <cerrno>
#include <cstddef>
#include <memory>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

/// The bytes of an IPv4 or IPv6 address, null for another kind.
const unsigned char* bytes_of(const sockaddr* address) {
  if (address == nullptr) {
    return nullptr;
  }
  switch (address->sa_family) {
    case AF_INET:
      return reinterpret_cast<const unsigned char*>(
          &reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
    case AF_INET6:
      return reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr.s6_addr;
    default:
      return nullptr;
  }
}

int bits_of(const unsigned char* mask, std::size_t bytes) {
  std::size_t bits = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    bits += std::bitset<8>(mask[i]).count();
  }
  return static_cast<int>(bits);
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* head = nullptr;
  if (getifaddrs(&head) != 0) {
    throw system_error(Code::kInternal, "[interfaces] getifaddrs", errno);
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(head, &freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = head; entry != nullptr; entry = entry->ifa_next) {
    const unsigned char* bytes = bytes_of(entry->ifa_addr);
    if (bytes == nullptr) {
      continue;
    }
    const int family = entry->ifa_addr->sa_family;
    const std::size_t length = family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr);
    std::array<char, INET6_ADDRSTRLEN> text{};
    inet_ntop(family, bytes, text.data(), text.size());
    constexpr unsigned kRunning = IFF_UP | IFF_RUNNING;
    const unsigned char* mask = bytes_of(entry->ifa_netmask);
    found.push_back({entry->ifa_name,
                     text.data(),
                     mask != nullptr ? bits_of(mask, length) : static_cast<int>(8 * length),
                     (entry->ifa_flags & kRunning) == kRunning});
  }
  return found;
}

}  // namespace aiacc
