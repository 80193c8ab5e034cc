#include "csrc/control/shm/memory_room.h"

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <string_view>

namespace aiacc {
namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

/// Files of one version of cgroups.
struct Hierarchy {
  const char* mount;
  const char* limit;
  const char* usage;
  std::initializer_list<std::string_view> cache;  ///< fields of memory.stat
};

const Hierarchy kVersion1{"/sys/fs/cgroup/memory",
                          "/memory.limit_in_bytes",
                          "/memory.usage_in_bytes",
                          {"total_inactive_file", "total_active_file"}};
const Hierarchy kVersion2{
    "/sys/fs/cgroup", "/memory.max", "/memory.current", {"inactive_file", "active_file"}};

/// kUnlimited for "max" or a file that is not there.
std::size_t read_number(const std::string& path) {
  std::ifstream file(path);
  std::size_t value = 0;
  return file >> value ? value : kUnlimited;
}

/// The number behind `name` in a file of names and numbers, 0 if it is not there.
std::size_t read_field(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string key;
  std::size_t value = 0;
  for (std::string line; file >> key >> value; std::getline(file, line)) {
    if (key == name) {
      return value;
    }
  }
  return 0;
}

MemoryRoom room_in_cgroup(const std::string& root,
                          const Hierarchy& files,
                          const std::string& path) {
  const std::string folder = files.mount + path;
  const std::size_t limit = read_number(root + folder + files.limit);
  std::size_t used = read_number(root + folder + files.usage);
  if (limit == kUnlimited || used == kUnlimited) {
    return {kUnlimited, ""};
  }
  for (const std::string_view field : files.cache) {
    used -= std::min(used, read_field(root + folder + "/memory.stat", field));
  }
  return {limit - std::min(used, limit), folder + files.limit};
}

}  // namespace

MemoryRoom memory_room(const std::string& root) {
  constexpr std::size_t kKibibyte = 1024;
  MemoryRoom least{kUnlimited, ""};
  const std::size_t available = read_field(root + "/proc/meminfo", "MemAvailable:");
  if (available > 0) {
    least = {available * kKibibyte, "MemAvailable in /proc/meminfo"};
  }
  std::ifstream cgroups(root + "/proc/self/cgroup");
  std::string number;
  std::string controllers;
  std::string path;
  while (std::getline(cgroups, number, ':') && std::getline(cgroups, controllers, ':') &&
         std::getline(cgroups, path)) {
    if (!controllers.empty() && ("," + controllers + ",").find(",memory,") == std::string::npos) {
      continue;
    }
    const Hierarchy& files = controllers.empty() ? kVersion2 : kVersion1;
    // The cgroup itself and those that it is in. Inside a container the path may be that outside of
    // it: then only the last one, what is mounted, is there.
    for (path = path == "/" ? "" : path;; path.erase(path.rfind('/'))) {
      const MemoryRoom room = room_in_cgroup(root, files, path);
      least = room.bytes < least.bytes ? room : least;
      if (path.empty()) {
        break;
      }
    }
  }
  return least;
}

}  // namespace aiacc
