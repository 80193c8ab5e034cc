#include "csrc/engines/p2p/message_link.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/base/thread.h"

namespace aiacc {
namespace {

/// Has room for the largest offer.
constexpr std::size_t kInboxBytes = std::size_t{32} << 10;

/// How long the other end may take to close a connection that this one has done with.
constexpr std::chrono::milliseconds kGoodbye{500};

}  // namespace

Status size_mismatch(
    const std::string& key, int source, std::uint64_t sent, int target, std::uint64_t expected) {
  return {Code::kMismatch,
          "[p2p] message '" + key + "': rank " + std::to_string(source) + " sends " +
              std::to_string(sent) + " bytes, rank " + std::to_string(target) + " receives " +
              std::to_string(expected) +
              " (expected equal); send and receive tensors of the same size and dtype"};
}

MessageLink::MessageLink(
    Connector& connector, int peer, double peer_timeout_s, Owner& owner, const Cancellation& stop)
    : connector_(connector),
      peer_(peer),
      peer_timeout_s_(peer_timeout_s),
      owner_(owner),
      stop_(stop),
      inbox_(kInboxBytes),
      thread_(start_thread("aiacc p2p " + std::to_string(peer), [this] { run(); })) {
  static_assert(kInboxBytes >= sizeof(Header) + kMostKeyBytes + kEagerBytes);
}

MessageLink::~MessageLink() { join(); }

void MessageLink::send(const std::string& key,
                       const void* data,
                       std::uint64_t bytes,
                       std::uint64_t ticket) {
  Outgoing offer;
  offer.header.kind = Header::kOffer;
  offer.header.key_bytes = static_cast<std::uint16_t>(key.size());
  offer.header.bytes = bytes;
  offer.key = key;
  if (bytes <= kEagerBytes) {
    offer.data = data;
    offer.bytes = bytes;
  }
  Lock lock(mutex_);
  offer.header.id = next_id_++;
  sends_[offer.header.id] = {key, data, bytes, ticket};
  push(lock, std::move(offer));
}

void MessageLink::grant(std::uint32_t id, const MessageReceive& receive) {
  Outgoing grant;
  grant.header.kind = Header::kGrant;
  grant.header.id = id;
  Lock lock(mutex_);
  incoming_[id] = receive;
  push(lock, std::move(grant));
}

void MessageLink::take(std::uint32_t id) {
  Outgoing taken;
  taken.header.kind = Header::kTaken;
  taken.header.id = id;
  post(std::move(taken));
}

void MessageLink::refuse(std::uint32_t id, std::uint64_t expected) {
  Outgoing refusal;
  refusal.header.kind = Header::kRefuse;
  refusal.header.id = id;
  refusal.header.bytes = expected;
  post(std::move(refusal));
}

void MessageLink::post(Outgoing&& outgoing) {
  Lock lock(mutex_);
  push(lock, std::move(outgoing));
}

/// Appends it, and writes what can be written. The lock may be gone afterwards.
void MessageLink::push(Lock& lock, Outgoing&& outgoing) {
  if (over_) {
    const Status end = end_;
    lock.unlock();
    owner_.lost(end);
    return;
  }
  outbox_.push_back(std::move(outgoing));
  wake_sleeper();
  try {
    write(lock);
  } catch (...) {
    owner_.lost(current_exception_status());
  }
}

Status MessageLink::look_after() {
  const std::lock_guard lock(mutex_);
  wake_sleeper();
  return over_ ? end_ : Status();
}

/// With the lock.
void MessageLink::wake_sleeper() {
  if (std::exchange(sleeps_long_, false)) {
    event_.set();
  }
}

/// Writes until the outbox is empty or the connection full, unless another thread does. Without the
/// lock while it writes; throws without it.
void MessageLink::write(Lock& lock) {
  if (channel_ == nullptr || writing_ || full_ || over_) {
    return;
  }
  writing_ = true;
  std::vector<std::uint64_t> sent;
  Status failure;
  while (!outbox_.empty() && !full_ && !over_ && failure.ok()) {
    Outgoing& outgoing = outbox_.front();
    std::size_t bytes = 0;
    lock.unlock();
    try {
      bytes = write_some(outgoing);
    } catch (...) {
      failure = current_exception_status();
    }
    lock.lock();
    outgoing.written += bytes;
    full_ = bytes == 0;
    if (outgoing.written == sizeof(Header) + outgoing.key.size() + outgoing.bytes) {
      if (outgoing.ticket != 0) {
        sent.push_back(outgoing.ticket);
      }
      outbox_.pop_front();
    }
  }
  writing_ = false;
  if (full_) {
    event_.set();  // so that the thread waits for room
  }
  idle_.notify_all();
  lock.unlock();
  for (const std::uint64_t ticket : sent) {
    owner_.ended(ticket, peer_, {});
  }
  if (!failure.ok()) {
    throw Error(failure);
  }
}

std::size_t MessageLink::write_some(const Outgoing& outgoing) {
  const std::pair<const void*, std::uint64_t> stretches[] = {
      {&outgoing.header, sizeof(Header)},
      {outgoing.key.data(), outgoing.key.size()},
      {outgoing.data, outgoing.bytes}};
  iovec parts[3];
  int count = 0;
  std::uint64_t skipped = outgoing.written;
  for (const auto& [data, bytes] : stretches) {
    const std::uint64_t done = std::min<std::uint64_t>(skipped, bytes);
    skipped -= done;
    if (bytes > done) {
      parts[count++] = {const_cast<char*>(static_cast<const char*>(data) + done), bytes - done};
    }
  }
  return channel_->send_some(parts, count);
}

void MessageLink::run() noexcept {
  Status end;
  try {
    connect();
    while (true) {
      read();
      {
        Lock lock(mutex_);
        write(lock);
      }
      sleep();
    }
  } catch (...) {
    end = current_exception_status();
  }
  bool stopped = false;
  try {
    stop_.check();
  } catch (const Error& error) {
    stopped = true;
    end = error.status();
  }
  {
    Lock lock(mutex_);
    over_ = true;  // Who waits from now on hears of it.
    end_ = end;
    idle_.notify_all();
    idle_.wait(lock, [this] { return !writing_; });
  }
  if (!stopped && waits()) {
    owner_.lost(end);
  }
  if (channel_ != nullptr) {
    if (stopped && end.code() == Code::kShutdown) {
      say_goodbye();
    }
    ::shutdown(channel_->fd(), SHUT_RDWR);
  }
}

void MessageLink::connect() {
  const ChannelSpec spec{peer_, ChannelKind::kMessages, 0, connector_.rank() < peer_, 0};
  std::vector<Socket> sockets = connector_.establish_in_unit({spec}, stop_.fd());
  Lock lock(mutex_);
  channel_ = std::make_unique<Channel>(
      std::move(sockets.front()), peer_, "the connection for messages", peer_timeout_s_);
}

/// Closing with unread bytes would reset the connection, and destroy what the other end has not
/// read yet.
void MessageLink::say_goodbye() noexcept {
  const auto deadline = Clock::now() + kGoodbye;
  ::shutdown(channel_->fd(), SHUT_WR);
  try {
    const iovec part{inbox_.data(), inbox_.size()};
    while (Clock::now() < deadline) {
      if (channel_->recv_some(&part, 1) == 0) {
        pollfd entry{channel_->fd(), POLLIN, 0};
        poll_until(&entry, 1, deadline);
      }
    }
  } catch (const Error&) {
    // Closed at the other end as well: done.
  }
}

/// Until there is something to read, room to write or a reason to end. While something waits for
/// the other rank, it looks after the link.
void MessageLink::sleep() {
  pollfd entries[3] = {
      {stop_.fd(), POLLIN, 0}, {event_.fd(), POLLIN, 0}, {channel_->fd(), POLLIN, 0}};
  {
    const std::lock_guard lock(mutex_);
    entries[2].events = static_cast<short>(full_ ? POLLIN | POLLOUT : POLLIN);
    sleeps_long_ = true;  // Who waits from now on says so, see `look_after`.
  }
  const int ready = poll_until(
      entries, 3, waits() ? Clock::now() + channel_->look_every() : Clock::time_point::max());
  stop_.check();
  event_.clear();
  if (ready == 0) {
    channel_->check_link();
  }
  const std::lock_guard lock(mutex_);
  sleeps_long_ = false;
  full_ = full_ && (entries[2].revents & ~POLLIN) == 0;
}

/// Whether somebody waits for the other rank.
bool MessageLink::waits() {
  {
    const std::lock_guard lock(mutex_);
    if (!outbox_.empty() || !sends_.empty() || !incoming_.empty()) {
      return true;
    }
  }
  return owner_.awaits(peer_);
}

/// All that has come.
void MessageLink::read() {
  while (true) {
    if (parse()) {
      continue;
    }
    iovec part{};
    const bool into_tensor = data_left_ > 0;
    if (into_tensor) {
      part = {reading_.data, data_left_};
    } else {
      std::copy(inbox_.begin() + static_cast<std::ptrdiff_t>(begin_),
                inbox_.begin() + static_cast<std::ptrdiff_t>(end_of_inbox_),
                inbox_.begin());
      end_of_inbox_ -= std::exchange(begin_, 0);
      part = {inbox_.data() + end_of_inbox_, inbox_.size() - end_of_inbox_};
    }
    const std::size_t bytes = channel_->recv_some(&part, 1);
    if (bytes == 0) {
      return;
    }
    if (into_tensor) {
      take_data(bytes);
    } else {
      end_of_inbox_ += bytes;
    }
  }
}

/// Makes use of what is in the inbox; false if more has to come first.
bool MessageLink::parse() {
  const std::size_t there = end_of_inbox_ - begin_;
  const std::uint8_t* at = inbox_.data() + begin_;
  if (data_left_ > 0) {
    const std::size_t bytes = std::min<std::uint64_t>(there, data_left_);
    if (bytes > 0) {
      std::memcpy(reading_.data, at, bytes);
      begin_ += bytes;
      take_data(bytes);
    }
    return bytes > 0;
  }
  Header header;
  if (there < sizeof header) {
    return false;
  }
  std::memcpy(&header, at, sizeof header);
  if (header.magic != Header().magic || header.key_bytes > kMostKeyBytes ||
      header.bytes > kMostBytes) {
    distrust("no message of this version");
  }
  const bool has_payload = header.kind == Header::kOffer && header.bytes <= kEagerBytes;
  const std::size_t bytes =
      sizeof header + header.key_bytes + (has_payload ? header.bytes : std::uint64_t{0});
  if (there < bytes) {
    return false;
  }
  begin_ += bytes;
  const auto* key = reinterpret_cast<const char*>(at) + sizeof header;
  handle(header, {key, header.key_bytes}, at + sizeof header + header.key_bytes);
  return true;
}

void MessageLink::handle(const Header& header,
                         const std::string& key,
                         const std::uint8_t* payload) {
  switch (header.kind) {
    case Header::kOffer: {
      MessageOffer offer;
      offer.source = peer_;
      offer.id = header.id;
      offer.bytes = header.bytes;
      if (header.bytes <= kEagerBytes) {
        offer.payload.assign(payload, payload + header.bytes);
      }
      return owner_.offered(key, std::move(offer));
    }
    case Header::kGrant: {
      Outgoing data;
      const Send send = take_send(header.id);
      if (send.bytes <= kEagerBytes) {
        distrust("a grant of what it has");
      }
      data.header.kind = Header::kData;
      data.header.id = header.id;
      data.header.bytes = data.bytes = send.bytes;
      data.data = send.data;
      data.ticket = send.ticket;
      return post(std::move(data));
    }
    case Header::kTaken: {
      const Send send = take_send(header.id);
      if (send.bytes > kEagerBytes) {
        distrust("word that it has what was not sent");
      }
      return owner_.ended(send.ticket, peer_, {});
    }
    case Header::kRefuse: {
      const Send send = take_send(header.id);
      const int rank = connector_.rank();
      return owner_.ended(
          send.ticket, peer_, size_mismatch(send.key, rank, send.bytes, peer_, header.bytes));
    }
    case Header::kData:
      return begin_data(header);
    default:
      distrust("kind " + std::to_string(header.kind));
  }
}

void MessageLink::begin_data(const Header& header) {
  const std::lock_guard lock(mutex_);
  const auto found = incoming_.find(header.id);
  if (found == incoming_.end() || found->second.bytes != header.bytes || header.bytes == 0) {
    distrust(std::to_string(header.bytes) + " bytes that nobody asked for");
  }
  reading_ = found->second;
  reading_id_ = header.id;
  data_left_ = header.bytes;
}

/// So much more of the payload is in its place.
void MessageLink::take_data(std::size_t bytes) {
  reading_.data = static_cast<char*>(reading_.data) + bytes;
  data_left_ -= bytes;
  if (data_left_ > 0) {
    return;
  }
  owner_.ended(reading_.ticket, peer_, {});
  const std::lock_guard lock(mutex_);
  incoming_.erase(reading_id_);
  idle_.notify_all();
}

MessageLink::Send MessageLink::take_send(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = sends_.find(id);
  if (found == sends_.end()) {
    distrust("an answer to what was not offered");
  }
  Send send = std::move(found->second);
  sends_.erase(found);
  return send;
}

void MessageLink::distrust(const std::string& what) const {
  throw Error(Code::kPeerLost,
              "[p2p] rank " + std::to_string(peer_) + " sent " + what +
                  " and cannot be trusted; do all ranks run the same aiacc version?");
}

void MessageLink::drain(Clock::time_point deadline) {
  Lock lock(mutex_);
  idle_.wait_until(lock, deadline, [this] {
    return over_ || channel_ == nullptr || (outbox_.empty() && incoming_.empty());
  });
}

void MessageLink::join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

}  // namespace aiacc
