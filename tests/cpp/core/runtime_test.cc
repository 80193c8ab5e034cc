#include "csrc/core/runtime.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/coordinators.h"
#include "tests/cpp/support/process.h"
#include "tests/cpp/support/text.h"

namespace aiacc {
namespace {

Config defaults() {
  Config config = Config::from([](const char*) -> const char* { return nullptr; });
  config.log_level = "fatal";
  config.connect_timeout_s = 20;
  config.peer_timeout_s = 20;
  return config;
}

/// Two sessions of one process that reach each other over loopback.
class Pair {
 public:
  SessionOptions options(int rank) const {
    SessionOptions options;
    options.topology.rank = rank;
    options.topology.size = 2;
    options.engine = "tcp";
    options.context.lanes = 2;
    options.token = {7};
    options.addresses = {listeners_[0]->address(), listeners_[1]->address()};
    options.context.host_of = {0, 0};
    return options;
  }
  std::unique_ptr<Session> session(int rank, const Config& config) const {
    const auto index = static_cast<std::size_t>(rank);
    return std::make_unique<Session>(config, options(rank), listeners_[index]);
  }

 private:
  std::vector<std::shared_ptr<Listener>> listeners_{std::make_shared<Listener>("127.0.0.1"),
                                                    std::make_shared<Listener>("127.0.0.1")};
};

TEST(Session, AnEngineIsForHostMemoryOrForGpus) {
  SessionOptions options;
  options.gpu_engine = "local";
  const Status status = status_of([&] { Session(defaults(), options, nullptr); });
  expect_error(status, Code::kInvalidArgument, {"AIACC_GPU_ENGINE"});
}

TEST(Session, AWishForAnAlgorithmThatNobodyHeedsIsReported) {
  const auto log_of = [](const char* algorithm) {
    Config config = defaults();
    config.log_level = "info";
    config.gpu_algorithm = algorithm;
    SessionOptions options;
    testing::internal::CaptureStderr();
    const Session session(config, options, nullptr);
    EXPECT_EQ(algorithm_from(algorithm), session.parameters().algorithm);
    return testing::internal::GetCapturedStderr();
  };
  const std::string text = log_of("tree");
  const std::string line =
      "AIACC_GPU_ALGORITHM=tree has no effect: engine staged for GPUs (expected nccl)";
  EXPECT_NE(std::string::npos, text.find(line)) << text;
  EXPECT_EQ(text.find(line), text.rfind(line));
  EXPECT_EQ(std::string::npos, log_of("auto").find("AIACC_GPU_ALGORITHM"));
}

TEST(Session, BadPlacementsAreRefused) {
  const Pair pair;
  for (const auto& [rank, size] : {std::pair(-1, 2), {2, 2}, {0, 0}}) {
    SessionOptions options = pair.options(0);
    options.topology.rank = rank;
    options.topology.size = size;
    EXPECT_EQ(status_of([&] { Session(defaults(), options, nullptr); }).code(),
              Code::kInvalidArgument);
  }
  SessionOptions options = pair.options(0);
  EXPECT_EQ(status_of([&] { Session(defaults(), options, nullptr); }).code(),
            Code::kInvalidArgument)
      << "no listener";
}

TEST(Session, AMissingRankIsATimeoutThatLeavesNothingBehind) {
  const std::size_t before = process_descriptors();
  {
    const Pair pair;
    Config config = defaults();
    config.connect_timeout_s = 0.1;
    const Status status = status_of([&] { pair.session(0, config); });
    expect_error(status, Code::kTimeout, {"1"});
  }
  EXPECT_EQ(process_descriptors(), before);
}

SessionOptions alone() {
  SessionOptions options;
  options.engine = "local";
  return options;
}

TEST(Runtime, SaysHowToStart) {
  const Status status = status_of([] { Runtime::instance().session(); });
  expect_error(status, Code::kShutdown, {"hvd.init()"});
}

TEST(Runtime, ShutdownEndsTheTimelineThoughSomebodyHoldsTheSession) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("aiacc_held_session_" + std::to_string(getpid()) + ".json");
  Runtime& runtime = Runtime::instance();
  runtime.init(alone(), nullptr);
  const std::shared_ptr<Session> held = runtime.session();
  held->timeline().start(path.string(), false);
  sum(held->coordinator(), "x", 1);
  runtime.shutdown();
  const std::string text = read_file(path);
  EXPECT_TRUE(is_json(text)) << text;
  std::filesystem::remove(path);
}

TEST(Runtime, ShutdownReleasesThreadsThatWait) {
  Runtime& runtime = Runtime::instance();
  for (int cycle = 0; cycle < 20; ++cycle) {
    runtime.init(alone(), nullptr);
    std::atomic<int> started{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        // Holds its session, as every call from Python does, until its call returns.
        Status status;
        for (int i = 0; status.ok(); ++i) {
          status = status_of([&] {
            sum(runtime.session()->coordinator(), std::to_string(t), static_cast<float>(i));
          });
          started.fetch_add(i == 0 ? 1 : 0);
        }
        EXPECT_EQ(status.code(), Code::kShutdown) << status.message();
      });
    }
    yield_until([&] { return started.load() >= 3; });
    runtime.shutdown();
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
}

}  // namespace
}  // namespace aiacc
