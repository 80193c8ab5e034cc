#include "csrc/engines/p2p/messenger.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/p2p/mailbox.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/interruptions.h"
#include "tests/cpp/support/process.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {
namespace {

using Data = std::vector<std::uint8_t>;

/// A rank's messenger, and what becomes of its messages.
class Rank {
 public:
  Rank(Connector* connector, int rank, double peer_timeout_s = 20)
      : messenger_(std::make_unique<Messenger>(
            connector,
            rank,
            peer_timeout_s,
            Messenger::Events{[this](auto ticket, int source, const Status& status) {
                                end(ticket, source, status);
                              },
                              [this](const Status& status) { lose(status); }})) {}

  Messenger& messenger() { return *messenger_; }

  std::uint64_t send(int to, const std::string& key, const Data& data) {
    const std::uint64_t ticket = ++tickets_;
    messenger_->send(to, key, data.data(), data.size(), ticket);
    return ticket;
  }
  std::uint64_t receive(int from, const std::string& key, Data& data) {
    const std::uint64_t ticket = ++tickets_;
    messenger_->receive(key, {from, data.data(), data.size(), ticket});
    return ticket;
  }

  /// The source of what has ended.
  int wait(std::uint64_t ticket, const std::string& problem = "") {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_.count(ticket) != 0 || !lost_.ok(); });
    if (ended_.count(ticket) == 0) {
      throw Error(lost_);
    }
    const auto [source, status] = ended_.at(ticket);
    EXPECT_EQ(status.ok(), problem.empty()) << status.message();
    EXPECT_NE(status.message().find(problem), std::string::npos) << status.message();
    return source;
  }
  bool over(std::uint64_t ticket) {
    const std::lock_guard lock(mutex_);
    return ended_.count(ticket) != 0;
  }
  Status lost() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !lost_.ok(); });
    return lost_;
  }
  bool is_lost() {
    const std::lock_guard lock(mutex_);
    return !lost_.ok();
  }

  void leave() {
    messenger_->drain(Clock::now() + std::chrono::seconds(20));
    messenger_->stop({Code::kShutdown, "over"});
  }
  void stop(Code code = Code::kInternal) { messenger_->stop({code, "stopped"}); }

 private:
  void end(std::uint64_t ticket, int source, const Status& status) {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(ended_.emplace(ticket, std::make_pair(source, status)).second)
        << "a ticket came back twice";
    changed_.notify_all();
  }
  void lose(const Status& status) {
    const std::lock_guard lock(mutex_);
    lost_ = lost_.ok() ? status : lost_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, std::pair<int, Status>> ended_;
  Status lost_;
  std::atomic<std::uint64_t> tickets_{0};
  std::unique_ptr<Messenger> messenger_;
};

/// Calls `body(rank, self)` on a thread per rank, which leaves in order when it is through.
template <class Body>
void with_ranks(int size, Body body) {
  TcpWorld world(size);
  run_as_ranks(size, [&](int rank, RankThreads& rank_threads) {
    Rank self(&world.connector(rank), rank);
    const auto guard = rank_threads.on_failure([&](const Status&) { self.stop(); });
    body(rank, self);
    self.leave();
  });
}

/// Below, at and above what travels with an offer, and more than a socket takes at once.
const std::vector<std::size_t> kSizes = {
    0, 1, MessageLink::kEagerBytes, MessageLink::kEagerBytes + 1, std::size_t{20} << 20};

Data pattern(std::size_t bytes, int seed) {
  Data data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(seed));
  }
  return data;
}

TEST(Messenger, BothSendFirst) {
  for (const std::size_t bytes : kSizes) {
    with_ranks(2, [&](int rank, Rank& self) {
      const Data mine = pattern(bytes, rank);
      Data theirs(bytes);
      const std::uint64_t sent = self.send(1 - rank, "x", mine);
      EXPECT_EQ(self.wait(self.receive(1 - rank, "x", theirs)), 1 - rank);
      self.wait(sent);
      EXPECT_EQ(theirs, pattern(bytes, 1 - rank));
      EXPECT_FALSE(self.is_lost()) << "though the other one may have left";
    });
  }
}

