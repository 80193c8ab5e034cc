#include "csrc/control/shm/memory_sharing.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/control/shm/memory_room.h"
#include "csrc/control/shm/unix_socket.h"
#include "csrc/control/tcp/control_connection.h"

namespace aiacc {
namespace {

/// Left to the program whose ranks these are: a cgroup that has given its last memory away kills
/// them at their next allocation, where sockets would have done.
constexpr std::size_t kSpareBytes = std::size_t{64} << 20;
/// The others wait longer than the lowest rank by this factor: that rank names the one that is
/// late. Its time begins when all have connected, which may take once as long.
constexpr double kPatience = 2.5;
/// How soon a message that found no room is sent again.
constexpr std::chrono::milliseconds kSendAgainAfter{20};

/// Throws Error(kEngine) if the machine or a cgroup has no room for so much.
void require_room(std::size_t bytes) {
  const MemoryRoom room = memory_room();
  if (bytes + kSpareBytes > room.bytes) {
    throw Error(Code::kEngine,
                "[shm] the ranks of this host are to share " + std::to_string(bytes >> 20) +
                    " MiB of memory, but only " + std::to_string(room.bytes >> 20) +
                    " MiB are left (" + room.limit + "), of which " +
                    std::to_string(kSpareBytes >> 20) +
                    " are the program's own; raise the limit, or lower AIACC_LANES");
  }
}

std::size_t whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return ((bytes - 1) / page + 1) * page;
}

/// A call of `share_memory`. What ranks say to each other is a frame of a round if all is well, or
/// the reason for an end.
class Sharing {
 public:
  Sharing(Connector* connector, const MemorySharing& what);
  HostMemory run() { return own_ == 0 ? give() : take(); }

 private:
  HostMemory give();
  HostMemory make(Socket& descriptor);
  void send_to(std::size_t other, const Socket& descriptor);
  void hear_from(std::size_t others);
  HostMemory take();
  HostMemory fetch(UnixSocket& inbox);
  HostMemory with_own_part(SharedMemory memory, const Socket& descriptor) const;

  void say(std::size_t other, const Frame& message);
  void say(std::size_t other, const Status& status);
  bool hear(std::size_t other);
  void throw_end(std::size_t other) const;
  bool sleep(std::vector<pollfd> entries, Clock::time_point until = Clock::time_point::max()) const;
  Error is_silent() const;
  template <class Step>
  void attempt(Step step) {
    try {
      step();
    } catch (...) {
      outcome_ = outcome_.ok() ? current_exception_status() : outcome_;
    }
  }

  const MemorySharing& what_;
  const std::size_t stride_;  ///< bytes of a part
  const std::size_t total_;
  std::size_t own_ = 0;  ///< index of this rank
  double patience_s_ = 0;
  Clock::time_point until_;
  std::vector<std::unique_ptr<ControlConnection>> others_;  ///< all, or the lowest rank
  std::vector<Bytes> heard_;                                ///< what each of them has said last
  std::vector<std::uint8_t> buffer_ = std::vector<std::uint8_t>(4096);
  Status outcome_;  ///< what has failed first
};

Sharing::Sharing(Connector* connector, const MemorySharing& what)
    : what_(what), stride_(whole_pages(what.bytes)), total_(stride_ * what.ranks.size()) {
  AIACC_CHECK(!what.ranks.empty() && what.bytes > 0);
  std::vector<ChannelSpec> specs;
  if (what.ranks.size() > 1) {
    AIACC_CHECK(connector != nullptr);
    const auto own = std::lower_bound(what.ranks.begin(), what.ranks.end(), connector->rank());
    AIACC_CHECK(own != what.ranks.end() && *own == connector->rank());
    own_ = static_cast<std::size_t>(own - what.ranks.begin());
    for (const int rank : what.ranks) {
      if ((rank == what.ranks[0]) == (own_ > 0)) {
        specs.push_back({rank, ChannelKind::kMemory, 0, own_ > 0, what.split_id});
      }
    }
    std::vector<Socket> sockets = connector->establish(specs, what.interrupt);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      others_.push_back(std::make_unique<ControlConnection>(specs[i].peer, std::move(sockets[i])));
    }
  }
  heard_.resize(others_.size());
  patience_s_ = own_ == 0 ? what.timeout_s : what.timeout_s * kPatience;
  until_ = Clock::now() + duration_of(patience_s_);
}

