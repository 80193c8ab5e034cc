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

/// What a decoder makes of pieces of `length()` bytes.
template <class Length>
std::vector<Frame> decoded(const Bytes& bytes, Length length) {
  FrameDecoder decoder("rank 1");
  std::vector<Frame> frames;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t piece = std::min<std::size_t>(bytes.size() - at, length());
    decoder.add(bytes.data() + at, piece);
    at += piece;
    for (Frame frame; decoder.next(frame);) {
      frames.push_back(frame);
    }
  }
  return frames;
}

void expect_equal(const std::vector<Frame>& expected, const std::vector<Frame>& got) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].type, expected[i].type);
    EXPECT_EQ(got[i].stage, expected[i].stage);
    EXPECT_EQ(got[i].round, expected[i].round);
    EXPECT_EQ(got[i].payload, expected[i].payload);
  }
}

TEST(FrameDecoder, TakesFramesInAnyCut) {
  const Bytes bytes = encoded(some_frames());
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    expect_equal(some_frames(), decoded(bytes, [&] { return 1 + random() % 40; }));
  }
}

TEST(FrameDecoder, ALengthIsBelievedOnlyAsItComesAndAnAbsurdOneIsRefusedAtOnce) {
  constexpr std::uint32_t kMost = FrameDecoder::kMaxPayload;
  for (const std::uint32_t length : {kMost, kMost + 1, 0x7fffffffU, 0xffffffffU}) {
    Bytes bytes = encoded({{FrameType::kRound, 0, 0, {}}});
    std::memcpy(bytes.data(), &length, sizeof length);
    FrameDecoder decoder("rank 5");
    Frame frame;
    largest_allocation.store(0);
    const Status status = status_of([&] {
      decoder.add(bytes.data(), bytes.size());
      EXPECT_FALSE(decoder.next(frame));
    });
    EXPECT_LT(largest_allocation.load(), 4096U);
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
    std::vector<Frame> frames;
    largest_allocation.store(0);
    const Status status =
        status_of([&] { frames = decoded(bytes, [&] { return 1 + mutator.below(600); }); });
    ASSERT_TRUE(status.ok() || status.code() == Code::kPeerLost) << "seed " << seed;
    ASSERT_LT(largest_allocation.load(), 4 * bytes.size() + 4096) << "seed " << seed;
    for (const Frame& frame : frames) {
      decode_status(frame.payload);
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