/// Its payload comes with the offer, and is there already.
TEST(Messenger, ASendIsOverWhenItIsReceived) {
  with_ranks(2, [](int rank, Rank& self) {
    Data word(1);
    if (rank == 0) {
      const Data data = pattern(100, 3);
      const std::uint64_t early = self.send(1, "late", data);
      self.wait(self.send(1, "first", word));
      EXPECT_FALSE(self.over(early));
      self.wait(self.send(1, "second", word));
      self.wait(early);
    } else {
      Data data(100);
      self.wait(self.receive(0, "first", word));
      self.wait(self.receive(0, "second", word));
      self.wait(self.receive(0, "late", data));
      EXPECT_EQ(data, pattern(100, 3));
    }
  });
}

TEST(Messenger, FromAnySource) {
  with_ranks(4, [](int rank, Rank& self) {
    constexpr int kEach = 20;
    const std::vector<std::size_t> sizes = {8, MessageLink::kEagerBytes * 2};
    for (const std::size_t bytes : rank == 0 ? std::vector<std::size_t>() : sizes) {
      for (int i = 0; i < kEach; ++i) {
        const Data data(bytes, static_cast<std::uint8_t>(rank));
        self.wait(self.send(0, std::to_string(bytes), data));
      }
    }
    if (rank != 0) {
      return;
    }
    std::vector<int> seen(4);
    for (const std::size_t bytes : sizes) {
      Data data(bytes);
      for (int i = 0; i < 3 * kEach; ++i) {
        const int source =
            self.wait(self.receive(MessageReceive::kAnySource, std::to_string(bytes), data));
        EXPECT_EQ(data, Data(bytes, static_cast<std::uint8_t>(source)));
        seen[static_cast<std::size_t>(source)] += 1;
      }
    }
    EXPECT_EQ(seen, (std::vector<int>{0, 2 * kEach, 2 * kEach, 2 * kEach}));
  });
}

/// Until as many entries of a folder of /proc are links to `what`, or threads of this name.
bool await_entries(const std::filesystem::path& folder, const std::string& what, int expected) {
  for (const auto end = Clock::now() + std::chrono::seconds(20); Clock::now() < end;) {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::error_code none;
      std::string text = std::filesystem::read_symlink(entry.path(), none).string();
      if (none) {
        std::getline(std::ifstream(entry.path() / "comm"), text);
      }
      count += text.rfind(what, 0) == 0 ? 1 : 0;
    }
    if (count == expected) {
      return true;
    }
    std::this_thread::yield();
  }
  return false;
}

/// Whichever of the two has the lower number.
TEST(Messenger, ReceivesFromAnySourceWithoutConnectionsToSilentRanks) {
  constexpr int kSize = 9;
  for (const int receiver : {0, 4}) {
    TcpWorld world(kSize);
    Rank self(&world.connector(receiver), receiver);
    Rank other(&world.connector(2), 2);
    const Data sent(1, 7);
    Data received(1);
    const std::uint64_t any = self.receive(MessageReceive::kAnySource, "x", received);
    other.wait(other.send(receiver, "x", sent));
    EXPECT_EQ(self.wait(any), 2);
    EXPECT_EQ(received, sent);
    EXPECT_TRUE(await_entries("/proc/self/fd", "socket:", kSize + 2))
        << "listeners, and the ends of one connection";
  }
}

