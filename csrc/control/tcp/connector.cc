#include "csrc/control/tcp/connector.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/log.h"

namespace aiacc {
namespace {

constexpr std::uint32_t kMagic = 0x43414941;  // "AIAC"
constexpr std::uint16_t kVersion = 1;

/// One byte answers a hello.
enum Answer : std::uint8_t {
  kWelcome = 1,
  kWrongVersion = 2,
  kWrongToken = 3,
  kWrongEpoch = 4,
  kWrongRank = 5,
  kDuplicate = 6,
};

std::string explain(std::uint8_t answer) {
  switch (answer) {
    case kWrongVersion:
      return "it runs another aiacc version; install the same one everywhere";
    case kWrongToken:
      return "job token mismatch; two jobs share an address, or AIACC_TOKEN differs";
    case kWrongEpoch:
      return "it is in another init/shutdown cycle; call init the same number of times everywhere";
    case kWrongRank:
      return "it has another rank than its address says; check AIACC_RANK and AIACC_ADDR";
    case kDuplicate:
      return "this rank is already connected; two processes have the same rank";
    default:
      return "it does not speak aiacc's protocol";
  }
}

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

Connector::Connector(Listener& listener,
                     std::vector<std::string> addresses,
                     int rank,
                     JobToken token,
                     std::uint32_t epoch,
                     double connect_timeout_s,
                     double peer_timeout_s)
    : listener_(listener),
      addresses_(std::move(addresses)),
      rank_(rank),
      token_(token),
      epoch_(epoch),
      connect_timeout_s_(connect_timeout_s),
      peer_timeout_s_(peer_timeout_s) {}

std::vector<Socket> Connector::establish(const std::vector<ChannelSpec>& specs) {
  const auto deadline =
      Clock::now() + std::chrono::microseconds(static_cast<long long>(connect_timeout_s_ * 1e6));
  std::vector<Socket> sockets(specs.size());
  // Connecting needs only the peer's backlog, not its attention: no order of ranks can deadlock.
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].connect) {
      sockets[i] = open(specs[i], deadline);
    }
  }
  accept_until_complete(specs, deadline);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const ChannelSpec& spec = specs[i];
    if (spec.connect) {
      await_answer(spec, sockets[i], deadline);
    } else {
      sockets[i] = std::move(waiting_.extract({spec.peer, spec.kind, spec.lane}).mapped());
    }
    sockets[i].set_options(peer_timeout_s_);
  }
  return sockets;
}

Socket Connector::open(const ChannelSpec& spec, Clock::time_point deadline) {
  Socket socket = connect_to(addresses_.at(static_cast<std::size_t>(spec.peer)), deadline);
  Hello hello{};
  hello.magic = kMagic;
  hello.version = kVersion;
  hello.lane = spec.lane;
  hello.epoch = epoch_;
  hello.from = static_cast<std::uint32_t>(rank_);
  hello.to = static_cast<std::uint32_t>(spec.peer);
  hello.kind = static_cast<std::uint8_t>(spec.kind);
  hello.token = token_;
  // 40 bytes always fit into a fresh socket's buffer.
  AIACC_CHECK(socket.send_some(&hello, sizeof hello, rank_name(spec.peer)) == sizeof hello);
  return socket;
}

void Connector::await_answer(const ChannelSpec& spec, Socket& socket, Clock::time_point deadline) {
  std::uint8_t answer = 0;
  while (socket.recv_some(&answer, 1, rank_name(spec.peer)) == 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      throw Error(Code::kTimeout,
                  "[control] rank " + std::to_string(rank_) + " connected to rank " +
                      std::to_string(spec.peer) + " at " +
                      addresses_[static_cast<std::size_t>(spec.peer)] +
                      " but got no answer in time; is that rank alive?");
    }
    // Others may be waiting for our answer meanwhile: serve them instead of only sleeping.
    pollfd entry{socket.fd(), POLLIN, 0};
    poll(&entry, 1, static_cast<int>(std::min<long long>(left, 20)));
    accept_some(0);
  }
  if (answer != kWelcome) {
    throw Error(Code::kPeerLost,
                "[control] rank " + std::to_string(spec.peer) + " at " +
                    addresses_[static_cast<std::size_t>(spec.peer)] + " refused rank " +
                    std::to_string(rank_) + ": " + explain(answer));
  }
}

