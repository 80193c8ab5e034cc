#include "csrc/control/tcp/connector.h"

#include <chrono>
#include <utility>

#include "csrc/base/event.h"
#include "csrc/control/tcp/connector_call.h"

namespace aiacc {
namespace {

/// A fresh socket has room for an answer, so this is never needed in full.
constexpr std::chrono::milliseconds kAnswerPatience{100};

}  // namespace

Connector::Connector(Listener& listener,
                     std::vector<std::string> addresses,
                     int rank,
                     JobToken token,
                     std::uint32_t epoch,
                     double connect_timeout_s)
    : addresses_(std::move(addresses)),
      rank_(rank),
      token_(token),
      epoch_(epoch),
      connect_timeout_s_(connect_timeout_s),
      greetings_(listener) {}

std::vector<Socket> Connector::establish(const std::vector<ChannelSpec>& specs, int interrupt) {
  return Call(*this, deadline(), specs, interrupt).run(nullptr);
}

std::vector<Socket> Connector::establish_in_unit(const std::vector<ChannelSpec>& specs,
                                                 int interrupt,
                                                 WaitMark* mark) {
  return Call(*this, Clock::time_point::max(), specs, interrupt).run(mark);
}

void Connector::establish_on_demand(ChannelKind kind, Event& more, OnDemand& owner, int interrupt) {
  Call(*this, Clock::time_point::max(), {}, interrupt).run(kind, more, owner);
}

void Connector::wake_calls() {
  for (Call* call : calls_) {
    call->wake();
  }
}

/// Why it is refused, or "".
std::string Connector::verify(const Hello& hello, Socket socket) {
  const Key key{static_cast<int>(hello.from),
                static_cast<ChannelKind>(hello.kind),
                hello.lane,
                hello.split_id};
  const std::lock_guard lock(mutex_);
  std::uint8_t answer = kWelcome;
  if (hello.version != Hello::kVersion) {
    answer = kWrongVersion;
  } else if (hello.token != token_) {
    answer = kWrongToken;
  } else if (hello.epoch != epoch_) {
    answer = kWrongEpoch;
  } else if (hello.to != static_cast<std::uint32_t>(rank_) ||
             hello.from >= static_cast<std::uint32_t>(size())) {
    answer = kWrongRank;
  } else if (hello.kind == static_cast<std::uint8_t>(ChannelKind::kProbe)) {
    return "";
  } else if (waiting_.count(key) != 0) {
    answer = kDuplicate;
  } else if (std::get<int>(key) > rank_ && on_demand_.count(key) != 0) {
    answer = kCrossed;
  }
  socket.send_all(&answer, 1, "a connecting process", Clock::now() + kAnswerPatience);
  if (answer == kWelcome) {
    probes_.erase(static_cast<int>(hello.from));  // It is alive, and its descriptor is this one's.
    waiting_.emplace(key, std::move(socket));
    wake_calls();
  }
  if (answer == kWelcome || answer == kCrossed) {
    return "";
  }
  return "refused a connection that says it is rank " + std::to_string(hello.from) + ": " +
         explain(answer);
}

}  // namespace aiacc
