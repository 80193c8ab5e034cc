#include "csrc/engines/p2p/message_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace aiacc {
namespace {

/// Has room for the largest offer.
constexpr std::size_t kInboxBytes = std::size_t{32} << 10;

/// What a link moves before others have their turn.
constexpr std::size_t kTurnBytes = std::size_t{1} << 20;

}  // namespace

Status size_mismatch(
    const std::string& key, int source, std::uint64_t sent, int target, std::uint64_t expected) {
  return {Code::kMismatch,
          "[p2p] message '" + key + "': rank " + std::to_string(source) + " sends " +
              std::to_string(sent) + " bytes, rank " + std::to_string(target) + " receives " +
              std::to_string(expected) +
              " (expected equal); send and receive tensors of the same size and dtype"};
}

MessageLink::MessageLink(int rank, int peer, double peer_timeout_s, Owner& owner, int epoll)
    : rank_(rank),
      peer_(peer),
      peer_timeout_s_(peer_timeout_s),
      owner_(owner),
      epoll_(epoll),
      inbox_(kInboxBytes) {
  static_assert(kInboxBytes >= sizeof(Header) + kMostKeyBytes + kEagerBytes);
}

void MessageLink::send(const std::string& key,
                       const void* data,
                       std::uint64_t bytes,
                       std::uint64_t ticket) {
  const auto key_bytes = static_cast<std::uint16_t>(key.size());
  Outgoing offer{{kMagic, Header::kOffer, key_bytes, 0, bytes}, key};
  if (bytes <= kEagerBytes) {
    offer.data = data;
    offer.bytes = bytes;
  }
  {
    const std::lock_guard lock(mutex_);
    offer.header.id = next_id_++;
    sends_[offer.header.id] = {key, data, bytes, ticket};
  }
  push(std::move(offer));
}

void MessageLink::grant(std::uint32_t id, const MessageReceive& receive) {
  {
    const std::lock_guard lock(mutex_);
    incoming_[id] = receive;
  }
  push({{kMagic, Header::kGrant, 0, id, 0}, {}});
}

/// Appends it, and writes what can be written.
void MessageLink::push(Outgoing&& outgoing) {
  Lock lock(mutex_);
  if (over_) {
    const Status end = end_;
    lock.unlock();
    return owner_.lost(end);
  }
  outbox_.push_back(std::move(outgoing));
  write(lock);
}

Status MessageLink::end() {
  const std::lock_guard lock(mutex_);
  return end_;
}

void MessageLink::drain(Clock::time_point deadline) {
  Lock lock(mutex_);
  idle_.wait_until(lock, deadline, [this] {
    return over_ || channel_ == nullptr || (outbox_.empty() && incoming_.empty());
  });
}

void MessageLink::connect(Socket socket) {
  {
    const std::lock_guard lock(mutex_);
    if (over_ || channel_ != nullptr) {
      return;
    }
    channel_ = std::make_unique<Channel>(
        std::move(socket), peer_, "the connection for messages", peer_timeout_s_);
    if (watch(EPOLL_CTL_ADD)) {
      return;
    }
  }
  fail(system_error(Code::kEngine, "[p2p] epoll_ctl", errno).status());
}

int MessageLink::fd() {
  const std::lock_guard lock(mutex_);
  return channel_ == nullptr ? -1 : channel_->fd();
}

/// With the lock.
bool MessageLink::watch(int operation) noexcept {
  epoll_event event{};
  event.events = full_ ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.ptr = this;
  watches_room_ = full_;
  return epoll_ctl(epoll_, operation, channel_->fd(), &event) == 0;
}

