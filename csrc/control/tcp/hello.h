#pragma once

#include <array>
#include <cstdint>

namespace aiacc {

/// Secret shared by the ranks of one job, drawn by rank 0 for every epoch.
using JobToken = std::array<std::uint8_t, 16>;

/// First bytes on every connection, little endian, sent by the side that connects.
struct Hello {
  static constexpr std::uint32_t kMagic = 0x43414941;  // "AIAC"

  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t lane;
  std::uint32_t epoch;
  std::uint32_t from;
  std::uint32_t to;
  std::uint32_t split_id;
  std::uint8_t kind;
  std::uint8_t reserved[3];
  JobToken token;
};
static_assert(sizeof(Hello) == 44, "Hello is a wire format");

/// One byte answers a hello.
enum Answer : std::uint8_t {
  kWelcome = 1,
  kWrongVersion = 2,
  kWrongToken = 3,
  kWrongEpoch = 4,
  kWrongRank = 5,
  kDuplicate = 6,
  kNoDescriptors = 7,
};

}  // namespace aiacc
