#include "csrc/engines/p2p/messenger.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "csrc/base/descriptors.h"
#include "csrc/base/thread.h"

namespace aiacc {
namespace {

/// How long the other ends may take to close connections that this one has done with.
constexpr std::chrono::milliseconds kGoodbye{500};

}  // namespace

Messenger::Messenger(Connector* connector, int rank, double peer_timeout_s, Events events)
    : connector_(connector),
      rank_(rank),
      peer_timeout_s_(peer_timeout_s),
      events_(std::move(events)) {}

Messenger::~Messenger() { stop({Code::kShutdown, "[p2p] the runtime has ended"}); }

void Messenger::send(
    int to, const std::string& key, const void* data, std::uint64_t bytes, std::uint64_t ticket) {
  const std::shared_lock in_use(in_use_);
  if (to != rank_) {
    if (MessageLink* link = link_to(to)) {
      link->send(key, data, bytes, ticket);
    }
    return;
  }
  MessageOffer offer;
  offer.source = rank_;
  offer.bytes = bytes;
  offer.here = data;
  offer.ticket = ticket;
  offered(key, std::move(offer));
}

void Messenger::receive(const std::string& key, const MessageReceive& receive) {
  const std::shared_lock in_use(in_use_);
  std::optional<MessageOffer> offer;
  Status end;
  try {
    const std::lock_guard lock(mutex_);
    if (stopped_) {
      return;
    }
    if (receive.source != rank_) {
      start();
    }
    offer = mailbox_.receive(key, receive);
    if (const auto link = links_.find(receive.source); link != links_.end()) {
      end = link->second->end();
    }
  } catch (...) {
    end = current_exception_status();
  }
  if (offer) {
    return deliver(key, *offer, receive);
  }
  if (!end.ok()) {
    lost(end);
  }
}

void Messenger::offered(const std::string& key, MessageOffer offer) {
  std::optional<MessageReceive> receive;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) {
      return;
    }
    receive = mailbox_.offer(key, offer);
  }
  if (receive) {
    deliver(key, offer, *receive);
  }
}

void Messenger::deliver(const std::string& key,
                        MessageOffer& offer,
                        const MessageReceive& receive) {
  MessageLink* const link = offer.link;
  Status status;
  if (offer.bytes != receive.bytes) {
    status = size_mismatch(key, offer.source, offer.bytes, rank_, receive.bytes);
  } else if (link != nullptr && offer.bytes > MessageLink::kEagerBytes) {
    return link->grant(offer.id, receive);
  } else if (offer.bytes > 0) {
    std::memcpy(receive.data, link == nullptr ? offer.here : offer.payload.data(), offer.bytes);
  }
  if (link == nullptr) {
    ended(offer.ticket, rank_, status);
  } else if (status.ok()) {
    link->take(offer.id);
  } else {
    link->refuse(offer.id, receive.bytes);
  }
  ended(receive.ticket, offer.source, status);
}

/// Null after `stop`, or if there is no room for one: then that is reported.
MessageLink* Messenger::link_to(int peer) {
  try {
    const std::lock_guard lock(mutex_);
    if (stopped_) {
      return nullptr;
    }
    if (const auto found = links_.find(peer); found != links_.end()) {
      return found->second.get();
    }
    start();
    unconnected_.insert(peer);
    wanted_more_.set();
    return add_link(peer);
  } catch (...) {
    lost(current_exception_status());
    return nullptr;
  }
}

/// With the lock.
MessageLink* Messenger::add_link(int peer) {
  Owner& owner = *this;
  links_[peer] = std::make_unique<MessageLink>(rank_, peer, peer_timeout_s_, owner, epoll_.fd());
  return links_[peer].get();
}

std::vector<MessageLink*> Messenger::links() {
  const std::lock_guard lock(mutex_);
  std::vector<MessageLink*> links;
  links.reserve(links_.size());
  for (const auto& [peer, link] : links_) {
    links.push_back(link.get());
  }
  return links;
}

/// With the lock.
void Messenger::start() {
  if (connector_ == nullptr) {
    return;
  }
  if (!epoll_.valid()) {
    Socket epoll(epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN;
    if (!epoll.valid() || epoll_ctl(epoll.fd(), EPOLL_CTL_ADD, cancellation_.fd(), &event) != 0) {
      throw system_error(Code::kEngine, "[p2p] epoll", errno);
    }
    epoll_ = std::move(epoll);
  }
  if (!moving_.joinable()) {
    moving_ = start_thread("aiacc p2p", [this] { move(); });
  }
  if (!connecting_.joinable()) {
    connecting_ = start_thread("aiacc p2p open", [this] { connect(); });
  }
}

void Messenger::connect() noexcept {
  try {
    connector_->establish_on_demand(
        ChannelKind::kMessages, wanted_more_, *this, cancellation_.fd());
  } catch (...) {
    lost(current_exception_status());
  }
}

std::vector<int> Messenger::wanted() {
  const std::lock_guard lock(mutex_);
  const std::set<int> peers = std::exchange(unconnected_, {});
  return {peers.begin(), peers.end()};
}

void Messenger::connected(int peer, Socket socket, const Status& status) {
  MessageLink* link = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) {
      return;
    }
    unconnected_.erase(peer);
    const auto found = links_.find(peer);
    link = found != links_.end() ? found->second.get() : add_link(peer);
  }
  if (status.ok()) {
    socket.set_options();
    link->connect(std::move(socket));
  } else if (link->fd() < 0) {  // else the other rank has opened one
    link->fail(status);
  }
}

void Messenger::move() noexcept {
  Status end;
  try {
    epoll_event ready[64];
    while (true) {
      const int count = epoll_wait(epoll_.fd(), ready, std::size(ready), -1);
      if (count < 0 && errno != EINTR) {
        throw system_error(Code::kInternal, "[p2p] epoll_wait", errno);
      }
      for (int i = 0; i < count; ++i) {
        if (ready[i].data.ptr == nullptr) {
          cancellation_.check();
        } else {
          static_cast<MessageLink*>(ready[i].data.ptr)->serve(ready[i].events);
        }
      }
    }
  } catch (...) {
    end = current_exception_status();
  }
  lost(end);
  const bool in_order = end.code() == Code::kShutdown;
  std::vector<int> open;
  for (MessageLink* link : links()) {
    link->fail(end, in_order ? SHUT_WR : SHUT_RDWR);
    if (const int fd = link->fd(); fd >= 0) {
      open.push_back(fd);
    }
  }
  if (in_order) {
    discard_until_closed(open, Clock::now() + kGoodbye);
  }
}

void Messenger::look() {
  for (MessageLink* link : links()) {
    link->look();
  }
}

void Messenger::ended(std::uint64_t ticket, int source, const Status& status) {
  events_.ended(ticket, source, status);
}

void Messenger::lost(const Status& status) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) {
      return;
    }
  }
  events_.lost(status);
}

bool Messenger::awaits(int source) {
  const std::lock_guard lock(mutex_);
  return mailbox_.awaits(source);
}

void Messenger::drain(Clock::time_point deadline) {
  for (MessageLink* link : links()) {
    link->drain(deadline);
  }
}

void Messenger::stop(const Status& status) noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  cancellation_.set(status);
  const std::unique_lock unused(in_use_);
  for (std::thread* thread : {&connecting_, &moving_}) {
    if (thread->joinable()) {
      thread->join();
    }
  }
}

}  // namespace aiacc
