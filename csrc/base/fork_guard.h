#pragma once

#include <cstdint>

namespace aiacc::fork_guard {

/// Counts the forks that led to this process. What has stored the number of its day belongs to an
/// ancestor if the number differs now: its threads do not exist here, its connections are shared.
/// Threads: any; a relaxed load. Counts from the first `opened` or `generation` on.
std::uint32_t generation() noexcept;

/// Close `fd` in a child of fork, which would otherwise keep the connection open after the death of
/// this process, and the other side would not learn of it. Threads: any.
void opened(int fd);

/// Whether the caller is to close `fd`: false in a child for what `opened` has closed already.
bool closing(int fd) noexcept;

}  // namespace aiacc::fork_guard
