#pragma once

#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/engines/engine.h"

namespace aiacc {

/// Reads and writes all the memory that an engine would, and sends nothing: a sanitizer tells if
/// some of it is nobody's.
class TouchingEngine : public Engine {
 public:
  explicit TouchingEngine(int rank) : rank_(static_cast<std::size_t>(rank)) {}

  const char* name() const override { return "touching"; }
  int lanes() const override { return 1; }

  void all_reduce(int, const void* in, void* out, std::size_t n, const Reduction& sum) override {
    touch(in, n * size_of(sum.dtype), out, n * size_of(sum.dtype));
  }
  void broadcast(int, void* buffer, std::size_t bytes, int) override {
    touch(buffer, bytes, buffer, bytes);
  }
  void all_gather(int, const void* in, void* out, const std::vector<std::size_t>& of) override {
    touch(in, of.at(rank_), out, sum_of(of));
  }
  void reduce_scatter(int,
                      const void* in,
                      void* out,
                      const std::vector<std::size_t>& counts,
                      const Reduction& sum) override {
    const std::size_t element = size_of(sum.dtype);
    touch(in, sum_of(counts) * element, out, counts.at(rank_) * element);
  }
  void all_to_all(int,
                  const void* in,
                  void* out,
                  const std::vector<std::size_t>& sent,
                  const std::vector<std::size_t>& received) override {
    AIACC_CHECK(sent.at(rank_) == received.at(rank_));
    touch(in, sum_of(sent), out, sum_of(received));
  }
  std::unique_ptr<Engine> split(const std::vector<int>&, std::uint32_t) override { return nullptr; }
  void abort(const Status&) noexcept override {}

 private:
  static std::size_t sum_of(const std::vector<std::size_t>& parts) {
    return std::accumulate(parts.begin(), parts.end(), std::size_t{0});
  }
  static void touch(const void* in, std::size_t read, void* out, std::size_t written) {
    const std::vector<char> copy(static_cast<const char*>(in), static_cast<const char*>(in) + read);
    if (written > 0) {
      std::memset(out, 0, written);
    }
  }

  std::size_t rank_;
};

}  // namespace aiacc
