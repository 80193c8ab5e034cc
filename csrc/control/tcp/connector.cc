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

constexpr std::uint16_t kVersion = 2;

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
    case kNoDescriptors:
      return "it has as many files and sockets open as it may; raise its limit (ulimit -n)";
    default:
      return "it does not speak aiacc's protocol";
  }
}

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

/// A connection that this rank opens.
struct Connector::Outgoing {
  Socket socket;
  bool answered = false;
  Clock::time_point reached_by;  ///< when the other's host must have taken it, at the latest
};

/// How far a call of `establish` has come.
struct Connector::Call {
  const std::vector<ChannelSpec>& specs;
  std::vector<Outgoing> outgoing;  ///< by spec
  std::set<int> silent;            ///< ranks whose answer has not come
};

/// A call of `establish` that waits. One of them is the leader, who accepts for all; when it
/// leaves, the others compete for its place.
class Connector::Waiter {
 public:
  explicit Waiter(Connector& connector) : connector_(connector) {
    const std::lock_guard lock(connector_.mutex_);
    connector_.waiters_.push_back(this);
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  ~Waiter() {
    const std::lock_guard lock(connector_.mutex_);
    auto& waiters = connector_.waiters_;
    waiters.erase(std::find(waiters.begin(), waiters.end(), this));
    if (connector_.leader_ == this) {
      connector_.leader_ = nullptr;
      connector_.wake_waiters();
    }
    if (waiters.empty()) {
      connector_.greetings_.clear();  // Nobody would look whose patience ends.
      connector_.probes_.clear();
    }
  }

  /// From other waiters, with the lock held.
  void wake() { event_.set(); }

  /// Sleeps until one of `own` is readable, or something was accepted that may concern this waiter.
  void sleep(std::vector<pollfd> own, int timeout_ms) {
    bool leads = false;
    {
      const std::lock_guard lock(connector_.mutex_);
      if (connector_.leader_ == nullptr) {
        connector_.leader_ = this;
      }
      leads = connector_.leader_ == this;
    }
    own.push_back({event_.fd(), POLLIN, 0});
    if (leads) {
      connector_.greetings_.watch(own);
    }
    poll(own.data(), own.size(), timeout_ms);
    event_.clear();
    if (leads) {
      connector_.greetings_.serve([this](const Hello& hello, Socket socket) {
        return connector_.verify(hello, std::move(socket));
      });
    }
  }

 private:
  Connector& connector_;
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

Connector::Key Connector::key_of(const ChannelSpec& spec) {
  return {spec.peer, spec.kind, spec.lane, spec.split_id};
}

void Connector::wake_waiters() {
  for (Waiter* waiter : waiters_) {
    waiter->wake();
  }
}

/// Of whatever begins now.
Clock::time_point Connector::deadline() const {
  return Clock::now() + std::chrono::microseconds(static_cast<long long>(connect_timeout_s_ * 1e6));
}

std::vector<Socket> Connector::establish(const std::vector<ChannelSpec>& specs, int interrupt) {
  return establish_by(deadline(), specs, interrupt, nullptr);
}

std::vector<Socket> Connector::establish_in_unit(const std::vector<ChannelSpec>& specs,
                                                 int interrupt,
                                                 WaitMark* mark) {
  return establish_by(Clock::time_point::max(), specs, interrupt, mark);
}

std::vector<Socket> Connector::establish_by(Clock::time_point limit,
                                            const std::vector<ChannelSpec>& specs,
                                            int interrupt,
                                            WaitMark* mark) {
  // Connecting needs only room in the peer's backlog, not its attention, so no order of ranks can
  // deadlock, and an address has a deadline even where the rank behind it has none. Strangers that
  // came while nobody looked must not take that room.
  Call call{specs, std::vector<Outgoing>(specs.size()), {}};
  for (Outgoing& outgoing : call.outgoing) {
    outgoing.reached_by = deadline();
  }
  Waiter waiter(*this);
  waiter.sleep({}, 0);
  auto next_probe = Clock::now() + kProbeEvery;
  auto since = Clock::now();
  std::size_t fewest = specs.size();
  while (true) {
    std::vector<pollfd> awaited{{interrupt, POLLIN, 0}};
    const auto nap = connect(call, limit, interrupt, awaited);
    const std::set<int> missing = missing_peers(specs);
    const std::size_t left = missing.size() + call.silent.size();
    if (mark != nullptr && left < fewest) {
      mark->moves();
      since = Clock::now();
      fewest = left;
    }
    if (left == 0) {
      break;
    }
    const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now());
    if (rest.count() <= 0) {
      throw_timeout(missing, call.silent);
    }
    waiter.sleep(std::move(awaited), static_cast<int>(std::min(rest, nap).count()));
    pollfd entry{interrupt, POLLIN, 0};
    if (poll(&entry, 1, 0) > 0) {
      throw Error(Code::kShutdown,
                  "[control] rank " + std::to_string(rank_) + " stopped waiting for connections");
    }
    if (mark != nullptr) {
      mark->sleeps(since, missing.empty() ? *call.silent.begin() : *missing.begin());
    }
    if (Clock::now() >= next_probe) {
      probe(missing_peers(specs), interrupt);
      next_probe = Clock::now() + kProbeEvery;
    }
  }
  return sockets_of(call);
}

/// Goes on with what this rank connects, and returns how long a sleep on `awaited` may be.
std::chrono::milliseconds Connector::connect(Call& call,
                                             Clock::time_point limit,
                                             int interrupt,
                                             std::vector<pollfd>& awaited) {
  auto nap = kProbeEvery;
  call.silent.clear();
  for (std::size_t i = 0; i < call.specs.size(); ++i) {
    const ChannelSpec& spec = call.specs[i];
    Outgoing& outgoing = call.outgoing[i];
    if (!spec.connect || outgoing.answered) {
      continue;
    }
    if (!outgoing.socket.valid()) {
      outgoing.socket = open(spec, std::min(limit, outgoing.reached_by), interrupt);
    }
    if (outgoing.socket.valid()) {
      outgoing.answered = read_answer(spec.peer, outgoing.socket);
      outgoing.reached_by = deadline();
    }
    if (!outgoing.answered) {
      awaited.push_back({outgoing.socket.fd(), POLLIN, 0});
      call.silent.insert(spec.peer);
      nap = outgoing.socket.valid() ? nap : kReopenAfter;
    }
  }
  return nap;
}

/// An invalid socket if an attempt was of no avail, but another one may be.
Socket Connector::open(const ChannelSpec& spec, Clock::time_point deadline, int interrupt) {
  Socket socket;
  try {
    socket = connect_to(addresses_.at(static_cast<std::size_t>(spec.peer)),
                        std::min(deadline, Clock::now() + kAttempt),
                        interrupt);
  } catch (const Error& error) {
    if (error.code() == Code::kTimeout && Clock::now() + kReopenAfter < deadline) {
      return {};
    }
    if (error.code() == Code::kTimeout || error.code() == Code::kEngine) {
      throw Error(error.code(),
                  "[control] rank " + std::to_string(rank_) + " is not connected to rank " +
                      std::to_string(spec.peer) + ": " + error.what());
    }
    if (error.code() != Code::kPeerLost) {
      throw;
    }
    throw Error(Code::kPeerLost,
                "[control] rank " + std::to_string(spec.peer) +
                    " has died or given up before it was connected to rank " +
                    std::to_string(rank_) + "; look for its error (" + error.what() + ")");
  }
  Hello hello{};
  hello.magic = Hello::kMagic;
  hello.version = kVersion;
  hello.lane = spec.lane;
  hello.epoch = epoch_;
  hello.from = static_cast<std::uint32_t>(rank_);
  hello.to = static_cast<std::uint32_t>(spec.peer);
  hello.split_id = spec.split_id;
  hello.kind = static_cast<std::uint8_t>(spec.kind);
  hello.token = token_;
  try {
    socket.send_all(&hello, sizeof hello, rank_name(spec.peer), deadline);
  } catch (const Error& error) {
    if (error.code() != Code::kPeerLost) {
      throw;
    }
    return {};
  }
  return socket;
}

/// Nothing tells that a rank which has not connected yet has died, save that its listener is gone.
/// One connection to it waits to be accepted meanwhile, and ends with the listener: a busy rank
/// accepts none, and those that it awaits need the room behind it.
void Connector::probe(const std::set<int>& peers, int interrupt) {
  for (const int peer : peers) {
    if (is_probed(peer)) {
      continue;
    }
    try {
      Socket probe = open({peer, ChannelKind::kProbe}, Clock::now() + kProbePatience, interrupt);
      const std::lock_guard lock(mutex_);
      probes_[peer] = std::move(probe);
    } catch (const Error& error) {
      if (error.code() == Code::kPeerLost) {
        throw;
      }
    }
  }
}

/// Whether a probe of it waits to be accepted.
bool Connector::is_probed(int peer) {
  const std::lock_guard lock(mutex_);
  const auto probe = probes_.find(peer);
  if (probe == probes_.end()) {
    return false;
  }
  try {
    std::uint8_t answer = 0;
    if (probe->second.valid() && probe->second.recv_some(&answer, 1, rank_name(peer)) == 0) {
      return true;
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the next one tells by whom it was ended
  }
  probes_.erase(probe);
  return false;
}

/// Whether the answer to the hello has come; throws if it is a refusal. Closes a socket that the
/// peer closed: it was short of descriptors, or has ended, which opening another one tells.
bool Connector::read_answer(int peer, Socket& socket) const {
  std::uint8_t answer = 0;
  try {
    if (socket.recv_some(&answer, 1, rank_name(peer)) == 0) {
      return false;
    }
  } catch (const Error&) {
    socket.close();
    return false;
  }
  if (answer != kWelcome) {
    throw Error(Code::kPeerLost,
                "[control] rank " + std::to_string(peer) + " at " +
                    addresses_[static_cast<std::size_t>(peer)] + " refused rank " +
                    std::to_string(rank_) + ": " + explain(answer));
  }
  return true;
}

/// Those that have not connected as `specs` want it.
std::set<int> Connector::missing_peers(const std::vector<ChannelSpec>& specs) {
  const std::lock_guard lock(mutex_);
  std::set<int> missing;
  for (const ChannelSpec& spec : specs) {
    if (!spec.connect && waiting_.count(key_of(spec)) == 0) {
      missing.insert(spec.peer);
    }
  }
  return missing;
}

/// All of them, when they are there.
std::vector<Socket> Connector::sockets_of(Call& call) {
  const std::lock_guard lock(mutex_);
  std::vector<Socket> sockets;
  for (std::size_t i = 0; i < call.specs.size(); ++i) {
    const ChannelSpec& spec = call.specs[i];
    sockets.push_back(spec.connect ? std::move(call.outgoing[i].socket)
                                   : std::move(waiting_.extract(key_of(spec)).mapped()));
    sockets.back().set_options();
  }
  return sockets;
}

void Connector::throw_timeout(const std::set<int>& missing, const std::set<int>& silent) const {
  if (missing.empty()) {
    const int peer = *silent.begin();
    throw Error(Code::kTimeout,
                "[control] rank " + std::to_string(rank_) + " connected to rank " +
                    std::to_string(peer) + " at " + addresses_[static_cast<std::size_t>(peer)] +
                    " but got no answer in time; is that rank alive?");
  }
  std::string names;
  for (const int peer : missing) {
    names += (names.empty() ? "" : ", ") + std::to_string(peer);
  }
  throw Error(Code::kTimeout,
              "[control] rank " + std::to_string(rank_) + " at " +
                  addresses_[static_cast<std::size_t>(rank_)] + " waited " +
                  std::to_string(connect_timeout_s_) + " s for connections from rank(s) " + names +
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
    wake_waiters();
    return "";
  }
  return "refused a connection that says it is rank " + std::to_string(hello.from) + ": " +
         explain(answer);
}

}  // namespace aiacc