TEST(Messenger, HasTwoThreadsAndAConnectionForEachPeerWhoeverSendsFirst) {
  constexpr int kSize = 6;
  std::atomic<int> arrived{0};
  with_ranks(kSize, [&](int rank, Rank& self) {
    const Data data = pattern(10, rank);
    std::vector<Data> places(kSize, Data(10));
    std::vector<std::uint64_t> tickets;
    await_all(arrived, kSize);
    for (int other = 0; other < kSize; ++other) {
      tickets.push_back(self.send(other, "x", data));
      tickets.push_back(self.receive(other, "x", places[static_cast<std::size_t>(other)]));
    }
    for (const std::uint64_t ticket : tickets) {
      self.wait(ticket);
    }
    await_all(arrived, 2 * kSize);
    if (rank == 0) {
      EXPECT_TRUE(await_entries("/proc/self/task", "aiacc p2p", 2 * kSize));
      EXPECT_TRUE(await_entries("/proc/self/fd", "socket:", kSize * kSize))
          << "listeners, and two ends of a connection for each pair";
    }
    await_all(arrived, 3 * kSize);
  });
}

TEST(Messenger, ToItself) {
  Rank self(nullptr, 0);
  for (const std::size_t bytes : kSizes) {
    const Data mine = pattern(bytes, 1);
    Data here(bytes);
    const std::uint64_t first = self.send(0, "x", mine);
    const std::uint64_t second = self.receive(0, "x", here);
    EXPECT_EQ(self.wait(second), 0);
    self.wait(first);
    EXPECT_EQ(here, mine);
    Data again(bytes);
    const std::uint64_t any = self.receive(MessageReceive::kAnySource, "x", again);
    EXPECT_FALSE(self.over(any));
    self.send(0, "x", mine);
    self.wait(any);
    EXPECT_EQ(again, mine);
  }
}

TEST(Messenger, OtherSizesFailBothAndNothingElse) {
  for (const std::size_t bytes : {std::size_t{16}, MessageLink::kEagerBytes * 2}) {
    with_ranks(2, [&](int rank, Rank& self) {
      const std::string problem = "message 'x': rank 0 sends " + std::to_string(bytes) +
                                  " bytes, rank 1 receives 8 (expected equal)";
      Data data(bytes);
      Data less(8);
      self.wait(rank == 0 ? self.send(1, "x", data) : self.receive(0, "x", less), problem);
      self.wait(rank == 0 ? self.send(1, "x", data) : self.receive(0, "x", data));
    });
  }
  Rank self(nullptr, 0);
  Data data(2);
  Data more(3);
  const std::uint64_t sent = self.send(0, "x", data);
  self.wait(self.receive(0, "x", more), "rank 0 sends 2 bytes, rank 0 receives 3");
  self.wait(sent, "rank 0 sends 2 bytes");
}

TEST(Messenger, WhoWaitsForARankThatIsGoneGetsToKnow) {
  for (const bool sends : {false, true}) {
    TcpWorld world(2);
    run_as_ranks(2, [&](int rank) {
      Rank self(&world.connector(rank), rank);
      Data data(8);
      self.wait(rank == 0 ? self.send(1, "x", data) : self.receive(0, "x", data));
      if (rank == 0) {
        self.stop();
        return;
      }
      if (sends) {
        self.send(0, "y", data);
      } else {
        self.receive(0, "y", data);
      }
      expect_error(self.lost(), Code::kPeerLost, {"lost rank 0 ", "the connection for messages"});
      self.stop();
    });
  }
}

TEST(Messenger, WhoWaitsOnADeadLinkGetsToKnowWhateverSignalsCome) {
  TcpWorld world(2);
  std::promise<void> is_cut;
  std::promise<void> is_lost;
  run_as_ranks(2, [&](int rank) {
    if (rank == 1) {
      const std::vector<Socket> sockets =
          world.connector(1).establish({{0, ChannelKind::kMessages, 0, true, 0}});
      cut(sockets[0]);
      is_cut.set_value();
      is_lost.get_future().wait();
      return;
    }
    Rank self(&world.connector(0), 0, 0.3);
    Data data(8);
    self.receive(1, "x", data);
    is_cut.get_future().wait();
    const Interruptions signals;
    self.send(1, "x", data);
    while (!self.is_lost()) {
      self.messenger().look();
      poll_until(nullptr, 0, Clock::now() + std::chrono::milliseconds(20));
    }
    expect_error(self.lost(), Code::kPeerLost, {"lost rank 1 ", "nothing has arrived there"});
    is_lost.set_value();
    self.stop();
  });
}

