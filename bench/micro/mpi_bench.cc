// The `mpi` engine without coordinator, one thread per lane as in the core: latency of the express
// lane, one blocking all-reduce, and the gradients of ResNet-50 (97.5 MiB) in units, each scaled by
// its thread afterwards as an average is. Rank 0 prints one line per case: median and minimum wall
// time, CPU time per rank. Results are checked.
//
//   mpirun -np 2 mpi_bench PLUGIN MPI_LIBRARY [repetitions [spin_us]]

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "csrc/engines/mpi/mpi_loader.h"
#include "csrc/kernels/scale.h"

namespace {

using aiacc::DataType;
using aiacc::ReduceOp;
using SteadyClock = std::chrono::steady_clock;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kModelBytes = 39 * kMiB * 5 / 2;  // 97.5 MiB

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class Bench {
 public:
  Bench(int rank, int size, int lanes, double spin_us, int repetitions)
      : rank_(rank), size_(size), lanes_(lanes), repetitions_(repetitions) {
    aiacc::EngineContext context;
    context.rank = rank;
    context.size = size;
    context.lanes = lanes;
    context.spin_us = spin_us;
    engine_ = aiacc::create_mpi_engine(context);
  }

  void blocking(std::size_t bytes) {
    std::vector<float> data(bytes / sizeof(float), 1.0f);
    const int batch = bytes <= kMiB / 16 ? 1000 : 20;
    measure("blocking " + std::to_string(bytes) + " B", batch, [&] {
      for (int i = 0; i < batch; ++i) {
        reduce(engine_->express_lane(), data.data(), data.size(), ReduceOp::kMax);
      }
    });
    check(data, 1.0f);
  }

  void model(std::size_t unit_bytes) {
    std::vector<float> data(kModelBytes / sizeof(float), 1.0f);
    const std::size_t unit = unit_bytes / sizeof(float);
    const std::size_t units = (data.size() + unit - 1) / unit;
    measure("97.5 MiB, " + std::to_string(lanes_) + " lanes, units of " +
                std::to_string(unit_bytes / 1024) + " KiB",
            1,
            [&] {
              std::vector<std::thread> threads;
              threads.reserve(static_cast<std::size_t>(lanes_));
              for (int lane = 0; lane < lanes_; ++lane) {
                threads.emplace_back([&, lane] {
                  for (auto u = static_cast<std::size_t>(lane); u < units;
                       u += static_cast<std::size_t>(lanes_)) {
                    float* at = data.data() + u * unit;
                    const std::size_t count = std::min(unit, data.size() - u * unit);
                    reduce(lane, at, count, ReduceOp::kSum);
                    aiacc::scale(at, at, count, DataType::kFloat32, 1.0 / size_);
                  }
                });
              }
              for (std::thread& thread : threads) {
                thread.join();
              }
            });
    check(data, 1.0f);
  }

 private:
  void reduce(int lane, float* data, std::size_t count, ReduceOp op) {
    engine_->all_reduce(lane, data, data, count, {DataType::kFloat32, op});
  }

  template <class Body>
  void measure(const std::string& name, int batch, Body body) {
    std::vector<double> wall;
    std::vector<double> cpu;
    for (int i = 0; i < repetitions_ + 2; ++i) {
      float barrier = 0;
      reduce(engine_->express_lane(), &barrier, 1, ReduceOp::kMax);
      const double cpu_before = cpu_seconds();
      const auto before = SteadyClock::now();
      body();
      const double seconds = std::chrono::duration<double>(SteadyClock::now() - before).count();
      if (i >= 2) {
        wall.push_back(seconds * 1e3 / batch);
        cpu.push_back((cpu_seconds() - cpu_before) * 1e3 / batch);
      }
    }
    std::sort(wall.begin(), wall.end());
    std::sort(cpu.begin(), cpu.end());
    if (rank_ == 0) {
      std::printf("%-44s median %9.4f ms  minimum %9.4f ms  cpu %9.4f ms\n",
                  name.c_str(),
                  wall[wall.size() / 2],
                  wall[0],
                  cpu[cpu.size() / 2]);
      std::fflush(stdout);
    }
  }

  void check(const std::vector<float>& data, float expected) const {
    for (const float value : data) {
      if (value != expected) {
        std::fprintf(stderr,
                     "rank %d: %g (expected %g)\n",
                     rank_,
                     static_cast<double>(value),
                     static_cast<double>(expected));
        std::_Exit(1);
      }
    }
  }

  const int rank_;
  const int size_;
  const int lanes_;
  const int repetitions_;
  std::unique_ptr<aiacc::Engine> engine_;
};

int run(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s PLUGIN MPI_LIBRARY [repetitions [spin_us]]\n", argv[0]);
    return 2;
  }
  const std::string reason = aiacc::load_mpi(argv[1], argv[2]);
  if (!reason.empty()) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    return 1;
  }
  const int repetitions = argc > 3 ? std::atoi(argv[3]) : 21;
  const double spin_us = argc > 4 ? std::atof(argv[4]) : 50;
  const aiacc::MpiIdentity mpi = aiacc::mpi_initialize(0, 30);
  for (const int lanes : {1, 2, 4}) {
    Bench bench(mpi.rank, mpi.size, lanes, spin_us, repetitions);
    for (const std::size_t unit : {kMiB, 2 * kMiB, 4 * kMiB}) {
      bench.model(unit);
    }
    if (lanes == 1) {
      for (const std::size_t bytes : {std::size_t{4}, kMiB / 1024, kMiB / 4, kMiB, 4 * kMiB}) {
        bench.blocking(bytes);
      }
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const aiacc::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