/// The lowest rank makes the memory, gives it to the others, and says to all what has become of it.
/// It hears what they say before: a connection that is closed with something unread in it might
/// lose what was sent.
HostMemory Sharing::give() {
  HostMemory host;
  Socket descriptor;
  hear_from(others_.size());
  if (outcome_.ok()) {
    attempt([&] { host = make(descriptor); });
  }
  std::size_t given = 0;
  while (outcome_.ok() && given < others_.size()) {
    attempt([&] { send_to(given, descriptor); });
    given += outcome_.ok() ? 1 : 0;
  }
  hear_from(given);
  for (std::size_t other = 0; other < others_.size(); ++other) {
    try {
      say(other, outcome_);
    } catch (const Error&) {
      // It has gone, and does not wait.
    }
  }
  if (!outcome_.ok()) {
    throw Error(outcome_);
  }
  return host;
}

HostMemory Sharing::make(Socket& descriptor) {
  require_room(total_);  // the others take theirs at the same time
  auto made = SharedMemory::create(total_);
  descriptor = std::move(made.second);
  return with_own_part(std::move(made.first), descriptor);
}

void Sharing::send_to(std::size_t other, const Socket& descriptor) {
  const std::string& name = others_[other]->name();
  MemoryRequest request{};
  if (heard_[other].size() != sizeof request) {
    throw Error(Code::kInternal,
                "[shm] " + name + " sent a request of " + std::to_string(heard_[other].size()) +
                    " bytes (expected " + std::to_string(sizeof request) +
                    "); this is a bug in aiacc, please report it");
  }
  std::memcpy(&request, heard_[other].data(), sizeof request);
  request.name[sizeof request.name - 1] = '\0';
  if (request.bytes != total_) {
    throw Error(Code::kEngine,
                "[shm] " + name + " wants " + std::to_string(request.bytes) +
                    " bytes for all ranks (expected " + std::to_string(total_) +
                    "); AIACC_LANES must be equal on all ranks");
  }
  UnixSocket socket;
  int error = EAGAIN;
  while (error == EAGAIN) {
    error = socket.send(request.name, request.secret, sizeof request.secret, descriptor.fd());
    if (error == EAGAIN && !sleep({}, Clock::now() + kSendAgainAfter)) {
      break;
    }
  }
  if (error == ECONNREFUSED) {
    throw Error(Code::kEngine,
                "[shm] the lowest rank of this host finds no Unix socket of " + name +
                    ": do they run in containers with networks of their own? Let the ranks of a "
                    "host share one (docker run --network=host, one pod)");
  }
  if (error != 0) {
    throw system_error(Code::kEngine, "[shm] cannot pass memory to " + name, error);
  }
}

/// Hears the next that so many others say.
void Sharing::hear_from(std::size_t others) {
  std::string missing;
  for (std::size_t other = 0; other < others; ++other) {
    attempt([&] {
      if (!hear(other)) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(others_[other]->rank());
      }
    });
  }
  attempt([&] {
    if (!missing.empty()) {
      throw Error(Code::kTimeout,
                  "[shm] rank " + std::to_string(what_.ranks[0]) + " waited " +
                      std::to_string(patience_s_) + " s for rank(s) " + missing +
                      " to map the memory of their host; are they alive? "
                      "(AIACC_CONNECT_TIMEOUT_S)");
    }
  });
}