/// In the middle of a message, with others waiting, connected or not.
TEST(Messenger, StopEndsEverythingAtAnyTime) {
  for (int round = 0; round < 10; ++round) {
    TcpWorld world(3);
    run_as_ranks(3, [&](int rank) {
      Rank self(&world.connector(rank), rank);
      const Data large(std::size_t{8} << 20);
      std::vector<Data> places(6, Data(large.size()));
      for (int other = 0; other < 3; ++other) {
        for (const char* key : {"x", "y"}) {
          self.send(other, key, large);
          self.receive(other, key, places[static_cast<std::size_t>(other)]);
        }
      }
      self.receive(MessageReceive::kAnySource, "z", places[5]);
      std::this_thread::yield();
      self.stop(round % 2 == 0 ? Code::kInternal : Code::kShutdown);
      // Nobody writes there any more.
      places.clear();
      self.send(0, "x", large);
    });
  }
}

/// It accepts whoever comes, for as long as it runs.
TEST(Messenger, AStrangerIsTurnedAwayWhileDescriptorsAreShort) {
  TcpWorld world(2);
  Rank self(&world.connector(0), 0);
  Rank other(&world.connector(1), 1);
  const Data sent(8, 3);
  Data received(8);
  const auto exchange = [&] {
    const std::uint64_t ticket = other.send(0, "x", sent);
    self.wait(self.receive(1, "x", received));
    other.wait(ticket);
  };
  exchange();
  for (const bool is_short : {true, false}) {
    std::optional<DescriptorLimit> limit;
    if (is_short) {
      limit.emplace(1);  // for this end of the stranger's connection
    }
    Socket stranger =
        connect_to(world.listener(0).address(), Clock::now() + std::chrono::seconds(20));
    const std::string greeting(100, 'x');
    stranger.send_some(greeting.data(), greeting.size(), "rank 0");
    std::string answer(100, '\0');
    EXPECT_FALSE(status_of([&] {
                   while (true) {  // until it is closed
                     pollfd entry{stranger.fd(), POLLIN, 0};
                     poll_until(&entry, 1, Clock::time_point::max());
                     stranger.recv_some(answer.data(), answer.size(), "rank 0");
                   }
                 }).ok());
    EXPECT_TRUE(!is_short || answer[0] == kNoDescriptors);
  }
  exchange();
  EXPECT_FALSE(self.is_lost());
}

/// As on the wire.
struct Frame {
  std::uint8_t magic = 0xa2;
  std::uint8_t kind = 1;
  std::uint16_t key_bytes = 0;
  std::uint32_t id = 0;
  std::uint64_t bytes = 0;
};

/// What a rank makes of it that has offered two messages, one of them small.
TEST(Messenger, WhatNoRankSendsIsNotBelieved) {
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  const std::vector<Frame> lies = {{0xa1, 1, 0, 0, 0},
                                   {0xa2, 0, 0, 0, 0},
                                   {0xa2, 6, 0, 0, 0},
                                   {0xa2, 1, 65535, 0, 0},
                                   {0xa2, 1, 0, 0, kHuge},
                                   {0xa2, 2, 0, 7, 0},   // a grant of what was not offered,
                                   {0xa2, 2, 0, 0, 0},   // of what it has,
                                   {0xa2, 3, 0, 0, 9},   // what nobody asked for,
                                   {0xa2, 4, 0, 1, 0},   // word that it has what was not sent,
                                   {0xa2, 5, 0, 9, 0}};  // a refusal of nothing
  for (const Frame& lie : lies) {
    SCOPED_TRACE("kind " + std::to_string(lie.kind) + ", id " + std::to_string(lie.id));
    TcpWorld world(2);
    run_as_ranks(2, [&](int rank) {
      if (rank == 1) {
        std::vector<Socket> sockets =
            world.connector(1).establish({{0, ChannelKind::kMessages, 0, false, 0}});
        sockets[0].send_all(&lie, sizeof lie, "rank 0", Clock::now() + std::chrono::seconds(20));
        std::uint8_t byte = 0;
        status_of([&] {
          while (true) {  // until it is closed
            sockets[0].recv_some(&byte, 1, "rank 0");
          }
        });
        return;
      }
      Rank self(&world.connector(0), 0);
      const Data small(3);
      const Data large(MessageLink::kEagerBytes + 1);
      self.send(1, "small", small);
      self.send(1, "large", large);
      expect_error(self.lost(), Code::kPeerLost, {"rank 1 sent ", "cannot be trusted"});
      self.stop();
    });
  }
}

