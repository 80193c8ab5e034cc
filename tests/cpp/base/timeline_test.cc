#include "csrc/base/timeline.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/process.h"
#include "tests/cpp/support/text.h"

namespace aiacc {
namespace {

/// Of 5 us, `late` us after the one before it began.
void record(Timeline& timeline,
            const std::string& name,
            const std::string& row = "lane 0",
            int late = 5) {
  static std::atomic<int> clock{0};
  const auto begin = Clock::time_point(std::chrono::microseconds(clock += late));
  timeline.record(name, "ALLREDUCE", row, begin, begin + std::chrono::microseconds(5), 64);
}

class TimelineTest : public testing::Test {
 protected:
  TimelineTest() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("aiacc_timeline_" + std::to_string(getpid()) + "_" + test->name());
    std::filesystem::create_directory(folder_);
  }
  ~TimelineTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string read(const std::string& name) const { return read_file(path(name)); }
  bool exists(const std::string& name) const { return std::filesystem::exists(folder_ / name); }
  /// That the file is whole and has so many events; its text.
  std::string expect_events(const std::string& name, std::size_t events) const {
    const std::string text = read(name);
    EXPECT_TRUE(is_json(text)) << text;
    EXPECT_EQ(occurrences(text, R"("ph": "X")"), events) << text;
    return text;
  }
  void expect_room(Timeline& timeline) const {
    timeline.start(path("t.json"), false);
    record(timeline, "x");
    timeline.stop();
    expect_events("t.json", 1);
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(TimelineTest, IsValidJsonWithEverythingThatWasRecorded) {
  Timeline timeline(0);
  timeline.start(path("t.json"), true);
  EXPECT_TRUE(timeline.on());
  EXPECT_TRUE(timeline.marks_rounds());
  for (int i = 0; i < 1000; ++i) {
    record(timeline, "tensor" + std::to_string(i), "lane " + std::to_string(i % 3));
  }
  record(timeline, "odd \"name\" \\ \n\t\x01 \xc3\xa4");
  timeline.stop();
  EXPECT_FALSE(timeline.on());
  const std::string text = expect_events("t.json", 1001);
  EXPECT_EQ(occurrences(text, R"("cat": "ALLREDUCE")"), 1001U);
  EXPECT_EQ(occurrences(text, R"("thread_name")"), 3U);
}

/// Viewers show no slices that overlap.
TEST_F(TimelineTest, SlicesOfARowFollowEachOther) {
  Timeline timeline(2);
  timeline.start(path("t{rank}.json"), false);
  for (const int late : {5, 4, 6, 5}) {  // the second begins 1 us before the end of the first
    record(timeline, "x", "lane 0", late);
  }
  record(timeline, "y", "lane 1", 1);
  record(timeline, "agreed on", "", 1);
  timeline.stop();
  const std::string text = expect_events("t2.json", 4);
  for (const char* id : {"2.1", "2.2"}) {
    for (const char* type : {"b", "e"}) {
      const std::string event = std::string(R"("ph": ")") + type + R"(", "pid": 2, "id": ")" + id;
      EXPECT_EQ(occurrences(text, event), 1U) << text;
    }
  }
  EXPECT_EQ(occurrences(text, R"("thread_name")"), 2U);
}

TEST_F(TimelineTest, TellsTheTimeOfDayAtWhichItsClockStarts) {
  const auto wall = [] { return std::chrono::system_clock::now().time_since_epoch(); };
  const auto started = wall() - Clock::now().time_since_epoch();
  Timeline timeline(0);
  timeline.start(path("t.json"), false);
  timeline.stop();
  const std::string text = read("t.json");
  const std::string key = R"("start_time_since_epoch_in_micros": )";
  const auto at = text.find(key);
  ASSERT_NE(at, std::string::npos) << text;
  const double seconds = std::stod(text.substr(at + key.size())) / 1e6;
  EXPECT_NEAR(seconds, std::chrono::duration<double>(started).count(), 60.0);
}

TEST_F(TimelineTest, OffItRecordsNothingAndHasNoThread) {
  const std::string writer = "aiacc timeline";
  Timeline timeline(0);
  timeline.start(path("t.json"), false);  // sanitizers start a thread of their own with the first
  timeline.stop();
  EXPECT_EQ(process_threads_after_join(writer), 0U);
  const std::size_t before = process_threads();
  record(timeline, "x");
  EXPECT_EQ(process_threads(), before);
  timeline.start(path("t.json"), false);
  EXPECT_EQ(process_threads(), before + 1);
  timeline.stop();
  EXPECT_EQ(process_threads_after_join(writer), 0U);
  EXPECT_EQ(process_threads(), before);
  timeline.stop();
  EXPECT_EQ(read("t.json").find("\"x\""), std::string::npos);
}

TEST_F(TimelineTest, StartsAgainGoesOnAndMovesToAnotherFile) {
  Timeline timeline(0);
  for (std::size_t events = 0; events < 50; ++events) {  // an empty one first
    timeline.start(path("t.json"), false);
    EXPECT_FALSE(timeline.marks_rounds());
    for (std::size_t i = 0; i < events % 3; ++i) {
      record(timeline, "run" + std::to_string(events));
    }
    timeline.stop();
    const std::string text = expect_events("t.json", events % 3);
    ASSERT_EQ(occurrences(text, "\"run" + std::to_string(events) + "\""), events % 3);
  }
  timeline.start(path("t.json"), false);
  record(timeline, "first");
  timeline.start(path("t.json"), true);
  EXPECT_TRUE(timeline.marks_rounds());
  record(timeline, "second");
  std::filesystem::create_symlink(path("t.json"), path("link.json"));
  for (const char* name : {"./t.json", "link.json"}) {
    timeline.start(path(name), false);  // the same file by another name
    EXPECT_FALSE(timeline.marks_rounds());
    record(timeline, "more");
  }
  timeline.start(path("other.json"), false);
  EXPECT_TRUE(is_json(read("t.json")));
  record(timeline, "third");
  timeline.stop();
  expect_events("t.json", 4);
  EXPECT_EQ(occurrences(expect_events("other.json", 1), "third"), 1U);
}

TEST_F(TimelineTest, APathThatCannotBeWrittenIsAnError) {
  Timeline timeline(0);
  EXPECT_THROW(timeline.start(path("no/such/folder.json"), false), Error);
  for (int rank = 0; rank < 2; ++rank) {  // rank 1 would have "/dev/null.rank1"
    Timeline one(rank);
    EXPECT_THROW(one.start("/dev/null", false), Error);
    EXPECT_THROW(one.start(path(""), false), Error);
  }
  EXPECT_FALSE(exists(".rank1"));
  EXPECT_FALSE(timeline.on());
  timeline.start(path("t.json"), false);
}

TEST(TimelinePath, IsOfItsOwnForEveryRank) {
  EXPECT_EQ(timeline_path("a/t.json", 0), "a/t.json");
  EXPECT_EQ(timeline_path("a/t.json", 3), "a/t.rank3.json");
  EXPECT_EQ(timeline_path("t", 3), "t.rank3");
  EXPECT_EQ(timeline_path("a.b/t", 3), "a.b/t.rank3");
  EXPECT_EQ(timeline_path("a/.hidden", 3), "a/.hidden.rank3");
  EXPECT_EQ(timeline_path("a/t.{rank}.json", 0), "a/t.0.json");
  EXPECT_EQ(timeline_path("a/t.{rank}.json", 3), "a/t.3.json");
}

TEST_F(TimelineTest, EveryRankTellsStepsThatFollowEachOther) {
  Timeline timeline(1);
  timeline.mark_step();
  for (int start = 0; start < 2; ++start) {
    timeline.start(path("t.json"), false);
    timeline.mark_step();
    timeline.mark_step();
    timeline.stop();
    EXPECT_FALSE(exists("t.json"));
    const std::string text = expect_events("t.rank1.json", 2);
    EXPECT_EQ(occurrences(text, R"("ph": "X", "pid": 1)"), 2U);
    EXPECT_EQ(occurrences(text, R"("cat": "STEP")"), 2U);
    EXPECT_EQ(occurrences(text, R"("name": "step 0")"), 1U);
    EXPECT_EQ(occurrences(text, R"("name": "step 1")"), 1U);
  }
}

/// What `body` makes the process write to standard error, whose other files cannot grow beyond
/// `most_bytes` meanwhile.
template <class Body>
std::string errors_of(Body body, rlim_t most_bytes = RLIM_INFINITY) {
  int pipe[2];
  EXPECT_EQ(pipe2(pipe, O_CLOEXEC | O_NONBLOCK), 0);
  const int before = dup(STDERR_FILENO);
  dup2(pipe[1], STDERR_FILENO);
  auto* const action = std::signal(SIGXFSZ, SIG_IGN);
  rlimit usual{};
  getrlimit(RLIMIT_FSIZE, &usual);
  const rlimit limit{std::min(most_bytes, usual.rlim_cur), usual.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  body();
  setrlimit(RLIMIT_FSIZE, &usual);
  std::signal(SIGXFSZ, action);
  dup2(before, STDERR_FILENO);
  std::string text(65536, ' ');
  const ssize_t got = ::read(pipe[0], text.data(), text.size());
  for (const int file : {before, pipe[0], pipe[1]}) {
    close(file);
  }
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

TEST_F(TimelineTest, WhereThereIsNoRoomItEndsWithItsLastWholeEvent) {
  const std::string whole = [this] {
    Timeline timeline(0);
    timeline.start(path("whole.json"), false);
    record(timeline, "first");
    record(timeline, "second");
    timeline.stop();
    return read("whole.json");
  }();
  // Every length up to one that holds all: also the last event and the end of the array are cut.
  // The clock's digits may differ, so the last few may or may not fit.
  for (std::size_t bytes = 0; bytes < whole.size() + 8; ++bytes) {
    const auto run = [&] {
      Timeline timeline(0);
      timeline.start(path("t.json"), false);
      record(timeline, "first");
      record(timeline, "second");
      timeline.stop();
      EXPECT_FALSE(timeline.on());
    };
    const std::string errors = errors_of(run, bytes);
    const std::string text = read("t.json");
    ASSERT_LE(text.size(), bytes);
    ASSERT_EQ(text.find('\0'), std::string::npos);
    const bool all = occurrences(text, "\"second\"") == 1 && is_json(text);
    ASSERT_EQ(occurrences(errors, "t.json' ends here"), all ? 0U : 1U) << bytes << errors;
    ASSERT_EQ(occurrences(errors, "(errno 27)"), all ? 0U : 1U) << bytes << errors;
    // There may be room for the first event and not for the end.
    ASSERT_TRUE(text.empty() || is_json(text) || is_json(text + "\n]\n")) << bytes << text;
    ASSERT_TRUE(occurrences(text, R"("ph": "X")") == 0 || is_json(text)) << bytes << text;
  }
}

TEST_F(TimelineTest, AFullDeviceIsOneWarningAndAnotherFileGoesOn) {
  Timeline timeline(0);
  std::filesystem::create_symlink("/dev/full", path("full0"));
  const std::string errors = errors_of([&] {
    timeline.start(path("full{rank}"), false);
    for (int i = 0; i < 100; ++i) {
      record(timeline, "x");
    }
    timeline.stop();
  });
  EXPECT_EQ(occurrences(errors, "full0' ends here"), 1U) << errors;
  EXPECT_EQ(occurrences(errors, "(errno 28)"), 1U) << errors;
  expect_room(timeline);
}

/// What is in a FIFO, to which a thread writes, until nobody writes to it any more.
std::string read_to_end(int fifo) {
  fcntl(fifo, F_SETFL, 0);  // from now on it waits
  std::string text;
  std::vector<char> bytes(1 << 16);
  for (ssize_t got = 1; got > 0;) {
    got = ::read(fifo, bytes.data(), bytes.size());
    text.append(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
  close(fifo);
  return text;
}

/// As a file system that stands still: a FIFO that nobody reads. Threads that record do not wait.
TEST_F(TimelineTest, AFileSystemThatStandsStillKeepsNobody) {
  const std::string fifo = path("fifo");
  constexpr std::size_t kEvents = 2 * Timeline::kMostBytes / 100;  // each takes more
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const bool for_good : {false, true}) {
    Timeline timeline(0, std::chrono::milliseconds(for_good ? 50 : 100'000));
    EXPECT_THROW(timeline.start(fifo, false), Error);  // it would wait for a reader
    const int reader = open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    timeline.start(fifo, false);
    for (std::size_t i = 0; i < kEvents; ++i) {
      record(timeline, "x");
    }
    std::future<std::string> reads;
    if (!for_good) {
      reads = std::async(std::launch::async, read_to_end, reader);
    }
    const std::string errors = errors_of([&] { timeline.stop(); });
    // The thread that was left ends when its file system goes on.
    const std::string text = for_good ? read_to_end(reader) : reads.get();
    const std::size_t written = occurrences(text, R"("ph": "X")");
    EXPECT_LT(written, kEvents);
    EXPECT_EQ(occurrences(errors, "fifo' has no end"), for_good ? 1U : 0U) << errors;
    EXPECT_EQ(occurrences(errors, "fifo' lacks " + std::to_string(kEvents - written) + " events"),
              for_good ? 0U : 1U)
        << errors;
    EXPECT_EQ(occurrences(text, "\n]\n"), for_good ? 0U : 1U);
  }
}

TEST_F(TimelineTest, TheSameFileBeginsAnewWhenThereIsRoomAgain) {
  Timeline timeline(0);
  const auto run = [&] {
    timeline.start(path("t.json"), false);
    yield_until([&] { return !timeline.on(); });  // until the writer has found out
  };
  errors_of(run, 8);
  EXPECT_EQ(read("t.json"), "");
  expect_room(timeline);
}

TEST_F(TimelineTest, ThreadsRecordWhileItStartsAndStops) {
  Timeline timeline(0);
  std::atomic<bool> stop{false};
  std::atomic<int> marked{0};
  std::vector<std::thread> recorders;
  for (int i = 0; i < 3; ++i) {
    recorders.emplace_back([&] {
      while (!stop.load()) {
        record(timeline, "x");
        marked.fetch_add(timeline.marks_rounds() ? 1 : 0);
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    timeline.start(path("t.json"), i % 2 == 0);
    timeline.stop();
    ASSERT_TRUE(is_json(read("t.json")));
  }
  stop.store(true);
  for (std::thread& recorder : recorders) {
    recorder.join();
  }
}

}  // namespace
}  // namespace aiacc
