#include "csrc/control/tcp/tcp_plane.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/log.h"
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

/// Longer than any test takes, on a busy machine and with a sanitizer too: nobody is asked whether
/// it lives, so that no ping stands between the frames that a test expects.
constexpr double kNeverAskedSeconds = 600;

/// The last rank is raw connections to its partners, the others are planes.
void with_raw_rank(int size,
                   const std::function<void(TcpPlane&)>& others,
                   const std::function<void(std::vector<RawPeer>&)>& last,
                   double peer_timeout_s) {
  configure_log(LogLevel::kFatal, -1);
  TcpWorld world(size);
  run_as_ranks(size, [&](int rank, RankThreads& rank_threads) {
    if (rank == size - 1) {
      const DoublingPlan plan = DoublingPlan::of(rank, size);
      std::vector<int> partners = plan.stages;
      if (plan.proxy >= 0) {
        partners.push_back(plan.proxy);
      }
      std::vector<RawPeer> peers = raw_peers(world.connector(rank), partners);
      last(peers);
      return;
    }
    TcpPlane plane(world.connector(rank), peer_timeout_s, 50);
    const auto guard =
        rank_threads.on_failure([&](const Status& status) { plane.interrupt(status); });
    others(plane);
  });
}

/// Rank 0 is a plane, rank 1 a raw connection.
void with_raw_peer(const std::function<void(TcpPlane&)>& zero,
                   const std::function<void(RawPeer&)>& one,
                   double peer_timeout_s = kNeverAskedSeconds) {
  with_raw_rank(2, zero, [&](std::vector<RawPeer>& peers) { one(peers[0]); }, peer_timeout_s);
}

TEST(TcpPlane, AnswersPingsBetweenRounds) {
  with_raw_peer(
      [](TcpPlane& plane) {
        while (plane.bytes_sent() == 0) {
          plane.wait(Clock::time_point::max());
          plane.service();
        }
      },
      [](RawPeer& peer) {
        peer.send(Frame{FrameType::kPing, 0, 0, {}});
        EXPECT_EQ(peer.receive().type, FrameType::kPong);
      });
}

TEST(TcpPlane, ARankThatWasStoppedItselfAsksAnew) {
  std::promise<void> judged;
  with_raw_peer(
      [&](TcpPlane& plane) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // of silence
        for (int stop = 0; stop < 3; ++stop) {
          plane.check_peers();
          std::this_thread::sleep_for(std::chrono::milliseconds(400));  // it does not look
        }
        plane.check_peers();
        judged.set_value();
      },
      [&](RawPeer& peer) {
        judged.get_future().wait();
        EXPECT_EQ(peer.receive().type, FrameType::kPing);
      },
      0.3);
}

/// Much more than the buffers of a connection hold.
Bytes large_message() { return Bytes(32 << 20, 7); }

/// Nor do answers that are owed pile up on the stack of who owes them.
TEST(TcpPlane, PingsDoNotCutAFrameInTwo) {
  with_raw_peer(
      [&](TcpPlane& plane) {
        Bytes message = large_message();
        plane.all_reduce(message, join);
        EXPECT_EQ(message.size(), large_message().size() + 1);
      },
      [&](RawPeer& peer) {
        for (int i = 0; i < 200'000; ++i) {
          peer.send(Frame{FrameType::kPing, 0, 0, {}});
        }
        const Frame round = peer.receive();
        EXPECT_EQ(round.type, FrameType::kRound);
        EXPECT_EQ(round.payload, large_message());
        peer.send(Frame{FrameType::kRound, 0, 0, {1}});
        EXPECT_EQ(peer.receive().type, FrameType::kPong);  // answers them all
      });
}

TEST(TcpPlane, RoundsThatComeTooEarlyAreNotCollected) {
  with_raw_peer(
      [&](TcpPlane& plane) {
        const Status status = status_of([&] {
          while (true) {
            plane.service();
          }
        });
        expect_error(status, Code::kPeerLost, {"rounds ahead"});
      },
      [&](RawPeer& peer) {
        for (std::uint32_t round = 0; round < 20; ++round) {
          peer.send(Frame{FrameType::kRound, 0, round, {1}});
        }
      });
}

/// The text of what ends a round of such a message.
std::string end_of_a_large_round(TcpPlane& plane) {
  Bytes message = large_message();
  return status_of([&] { plane.all_reduce(message, join); }).message();
}

/// What a rank does while another one sends it a large message, and the text that ends the round.
struct Answer {
  const char* name;
  std::function<void(RawPeer&)> give;
  std::string end;
  double peer_timeout_s = kNeverAskedSeconds;
};