/// The others ask for the memory, take their parts, and hear whether all have done so.
HostMemory Sharing::take() {
  HostMemory host;
  std::optional<UnixSocket> inbox;  // until the lowest rank sends nothing more there
  attempt([&] { host = fetch(inbox.emplace()); });
  if (!others_[0]->end()) {
    say(0, outcome_);
    if (!hear(0)) {
      attempt([&] { throw is_silent(); });
    }
  }
  if (!outcome_.ok()) {
    throw Error(outcome_);
  }
  return host;
}

HostMemory Sharing::fetch(UnixSocket& inbox) {
  MemoryRequest request{};
  request.bytes = total_;
  AIACC_CHECK(inbox.name().size() < sizeof request.name);
  inbox.name().copy(request.name, sizeof request.name);
  random_text().copy(request.secret, sizeof request.secret);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&request);
  say(0, {FrameType::kRound, 0, 0, Bytes(bytes, bytes + sizeof request)});
  Socket descriptor;
  char secret[sizeof request.secret] = {};
  while (!descriptor.valid() || std::memcmp(secret, request.secret, sizeof secret) != 0) {
    descriptor.close();
    others_[0]->receive_some(buffer_);
    throw_end(0);
    if (!sleep({{inbox.fd(), POLLIN, 0}, {others_[0]->fd(), POLLIN, 0}})) {
      throw is_silent();
    }
    inbox.receive(secret, sizeof secret, descriptor);
  }
  SharedMemory memory = SharedMemory::map(descriptor, total_);
  require_room(stride_);
  return with_own_part(std::move(memory), descriptor);
}

HostMemory Sharing::with_own_part(SharedMemory memory, const Socket& descriptor) const {
  memory.allocate(descriptor, stride_ * own_, stride_);
  what_.prepare(memory.data() + stride_ * own_);
  HostMemory host;
  for (std::size_t index = 0; index < what_.ranks.size(); ++index) {
    host.parts.push_back(memory.data() + stride_ * index);
  }
  host.memory = std::move(memory);
  return host;
}

void Sharing::say(std::size_t other, const Frame& message) {
  others_[other]->put(message);
  while (!others_[other]->send_some() && sleep({{others_[other]->fd(), POLLOUT, 0}})) {
  }
}

void Sharing::say(std::size_t other, const Status& status) {
  say(other,
      status.ok() ? Frame{FrameType::kRound, 0, 0, {}}
                  : Frame{FrameType::kAbort, 0, 0, encode_status(status)});
}

/// False if it says nothing in time.
bool Sharing::hear(std::size_t other) {
  ControlConnection& from = *others_[other];
  while (!from.take_round(0, 0, heard_[other])) {
    throw_end(other);
    if (!from.receive_some(buffer_) && !sleep({{from.fd(), POLLIN, 0}})) {
      return false;
    }
  }
  return true;
}

void Sharing::throw_end(std::size_t other) const {
  const auto& end = others_[other]->end();
  if (end) {
    throw Error(end->code(),
                own_ > 0 ? end->message()
                         : "[shm] " + others_[other]->name() +
                               " has no part in the memory of its host: " + end->message() +
                               "; AIACC_ENGINE=tcp does without");
  }
}

/// Sleeps until something happens to one of `entries`. False when this rank's time is over. Throws
/// Error(kShutdown) if it was interrupted.
bool Sharing::sleep(std::vector<pollfd> entries, Clock::time_point until) const {
  entries.push_back({what_.interrupt, POLLIN, 0});
  const int ready = poll_until(entries.data(), entries.size(), std::min(until_, until));
  if (ready > 0 && entries.back().revents != 0) {
    throw Error(Code::kShutdown, "[shm] a rank stopped waiting for the memory of its host");
  }
  return ready > 0 || Clock::now() < until_;
}

Error Sharing::is_silent() const {
  return Error(Code::kTimeout,
               "[shm] " + others_[0]->name() + " has not given its memory in " +
                   std::to_string(patience_s_) + " s; is it alive? (AIACC_CONNECT_TIMEOUT_S)");
}

}  // namespace

HostMemory share_memory(Connector* connector, const MemorySharing& sharing) {
  return Sharing(connector, sharing).run();
}

}  // namespace aiacc
