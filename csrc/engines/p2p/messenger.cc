#include "csrc/engines/p2p/messenger.h"

#include <cstring>
#include <utility>

namespace aiacc {

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

void Messenger::receive(const std::string& key,
                        const MessageReceive& receive,
                        const std::vector<int>& sources) {
  const std::shared_lock in_use(in_use_);
  std::vector<MessageLink*> links;
  // Also to those that may send: they wait for a connection.
  for (const int source :
       receive.source == MessageReceive::kAnySource ? sources : std::vector<int>{receive.source}) {
    if (source != rank_) {
      links.push_back(link_to(source));
      if (links.back() == nullptr) {
        return;
      }
    }
  }
  std::optional<MessageOffer> offer;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) {
      return;
    }
    offer = mailbox_.receive(key, receive);
  }
  if (offer) {
    deliver(key, *offer, receive);
    return;
  }
  for (MessageLink* link : links) {
    const Status end = link->look_after();
    if (!end.ok() && receive.source != MessageReceive::kAnySource) {
      lost(end);
    }
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
  const bool own = offer.source == rank_;
  MessageLink* link = own ? nullptr : link_to(offer.source);
  if (!own && link == nullptr) {
    return;
  }
  Status status;
  if (offer.bytes != receive.bytes) {
    status = size_mismatch(key, offer.source, offer.bytes, rank_, receive.bytes);
    if (link != nullptr) {
      link->refuse(offer.id, receive.bytes);
    }
  } else if (!own && offer.bytes > MessageLink::kEagerBytes) {
    link->grant(offer.id, receive);
    return;
  } else {
    if (offer.bytes > 0) {
      std::memcpy(receive.data, own ? offer.here : offer.payload.data(), offer.bytes);
    }
    if (link != nullptr) {
      link->take(offer.id);
    }
  }
  if (own) {
    ended(offer.ticket, rank_, status);
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
    std::unique_ptr<MessageLink>& link = links_[peer];
    if (link == nullptr) {
      AIACC_CHECK(connector_ != nullptr);
      link = std::make_unique<MessageLink>(*connector_,
                                           peer,
                                           peer_timeout_s_,
                                           static_cast<MessageLink::Owner&>(*this),
                                           cancellation_);
    }
    return link.get();
  } catch (...) {
    lost(current_exception_status());
    return nullptr;
  }
}

std::vector<MessageLink*> Messenger::links() {
  const std::lock_guard lock(mutex_);
  std::vector<MessageLink*> links;
  for (const auto& [peer, link] : links_) {
    if (link != nullptr) {
      links.push_back(link.get());
    }
  }
  return links;
}

void Messenger::ended(std::uint64_t ticket, int source, const Status& status) {
  events_.ended(ticket, source, status);
}

void Messenger::lost(const Status& status) noexcept { events_.lost(status); }

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
  for (MessageLink* link : links()) {
    link->join();
  }
}

}  // namespace aiacc
