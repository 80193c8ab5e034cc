#include "csrc/control/shm/memory_link.h"

#include <algorithm>
#include <cstring>

namespace aiacc {

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

Patience::Patience(double seconds, int interrupt)
    : seconds_(seconds),
      until_(Clock::now() + std::chrono::microseconds(static_cast<long long>(seconds * 1e6))),
      interrupt_(interrupt) {}

bool Patience::sleep(std::vector<pollfd> entries, std::chrono::milliseconds nap) const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until_ - Clock::now());
  const auto most = std::clamp(left, std::chrono::milliseconds(0), nap);
  entries.push_back({interrupt_, POLLIN, 0});
  if (poll_until(entries.data(), entries.size(), Clock::now() + most) > 0 &&
      entries.back().revents != 0) {
    throw Error(Code::kShutdown, "[shm] a rank stopped waiting for the memory of its host");
  }
  return left.count() > 0;
}

void MemoryLink::send(const Status& message, Clock::time_point deadline) {
  const std::string text = message.message().substr(0, kMostBytes);
  const Header header{static_cast<std::uint32_t>(message.code()),
                      static_cast<std::uint32_t>(text.size())};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += text;
  socket_.send_all(bytes.data(), bytes.size(), rank_name(rank_), deadline);
}

std::optional<Status> MemoryLink::receive() {
  Header header{};
  if (!read_up_to(sizeof header)) {
    return {};
  }
  std::memcpy(&header, got_.data(), sizeof header);
  if (header.code > static_cast<std::uint32_t>(Code::kNotFinite) || header.bytes > kMostBytes) {
    throw Error(Code::kInternal,
                "[shm] " + rank_name(rank_) + " sent a report of code " +
                    std::to_string(header.code) + " and " + std::to_string(header.bytes) +
                    " bytes (expected at most " + std::to_string(kMostBytes) +
                    "); this is a bug in aiacc, please report it");
  }
  if (!read_up_to(sizeof header + header.bytes)) {
    return {};
  }
  Status message(static_cast<Code>(header.code), got_.substr(sizeof header));
  got_.clear();
  return message;
}

/// Whether so many bytes of a message are there.
bool MemoryLink::read_up_to(std::size_t bytes) {
  const std::size_t before = got_.size();
  got_.resize(std::max(bytes, before));
  const std::size_t more =
      socket_.recv_some(got_.data() + before, got_.size() - before, rank_name(rank_));
  got_.resize(before + more);
  return got_.size() >= bytes;
}

}  // namespace aiacc