class LargeRoundTest : public testing::TestWithParam<Answer> {};

TEST_P(LargeRoundTest, EndsAsItsAnswerSays) {
  const Answer& answer = GetParam();
  std::promise<void> over;
  with_raw_peer(
      [&](TcpPlane& plane) {
        const std::string text = end_of_a_large_round(plane);
        EXPECT_EQ(answer.end, text.substr(0, answer.end.size()));
        EXPECT_EQ(answer.end.empty(), text.empty()) << text;
        over.set_value();
      },
      [&](RawPeer& peer) {
        answer.give(peer);
        over.get_future().wait();  // open, but nobody reads it
      },
      answer.peer_timeout_s);
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
               0.4},
        // Its answers come behind what it has not taken yet: a slow network is no frozen rank.
        Answer{"WhoTakesItSlowlyIsNotGivenUp",
               [](RawPeer& peer) {
                 // In all several times the limit: nothing but time tells.
                 EXPECT_EQ(peer.receive(std::chrono::milliseconds(18)).payload, large_message());
                 peer.send(Frame{FrameType::kRound, 0, 0, {1}});
               },
               "",
               3.5}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(TcpPlane, TheReasonForAnEndComesAfterTheRestOfAFrame) {
  std::atomic<TcpPlane*> sending{nullptr};
  with_raw_peer(
      [&](TcpPlane& plane) {
        sending.store(&plane);
        const Status status(Code::kPeerLost, kLost);
        EXPECT_EQ(end_of_a_large_round(plane), status.message());
        plane.abort(status);  // as the coordinator does
      },
      [&](RawPeer& peer) {
        peer.await_bytes();
        sending.load()->interrupt({Code::kPeerLost, kLost});
        EXPECT_EQ(peer.receive().payload, large_message());
        const Frame end = peer.receive();
        EXPECT_EQ(end.type, FrameType::kAbort);
        EXPECT_EQ(decode_status(end.payload).message(), kLost);
        peer.await_close();
      });
}

/// Who has given its reason and is gone is no connection that broke.
TEST(TcpPlane, TheReasonForAnEndComesBeforeAFrameThatCannotBeSent) {
  std::promise<void> closed;
  with_raw_peer(
      [&](TcpPlane& plane) {
        plane.check_peers();  // a ping that rank 1 does not read: its end will be a reset
        closed.get_future().wait();
        EXPECT_EQ(end_of_a_large_round(plane), kLost);
      },
      [&](RawPeer& peer) {
        peer.await_bytes();
        peer.send(end_frame(Code::kPeerLost, kLost));
        peer.close();
        closed.set_value();
      },
      0);
}

/// Rank 0 sends rank 1 more than that takes; rank 2 wants to know meanwhile whether it lives.
TEST(TcpPlane, AnswersOthersWhileAMessageIsOnItsWay) {
  configure_log(LogLevel::kFatal, -1);
  TcpWorld world(4);
  std::promise<void> blocked;
  std::promise<void> answered;
  run_as_ranks(3, [&](int rank, RankThreads& rank_threads) {
    if (rank == 0) {
      TcpPlane plane(world.connector(0), kNeverAskedSeconds, 50);
      const auto guard =
          rank_threads.on_failure([&](const Status& status) { plane.interrupt(status); });
      EXPECT_EQ(end_of_a_large_round(plane), "[test] enough");
      return;
    }
    RawPeer peer = std::move(raw_peers(world.connector(rank), {0})[0]);
    if (rank == 1) {
      peer.await_bytes();
      blocked.set_value();
      answered.get_future().wait();
      peer.send(end_frame(Code::kEngine, "[test] enough"));
      peer.await_close();
    } else {
      blocked.get_future().wait();
      peer.send(Frame{FrameType::kPing, 0, 0, {}});
      EXPECT_EQ(peer.receive().type, FrameType::kPong);
      answered.set_value();
      peer.await_close();
    }
  });
}

TEST(TcpPlane, ASilentPeerIsAskedBeforeItIsGivenUp) {
  const double limit_s = 3;
  with_raw_peer(
      [](TcpPlane& plane) {
        Bytes message = {0};
        plane.all_reduce(message, join);  // takes longer than the timeout, but rank 1 lives
        EXPECT_EQ(message, (Bytes{0, 1}));
      },
      [&](RawPeer& peer) {
        EXPECT_EQ(peer.receive().type, FrameType::kRound);
        for (int i = 0; i < 6; ++i) {
          EXPECT_EQ(peer.receive().type, FrameType::kPing);
          if (i == 0) {  // it is stopped for half of the limit: nothing but time tells
            std::this_thread::sleep_for(std::chrono::duration<double>(0.5 * limit_s));
          }
          peer.send(Frame{FrameType::kPong, 0, 0, {}});
        }
        peer.send(Frame{FrameType::kRound, 0, 0, {1}});
      },
      limit_s);
}

