#include "csrc/control/shm/memory_room.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

/// A folder with what the kernel would show.
class MemoryRoomTest : public testing::Test {
 protected:
  MemoryRoomTest() {
    write("/proc/meminfo", "MemTotal:  2048 kB\nMemFree:  100 kB\nMemAvailable:   1000 kB\n");
  }
  ~MemoryRoomTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  void add_cgroup(const std::string& path, const std::string& limit, const std::string& usage) {
    write("/sys/fs/cgroup" + path + "/memory.max", limit + "\n");
    write("/sys/fs/cgroup" + path + "/memory.current", usage + "\n");
    write("/sys/fs/cgroup" + path + "/memory.stat",
          "anon 5000\ninactive_file 2000\nactive_file 1000\nshmem 700\n");
  }

  void expect(std::size_t bytes, const std::string& limit) {
    const MemoryRoom room = memory_room(root_);
    EXPECT_EQ(bytes, room.bytes);
    EXPECT_EQ(limit, room.limit);
  }

 private:
  const std::string root_ =
      std::filesystem::temp_directory_path() / ("memory_room_test." + std::to_string(getpid()));
};

TEST_F(MemoryRoomTest, IsWhatTheMachineHasAvailable) {
  expect(1000 * 1024, "MemAvailable in /proc/meminfo");
  write("/proc/self/cgroup", "0::/nowhere\nnonsense\n4:memory:/nowhere\n");
  expect(1000 * 1024, "MemAvailable in /proc/meminfo");
}

TEST_F(MemoryRoomTest, OfACgroupCountsItsFileCacheAsFree) {
  write("/proc/self/cgroup", "1:cpu:/other\n0::/job\n");
  add_cgroup("/job", "100000", "60000");
  expect(100000 - (60000 - 3000), "/sys/fs/cgroup/job/memory.max");
  add_cgroup("/job", "100000", "2000");
  expect(100000, "/sys/fs/cgroup/job/memory.max");
  add_cgroup("/job", "100000", "200000");
  expect(0, "/sys/fs/cgroup/job/memory.max");
  add_cgroup("/job", "max", "200000");
  expect(1000 * 1024, "MemAvailable in /proc/meminfo");
}

TEST_F(MemoryRoomTest, IsTheLeastOfAllCgroupsAround) {
  write("/proc/self/cgroup", "0::/pod/container\n");
  add_cgroup("/pod/container", "100000", "10000");
  add_cgroup("/pod", "100000", "50000");
  expect(100000 - (50000 - 3000), "/sys/fs/cgroup/pod/memory.max");
}

TEST_F(MemoryRoomTest, InAContainerIsThatOfWhatIsMounted) {
  write("/proc/self/cgroup", "0::/\n");
  add_cgroup("", "90000", "10000");
  expect(90000 - (10000 - 3000), "/sys/fs/cgroup/memory.max");
}

TEST_F(MemoryRoomTest, KnowsTheFirstVersionOfCgroups) {
  write("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n");
  const std::string folder = "/sys/fs/cgroup/memory";
  write(folder + "/memory.limit_in_bytes", "80000\n");
  write(folder + "/memory.usage_in_bytes", "20000\n");
  write(folder + "/memory.stat",
        "inactive_file 1\ntotal_inactive_file 4000\ntotal_active_file 0\n");
  expect(80000 - 16000, folder + "/memory.limit_in_bytes");
}

TEST(MemoryRoomOfThisMachineTest, IsSome) {
  const MemoryRoom room = memory_room();
  EXPECT_GT(room.bytes, 0U);
  EXPECT_LT(room.bytes, std::numeric_limits<std::size_t>::max());
  EXPECT_FALSE(room.limit.empty());
}

}  // namespace
}  // namespace aiacc
