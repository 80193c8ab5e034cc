// Processes on this host and one engine, without coordinator: latency of the express lane, and
// bandwidth of all-reduces cut into units on one or more lanes, one thread per lane.
// Prints one line per case: median and minimum wall milliseconds, CPU milliseconds of rank 0.
//
//   engine_bench tcp|shm|hierarchical [ranks [repetitions]]

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/socket.h"
#include "csrc/control/tcp/connector.h"
#include "csrc/engines/registry.h"

namespace {

using aiacc::Clock;
using aiacc::DataType;
using aiacc::ReduceOp;

constexpr int kLanes = 4;

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
  Bench(aiacc::Engine& engine, int rank, int repetitions)
      : engine_(engine), rank_(rank), repetitions_(repetitions) {}

  void express(std::size_t bytes) {
    std::vector<float> data(bytes / sizeof(float), 0.0f);
    measure("express " + std::to_string(bytes) + " B", 50 * repetitions_, [&] {
      engine_.all_reduce(engine_.express_lane(),
                         data.data(),
                         data.data(),
                         data.size(),
                         {DataType::kFloat32, ReduceOp::kSum});
    });
  }

  void bulk(std::size_t bytes, std::size_t unit_bytes, int lanes) {
    std::vector<float> data(bytes / sizeof(float), 0.0f);
    const std::size_t unit = std::min(unit_bytes, bytes) / sizeof(float);
    const auto drive = [&](int lane) {
      std::size_t number = 0;
      for (std::size_t at = 0; at < data.size(); at += unit, ++number) {
        if (static_cast<int>(number % static_cast<std::size_t>(lanes)) == lane) {
          const std::size_t count = std::min(unit, data.size() - at);
          engine_.all_reduce(lane,
                             data.data() + at,
                             data.data() + at,
                             count,
                             {DataType::kFloat32, ReduceOp::kSum});
        }
      }
    };
    char title[64];
    std::snprintf(title,
                  sizeof title,
                  "%.1f MiB, units of %.1f MiB, %d lanes",
                  static_cast<double>(bytes) / (1 << 20),
                  static_cast<double>(unit * sizeof(float)) / (1 << 20),
                  lanes);
    measure(title, repetitions_, [&] {
      std::vector<std::thread> threads;
      for (int lane = 1; lane < lanes; ++lane) {
        threads.emplace_back(drive, lane);
      }
      drive(0);
      for (std::thread& thread : threads) {
        thread.join();
      }
    });
  }

 private:
  template <class Operation>
  void measure(const std::string& title, int repetitions, Operation operation) {
    std::vector<double> samples;
    double cpu = 0;
    for (int i = -2; i < repetitions; ++i) {
      float ready = 0;
      engine_.all_reduce(
          engine_.express_lane(), &ready, &ready, 1, {DataType::kFloat32, ReduceOp::kSum});
      const double cpu_before = cpu_seconds();
      const auto start = Clock::now();
      operation();
      const std::chrono::duration<double, std::milli> took = Clock::now() - start;
      if (i >= 0) {
        samples.push_back(took.count());
        cpu += cpu_seconds() - cpu_before;
      }
    }
    std::sort(samples.begin(), samples.end());
    if (rank_ == 0) {
      std::printf("%-44s median %8.3f  min %8.3f  p95 %8.3f ms   cpu %8.3f ms\n",
                  title.c_str(),
                  samples[samples.size() / 2],
                  samples.front(),
                  samples[samples.size() * 95 / 100],
                  cpu * 1e3 / repetitions);
      std::fflush(stdout);
    }
  }

  aiacc::Engine& engine_;
  int rank_;
  int repetitions_;
};

void run_rank(
    const std::string& name, int rank, int size, aiacc::Connector& connector, int repetitions) {
  aiacc::EngineContext context;
  context.rank = rank;
  context.size = size;
  context.host_of.assign(static_cast<std::size_t>(size), 0);
  context.lanes = kLanes;
  context.connector = &connector;
  const std::unique_ptr<aiacc::Engine> engine = aiacc::create_engine(name, context);
  Bench bench(*engine, rank, repetitions);
  for (const std::size_t bytes : {4, 1024, 32768}) {
    bench.express(bytes);
  }
  constexpr std::size_t kMiB = 1 << 20;
  bench.bulk(kMiB / 4, kMiB / 4, 1);
  for (const int lanes : {1, 2, 4}) {
    bench.bulk(4 * kMiB, 4 * kMiB / static_cast<std::size_t>(lanes), lanes);
  }
  for (const std::size_t unit : {kMiB, 2 * kMiB, 4 * kMiB}) {
    for (const int lanes : {1, 2, 4}) {
      bench.bulk(195 * kMiB / 2, unit, lanes);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "tcp";
  const int size = argc > 2 ? std::atoi(argv[2]) : 2;
  const int repetitions = argc > 3 ? std::atoi(argv[3]) : 20;
  // Children of fork do not keep sockets: each rank listens for itself, and shows its port.
  void* shown = mmap(nullptr,
                     sizeof(std::atomic<int>) * static_cast<std::size_t>(size),
                     PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS,
                     -1,
                     0);
  auto* ports = static_cast<std::atomic<int>*>(shown);
  std::vector<pid_t> children;
  int rank = 0;
  for (int other = 1; other < size && rank == 0; ++other) {
    const pid_t child = fork();
    if (child == 0) {
      rank = other;
    } else {
      children.push_back(child);
    }
  }
  aiacc::Listener listener("127.0.0.1");
  ports[rank] = listener.port();
  std::vector<std::string> addresses;
  for (int other = 0; other < size; ++other) {
    while (ports[other] == 0) {
      std::this_thread::yield();
    }
    addresses.push_back("127.0.0.1:" + std::to_string(ports[other]));
  }
  int outcome = 0;
  try {
    aiacc::Connector connector(listener, addresses, rank, {}, 1, 10);
    run_rank(name, rank, size, connector, repetitions);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    outcome = 1;
  }
  if (rank != 0) {
    _exit(outcome);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    outcome |= status != 0 ? 1 : 0;
  }
  return outcome;
}
