#include "csrc/engines/shm/memory_sharing.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/engines/members.h"
#include "csrc/engines/shm/unix_socket.h"

namespace aiacc {
namespace {

using sharing_wire::Invitation;
using sharing_wire::kMostReportBytes;
using sharing_wire::Mark;
using sharing_wire::ReportHeader;

/// Of strangers that have connected and say nothing; the first then give way.
constexpr std::size_t kMostCallers = 64;
/// How soon a connection that found no room is opened again.
constexpr std::chrono::milliseconds kReopenAfter{20};
/// The others wait so many times as long as the lowest rank, whose verdict names who is late.
constexpr double kPatience = 1.5;

std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

bool operator==(const Mark& one, const Mark& other) {
  return one.rank == other.rank && std::memcmp(one.nonce, other.nonce, sizeof one.nonce) == 0;
}

/// The time and the interruption that end every wait of a call.
class Patience {
 public:
  Patience(double seconds, int interrupt)
      : until_(Clock::now() + std::chrono::microseconds(static_cast<long long>(seconds * 1e6))),
        interrupt_(interrupt) {}

  Clock::time_point until() const { return until_; }

  /// Sleeps until something happens to one of `entries`, at most for `nap`; their `revents` say to
  /// which. False when the time is over. Throws Error(kShutdown) if it was interrupted.
  bool sleep(std::vector<pollfd>& entries,
             std::chrono::milliseconds nap = std::chrono::milliseconds(60'000)) const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until_ - Clock::now());
    entries.push_back({interrupt_, POLLIN, 0});
    const auto most = std::clamp(left, std::chrono::milliseconds(0), nap);
    const int ready = poll(entries.data(), entries.size(), static_cast<int>(most.count()));
    const bool interrupted = ready > 0 && entries.back().revents != 0;
    entries.pop_back();
    if (interrupted) {
      throw Error(Code::kShutdown, "[shm] a rank stopped waiting for the memory of its host");
    }
    return left.count() > 0;
  }

 private:
  const Clock::time_point until_;
  const int interrupt_;
};

/// An authenticated connection between the lowest rank and another one.
class Link {
 public:
  Link(Socket socket, int rank) : socket_(std::move(socket)), rank_(rank) {}

  int fd() const { return socket_.fd(); }
  int rank() const { return rank_; }

  void send(Code code, const std::string& bytes, Clock::time_point deadline) {
    const std::string text = bytes.substr(0, kMostReportBytes);
    const ReportHeader header{static_cast<std::uint32_t>(code),
                              static_cast<std::uint32_t>(text.size())};
    std::string message(reinterpret_cast<const char*>(&header), sizeof header);
    message += text;
    socket_.send_all(message.data(), message.size(), rank_name(rank_), deadline);
  }

  /// A message if all of it has come. Throws Error(kPeerLost) if the rank has gone.
  std::optional<Status> receive() {
    if (!read_up_to(sizeof(ReportHeader))) {
      return {};
    }
    ReportHeader header{};
    std::memcpy(&header, got_.data(), sizeof header);
    if (header.code > static_cast<std::uint32_t>(Code::kNotFinite) ||
        header.bytes > kMostReportBytes) {
      throw Error(Code::kInternal,
                  "[shm] " + rank_name(rank_) + " sent a report of code " +
                      std::to_string(header.code) + " and " + std::to_string(header.bytes) +
                      " bytes (expected at most " + std::to_string(kMostReportBytes) +
                      "); this is a bug in aiacc, please report it");
    }
    if (!read_up_to(sizeof header + header.bytes)) {
      return {};
    }
    Status status(static_cast<Code>(header.code), got_.substr(sizeof header));
    got_.clear();
    return status;
  }

 private:
  /// Whether so many bytes of a message are there.
  bool read_up_to(std::size_t bytes) {
    const std::size_t before = got_.size();
    got_.resize(std::max(bytes, before));
    const std::size_t now =
        socket_.recv_some(got_.data() + before, got_.size() - before, rank_name(rank_));
    got_.resize(before + now);
    return got_.size() >= bytes;
  }

  Socket socket_;
  int rank_;
  std::string got_;
};

class Sharing {
 public:
  Sharing(const MemorySharing& what, const std::function<void(std::byte*)>& prepare)
      : what_(what), prepare_(prepare), stride_((what.bytes - 1) / page_bytes() + 2) {
    stride_ *= page_bytes();
  }

  HostMemory lead(std::vector<Link> links);
  HostMemory follow(Link link, int index);

