#include "csrc/engines/p2p/mailbox.h"

#include <optional>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

constexpr int kAny = MessageReceive::kAnySource;

/// The ticket of the receive that takes the message, 0 if none does.
std::uint64_t offer(Mailbox& mailbox, const std::string& key, int source, std::uint32_t id) {
  MessageOffer offer;
  offer.source = source;
  offer.id = id;
  const auto receive = mailbox.offer(key, offer);
  return receive ? receive->ticket : 0;
}

/// The id of the message that it gets, 0 if there is none.
std::uint32_t receive(Mailbox& mailbox, const std::string& key, int source, std::uint64_t ticket) {
  const auto offer = mailbox.receive(key, {source, nullptr, 0, ticket});
  return offer ? offer->id : 0;
}

TEST(Mailbox, WhicheverComesFirst) {
  Mailbox mailbox;
  EXPECT_EQ(offer(mailbox, "x", 1, 5), 0U);
  EXPECT_EQ(receive(mailbox, "x", 1, 7), 5U);
  EXPECT_EQ(receive(mailbox, "x", 1, 8), 0U);
  EXPECT_EQ(offer(mailbox, "x", 1, 6), 8U);
  EXPECT_EQ(receive(mailbox, "x", 1, 9), 0U);
}

TEST(Mailbox, KeysAndSourcesAreApart) {
  Mailbox mailbox;
  EXPECT_EQ(offer(mailbox, "x", 1, 5), 0U);
  EXPECT_EQ(receive(mailbox, "y", 1, 7), 0U);
  EXPECT_EQ(receive(mailbox, "x", 2, 8), 0U);
  EXPECT_EQ(offer(mailbox, "y", 2, 6), 0U);
  EXPECT_EQ(offer(mailbox, "y", 1, 9), 7U);
  EXPECT_EQ(offer(mailbox, "x", 2, 10), 8U);
}

TEST(Mailbox, EqualOnesInTheirOrder) {
  Mailbox mailbox;
  for (std::uint32_t id = 1; id <= 3; ++id) {
    offer(mailbox, "x", 1, id);
  }
  for (std::uint32_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(receive(mailbox, "x", 1, 1), id);
  }
  for (std::uint64_t ticket = 1; ticket <= 3; ++ticket) {
    receive(mailbox, "x", 1, ticket);
  }
  for (std::uint64_t ticket = 1; ticket <= 3; ++ticket) {
    EXPECT_EQ(offer(mailbox, "x", 1, 1), ticket);
  }
}

TEST(Mailbox, AnySourceTakesWhatCameFirstAndLeavesTheRest) {
  Mailbox mailbox;
  offer(mailbox, "x", 2, 1);
  offer(mailbox, "x", 1, 2);
  EXPECT_EQ(receive(mailbox, "x", 1, 1), 2U);
  EXPECT_EQ(receive(mailbox, "x", kAny, 1), 1U);
  EXPECT_EQ(receive(mailbox, "x", kAny, 3), 0U);
  EXPECT_EQ(receive(mailbox, "x", 2, 4), 0U);
  EXPECT_EQ(offer(mailbox, "x", 2, 5), 3U);  // waited for longer
  EXPECT_EQ(offer(mailbox, "x", 1, 6), 0U);
  EXPECT_EQ(offer(mailbox, "x", 2, 7), 4U);
}

TEST(Mailbox, KnowsWhomItWaitsFor) {
  Mailbox mailbox;
  receive(mailbox, "x", 2, 1);
  receive(mailbox, "y", kAny, 2);
  EXPECT_TRUE(mailbox.awaits(2));
  EXPECT_FALSE(mailbox.awaits(1));
  offer(mailbox, "x", 2, 1);
  EXPECT_FALSE(mailbox.awaits(2));
}

TEST(Mailbox, WhatIsTakenStaysWithItsTaker) {
  Mailbox mailbox;
  MessageOffer offer;
  offer.payload.assign(3, 7);
  mailbox.offer("x", offer);
  EXPECT_TRUE(offer.payload.empty());
  MessageOffer taken;
  taken.payload.assign(4, 9);
  const auto kept = mailbox.receive("x", {0, nullptr, 3, 1});
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->payload, RawBytes(3, 7));
  mailbox.receive("x", {0, nullptr, 3, 1});
  EXPECT_TRUE(mailbox.offer("x", taken));
  EXPECT_EQ(taken.payload, RawBytes(4, 9));
}

}  // namespace
}  // namespace aiacc
