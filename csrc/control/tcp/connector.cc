#include "csrc/control/tcp/connector.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/event.h"

namespace aiacc {
namespace {

constexpr std::uint16_t kVersion = 4;

/// How often a rank that does not connect is looked after, and how long one probe may take.
constexpr std::chrono::milliseconds kProbeEvery{1000};
constexpr std::chrono::milliseconds kProbePatience{100};

/// How long one attempt to connect may take before this rank looks at its own listener again,
/// behind which others may queue, and how soon a connection that was closed unanswered is opened
/// again.
constexpr std::chrono::seconds kAttempt{3};
constexpr std::chrono::milliseconds kReopenAfter{20};

/// A fresh socket has room for an answer, so this is never needed in full.
constexpr std::chrono::milliseconds kAnswerPatience{100};

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

/// Whether a connection is open and nothing has come on it; closes one that has ended.
bool is_unanswered(Socket& socket, std::uint8_t& answer) {
  try {
    return socket.valid() && socket.recv_some(&answer, 1, "the other rank") == 0;
  } catch (const Error&) {
    socket.close();
    return false;
  }
}

}  // namespace

/// A call of `establish`, until it ends.
class Connector::Call {
 public:
  Call(Connector& connector,
       Clock::time_point limit,
       const std::vector<ChannelSpec>& specs,
       int interrupt);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  std::vector<Socket> run(WaitMark* mark);
  /// From other calls, with the lock held.
  void wake() { event_.set(); }

 private:
  /// A connection that this rank opens.
  struct Outgoing {
    Socket socket;
    bool answered = false;
    Clock::time_point reached_by;  ///< when the other's host must have taken it, at the latest
  };