 private:
  std::size_t total() const { return stride_ * what_.ranks.size(); }
  std::byte* start_of(const SharedMemory& memory, std::size_t index) const {
    return memory.data() + stride_ * index;
  }
  Mark mark_of(std::size_t index) const {
    Mark mark{};
    std::memcpy(mark.nonce, nonce_, sizeof nonce_);
    mark.rank = static_cast<std::uint32_t>(what_.ranks[index]);
    return mark;
  }
  void take_part(SharedMemory& memory, const Socket& descriptor, std::size_t index) const;
  void check_part(const SharedMemory& memory, std::size_t index) const;
  HostMemory divided(SharedMemory memory) const;

  void invite(std::vector<Link>& links, const UnixListener& door, const Patience& patience);
  void serve(std::vector<Link>& links,
             UnixListener& door,
             const Socket& descriptor,
             const Patience& patience);
  void greet(std::deque<Socket>& callers, const Socket& descriptor) const;
  bool is_invited(const Mark& mark) const;
  void tell(std::vector<Link>& links, const Status& verdict, const Patience& patience) noexcept;

  SharedMemory accept_invitation(Link& link,
                                 std::size_t index,
                                 const Patience& patience,
                                 std::optional<Status>& verdict);
  Socket fetch(Link& link,
               const std::string& name,
               const Mark& mark,
               const Patience& patience,
               std::optional<Status>& verdict);

