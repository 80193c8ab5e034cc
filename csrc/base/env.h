#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace aiacc {

/// Everything a user can set by environment variables, parsed once and passed around as a constant.
/// The defaults here are overwritten by those of the table in env.cc, which is the authority.
struct Config {
  std::string engine;
  std::string gpu_engine;
  int gpu_lanes = 0;
  std::string gpu_algorithm;
  int lanes = 0;
  bool autotune = false;
  std::size_t unit_bytes = 0;
  std::size_t gpu_unit_bytes = 0;
  std::string iface;

  int rank = -1;
  int size = -1;
  int local_rank = -1;
  int local_size = -1;
  int cross_rank = -1;
  int cross_size = -1;
  std::string addr;
  std::string token;
  std::string rendezvous_file;
  double connect_timeout_s = 0;
  double peer_timeout_s = 0;

  int cache_capacity = 0;
  int linger_us = 0;
  int spin_us = 0;

  std::string check_finite;
  std::string log_level;
  std::string timeline;
  bool timeline_mark_cycles = false;
  std::string profile;
  double stall_warn_s = 0;
  double stall_fail_s = 0;
  std::string stall_file;
  std::string mpi_library;
  std::string tensorflow_ops;
  std::size_t test_pace_bytes = 0;

  /// Reads the environment of the process. A variable that is not set, or is empty, falls back to
  /// its Horovod alias and then to the default. Throws Error(kInvalidArgument) naming variable,
  /// value and expectation.
  static Config from_environment();

  /// The same from any source: `lookup` returns null for what is not set.
  static Config from(const std::function<const char*(const char*)>& lookup);
};

/// A variable that is another library's, such as NCCL's; "" if it is not set.
std::string library_variable(const char* name);
/// Sets one that is not set, for libraries that have not read it yet. Not while another thread
/// reads the environment.
void set_library_variable(const char* name, const char* value);

using ConfigValue = std::variant<std::string, int, std::size_t, double, bool>;

/// Every value by its name in lower case without the prefix ("unit_bytes"), in table order.
std::vector<std::pair<std::string, ConfigValue>> values_of(const Config& config);

/// One row of the table, for people.
struct VariableText {
  std::string name;           ///< "AIACC_LANES"
  std::string alias;          ///< "HOROVOD_NUM_NCCL_STREAMS", or empty
  std::string type;           ///< "whole number, 0 .. 64"
  std::string default_value;  ///< "0"; empty text for a string that is empty
  std::string meaning;
};

/// The whole table, in order. Documentation and `aiaccrun --help-env` are made from it.
std::vector<VariableText> environment_table();

}  // namespace aiacc
