#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "csrc/base/socket.h"

namespace aiacc {

/// Secret shared by the ranks of one job, drawn by rank 0 for every epoch.
using JobToken = std::array<std::uint8_t, 16>;

/// What a connection is for. Part of the wire format.
enum class ChannelKind : std::uint8_t { kControl = 1, kRing = 2, kMesh = 3 };

/// One wanted connection: `connect` is true on exactly one of its two ends.
struct ChannelSpec {
  int peer = 0;
  ChannelKind kind = ChannelKind::kControl;
  std::uint16_t lane = 0;
  bool connect = false;
};

/// First bytes on every connection, little endian, sent by the side that connects.
struct Hello {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t lane;
  std::uint32_t epoch;
  std::uint32_t from;
  std::uint32_t to;
  std::uint8_t kind;
  std::uint8_t reserved[3];
  JobToken token;
};
static_assert(sizeof(Hello) == 40, "Hello is a wire format");

/// Opens authenticated connections between the ranks of one job and epoch.
///
/// Every rank calls `establish` with specs that fit together. A connection opens with a hello
/// (magic, version, token, epoch, ranks, kind, lane) that the accepting side verifies and answers;
/// strangers, stale epochs and wrong tokens are refused and do not disturb the job.
/// Threads: one caller at a time. Blocks: until all are there or the deadline, then throws
/// Error(kTimeout) that names the missing ranks.
class Connector {
 public:
  Connector(Listener& listener,
            std::vector<std::string> addresses,
            int rank,
            JobToken token,
            std::uint32_t epoch,
            double connect_timeout_s,
            double peer_timeout_s);

  /// Sockets in the order of `specs`, options set.
  std::vector<Socket> establish(const std::vector<ChannelSpec>& specs);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(addresses_.size()); }

 private:
  using Key = std::tuple<int, ChannelKind, std::uint16_t>;
  /// An accepted connection that has not finished its hello.
  struct Greeting {
    Socket socket;
    std::array<std::uint8_t, sizeof(Hello)> bytes{};
    std::size_t got = 0;
  };

  Socket open(const ChannelSpec& spec, Clock::time_point deadline);
  void await_answer(const ChannelSpec& spec, Socket& socket, Clock::time_point deadline);
  void accept_until_complete(const std::vector<ChannelSpec>& specs, Clock::time_point deadline);
  void accept_some(int timeout_ms);
  bool advance(Greeting& greeting);
  void verify(Greeting& greeting);

  Listener& listener_;
  std::vector<std::string> addresses_;
  int rank_;
  JobToken token_;
  std::uint32_t epoch_;
  double connect_timeout_s_;
  double peer_timeout_s_;
  std::vector<Greeting> greetings_;
  std::map<Key, Socket> waiting_;  ///< accepted and verified before they were asked for
};

}  // namespace aiacc