  void sleep(std::vector<pollfd> own, Clock::duration nap);
  Clock::duration connect(std::vector<pollfd>& awaited);
  Socket open(const ChannelSpec& spec, Clock::time_point deadline);
  bool read_answer(int peer, Socket& socket) const;
  std::set<int> missing_peers() const;
  void probe(const std::set<int>& peers);
  std::vector<Socket> take_sockets();
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
  const std::vector<ChannelSpec>& specs_;
  const int interrupt_;
  std::vector<Outgoing> outgoing_;  ///< by spec
  std::set<int> silent_;            ///< ranks whose answer has not come
  Event event_;
};

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

void Connector::wake_calls() {
  for (Call* call : calls_) {
    call->wake();
  }
}

Connector::Call::Call(Connector& connector,
                      Clock::time_point limit,
                      const std::vector<ChannelSpec>& specs,
                      int interrupt)
    : connector_(connector),
      own_name_(rank_name(connector.rank_)),
      limit_(limit),
      specs_(specs),
      interrupt_(interrupt),
      outgoing_(specs.size()) {
  for (Outgoing& outgoing : outgoing_) {
    outgoing.reached_by = connector_.deadline();
  }
  const std::lock_guard lock(connector_.mutex_);
  connector_.calls_.push_back(this);
}

Connector::Call::~Call() {
  const std::lock_guard lock(connector_.mutex_);
  auto& calls = connector_.calls_;
  calls.erase(std::find(calls.begin(), calls.end(), this));
  connector_.wake_calls();  // Another one may be the first now.
  if (calls.empty()) {
    connector_.greetings_.clear();  // Nobody would look whose patience ends.
    connector_.probes_.clear();
  }
}

/// Connecting needs only room in the peer's backlog, not its attention, so no order of ranks can
/// deadlock, and an address has a deadline even where the rank behind it has none. Strangers that
/// came while nobody looked must not take that room.
std::vector<Socket> Connector::Call::run(WaitMark* mark) {
  sleep({}, Clock::duration::zero());
  auto since = Clock::now();
  auto next_probe = since + kProbeEvery;
  std::size_t fewest = specs_.size();
  while (true) {
    std::vector<pollfd> awaited;
    const auto nap = connect(awaited);
    const std::set<int> missing = missing_peers();
    const std::size_t left = missing.size() + silent_.size();
    if (mark != nullptr && left < fewest) {
      mark->moves();
      since = Clock::now();
      fewest = left;
    }
    if (left == 0) {
      return take_sockets();
    }
    const auto rest = limit_ - Clock::now();
    if (rest <= Clock::duration::zero()) {
      throw_timeout(missing);
    }
    sleep(std::move(awaited), std::min(rest, nap));
    if (mark != nullptr) {
      mark->sleeps(since, missing.empty() ? *silent_.begin() : *missing.begin());
    }
    if (Clock::now() >= next_probe) {
      probe(missing_peers());
      next_probe = Clock::now() + kProbeEvery;
    }
  }
}

/// Sleeps until one of `own` is readable, or something was accepted that may concern this call.
void Connector::Call::sleep(std::vector<pollfd> own, Clock::duration nap) {
  bool accepts = false;
  {
    const std::lock_guard lock(connector_.mutex_);
    accepts = connector_.calls_.front() == this;
  }
  const std::size_t interrupt = own.size();
  own.push_back({interrupt_, POLLIN, 0});
  own.push_back({event_.fd(), POLLIN, 0});
  if (accepts) {
    connector_.greetings_.watch(own);
  }
  poll_until(own.data(), own.size(), Clock::now() + nap);
  event_.clear();
  if (accepts) {
    connector_.greetings_.serve([this](const Hello& hello, Socket socket) {
      return connector_.verify(hello, std::move(socket));
    });
  }
  if (own[interrupt].revents != 0) {
    throw Error(Code::kShutdown, "[control] " + own_name_ + " stopped waiting for connections");
  }
}

/// Goes on with what this rank connects, and returns how long a sleep on `awaited` may be.
Clock::duration Connector::Call::connect(std::vector<pollfd>& awaited) {
  Clock::duration nap = kProbeEvery;
  silent_.clear();
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const ChannelSpec& spec = specs_[i];
    Outgoing& outgoing = outgoing_[i];
    if (!spec.connect || outgoing.answered) {
      continue;
    }
    if (!outgoing.socket.valid()) {
      outgoing.socket = open(spec, std::min(limit_, outgoing.reached_by));
    }
    if (outgoing.socket.valid()) {
      outgoing.answered = read_answer(spec.peer, outgoing.socket);
      outgoing.reached_by = connector_.deadline();
    }
    if (!outgoing.answered) {
      awaited.push_back({outgoing.socket.fd(), POLLIN, 0});
      silent_.insert(spec.peer);
      nap = outgoing.socket.valid() ? nap : kReopenAfter;
    }
  }
  return nap;
}

/// An invalid socket if an attempt was of no avail, but another one may be.
Socket Connector::Call::open(const ChannelSpec& spec, Clock::time_point deadline) {
  const std::string peer = rank_name(spec.peer);
  Socket socket;
  try {
    const auto attempt = std::min(deadline, Clock::now() + kAttempt);
    socket = connect_to(address_of(spec.peer), attempt, interrupt_);
  } catch (const Error& error) {
    switch (error.code()) {
      case Code::kTimeout:
        if (Clock::now() + kReopenAfter < deadline) {
          return {};
        }
        [[fallthrough]];
      case Code::kEngine:
        throw Error(
            error.code(),
            "[control] " + own_name_ + " is not connected to " + peer + ": " + error.what());
      case Code::kPeerLost:
        throw Error(Code::kPeerLost,
                    "[control] " + peer + " has died or given up before it was connected to " +
                        own_name_ + "; look for its error (" + error.what() + ")");
      default:
        throw;
    }
  }
  const Hello hello{Hello::kMagic,
                    kVersion,
                    spec.lane,
                    connector_.epoch_,
                    static_cast<std::uint32_t>(connector_.rank_),
                    static_cast<std::uint32_t>(spec.peer),
                    spec.split_id,
                    static_cast<std::uint8_t>(spec.kind),
                    {},
                    connector_.token_};
  try {
    socket.send_all(&hello, sizeof hello, peer, deadline);
  } catch (const Error& error) {
    if (error.code() != Code::kPeerLost) {
      throw;
    }
    return {};
  }
  return socket;
}