TEST(Messenger, ARankThatReadsNothingKeepsNobodyElse) {
  TcpWorld world(3);
  std::promise<void> is_granted;
  std::promise<void> is_over;
  const std::shared_future<void> over = is_over.get_future().share();
  run_as_ranks(3, [&](int rank) {
    if (rank == 1) {
      std::vector<Socket> sockets =
          world.connector(1).establish({{0, ChannelKind::kMessages, 0, false, 0}});
      pollfd offered{sockets[0].fd(), POLLIN, 0};
      poll_until(&offered, 1, Clock::time_point::max());
      const Frame grant{0xa2, 2, 0, 0, 0};
      sockets[0].send_all(&grant, sizeof grant, "rank 0", Clock::now() + std::chrono::seconds(20));
      is_granted.set_value();
      over.wait();
      return;
    }
    const Data large = pattern(kSizes.back(), rank);
    Data theirs(large.size());
    Rank self(&world.connector(rank), rank);
    if (rank == 0) {
      self.send(1, "x", large);
      is_granted.get_future().wait();
    }
    const std::uint64_t sent = self.send(2 - rank, "x", large);
    self.wait(self.receive(2 - rank, "x", theirs));
    self.wait(sent);
    EXPECT_EQ(theirs, pattern(theirs.size(), 2 - rank));
    if (rank == 2) {
      is_over.set_value();
      self.leave();
    }
    over.wait();
    self.stop();
  });
}

/// All to all, at random, from several threads of each rank.
TEST(Messenger, ManyAtATime) {
  constexpr int kSize = 4;
  constexpr int kThreads = 3;
  constexpr int kMessages = 60;
  with_ranks(kSize, [](int rank, Rank& self) {
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        // The same plan everywhere: who sends how much to whom.
        std::mt19937 same(static_cast<std::uint32_t>(thread));
        std::mt19937 own(static_cast<std::uint32_t>(thread * 10 + rank));
        struct Message {
          int number;
          Data data;
          std::uint64_t ticket;
        };
        std::vector<Message> messages;
        for (int i = 0; i < kMessages; ++i) {
          const int from = static_cast<int>(same() % kSize);
          const int to = static_cast<int>(same() % kSize);
          const std::size_t bytes = same() % 5 == 0 ? 100'000 + same() % 1000 : same() % 3000;
          const std::string key = std::to_string(thread) + "." + std::to_string(i % 4);
          if (rank == from) {
            messages.push_back({i, pattern(bytes, i), 0});
            messages.back().ticket = self.send(to, key, messages.back().data);
          }
          if (rank == to) {
            messages.push_back({i, Data(bytes), 0});
            messages.back().ticket = self.receive(from, key, messages.back().data);
          }
        }
        std::shuffle(messages.begin(), messages.end(), own);
        for (const Message& message : messages) {
          self.wait(message.ticket);
          EXPECT_EQ(message.data, pattern(message.data.size(), message.number));
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
}

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

}  // namespace
}  // namespace aiacc
