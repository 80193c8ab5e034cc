#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

namespace aiacc {

/// Seeds of what coded all-reduces of one process set leave to chance: of the name and of how many
/// there have been of it, which is the step. Equal on all members, which dispatch the same in the
/// same order, and again in a job that does the same. One thread.
class ChanceSeeds {
 public:
  /// Names that are counted; when there are more, all begin anew, with other seeds.
  static constexpr std::size_t kMostNames = 4096;

  std::uint64_t next(const std::string& name);

 private:
  std::unordered_map<std::string, std::uint64_t> steps_;
  std::uint64_t restarts_ = 0;
};

/// The seed of the unit that begins at byte `offset` of tensor `tensor` of an operation with this
/// seed.
std::uint64_t seed_of_unit(std::uint64_t seed, std::uint32_t tensor, std::uint64_t offset);

/// The seed of a rank's own part of it.
std::uint64_t seed_of_rank(std::uint64_t seed, int rank);

}  // namespace aiacc
