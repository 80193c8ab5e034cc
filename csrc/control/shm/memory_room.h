#pragma once

#include <cstddef>
#include <string>

namespace aiacc {

/// Memory that is left, and what limits it.
struct MemoryRoom {
  std::size_t bytes;
  std::string limit;  ///< for error messages
};

/// What this process may still take of the machine's memory and of its cgroups' (v1 or v2, with
/// their usual mount points). File cache counts as free. Who takes more of a cgroup's memory is
/// killed, where too large a file in /dev/shm would only be an error.
///
/// Tests give a folder with `proc` and `sys` in it. What cannot be read there limits nothing.
MemoryRoom memory_room(const std::string& root = "");

}  // namespace aiacc
