#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/negotiation/negotiator.h"
#include "tests/cpp/support/negotiators.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

using Ranks = std::vector<int>;

Request forming(const std::string& name, const Ranks& ranks) {
  Request request = make_request("set." + name, OpKind::kFormProcessSet, {});
  request.numbers.assign(ranks.begin(), ranks.end());
  request.cacheable = false;
  return request;
}

Request leaving(std::uint32_t set) {
  Request request = make_request("leave_process_set", OpKind::kLeaveProcessSet, {});
  request.process_set = set;
  request.cacheable = false;
  return request;
}

Request request_in(std::uint32_t set, const std::string& name) {
  Request request = make_request(name);
  request.process_set = set;
  return request;
}

/// The id that the members got, which is the same on each of them.
std::uint32_t form(NegotiatingRanks& ranks, const std::string& name, const Ranks& members) {
  for (const int rank : members) {
    ranks.submit(rank, forming(name, members));
  }
  const auto outcomes = ranks.round();
  std::optional<std::int64_t> id;
  for (const int rank : members) {
    const auto& ready = outcomes[static_cast<std::size_t>(rank)].ready;
    EXPECT_EQ(ready.size(), 1U);
    if (!ready.empty()) {
      EXPECT_TRUE(ready[0].status.ok()) << ready[0].status.message();
      EXPECT_EQ(id.value_or(ready[0].value), ready[0].value);
      id = ready[0].value;
    }
  }
  return static_cast<std::uint32_t>(id.value_or(0));
}

std::size_t ready_anywhere(const std::vector<RoundOutcome>& outcomes) {
  std::size_t count = 0;
  for (const RoundOutcome& outcome : outcomes) {
    count += outcome.ready.size();
  }
  return count;
}

/// That of the only operation that is over on this rank.
Status status_at(const std::vector<RoundOutcome>& outcomes, int rank) {
  const auto& ready = outcomes[static_cast<std::size_t>(rank)].ready;
  EXPECT_EQ(ready.size(), 1U);
  return ready.empty() ? Status() : ready[0].status;
}

TEST(NegotiatorForming, WaitsForTheMembersAloneAndIsKnownToAll) {
  NegotiatingRanks ranks(4);
  ranks.submit(3, forming("a", {1, 3}));
  EXPECT_EQ(ready_anywhere(ranks.round()), 0U);
  EXPECT_EQ(ranks.of(3).process_sets().size(), 1U);
  ranks.submit(1, forming("a", {1, 3}));
  const auto outcomes = ranks.round();
  EXPECT_EQ(ready_anywhere(outcomes), 2U);
  const auto id = static_cast<std::uint32_t>(outcomes[1].ready.at(0).value);
  EXPECT_EQ(outcomes[3].ready.at(0).value, id);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(*ranks.of(rank).process_sets().members(id), (Ranks{1, 3}));
  }
  ranks.submit_to_set(request_in(id, "x"));
  EXPECT_EQ(ready_anywhere(ranks.round()), 2U);
}

TEST(NegotiatorForming, TheRoundSaysSo) {
  NegotiatingRanks ranks(2);
  const auto flags = [&](int rank) {
    return flags_of(ranks.begin_round()[static_cast<std::size_t>(rank)]) & kFlagForming;
  };
  EXPECT_EQ(flags(0), 0U);
  ranks.finish_round();
  ranks.submit(0, forming("a", {0}));
  EXPECT_EQ(flags(0), kFlagForming);
  ranks.finish_round();
  EXPECT_EQ(flags(0), 0U);
  ranks.finish_round();
}

TEST(NegotiatorForming, TheSameRanksMayFormSeveralSetsAndBeOneThatWasAdded) {
  NegotiatingRanks ranks(3);
  const std::uint32_t first = form(ranks, "a", {0, 2});
  const std::uint32_t second = form(ranks, "b", {0, 2});
  const std::uint32_t everyone = form(ranks, "c", {0, 1, 2});
  const std::uint32_t added = ranks.add_set({0, 2});
  EXPECT_EQ((std::set<std::uint32_t>{0, first, second, everyone, added}.size()), 5U);
  Request again = make_request("process_set.noname.1", OpKind::kAddProcessSet, {});
  again.numbers = {0, 2};
  again.cacheable = false;
  ranks.submit_everywhere(again);
  const Status refused = status_at(ranks.round(), 1);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("process set " + std::to_string(added) + " already"),
            std::string::npos)
      << refused.message();
}