/// Its answers are taken for the rest of it.
TEST(TcpPlane, AMessageThatIsNeverCompletedIsNotWaitedFor) {
  with_raw_peer(
      [](TcpPlane& plane) {
        Bytes message = {0};
        expect_error(status_of([&] { plane.all_reduce(message, join); }),
                     Code::kPeerLost,
                     {"rank 1 announced a message of 100012 bytes and has sent "});
      },
      [](RawPeer& peer) {
        Bytes begin;
        encode_frame({FrameType::kRound, 0, 0, Bytes(100'000, 1)}, begin);
        begin.resize(100);
        peer.send(begin);
        status_of([&] {
          while (true) {
            peer.receive();
            peer.send(Frame{FrameType::kPong, 0, 0, {}});
          }
        });
      },
      0.4);
}

/// And it does not wait for a frozen peer, which never closes.
TEST(TcpPlane, AFarewellIsTheLastThingSent) {
  with_raw_peer(
      [](TcpPlane& plane) { plane.abort({Code::kShutdown, "[core] rank 0 has shut down"}); },
      [](RawPeer& peer) {
        const Frame frame = peer.receive();
        EXPECT_EQ(frame.type, FrameType::kAbort);
        EXPECT_EQ(decode_status(frame.payload).message(), "[core] rank 0 has shut down");
        peer.await_close();
      });
}

TEST(TcpPlane, TheReasonForAnEndComesBeforeAnswersThatFail) {
  std::promise<void> closed;
  with_raw_peer(
      [&](TcpPlane& plane) {
        closed.get_future().wait();
        std::string reason;
        while (reason.empty()) {
          plane.wait(Clock::time_point::max());
          reason = status_of([&] { plane.service(); }).message();
        }
        EXPECT_EQ(reason, kLost);
      },
      [&](RawPeer& peer) {
        Bytes all;
        encode_frame({FrameType::kPing, 0, 0, {}}, all);
        encode_frame({FrameType::kPing, 0, 0, {}}, all);  // the answer to the first is refused
        encode_frame(end_frame(Code::kPeerLost, kLost), all);
        peer.send(all);
        peer.close();
        closed.set_value();
      });
}

/// The last rank does this on all its connections after a good start; all others must name it.
struct Misdeed {
  const char* name;
  std::function<void(RawPeer&)> commit;
  const char* text;
};

class TcpPlaneFailureTest : public testing::TestWithParam<std::tuple<int, Misdeed>> {};

TEST_P(TcpPlaneFailureTest, EverySurvivorLearnsTheSameReason) {
  const auto& [size, misdeed] = GetParam();
  const std::string name = misdeed.name;
  std::atomic<int> connected{0};
  with_raw_rank(
      size,
      [&, size = size, &misdeed = misdeed](TcpPlane& plane) {
        await_all(connected, size - 1);  // nobody answers before that
        Bytes message = {0};
        const Status status = status_of([&] { plane.all_reduce(message, join); });
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
      0.4);
}

const Misdeed kMisdeeds[] = {
    {"Closes", [](RawPeer& peer) { peer.close(); }, "the connection"},
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
                         TcpPlaneFailureTest,
                         testing::Combine(testing::Values(2, 3, 4, 5, 8),
                                          testing::ValuesIn(kMisdeeds)),
                         [](const auto& test) {
                           return std::get<1>(test.param).name +
                                  std::to_string(std::get<0>(test.param));
                         });

TEST(TcpPlaneFuzz, DamagedStreamsEndInAnErrorThatNamesTheRank) {
  Bytes valid;
  for (std::uint32_t round = 0; round < 4; ++round) {
    encode_frame({FrameType::kPing, 0, round, {}}, valid);
    encode_frame({FrameType::kRound, 0, round, Bytes(20, 1)}, valid);
  }
  encode_frame({FrameType::kAbort, 0, 4, encode_status({Code::kShutdown, "rank 1 left"})}, valid);
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    with_raw_peer(
        [](TcpPlane& plane) {
          Status status;
          while (status.ok()) {
            status = status_of([&] {
              Bytes message = {0};
              plane.all_reduce(message, join);
            });
          }
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