void Connector::accept_until_complete(const std::vector<ChannelSpec>& specs,
                                      Clock::time_point deadline) {
  while (true) {
    std::set<int> missing;
    for (const ChannelSpec& spec : specs) {
      if (!spec.connect && waiting_.count({spec.peer, spec.kind, spec.lane}) == 0) {
        missing.insert(spec.peer);
      }
    }
    if (missing.empty()) {
      return;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      std::string names;
      for (const int peer : missing) {
        names += (names.empty() ? "" : ", ") + std::to_string(peer);
      }
      throw Error(Code::kTimeout,
                  "[control] rank " + std::to_string(rank_) + " at " + listener_.address() +
                      " waited " + std::to_string(connect_timeout_s_) +
                      " s for connections from rank(s) " + names +
                      "; are they running, and can they reach this address? (AIACC_IFACE, " +
                      "AIACC_CONNECT_TIMEOUT_S)");
    }
    accept_some(static_cast<int>(std::min<long long>(left, 60'000)));
  }
}

void Connector::accept_some(int timeout_ms) {
  std::vector<pollfd> entries{{listener_.fd(), POLLIN, 0}};
  for (const Greeting& greeting : greetings_) {
    entries.push_back({greeting.socket.fd(), POLLIN, 0});
  }
  if (poll(entries.data(), entries.size(), timeout_ms) <= 0) {
    return;
  }
  for (Socket socket = listener_.accept(); socket.valid(); socket = listener_.accept()) {
    greetings_.push_back({std::move(socket), {}, 0});
  }
  greetings_.erase(std::remove_if(greetings_.begin(),
                                  greetings_.end(),
                                  [this](Greeting& greeting) { return advance(greeting); }),
                   greetings_.end());
}

/// Reads what is there; true when this greeting is over, one way or the other.
bool Connector::advance(Greeting& greeting) {
  try {
    greeting.got += greeting.socket.recv_some(greeting.bytes.data() + greeting.got,
                                              greeting.bytes.size() - greeting.got,
                                              "a connecting process");
    std::uint32_t magic = 0;
    std::memcpy(&magic, greeting.bytes.data(), sizeof magic);
    if (greeting.got >= sizeof magic && magic != kMagic) {
      AIACC_LOG(kWarning) << "[control] a stranger connected to " << listener_.address()
                          << " and was turned away";
      return true;
    }
    if (greeting.got < greeting.bytes.size()) {
      return false;
    }
    verify(greeting);
  } catch (const Error& error) {
    AIACC_LOG(kWarning) << "[control] a connection to " << listener_.address()
                        << " ended before its hello: " << error.what();
  }
  return true;
}

void Connector::verify(Greeting& greeting) {
  Hello hello{};
  std::memcpy(&hello, greeting.bytes.data(), sizeof hello);
  const Key key{static_cast<int>(hello.from), static_cast<ChannelKind>(hello.kind), hello.lane};
  std::uint8_t answer = kWelcome;
  if (hello.version != kVersion) {
    answer = kWrongVersion;
  } else if (hello.token != token_) {
    answer = kWrongToken;
  } else if (hello.epoch != epoch_) {
    answer = kWrongEpoch;
  } else if (hello.to != static_cast<std::uint32_t>(rank_) ||
             hello.from >= static_cast<std::uint32_t>(size())) {
    answer = kWrongRank;
  } else if (waiting_.count(key) != 0) {
    answer = kDuplicate;
  }
  greeting.socket.send_some(&answer, 1, "a connecting process");
  if (answer == kWelcome) {
    waiting_.emplace(key, std::move(greeting.socket));
    return;
  }
  AIACC_LOG(kWarning) << "[control] rank " << rank_ << " refused a connection that says it is rank "
                      << hello.from << ": " << explain(answer);
}

}  // namespace aiacc
