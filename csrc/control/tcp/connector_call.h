#pragma once

#include <poll.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/event.h"
#include "csrc/control/tcp/connector.h"

namespace aiacc {

/// A call of `establish`, until it ends.
class Connector::Call {
 public:
  Call(Connector& connector,
       Clock::time_point limit,
       std::vector<ChannelSpec> specs,
       int interrupt);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  std::vector<Socket> run(WaitMark* mark);
  [[noreturn]] void run(ChannelKind kind, Event& more, OnDemand& owner);
  /// From other calls, with the lock held.
  void wake() { event_.set(); }

 private:
  /// A connection that this rank opens.
  struct Outgoing {
    Socket socket;
    std::uint8_t answer = 0;       ///< 0: none yet
    Clock::time_point reached_by;  ///< when the other's host must have taken it, at the latest
    Clock::duration attempt{};     ///< how long the next one to connect may take
  };

  void want(const std::vector<int>& peers, ChannelKind kind);
  Clock::duration connect(std::vector<pollfd>& awaited, OnDemand& owner);
  void sleep(std::vector<pollfd> own, Clock::duration nap);
  Clock::duration connect(std::vector<pollfd>& awaited);
  bool advance(const ChannelSpec& spec, Outgoing& outgoing);
  Socket open(const ChannelSpec& spec, Clock::duration attempt, Clock::time_point deadline);
  void expect_welcome(int peer, std::uint8_t answer) const;
  std::set<int> missing_peers() const;
  void probe(const std::set<int>& peers);
  std::vector<Socket> take_sockets();
  std::vector<std::pair<int, Socket>> take_accepted(ChannelKind kind);
  [[noreturn]] void throw_timeout(const std::set<int>& missing) const;
  const std::string& address_of(int rank) const {
    return connector_.addresses_.at(static_cast<std::size_t>(rank));
  }
  static Key key_of(const ChannelSpec& spec) {
    return {spec.peer, spec.kind, spec.lane, spec.split_id};
  }

  Connector& connector_;
  const std::string own_name_;
  const Clock::time_point limit_;
  std::vector<ChannelSpec> specs_;
  const int interrupt_;
  std::vector<Outgoing> outgoing_;  ///< by spec
  std::set<int> silent_;            ///< ranks whose answer has not come
  Event event_;
};

}  // namespace aiacc
