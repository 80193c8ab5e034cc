#include "csrc/core/execution/chance_seeds.h"

namespace aiacc {
namespace {

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): another number for another one.
std::uint64_t mixed(std::uint64_t bits, std::uint64_t more) {
  bits = (bits ^ more) + 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

/// FNV-1a: std::hash need not be the same on all hosts.
std::uint64_t hash_of(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  }
  return hash;
}

}  // namespace

std::uint64_t ChanceSeeds::next(const std::string& name) {
  if (steps_.size() >= kMostNames && steps_.count(name) == 0) {
    steps_.clear();
    ++restarts_;
  }
  const std::uint64_t step = steps_[name]++;
  return mixed(mixed(hash_of(name), restarts_), step);
}

std::uint64_t seed_of_unit(std::uint64_t seed, std::uint32_t tensor, std::uint64_t offset) {
  return mixed(mixed(seed, tensor), offset);
}

std::uint64_t seed_of_rank(std::uint64_t seed, int rank) {
  return mixed(seed, static_cast<std::uint64_t>(rank) + 1);
}

}  // namespace aiacc