/// Whether the answer to the hello has come; throws if it is a refusal. A socket that the peer has
/// closed is closed: it was short of descriptors, or has ended, which opening another one tells.
bool Connector::Call::read_answer(int peer, Socket& socket) const {
  std::uint8_t answer = 0;
  if (is_unanswered(socket, answer) || !socket.valid()) {
    return false;
  }
  if (answer != kWelcome) {
    throw Error(Code::kPeerLost,
                "[control] " + rank_name(peer) + " at " + address_of(peer) + " refused " +
                    own_name_ + ": " + explain(answer));
  }
  return true;
}

/// Those that have not connected as this call wants it.
std::set<int> Connector::Call::missing_peers() const {
  const std::lock_guard lock(connector_.mutex_);
  std::set<int> missing;
  for (const ChannelSpec& spec : specs_) {
    if (!spec.connect && connector_.waiting_.count(key_of(spec)) == 0) {
      missing.insert(spec.peer);
    }
  }
  return missing;
}

/// Nothing tells that a rank which has not connected yet has died, save that its listener is gone.
/// One connection to it waits to be accepted meanwhile, and ends with the listener: a busy rank
/// accepts none, and those that it awaits need the room behind it.
void Connector::Call::probe(const std::set<int>& peers) {
  for (const int peer : peers) {
    std::uint8_t answer = 0;
    if (std::lock_guard lock(connector_.mutex_); is_unanswered(connector_.probes_[peer], answer)) {
      continue;
    }
    try {
      Socket probe = open({peer, ChannelKind::kProbe}, Clock::now() + kProbePatience);
      const std::lock_guard lock(connector_.mutex_);
      connector_.probes_[peer] = std::move(probe);
    } catch (const Error& error) {
      if (error.code() == Code::kPeerLost) {
        throw;
      }
    }
  }
}

/// All of them, when they are there.
std::vector<Socket> Connector::Call::take_sockets() {
  const std::lock_guard lock(connector_.mutex_);
  std::vector<Socket> sockets;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const ChannelSpec& spec = specs_[i];
    sockets.push_back(spec.connect ? std::move(outgoing_[i].socket)
                                   : std::move(connector_.waiting_.extract(key_of(spec)).mapped()));
    sockets.back().set_options();
  }
  return sockets;
}

void Connector::Call::throw_timeout(const std::set<int>& missing) const {
  if (missing.empty()) {
    const int peer = *silent_.begin();
    throw Error(Code::kTimeout,
                "[control] " + own_name_ + " connected to " + rank_name(peer) + " at " +
                    address_of(peer) + " but got no answer in time; is that rank alive?");
  }
  std::string names;
  for (const int peer : missing) {
    names += (names.empty() ? "" : ", ") + std::to_string(peer);
  }
  throw Error(Code::kTimeout,
              "[control] " + own_name_ + " at " + address_of(connector_.rank_) + " waited " +
                  std::to_string(connector_.connect_timeout_s_) +
                  " s for connections from rank(s) " + names +
                  "; are they running, and can they reach this address? (AIACC_IFACE, " +
                  "AIACC_CONNECT_TIMEOUT_S)");
}

/// Why it is refused, or "".
std::string Connector::verify(const Hello& hello, Socket socket) {
  const Key key{static_cast<int>(hello.from),
                static_cast<ChannelKind>(hello.kind),
                hello.lane,
                hello.split_id};
  const std::lock_guard lock(mutex_);
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
  } else if (hello.kind == static_cast<std::uint8_t>(ChannelKind::kProbe)) {
    return "";
  } else if (waiting_.count(key) != 0) {
    answer = kDuplicate;
  }
  socket.send_all(&answer, 1, "a connecting process", Clock::now() + kAnswerPatience);
  if (answer == kWelcome) {
    probes_.erase(static_cast<int>(hello.from));  // It is alive, and its descriptor is this one's.
    waiting_.emplace(key, std::move(socket));
    wake_calls();
    return "";
  }
  return "refused a connection that says it is rank " + std::to_string(hello.from) + ": " +
         explain(answer);
}

}  // namespace aiacc
