#pragma once

#include <string>

namespace aiacc {

/// Path of another copy of libaiacc_core.so in this process whose runtime has been started, or "".
/// A copy has a runtime of its own, and ranks of its own: two of them in a job would be a mistake
/// of whoever loaded the second one. Threads: any.
std::string started_copy();

/// Path of the file that this copy of the core was loaded from: a library or the program.
std::string own_path();

}  // namespace aiacc
