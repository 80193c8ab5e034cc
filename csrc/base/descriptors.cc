#include "csrc/base/descriptors.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "csrc/base/thread.h"

namespace aiacc {
namespace {

constexpr rlim_t kMostDescriptors = 1 << 20;

/// So many are left for those who have a right to them.
constexpr rlim_t kFew = 32;

rlimit descriptor_limit() noexcept {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

/// By asking for each: /proc/self/fd would need one more.
rlim_t count_descriptors(rlim_t limit) {
  rlim_t count = 0;
  for (rlim_t fd = 0; fd < std::min(limit, kMostDescriptors); ++fd) {
    count += fcntl(static_cast<int>(fd), F_GETFD) >= 0 ? 1 : 0;
  }
  return count;
}

}  // namespace

void raise_descriptor_limit() noexcept {
  rlimit limit = descriptor_limit();
  const rlim_t wanted = std::min(limit.rlim_max, kMostDescriptors);
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

bool is_nearly_last(int fd) noexcept {
  return static_cast<rlim_t>(fd) + kFew >= descriptor_limit().rlim_cur;
}

bool is_exhausted(int error_number) {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOBUFS ||
         error_number == ENOMEM;
}

std::string exhaustion_remedy(int error_number) {
  if (error_number == EMFILE) {
    const rlimit limit = descriptor_limit();
    return this_process() + " has " + std::to_string(count_descriptors(limit.rlim_cur)) +
           " files and sockets open (its limit is " + std::to_string(limit.rlim_cur) +
           ", which it may raise to " + std::to_string(limit.rlim_max) +
           "); raise the limit where the rank starts (ulimit -n), use fewer lanes or process sets, "
           "or do without what connects every two ranks: all-to-alls, and compression in blocks "
           "(int8, int4, fp8)";
  }
  if (error_number == ENFILE) {
    return this_process() +
           " and the others of its host have as many files and sockets open as they may; raise the "
           "limit (sysctl fs.file-max), or run fewer of them";
  }
  if (error_number == ENOBUFS || error_number == ENOMEM) {
    return this_process() +
           ": its host, or the container, has no memory left for another socket; raise the "
           "container's limit of memory or sysctl net.ipv4.tcp_mem, or use fewer lanes";
  }
  return "";
}

void discard_until_closed(const std::vector<int>& sockets, Clock::time_point deadline) noexcept {
  std::vector<char> waste(64 << 10);
  std::vector<pollfd> open;
  open.reserve(sockets.size());
  for (const int socket : sockets) {
    open.push_back({socket, POLLIN, 0});
  }
  const auto is_closed = [&](const pollfd& entry) {
    if (entry.revents == 0) {
      return false;
    }
    const ssize_t bytes = recv(entry.fd, waste.data(), waste.size(), MSG_DONTWAIT);
    return bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR);
  };
  // What is there is dropped even if the deadline has come.
  while (!open.empty() && poll_until(open.data(), open.size(), deadline) > 0) {
    open.erase(std::remove_if(open.begin(), open.end(), is_closed), open.end());
    if (Clock::now() >= deadline) {
      return;
    }
  }
}

}  // namespace aiacc
