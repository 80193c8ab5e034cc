#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/log.h"
#include "csrc/control/control_plane.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/mutator.h"
#include "tests/cpp/support/peers/raw_peer.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {
namespace {

void join(Bytes& mine, const Bytes& theirs, const RankBlock&) {
  mine.insert(mine.end(), theirs.begin(), theirs.end());
}

Frame end_frame(Code code, const std::string& reason) {
  return {FrameType::kAbort, 0, 0, encode_status({code, reason})};
}

/// Longer than any test takes, on a busy machine and with a sanitizer too.
constexpr double kLongSeconds = 600;

/// Answers pings in the name of a raw rank.
std::unique_ptr<Heartbeat> answer_pings(std::vector<Socket> sockets) {
  std::vector<Heartbeat::Link> links;
  for (Socket& socket : sockets) {
    links.push_back({0, std::move(socket)});
  }
  return std::make_unique<Heartbeat>(std::move(links), kLongSeconds, 0, [](const Status&) {});
}

/// The last rank is raw connections to its partners, the others are planes.
void with_raw_rank(int size,
                   const std::function<void(ControlPlane&)>& others,
                   const std::function<void(std::vector<RawPeer>&)>& last,
                   double peer_timeout_s,
                   bool answers) {
  configure_log(LogLevel::kFatal, -1);
  TcpWorld world(size);
  run_as_ranks(size, [&](int rank, RankThreads& rank_threads) {
    if (rank == size - 1) {
      const DoublingPlan plan = DoublingPlan::of(rank, ranks_by_host({}, size));
      RawPeers peers = raw_peers(world.connector(rank), plan.partners());
      const auto heartbeat = answers ? answer_pings(std::move(peers.heartbeats)) : nullptr;
      last(peers.control);
      return;
    }
    ControlPlane plane(&world.connector(rank), {peer_timeout_s});
    const auto guard =
        rank_threads.on_failure([&](const Status& status) { plane.interrupt(status); });
    others(plane);
  });
}

/// Rank 0 is a plane, rank 1 a raw connection.
void with_raw_peer(const std::function<void(ControlPlane&)>& zero,
                   const std::function<void(RawPeer&)>& one,
                   double peer_timeout_s = kLongSeconds,
                   bool answers = true) {
  with_raw_rank(
      2, zero, [&](std::vector<RawPeer>& peers) { one(peers[0]); }, peer_timeout_s, answers);
}

/// Much more than the buffers of a connection hold.
Bytes large_message() { return Bytes(32 << 20, 7); }

TEST(ControlPlane, RoundsThatComeTooEarlyAreNotCollected) {
  with_raw_peer(
      [&](ControlPlane& plane) {
        const Status status = first_error_of([&] { plane.service(); });
        expect_error(status, Code::kPeerLost, {"rounds ahead"});
      },
      [&](RawPeer& peer) {
        for (std::uint32_t round = 0; round < 20; ++round) {
          peer.send(Frame{FrameType::kRound, 0, round, {1}});
        }
      });
}

/// The text of what ends a round of such a message.
std::string end_of_a_large_round(ControlPlane& plane) {
  Bytes message = large_message();
  return status_of([&] { plane.all_reduce(message, join, Runner::kLoop); }).message();
}

/// What a rank does while another one sends it a large message, and the text that ends the round.
struct Answer {
  const char* name;
  std::function<void(RawPeer&)> give;
  std::string end;
  double peer_timeout_s = kLongSeconds;
  bool answers = true;  ///< pings
};

class LargeRoundTest : public testing::TestWithParam<Answer> {};

TEST_P(LargeRoundTest, EndsAsItsAnswerSays) {
  const Answer& answer = GetParam();
  std::promise<void> over;
  with_raw_peer(
      [&](ControlPlane& plane) {
        const std::string text = end_of_a_large_round(plane);
        EXPECT_EQ(answer.end, text.substr(0, answer.end.size()));
        EXPECT_EQ(answer.end.empty(), text.empty()) << text;
        over.set_value();
      },
      [&](RawPeer& peer) {
        answer.give(peer);
        over.get_future().wait();  // open, but nobody reads it
      },
      answer.peer_timeout_s,
      answer.answers);
}

const std::string kLeft = "[core] rank 1 has shut down";
const std::string kLost = "[control] rank 7 is lost";

INSTANTIATE_TEST_SUITE_P(
    Answers,
    LargeRoundTest,
    testing::Values(
        Answer{"ALeaverTakesNothingMore",
               [](RawPeer& peer) {
                 peer.await_bytes();
                 peer.send(end_frame(Code::kShutdown, kLeft));
               },
               kLeft},
        // The rank that is first to finish the last round leaves while others are still in it.
        Answer{"WhatALeaverHasGivenCounts",
               [](RawPeer& peer) {
                 peer.await_bytes();
                 peer.send(Frame{FrameType::kRound, 0, 0, {1}});
                 peer.send(end_frame(Code::kShutdown, kLeft));
               },
               ""},
        Answer{"AReasonComesBeforeTheGarbageAfterIt",
               [](RawPeer& peer) {
                 Bytes all;
                 encode_frame(end_frame(Code::kPeerLost, kLost), all);
                 all.resize(all.size() + 100, 0x47);
                 peer.send(all);
               },
               kLost},
        Answer{"WhoTakesNothingIsGivenUp",
               [](RawPeer&) {},
               "[control] rank 1 has not answered within",
               0.4,
               false},
        // It lives: a slow network is no frozen rank.
        Answer{"WhoTakesItSlowlyIsNotGivenUp",
               [](RawPeer& peer) {
                 // In all several times the limit: nothing but time tells.
                 EXPECT_EQ(peer.receive(std::chrono::milliseconds(18)).payload, large_message());
                 peer.send(Frame{FrameType::kRound, 0, 0, {1}});
               },
               "",
               1.5}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(ControlPlane, TheReasonForAnEndComesAfterTheRestOfAFrame) {
  std::atomic<ControlPlane*> sending{nullptr};
  std::promise<void> interrupted;
  with_raw_peer(
      [&](ControlPlane& plane) {
        sending.store(&plane);
        const Status status(Code::kPeerLost, kLost);
        EXPECT_EQ(end_of_a_large_round(plane), status.message());
        plane.abort(status);  // as the coordinator does
        interrupted.get_future().wait();
      },
      [&](RawPeer& peer) {
        peer.await_bytes();
        sending.load()->interrupt({Code::kPeerLost, kLost});
        interrupted.set_value();
        EXPECT_EQ(peer.receive().payload, large_message());
        const Frame end = peer.receive();
        EXPECT_EQ(end.type, FrameType::kAbort);
        EXPECT_EQ(decode_status(end.payload).message(), kLost);
        peer.await_close();
      });
}

/// Who has given its reason and is gone is no connection that broke.
TEST(ControlPlane, TheReasonForAnEndComesBeforeAFrameThatCannotBeSent) {
  with_raw_peer([&](ControlPlane& plane) { EXPECT_EQ(end_of_a_large_round(plane), kLost); },
                [&](RawPeer& peer) {
                  peer.await_bytes();
                  peer.send(end_frame(Code::kPeerLost, kLost));
                  peer.close();  // with much that it has not read: its end is a reset
                });
}

TEST(ControlPlane, AMessageThatIsNeverCompletedIsNotWaitedFor) {
  with_raw_peer(
      [](ControlPlane& plane) {
        Bytes message = {0};
        expect_error(status_of([&] { plane.all_reduce(message, join, Runner::kLoop); }),
                     Code::kPeerLost,
                     {"rank 1 announced a message of 100012 bytes and has sent "});
      },
      [](RawPeer& peer) {
        Bytes begin;
        encode_frame({FrameType::kRound, 0, 0, Bytes(100'000, 1)}, begin);
        begin.resize(100);
        peer.send(begin);
        peer.await_close();
      },
      0.4);
}

/// And it does not wait for a frozen peer, which never closes.
TEST(ControlPlane, AFarewellIsTheLastThingSent) {
  with_raw_peer(
      [](ControlPlane& plane) { plane.abort({Code::kShutdown, "[core] rank 0 has shut down"}); },
      [](RawPeer& peer) {
        const Frame frame = peer.receive();
        EXPECT_EQ(frame.type, FrameType::kAbort);
        EXPECT_EQ(decode_status(frame.payload).message(), "[core] rank 0 has shut down");
        peer.await_close();
      });
}

/// The last rank does this on all its connections after a good start; all others must name it.
struct Misdeed {
  const char* name;
  std::function<void(RawPeer&)> commit;
  const char* text;
};

class ControlPlaneFailureTest : public testing::TestWithParam<std::tuple<int, Misdeed>> {};

TEST_P(ControlPlaneFailureTest, EverySurvivorLearnsTheSameReason) {
  const auto& [size, misdeed] = GetParam();
  const std::string name = misdeed.name;
  std::atomic<int> connected{0};
  with_raw_rank(
      size,
      [&, size = size, &misdeed = misdeed](ControlPlane& plane) {
        await_all(connected, size - 1);  // nobody answers before that
        Bytes message = {0};
        const Status status = status_of([&] { plane.all_reduce(message, join, Runner::kLoop); });
        plane.abort(status);  // as the coordinator does
        EXPECT_FALSE(status.ok());
        const std::string culprit = "rank " + std::to_string(size - 1);
        expect_parts(status.message(), {misdeed.text, name == "SaysWhy" ? "" : culprit});
      },
      [&, &misdeed = misdeed](std::vector<RawPeer>& peers) {
        for (RawPeer& peer : peers) {
          misdeed.commit(peer);
        }
        for (std::size_t i = 0; name != "Closes" && i < peers.size(); ++i) {
          peers[i].await_close();
        }
      },
      0.4,
      name != "IsSilent");
}

const Misdeed kMisdeeds[] = {
    {"Closes", [](RawPeer& peer) { peer.close(); }, "lost rank"},
    {"SendsGarbage", [](RawPeer& peer) { peer.send(Bytes(100, 0x47)); }, "not aiacc's protocol"},
    {"SendsAnAbsurdLength",
     [](RawPeer& peer) {
       Bytes bytes;
       encode_frame({FrameType::kRound, 0, 0, {}}, bytes);
       bytes[3] = 0xff;
       peer.send(bytes);
     },
     "a message of 4278190080 bytes (expected at most 67108864)"},
    {"StartsAnotherRound",
     [](RawPeer& peer) { peer.send(Frame{FrameType::kRound, 0, 77, {}}); },
     "got round 77"},
    {"IsInAnotherStage",
     [](RawPeer& peer) { peer.send(Frame{FrameType::kRound, 99, 0, {}}); },
     "stage 99"},
    {"IsSilent", [](RawPeer&) {}, "has not answered within"},
    {"SaysWhy",
     [](RawPeer& peer) { peer.send(end_frame(Code::kEngine, "[test] its rank is broken")); },
     "is broken"}};

INSTANTIATE_TEST_SUITE_P(Misdeeds,
                         ControlPlaneFailureTest,
                         testing::Combine(testing::Values(2, 3, 4, 5, 8),
                                          testing::ValuesIn(kMisdeeds)),
                         [](const auto& test) {
                           return std::get<1>(test.param).name +
                                  std::to_string(std::get<0>(test.param));
                         });

TEST(ControlPlaneFuzz, DamagedStreamsEndInAnErrorThatNamesTheRank) {
  Bytes valid;
  for (std::uint32_t round = 0; round < 4; ++round) {
    encode_frame({FrameType::kJoin, 0, round, {}}, valid);
    encode_frame({FrameType::kRound, 0, round, Bytes(20, 1)}, valid);
  }
  encode_frame({FrameType::kAbort, 0, 4, encode_status({Code::kShutdown, "rank 1 left"})}, valid);
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    with_raw_peer(
        [](ControlPlane& plane) {
          const Status status = first_error_of([&] {
            Bytes message = {0};
            plane.all_reduce(message, join, Runner::kLoop);
          });
          EXPECT_TRUE(status.message().find("rank 1") != std::string::npos ||
                      status.code() != Code::kPeerLost)
              << status.message();
        },
        [&](RawPeer& peer) {
          // It may have given up already.
          status_of([&] { peer.send(Mutator(seed).damage(valid)); });
          peer.close();
        });
  }
}

}  // namespace
}  // namespace aiacc
