#pragma once

#include <string>
#include <vector>

#include "csrc/base/event.h"

namespace aiacc {

/// Raises this process's soft limit of open files to the hard one, at most to a million: programs
/// that visit every possible descriptor would take for ever with more. Never lowers it, never
/// fails.
void raise_descriptor_limit() noexcept;

/// Whether few descriptors are left, by the number that the latest one has got: the kernel gives
/// the lowest that is free.
bool is_nearly_last(int fd) noexcept;

/// Whether an errno value says that there is no room for another descriptor or socket, in this
/// process or on this host. Trying again is of no use then.
bool is_exhausted(int error_number);

/// For such a value: how many are in use, what the limit is, and what to do about it. Otherwise "".
/// Opens no descriptor.
std::string exhaustion_remedy(int error_number);

/// Drops what comes on sockets that this end has done with, until the other ends have closed them
/// as well or the deadline has come: closing with unread bytes would reset a connection, and may
/// destroy what the other end has not read yet.
void discard_until_closed(const std::vector<int>& sockets, Clock::time_point deadline) noexcept;

}  // namespace aiacc