/// Writes until the outbox is empty, the connection full or the turn over, unless another thread
/// does. Without the lock while it writes and when it returns.
void MessageLink::write(Lock& lock) {
  if (writing_ || full_ || over_) {
    return lock.unlock();
  }
  writing_ = true;
  std::size_t moved = 0;
  Status failure;
  while (!outbox_.empty() && !full_ && !over_ && failure.ok()) {
    Outgoing& outgoing = outbox_.front();
    lock.unlock();
    std::size_t bytes = 0;
    bool whole = false;
    try {
      bytes = write_some(outgoing);
      outgoing.written += bytes;
      moved += bytes;
      whole = outgoing.written == sizeof(Header) + outgoing.key.size() + outgoing.bytes;
      if (whole && outgoing.ticket != 0) {
        owner_.ended(outgoing.ticket, peer_, {});
      }
    } catch (...) {
      failure = current_exception_status();
    }
    lock.lock();
    full_ = bytes == 0 || moved >= kTurnBytes;
    if (whole) {
      outbox_.pop_front();
    }
  }
  writing_ = false;
  if (full_ != watches_room_ && !over_) {
    watch(EPOLL_CTL_MOD);
  }
  idle_.notify_all();
  lock.unlock();
  if (!failure.ok()) {
    fail(failure);
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

void MessageLink::serve(std::uint32_t events) noexcept {
  try {
    if ((events & EPOLLOUT) != 0) {
      Lock lock(mutex_);
      full_ = false;
      write(lock);
    }
    if ((events & ~std::uint32_t{EPOLLOUT}) != 0) {
      read();
    }
  } catch (...) {
    fail(current_exception_status());
  }
}

void MessageLink::look() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (over_ || channel_ == nullptr) {
      return;
    }
  }
  try {
    if (waits()) {
      channel_->check_link();
    }
  } catch (...) {
    fail(current_exception_status());
  }
}

void MessageLink::fail(const Status& end, int how) noexcept {
  Lock lock(mutex_);
  if (over_) {
    return;
  }
  over_ = true;  // Who waits from now on hears of it.
  end_ = end;
  idle_.notify_all();
  idle_.wait(lock, [this] { return !writing_; });
  if (channel_ != nullptr) {
    watch(EPOLL_CTL_DEL);
    ::shutdown(channel_->fd(), how);
  }
  lock.unlock();
  if (waits()) {
    owner_.lost(end);
  }
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

/// What has come, or as much of it as a turn may take.
void MessageLink::read() {
  for (std::size_t moved = 0; moved < kTurnBytes;) {
    iovec part{reading_.data, data_left_};
    const bool into_tensor = data_left_ > 0;
    if (!into_tensor) {
      std::copy(inbox_.begin() + static_cast<std::ptrdiff_t>(begin_),
                inbox_.begin() + static_cast<std::ptrdiff_t>(end_of_inbox_),
                inbox_.begin());
      end_of_inbox_ -= std::exchange(begin_, 0);
      part = {inbox_.data() + end_of_inbox_, inbox_.size() - end_of_inbox_};
    }
    const std::size_t bytes = channel_->recv_some(&part, 1);
    if (into_tensor) {
      take_data(bytes);
    } else {
      end_of_inbox_ += bytes;
    }
    while (parse()) {
    }
    if (bytes < part.iov_len) {
      return;
    }
    moved += bytes;
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
  if (header.magic != kMagic || header.key_bytes > kMostKeyBytes || header.bytes > kMostBytes) {
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
      offer.link = this;
      offer.id = header.id;
      offer.bytes = header.bytes;
      if (header.bytes <= kEagerBytes) {
        offer.payload.assign(payload, payload + header.bytes);
      }
      return owner_.offered(key, std::move(offer));
    }
    case Header::kGrant: {
      const Send send = take_send(header.id);
      if (send.bytes <= kEagerBytes) {
        distrust("a grant of what it has");
      }
      return push({{kMagic, Header::kData, 0, header.id, send.bytes},
                   {},
                   send.data,
                   send.bytes,
                   send.ticket});
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
      return owner_.ended(
          send.ticket, peer_, size_mismatch(send.key, rank_, send.bytes, peer_, header.bytes));
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

}  // namespace aiacc
