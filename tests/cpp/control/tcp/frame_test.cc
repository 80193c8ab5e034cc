#include "csrc/control/tcp/frame.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/allocations.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/mutator.h"

namespace aiacc {
namespace {

std::vector<Frame> some_frames() {
  std::vector<Frame> frames = {{FrameType::kRound, 3, 7, Bytes(1000, 0xab)},
                               {FrameType::kJoin, 0, 8, {}},
                               {FrameType::kJoin, 0, 0, {}},
                               {FrameType::kJoin, 255, 0xffffffff, {}}};
  frames.push_back({FrameType::kAbort, 0, 9, encode_status({Code::kPeerLost, "rank 3 is gone"})});
  return frames;
}

Bytes encoded(const std::vector<Frame>& frames) {
  Bytes bytes;
  for (const Frame& frame : frames) {
    encode_frame(frame, bytes);
  }
  return bytes;
}

/// Gives a decoder pieces of `length()` bytes.
template <class Length>
void feed(const Bytes& bytes, Length length, RecyclingQueue<Frame>& frames) {
  FrameDecoder decoder("rank 1");
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t piece = std::min<std::size_t>(bytes.size() - at, length());
    decoder.feed(bytes.data() + at, piece, frames);
    at += piece;
  }
}

void expect_equal(const std::vector<Frame>& expected, RecyclingQueue<Frame> got) {
  ASSERT_EQ(got.size(), expected.size());
  for (const Frame& frame : expected) {
    EXPECT_EQ(got.front().type, frame.type);
    EXPECT_EQ(got.front().stage, frame.stage);
    EXPECT_EQ(got.front().round, frame.round);
    EXPECT_EQ(got.front().payload, frame.payload);
    got.pop();
  }
}

TEST(FrameDecoder, TakesFramesInAnyCut) {
  const Bytes bytes = encoded(some_frames());
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    RecyclingQueue<Frame> frames;
    feed(bytes, [&] { return 1 + random() % 40; }, frames);
    expect_equal(some_frames(), frames);
  }
}

TEST(FrameDecoder, ALengthIsBelievedOnlyAsItComesAndAnAbsurdOneIsRefusedAtOnce) {
  constexpr std::uint32_t kMost = FrameDecoder::kMaxPayload;
  for (const std::uint32_t length : {kMost, kMost + 1, 0x7fffffffU, 0xffffffffU}) {
    Bytes bytes = encoded({{FrameType::kRound, 0, 0, {}}});
    std::memcpy(bytes.data(), &length, sizeof length);
    FrameDecoder decoder("rank 5");
    RecyclingQueue<Frame> frames;
    largest_allocation.store(0);
    const Status status = status_of([&] { decoder.feed(bytes.data(), bytes.size(), frames); });
    EXPECT_LT(largest_allocation.load(), 4096U);
    EXPECT_TRUE(frames.empty());
    if (length == kMost) {
      EXPECT_TRUE(status.ok()) << status.message();
    } else {
      expect_error(
          status, Code::kPeerLost, {"rank 5", std::to_string(length), std::to_string(kMost)});
    }
  }
}

TEST(Frame, WhatNobodyWouldAcceptIsNotSent) {
  Frame frame;
  frame.payload.resize(FrameDecoder::kMaxPayload + 1);
  Bytes bytes;
  EXPECT_THROW(encode_frame(frame, bytes), Error);
  EXPECT_TRUE(bytes.empty());
}

TEST(FrameDecoderFuzz, DamagedStreamsDecodeOrThrow) {
  const Bytes valid = encoded(some_frames());
  for (std::uint32_t seed = 0; seed < 20000; ++seed) {
    Mutator mutator(seed);
    const Bytes bytes = mutator.damage(valid);
    RecyclingQueue<Frame> frames;
    largest_allocation.store(0);
    const Status status =
        status_of([&] { feed(bytes, [&] { return 1 + mutator.below(600); }, frames); });
    ASSERT_TRUE(status.ok() || status.code() == Code::kPeerLost) << "seed " << seed;
    ASSERT_LT(largest_allocation.load(), 4 * bytes.size() + 4096) << "seed " << seed;
    for (; !frames.empty(); frames.pop()) {
      decode_status(frames.front().payload);
    }
  }
}

TEST(AbortStatus, ComesBackAsItWasEncoded) {
  for (const Code code : {Code::kInvalidArgument,
                          Code::kPeerLost,
                          Code::kShutdown,
                          Code::kInternal,
                          Code::kNotFinite}) {
    for (const std::string& text :
         {std::string(), std::string("[core] rank 3"), std::string(5000, 'x')}) {
      const Status status = decode_status(encode_status({code, text}));
      EXPECT_EQ(status.code(), code);
      EXPECT_EQ(status.message(), text);
    }
  }
}

TEST(AbortStatus, AnUnreadableOneIsALostPeer) {
  for (const Bytes& payload : {Bytes{}, Bytes{0}, Bytes{10, 'x'}, Bytes{255}}) {
    const Status status = decode_status(payload);
    EXPECT_EQ(status.code(), Code::kPeerLost);
    EXPECT_FALSE(status.message().empty());
  }
}

}  // namespace
}  // namespace aiacc
