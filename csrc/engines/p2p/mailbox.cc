#include "csrc/engines/p2p/mailbox.h"

#include <algorithm>
#include <utility>

namespace aiacc {
namespace {

bool fits(const MessageReceive& receive, int source) {
  return receive.source == MessageReceive::kAnySource || receive.source == source;
}

}  // namespace

std::optional<MessageReceive> Mailbox::offer(const std::string& key, MessageOffer& offer) {
  const auto slot = slots_.try_emplace(key).first;
  auto& receives = slot->second.receives;
  const auto found = std::find_if(receives.begin(), receives.end(), [&](const auto& receive) {
    return fits(receive, offer.source);
  });
  if (found == receives.end()) {
    slot->second.offers.push_back(std::move(offer));
    return std::nullopt;
  }
  const MessageReceive receive = *found;
  receives.erase(found);
  awaited_.erase(awaited_.find(receive.source));
  tidy(slot);
  return receive;
}

std::optional<MessageOffer> Mailbox::receive(const std::string& key,
                                             const MessageReceive& receive) {
  const auto slot = slots_.try_emplace(key).first;
  auto& offers = slot->second.offers;
  const auto found = std::find_if(
      offers.begin(), offers.end(), [&](const auto& offer) { return fits(receive, offer.source); });
  if (found == offers.end()) {
    slot->second.receives.push_back(receive);
    awaited_.insert(receive.source);
    return std::nullopt;
  }
  MessageOffer offer = std::move(*found);
  offers.erase(found);
  tidy(slot);
  return offer;
}

/// Keys need not come again.
void Mailbox::tidy(std::map<std::string, Slot>::iterator slot) {
  if (slot->second.offers.empty() && slot->second.receives.empty()) {
    slots_.erase(slot);
  }
}

}  // namespace aiacc