TEST(NegotiatorForming, SeveralAtATimeInAnyOrder) {
  NegotiatingRanks ranks(3);
  const std::vector<std::pair<int, std::string>> order = {
      {2, "bc"}, {0, "ab"}, {1, "bc"}, {2, "ca"}, {0, "ca"}, {1, "ab"}};
  const std::map<std::string, Ranks> members = {{"ab", {0, 1}}, {"bc", {1, 2}}, {"ca", {0, 2}}};
  std::size_t ready = 0;
  for (const auto& [rank, name] : order) {
    ranks.submit(rank, forming(name, members.at(name)));
    ready += ready_anywhere(ranks.round());
  }
  EXPECT_EQ(ready, 6U);
  EXPECT_EQ(ranks.of(0).process_sets().size(), 4U);
}

TEST(NegotiatorForming, RanksThatTellOtherMembersAllGetToKnow) {
  NegotiatingRanks ranks(4);
  ranks.submit(0, forming("a", {0, 1}));
  ranks.submit(1, forming("a", {0, 1, 2}));
  EXPECT_EQ(ready_anywhere(ranks.round()), 0U);  // rank 2 may come
  ranks.submit(2, forming("a", {0, 1, 2}));
  const auto outcomes = ranks.round();
  for (int rank = 0; rank < 3; ++rank) {
    const Status status = status_at(outcomes, rank);
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find("rank 1 submitted process set [0, 1, 2]"), std::string::npos)
        << status.message();
  }
  EXPECT_TRUE(outcomes[3].ready.empty());
  EXPECT_EQ(ranks.of(3).process_sets().size(), 1U);
}

TEST(NegotiatorForming, ARankThatHasJoinedIsNotWaitedFor) {
  NegotiatingRanks ranks(3);
  ranks.submit(2, make_request("", OpKind::kJoin, {}));
  ranks.submit(0, forming("a", {0, 2}));
  ranks.submit(0, forming("b", {0, 1}));
  ranks.submit(1, forming("b", {0, 1}));
  const auto outcomes = ranks.round();
  ASSERT_EQ(outcomes[0].ready.size(), 2U);
  EXPECT_EQ(outcomes[0].ready[0].status.code() == Code::kMismatch,
            outcomes[0].ready[1].status.ok());
  EXPECT_TRUE(status_at(outcomes, 1).ok());
}

TEST(NegotiatorForming, ASetIsGoneWhenAllMembersHaveLeft) {
  NegotiatingRanks ranks(3);
  const std::uint32_t id = form(ranks, "a", {0, 2});
  ranks.submit(2, leaving(id));
  EXPECT_EQ(ready_anywhere(ranks.round()), 0U);
  EXPECT_NE(ranks.of(1).process_sets().members(id), nullptr);
  ranks.submit(0, leaving(id));
  const auto outcomes = ranks.round();
  EXPECT_EQ(outcomes[0].ready.at(0).value, 1);
  EXPECT_EQ(outcomes[2].ready.at(0).value, 1);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks.of(rank).process_sets().members(id), nullptr);
  }
  EXPECT_NE(form(ranks, "a", {0, 2}), id);  // the name serves again
}

TEST(NegotiatorForming, WhatARankSubmitsBeforeItLeavesIsDone) {
  NegotiatingRanks ranks(3);
  const std::uint32_t id = form(ranks, "a", {0, 2});
  for (int i = 0; i < 2; ++i) {
    ranks.submit_to_set(request_in(id, "known"));
    ranks.round();
  }
  ranks.submit(0, request_in(id, "known"));
  ranks.submit(0, request_in(id, "new"));
  ranks.submit(0, leaving(id));
  EXPECT_EQ(ready_anywhere(ranks.round()), 0U);
  ranks.urgent_rounds();  // the bit has lost its slot
  ranks.submit(2, request_in(id, "known"));
  ranks.submit(2, request_in(id, "new"));
  const auto outcomes = ranks.round();
  for (const Response& response : outcomes[2].ready) {
    EXPECT_TRUE(response.status.ok()) << response.status.message();
  }
  EXPECT_TRUE(ranks.pending(2).empty());
}

