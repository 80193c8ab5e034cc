#include "csrc/control/tcp/connector_call.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

/// How often a rank that does not connect is looked after, and how long one probe may take.
constexpr std::chrono::milliseconds kProbeEvery{1000};
constexpr std::chrono::milliseconds kProbePatience{100};

/// How long one attempt to connect may take before this rank looks at its own listener again,
/// behind which others may queue, and how soon a connection that was closed unanswered is opened
/// again.
constexpr std::chrono::seconds kAttempt{3};
constexpr std::chrono::milliseconds kReopenAfter{20};

/// How long the first attempt may take where others must not wait for long; each later one may take
/// twice as long as the one before.
constexpr std::chrono::milliseconds kFirstAttempt{200};

constexpr std::chrono::hours kForever{24 * 365};

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

Connector::Call::Call(Connector& connector,
                      Clock::time_point limit,
                      std::vector<ChannelSpec> specs,
                      int interrupt)
    : connector_(connector),
      own_name_(rank_name(connector.rank_)),
      limit_(limit),
      specs_(std::move(specs)),
      interrupt_(interrupt),
      outgoing_(specs_.size()) {
  for (Outgoing& outgoing : outgoing_) {
    outgoing.reached_by = connector_.deadline();
    outgoing.attempt = kAttempt;
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

/// Two ranks have one connection, whoever opens it: none is opened where one waits to be taken, and
/// of two that cross the lower rank's is that of both.
void Connector::Call::run(ChannelKind kind, Event& more, OnDemand& owner) {
  std::vector<pollfd> awaited;
  Clock::duration nap{};
  while (true) {
    try {
      sleep(std::move(awaited), nap);
    } catch (const Error& error) {
      if (error.code() != Code::kEngine) {
        throw;
      }
      // No descriptor was left for somebody, who has been told; nobody here waits for them.
      pollfd interrupt{interrupt_, POLLIN, 0};
      poll_until(&interrupt, 1, Clock::now() + kReopenAfter);
    }
    more.clear();
    for (auto& [peer, socket] : take_accepted(kind)) {
      owner.connected(peer, std::move(socket), {});
    }
    want(owner.wanted(), kind);
    awaited = {{more.fd(), POLLIN, 0}};
    nap = connect(awaited, owner);
  }
}

void Connector::Call::want(const std::vector<int>& peers, ChannelKind kind) {
  const std::lock_guard lock(connector_.mutex_);
  for (const int peer : peers) {
    const ChannelSpec spec{peer, kind, 0, true};
    if (connector_.waiting_.count(key_of(spec)) == 0 &&
        connector_.on_demand_.insert(key_of(spec)).second) {
      specs_.push_back(spec);
      Outgoing& outgoing = outgoing_.emplace_back();
      outgoing.reached_by = connector_.deadline();
      outgoing.attempt = kFirstAttempt;
    }
  }
}

/// The same as for specs that were given, but each connection goes to the owner when it is there.
Clock::duration Connector::Call::connect(std::vector<pollfd>& awaited, OnDemand& owner) {
  Clock::duration nap = kForever;
  const auto turn = Clock::now() + kFirstAttempt / 2;
  for (std::size_t i = specs_.size(); i-- > 0;) {
    const int peer = specs_[i].peer;
    Outgoing& outgoing = outgoing_[i];
    try {
      if (!advance(specs_[i], outgoing)) {
        if (Clock::now() >= turn) {  // The others have theirs before it is tried again.
          std::rotate(specs_.begin(), specs_.begin() + i, specs_.begin() + i + 1);
          std::rotate(outgoing_.begin(), outgoing_.begin() + i, outgoing_.begin() + i + 1);
          return Clock::duration::zero();
        }
        awaited.push_back({outgoing.socket.fd(), POLLIN, 0});
        nap = outgoing.socket.valid() ? nap : kReopenAfter;
        continue;
      }
      if (outgoing.answer != kCrossed) {
        expect_welcome(peer, outgoing.answer);
        owner.connected(peer, std::move(outgoing.socket), {});
      }
    } catch (const Error& error) {
      if (error.code() == Code::kShutdown) {
        throw;
      }
      owner.connected(peer, {}, error.status());
    }
    specs_.erase(specs_.begin() + i);
    outgoing_.erase(outgoing_.begin() + i);
  }
  return nap;
}

/// Sleeps until one of `own` is readable, or something was accepted that may concern this call.
void Connector::Call::sleep(std::vector<pollfd> own, Clock::duration nap) {
  Greetings& greetings = connector_.greetings_;
  bool accepts = false;
  {
    const std::lock_guard lock(connector_.mutex_);
    accepts = connector_.calls_.front() == this;
  }
  const std::size_t interrupt = own.size();
  own.push_back({interrupt_, POLLIN, 0});
  own.push_back({event_.fd(), POLLIN, 0});
  if (accepts) {
    greetings.watch(own);
    nap = greetings.count() > 0 ? std::min<Clock::duration>(nap, Greetings::kPatience) : nap;
  }
  poll_until(own.data(), own.size(), Clock::now() + nap);
  event_.clear();
  if (own[interrupt].revents != 0) {
    throw Error(Code::kShutdown, "[control] " + own_name_ + " stopped waiting for connections");
  }
  if (accepts) {
    greetings.serve([this](const Hello& hello, Socket socket) {
      return connector_.verify(hello, std::move(socket));
    });
  }
}

/// Goes on with what this rank connects, and returns how long a sleep on `awaited` may be.
Clock::duration Connector::Call::connect(std::vector<pollfd>& awaited) {
  Clock::duration nap = kProbeEvery;
  silent_.clear();
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const ChannelSpec& spec = specs_[i];
    Outgoing& outgoing = outgoing_[i];
    if (spec.connect && advance(spec, outgoing)) {
      expect_welcome(spec.peer, outgoing.answer);
    } else if (spec.connect) {
      awaited.push_back({outgoing.socket.fd(), POLLIN, 0});
      silent_.insert(spec.peer);
      nap = outgoing.socket.valid() ? nap : kReopenAfter;
    }
  }
  return nap;
}

/// Whether the connection has been answered by now. A socket that the peer has closed is closed: it
/// was short of descriptors, or has ended, which opening another one tells.
bool Connector::Call::advance(const ChannelSpec& spec, Outgoing& outgoing) {
  if (outgoing.answer != 0) {
    return true;
  }
  if (!outgoing.socket.valid()) {
    outgoing.socket = open(spec, outgoing.attempt, std::min(limit_, outgoing.reached_by));
    outgoing.attempt = std::min<Clock::duration>(2 * outgoing.attempt, kAttempt);
  }
  if (outgoing.socket.valid()) {
    outgoing.reached_by = connector_.deadline();
    std::uint8_t answer = 0;
    if (!is_unanswered(outgoing.socket, answer) && outgoing.socket.valid()) {
      outgoing.answer = answer;
    }
  }
  return outgoing.answer != 0;
}

/// An invalid socket if an attempt was of no avail, but another one may be.
Socket Connector::Call::open(const ChannelSpec& spec,
                             Clock::duration attempt,
                             Clock::time_point deadline) {
  const std::string peer = rank_name(spec.peer);
  Socket socket;
  try {
    socket =
        connect_to(address_of(spec.peer), std::min(deadline, Clock::now() + attempt), interrupt_);
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
                    Hello::kVersion,
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

void Connector::Call::expect_welcome(int peer, std::uint8_t answer) const {
  if (answer != kWelcome) {
    throw Error(Code::kPeerLost,
                "[control] " + rank_name(peer) + " at " + address_of(peer) + " refused " +
                    own_name_ + ": " + explain(answer));
  }
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
/// One connection to it waits to be accepted meanwhile, and ends with the listener: a busy rank may
/// accept none, and those that it awaits need the room behind it.
void Connector::Call::probe(const std::set<int>& peers) {
  for (const int peer : peers) {
    std::uint8_t answer = 0;
    if (std::lock_guard lock(connector_.mutex_); is_unanswered(connector_.probes_[peer], answer)) {
      continue;
    }
    try {
      Socket probe =
          open({peer, ChannelKind::kProbe}, kProbePatience, Clock::now() + kProbePatience);
      const std::lock_guard lock(connector_.mutex_);
      connector_.probes_[peer] = std::move(probe);
    } catch (const Error& error) {
      if (error.code() == Code::kPeerLost) {
        throw;
      }
    }
  }
}

/// Those that others have opened to this rank on demand, with the ranks.
std::vector<std::pair<int, Socket>> Connector::Call::take_accepted(ChannelKind kind) {
  const std::lock_guard lock(connector_.mutex_);
  std::vector<std::pair<int, Socket>> accepted;
  for (auto next = connector_.waiting_.begin(); next != connector_.waiting_.end();) {
    const auto found = next++;
    if (std::get<ChannelKind>(found->first) == kind) {
      accepted.emplace_back(std::get<int>(found->first), std::move(found->second));
      connector_.waiting_.erase(found);
    }
  }
  return accepted;
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

}  // namespace aiacc