  const MemorySharing& what_;
  const std::function<void(std::byte*)>& prepare_;
  std::size_t stride_;
  std::uint8_t nonce_[sizeof(Mark::nonce)] = {};
  std::vector<bool> reported_;  ///< by link
};

/// The first page of a rank's part has its mark.
void Sharing::take_part(SharedMemory& memory, const Socket& descriptor, std::size_t index) const {
  memory.allocate(descriptor, stride_ * index, stride_);
  std::byte* start = start_of(memory, index);
  const Mark mark = mark_of(index);
  std::memcpy(start, &mark, sizeof mark);
  prepare_(start + page_bytes());
}

void Sharing::check_part(const SharedMemory& memory, std::size_t index) const {
  Mark found{};
  std::memcpy(&found, start_of(memory, index), sizeof found);
  if (!(found == mark_of(index))) {
    throw Error(Code::kEngine,
                "[shm] what " + rank_name(what_.ranks[index]) +
                    " wrote into the shared memory is not seen here");
  }
}

HostMemory Sharing::divided(SharedMemory memory) const {
  HostMemory result;
  for (std::size_t index = 0; index < what_.ranks.size(); ++index) {
    result.parts.push_back(start_of(memory, index) + page_bytes());
  }
  result.memory = std::move(memory);
  return result;
}

HostMemory Sharing::lead(std::vector<Link> links) {
  const Patience patience(what_.timeout_s, what_.interrupt);
  reported_.assign(links.size(), false);
  try {
    std::random_device random;
    std::generate(
        std::begin(nonce_), std::end(nonce_), [&] { return static_cast<std::uint8_t>(random()); });
    auto [memory, descriptor] = SharedMemory::create(total());
    take_part(memory, descriptor, 0);
    if (!links.empty()) {
      UnixListener door;
      invite(links, door, patience);
      serve(links, door, descriptor, patience);
    }
    for (std::size_t index = 1; index < what_.ranks.size(); ++index) {
      check_part(memory, index);
    }
    for (Link& link : links) {
      link.send(Code::kOk, "", patience.until());
    }
    return divided(std::move(memory));
  } catch (...) {
    const Status verdict = current_exception_status();
    tell(links, verdict, patience);
    throw Error(verdict);
  }
}

void Sharing::invite(std::vector<Link>& links, const UnixListener& door, const Patience& patience) {
  Invitation invitation{};
  invitation.bytes = total();
  std::memcpy(invitation.nonce, nonce_, sizeof nonce_);
  AIACC_CHECK(door.name().size() < sizeof invitation.name);
  std::copy(door.name().begin(), door.name().end(), invitation.name);
  const std::string bytes(reinterpret_cast<const char*>(&invitation), sizeof invitation);
  for (Link& link : links) {
    link.send(Code::kOk, bytes, patience.until());
  }
}

/// Gives the memory to whoever is invited, until all have reported.
void Sharing::serve(std::vector<Link>& links,
                    UnixListener& door,
                    const Socket& descriptor,
                    const Patience& patience) {
  std::deque<Socket> callers;
  while (true) {
    std::vector<pollfd> entries{{door.fd(), POLLIN, 0}};
    std::string missing;
    for (std::size_t i = 0; i < links.size(); ++i) {
      if (!reported_[i]) {
        entries.push_back({links[i].fd(), POLLIN, 0});
        missing += (missing.empty() ? "" : ", ") + std::to_string(links[i].rank());
      }
    }
    if (missing.empty()) {
      return;
    }
    for (const Socket& caller : callers) {
      entries.push_back({caller.fd(), POLLIN, 0});
    }
    if (!patience.sleep(entries)) {
      throw Error(Code::kTimeout,
                  "[shm] " + rank_name(what_.ranks[0]) + " waited " +
                      std::to_string(what_.timeout_s) + " s for rank(s) " + missing +
                      " to map the memory of their host; are they alive? " +
                      "(AIACC_CONNECT_TIMEOUT_S)");
    }
    for (Socket caller = door.accept(); caller.valid(); caller = door.accept()) {
      callers.push_back(std::move(caller));
      greet(callers, descriptor);
    }
    greet(callers, descriptor);
    for (std::size_t i = 0; i < links.size(); ++i) {
      const std::optional<Status> report =
          reported_[i] ? std::optional<Status>() : links[i].receive();
      if (!report) {
        continue;
      }
      reported_[i] = true;
      if (!report->ok()) {
        throw Error(report->code(),
                    "[shm] " + rank_name(links[i].rank()) + " has no part in the memory of its " +
                        "host: " + report->message() + "; AIACC_ENGINE=tcp does without");
      }
    }
  }
}

/// Hears who has connected, and lets those go who have said it.
void Sharing::greet(std::deque<Socket>& callers, const Socket& descriptor) const {
  const auto is_done = [&](const Socket& caller) {
    Mark mark{};
    const UnixMessage message = receive_message(caller, &mark, sizeof mark);
    if (message.kind == UnixMessage::kMessage && message.bytes == sizeof mark && is_invited(mark)) {
      send_message(caller, &mark, sizeof mark, descriptor.fd());
    }
    return message.kind != UnixMessage::kNothing;
  };
  callers.erase(std::remove_if(callers.begin(), callers.end(), is_done), callers.end());
  while (callers.size() > kMostCallers) {
    callers.pop_front();
  }
}

bool Sharing::is_invited(const Mark& mark) const {
  for (std::size_t index = 1; index < what_.ranks.size(); ++index) {
    if (mark == mark_of(index)) {
      return true;
    }
  }
  return false;
}

/// Makes every rank throw the same. A connection that is closed with something unread in it might
/// lose what was sent, so what the others have on their way is read first.
void Sharing::tell(std::vector<Link>& links,
                   const Status& verdict,
                   const Patience& patience) noexcept {
  for (std::size_t i = 0; i < links.size(); ++i) {
    try {
      links[i].send(verdict.code(), verdict.message(), patience.until());
    } catch (const Error&) {
      reported_[i] = true;
    }
  }
  for (std::size_t i = 0; i < links.size() && verdict.code() != Code::kShutdown; ++i) {
    try {
      while (!reported_[i] && !links[i].receive()) {
        std::vector<pollfd> entries{{links[i].fd(), POLLIN, 0}};
        if (!patience.sleep(entries)) {
          return;
        }
      }
    } catch (const Error&) {
      // It has gone.
    }
  }
}

HostMemory Sharing::follow(Link link, int index) {
  const Patience patience(what_.timeout_s * kPatience, what_.interrupt);
  const int leader = what_.ranks[0];
  std::optional<Status> verdict;
  SharedMemory memory;
  Status report;
  try {
    memory = accept_invitation(link, static_cast<std::size_t>(index), patience, verdict);
  } catch (...) {
    report = current_exception_status();
  }
  if (verdict || report.code() == Code::kPeerLost || report.code() == Code::kShutdown) {
    try {
      link.send(report.code(), report.message(), patience.until());
    } catch (const Error&) {
      // The lowest rank does not wait for it either.
    }
    throw Error(verdict.value_or(report));
  }
  link.send(report.code(), report.message(), patience.until());
  while (!verdict && !(verdict = link.receive())) {
    std::vector<pollfd> entries{{link.fd(), POLLIN, 0}};
    if (!patience.sleep(entries)) {
      throw Error(Code::kTimeout,
                  "[shm] " + rank_name(leader) + " did not say in " +
                      std::to_string(what_.timeout_s * kPatience) +
                      " s whether all ranks have the memory of their host; is it alive? " +
                      "(AIACC_CONNECT_TIMEOUT_S)");
    }
  }
  if (!verdict->ok()) {
    throw Error(*verdict);
  }
  return divided(std::move(memory));
}

/// Sets `verdict` if the lowest rank has told it, and throws then.
SharedMemory Sharing::accept_invitation(Link& link,
                                        std::size_t index,
                                        const Patience& patience,
                                        std::optional<Status>& verdict) {
  std::optional<Status> invited;
  while (!(invited = link.receive())) {
    std::vector<pollfd> entries{{link.fd(), POLLIN, 0}};
    if (!patience.sleep(entries)) {
      throw Error(Code::kTimeout,
                  "[shm] " + rank_name(link.rank()) + " has not made the memory of its host in " +
                      std::to_string(what_.timeout_s * kPatience) +
                      " s; is it alive? (AIACC_CONNECT_TIMEOUT_S)");
    }
  }
  if (!invited->ok()) {
    verdict = invited;
    throw Error(*invited);
  }
  Invitation invitation{};
  if (invited->message().size() != sizeof invitation) {
    throw Error(Code::kInternal,
                "[shm] " + rank_name(link.rank()) + " sent an invitation of " +
                    std::to_string(invited->message().size()) + " bytes (expected " +
                    std::to_string(sizeof invitation) +
                    "); this is a bug in aiacc, please report it");
  }
  std::memcpy(&invitation, invited->message().data(), sizeof invitation);
  invitation.name[sizeof invitation.name - 1] = '\0';
  if (invitation.bytes != total()) {
    throw Error(Code::kEngine,
                rank_name(link.rank()) + " has " + std::to_string(invitation.bytes) +
                    " bytes for all ranks (expected " + std::to_string(total()) +
                    "); AIACC_LANES must be equal on all ranks");
  }
  std::memcpy(nonce_, invitation.nonce, sizeof nonce_);
  const Socket descriptor = fetch(link, invitation.name, mark_of(index), patience, verdict);
  SharedMemory memory = SharedMemory::map(descriptor, total());
  check_part(memory, 0);
  take_part(memory, descriptor, index);
  return memory;
}

/// The descriptor of the memory, from the lowest rank's Unix socket.
Socket Sharing::fetch(Link& link,
                      const std::string& name,
                      const Mark& mark,
                      const Patience& patience,
                      std::optional<Status>& verdict) {
  Socket socket;
  while (true) {
    if (!socket.valid()) {
      socket = connect_unix(name);
      if (socket.valid() && !send_message(socket, &mark, sizeof mark)) {
        socket.close();
      }
    }
    if (socket.valid()) {
      Mark echo{};
      UnixMessage message = receive_message(socket, &echo, sizeof echo);
      if (message.descriptor.valid()) {
        return std::move(message.descriptor);
      }
      if (message.kind != UnixMessage::kNothing) {
        socket.close();  // strangers have crowded it out
      }
    }
    if ((verdict = link.receive())) {
      throw Error(*verdict);
    }
    std::vector<pollfd> entries{{link.fd(), POLLIN, 0}, {socket.fd(), POLLIN, 0}};
    const auto nap = socket.valid() ? std::chrono::milliseconds(60'000) : kReopenAfter;
    if (!patience.sleep(entries, nap)) {
      throw Error(Code::kTimeout,
                  "[shm] " + rank_name(link.rank()) + " has not given its memory in " +
                      std::to_string(what_.timeout_s * kPatience) +
                      " s; is it alive? (AIACC_CONNECT_TIMEOUT_S)");
    }
  }
}

}  // namespace

HostMemory share_memory(Connector* connector,
                        const MemorySharing& sharing,
                        const std::function<void(std::byte* part)>& prepare) {
  AIACC_CHECK(!sharing.ranks.empty() && sharing.bytes > 0);
  Sharing call(sharing, prepare);
  if (sharing.ranks.size() == 1) {
    return call.lead({});
  }
  AIACC_CHECK(connector != nullptr);
  const int index = index_among(sharing.ranks, connector->rank(), connector->size());
  std::vector<ChannelSpec> specs;
  if (index > 0) {
    specs.push_back({sharing.ranks[0], ChannelKind::kMemory, 0, true, sharing.split_id});
  }
  for (std::size_t other = 1; index == 0 && other < sharing.ranks.size(); ++other) {
    specs.push_back({sharing.ranks[other], ChannelKind::kMemory, 0, false, sharing.split_id});
  }
  std::vector<Socket> sockets = connector->establish(specs, sharing.interrupt);
  if (index > 0) {
    return call.follow(Link(std::move(sockets[0]), sharing.ranks[0]), index);
  }
  std::vector<Link> links;
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    links.emplace_back(std::move(sockets[i]), specs[i].peer);
  }
  return call.lead(std::move(links));
}

}  // namespace aiacc
