#include "csrc/control/shm/memory_room.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <optional>
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

/// Nothing for "max" or a file that is not there.
std::optional<std::size_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::size_t value = 0;
  if (!(file >> text) ||
      std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) {
    return std::nullopt;
  }
  return value;
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

void consider(MemoryRoom& least, std::size_t bytes, const std::string& limit) {
  if (bytes < least.bytes) {
    least = {bytes, limit};
  }
}

void consider_cgroup(MemoryRoom& least,
                     const std::string& root,
                     const Hierarchy& files,
                     const std::string& path) {
  const std::string folder = files.mount + path;
  const std::optional<std::size_t> limit = read_number(root + folder + files.limit);
  const std::optional<std::size_t> usage = read_number(root + folder + files.usage);
  if (!limit || !usage) {
    return;
  }
  std::size_t cache = 0;
  for (const std::string_view field : files.cache) {
    cache += read_field(root + folder + "/memory.stat", field);
  }
  const std::size_t used = *usage - std::min(cache, *usage);
  consider(least, *limit - std::min(used, *limit), folder + files.limit);
}

/// The cgroup itself and those that it is in. Inside a container the path may be that outside of
/// it: then only the last one, what is mounted, is there.
void consider_cgroups(MemoryRoom& least,
                      const std::string& root,
                      const Hierarchy& files,
                      std::string path) {
  while (!path.empty() && path != "/") {
    consider_cgroup(least, root, files, path);
    path.erase(path.rfind('/'));
  }
  consider_cgroup(least, root, files, "");
}

}  // namespace

MemoryRoom memory_room(const std::string& root) {
  constexpr std::size_t kKibibyte = 1024;
  MemoryRoom least{kUnlimited, ""};
  const std::string meminfo = "/proc/meminfo";
  const std::size_t available = read_field(root + meminfo, "MemAvailable:");
  if (available > 0) {
    consider(least, available * kKibibyte, "MemAvailable in " + meminfo);
  }
  // Lines are "number:controllers:path".
  std::ifstream cgroups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(cgroups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      consider_cgroups(least, root, kVersion2, path);
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      consider_cgroups(least, root, kVersion1, path);
    }
  }
  return least;
}

}  // namespace aiacc