TEST(NegotiatorForming, WhatWaitsForOneThatHasLeftFails) {
  NegotiatingRanks ranks(3);
  const std::uint32_t id = form(ranks, "a", {0, 2});
  for (int i = 0; i < 2; ++i) {
    ranks.submit_to_set(request_in(id, "known"));
    ranks.round();
  }
  ranks.submit(2, request_in(id, "known"));
  ranks.submit(2, request_in(id, "new"));
  ranks.round();
  ranks.submit(0, leaving(id));
  std::vector<std::string> texts;
  const auto collect = [&](const std::vector<RoundOutcome>& outcomes) {
    for (const Response& response : outcomes[2].ready) {
      EXPECT_EQ(response.status.code(), Code::kMismatch);
      texts.push_back(response.status.message());
    }
  };
  collect(ranks.round());
  collect(ranks.urgent_rounds());
  ranks.submit(2, request_in(id, "later"));
  collect(ranks.round());
  ASSERT_EQ(texts.size(), 3U);
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("rank 0 has left process set " + std::to_string(id)), std::string::npos)
        << text;
  }
  ranks.submit(2, leaving(id));
  EXPECT_EQ(ready_anywhere(ranks.round()), 2U);
}

/// Every rank goes through the same list of sets, those that it is in: forms it, submits something,
/// leaves. However far apart the ranks are, nobody waits for one outside.
TEST(NegotiatorForming, RanksGoTheirOwnPace) {
  constexpr int kSize = 5;
  constexpr std::size_t kSets = 12;
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    NegotiatingRanks ranks(kSize, seed % 2 == 0 ? 2 : 4096, seed);
    std::vector<Ranks> members(kSets);
    for (Ranks& of_set : members) {
      for (int rank = 0; rank < kSize; ++rank) {
        if (random() % 2 == 0) {
          of_set.push_back(rank);
        }
      }
      if (of_set.empty()) {
        of_set = {static_cast<int>(random() % kSize)};
      }
    }
    struct Place {
      std::size_t set = 0;
      int stage = 0;  ///< forms, submits twice, leaves
      std::uint64_t waits_for = 0;
      std::uint32_t id = 0;
    };
    std::vector<Place> places(kSize);
    std::vector<std::optional<std::uint32_t>> ids(kSets);
    const auto step = [&](int rank) {
      Place& place = places[static_cast<std::size_t>(rank)];
      while (place.set < kSets && index_in(members[place.set], rank) < 0) {
        ++place.set;
      }
      if (place.set == kSets || place.waits_for != 0) {
        return;
      }
      if (place.stage == 0) {
        place.waits_for =
            ranks.submit(rank, forming(std::to_string(place.set), members[place.set]));
      } else if (place.stage < 3) {
        place.waits_for = ranks.submit(rank, request_in(place.id, "x"));
      } else {
        ranks.submit(rank, leaving(place.id));  // nobody waits for it
        place = {place.set + 1, 0, 0, 0};
      }
    };
    for (int round = 0; round < 2000; ++round) {
      for (int rank = 0; rank < kSize; ++rank) {
        if (random() % 2 == 0) {
          step(rank);
        }
      }
      const auto outcomes = ranks.round();
      for (int rank = 0; rank < kSize; ++rank) {
        Place& place = places[static_cast<std::size_t>(rank)];
        for (const Response& response : outcomes[static_cast<std::size_t>(rank)].ready) {
          ASSERT_TRUE(response.status.ok()) << response.status.message();
          if (response.ticket == place.waits_for) {
            if (place.stage == 0) {
              place.id = static_cast<std::uint32_t>(response.value);
              ASSERT_EQ(ids[place.set].value_or(place.id), place.id);
              ids[place.set] = place.id;
            }
            ++place.stage;
            place.waits_for = 0;
          }
        }
      }
    }
    for (int rank = 0; rank < kSize; ++rank) {
      EXPECT_TRUE(ranks.pending(rank).empty()) << ranks.pending(rank).front();
      EXPECT_EQ(ranks.of(rank).process_sets().size(), 1U);
    }
    EXPECT_TRUE(std::all_of(ids.begin(), ids.end(), [](const auto& id) { return id.has_value(); }));
    if (HasFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace aiacc
