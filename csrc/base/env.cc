#include "csrc/base/env.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

using Member = std::variant<std::string Config::*,
                            int Config::*,
                            std::size_t Config::*,
                            double Config::*,
                            bool Config::*>;

/// `minimum` and `maximum` bound numbers; `choices` (separated by blanks) bounds texts.
struct Variable {
  const char* name;
  const char* alias;
  Member member;
  const char* default_value;
  double minimum;
  double maximum;
  const char* choices;
  const char* meaning;
};

constexpr double kKiB = 1024.0;
constexpr double kMiB = 1024.0 * kKiB;
constexpr double kGiB = 1024.0 * kMiB;
constexpr double kMaxRanks = 65536.0;

Variable text(const char* name,
              const char* alias,
              std::string Config::* member,
              const char* default_value,
              const char* meaning) {
  return {name, alias, member, default_value, 0, 0, "", meaning};
}

// Clang-format would spread each row over eight lines; a table is read as a table.
// clang-format off
const std::vector<Variable>& table() {
  static const std::vector<Variable> rows = {
    {"ENGINE", "", &Config::engine, "auto", 0, 0, "auto local shm tcp mpi hierarchical hierarchical-mpi",
     "Who moves the data. hierarchical: shm inside each host, tcp between hosts; hierarchical-mpi: MPI between "
     "hosts. shm: memory that the ranks of one host share. tcp, mpi: the same way between all ranks. auto: local for "
     "one rank, hierarchical if a host has several, else tcp; under mpirun on several hosts with MPI instead of tcp, "
     "if each has a fabric (InfiniBand, RoCE, EFA, Slingshot), the plug-in loads and /dev/shm has room."},
    {"GPU_ENGINE", "", &Config::gpu_engine, "auto", 0, 0,
     "auto nccl hierarchical hierarchical-tcp hierarchical-mpi staged",
     "Who moves tensors on CUDA devices. staged: pinned host memory and AIACC_ENGINE, for which ranks may "
     "share a device. hierarchical: NCCL inside each host, then between hosts; hierarchical-tcp, "
     "hierarchical-mpi: NCCL inside each host, AIACC_LANES lanes of tcp or MPI between hosts. auto: nccl if it can run on every rank, each on a GPU of "
     "its own, else staged. The ranks must agree."},
    {"GPU_LANES", "", &Config::gpu_lanes, "0", 0, 64, "",
     "Concurrent operations of engine nccl, each with a communicator of its own; 0: 2, or 1 where "
     "several would not be safe. The ranks must agree."},
    {"GPU_ALGORITHM", "", &Config::gpu_algorithm, "auto", 0, 0, "auto ring tree",
     "What engine nccl asks NCCL 2.31 or newer to do an all-reduce by, a wish; auto: NCCL chooses. Without effect "
     "on older ones and the other engines. The ranks must agree."},
    {"LANES", "HOROVOD_NUM_NCCL_STREAMS", &Config::lanes, "0", 0, 64, "",
     "Concurrent all-reduces. 0: 2 on one host, 4 on several. The ranks must agree."},
    {"AUTOTUNE", "HOROVOD_AUTOTUNE", &Config::autotune, "false", 0, 0, "",
     "Find the number of lanes in use while training: at most AIACC_LANES, 8 by default. The ranks must agree."},
    {"UNIT_BYTES", "", &Config::unit_bytes, "0", 256, kGiB, "",
     "Size of one unit of work: smaller tensors are packed, larger ones split. 0: 1 MiB, or 8 MiB where some host "
     "is 5 ms away from another, there and back. The ranks must agree."},
    {"GPU_UNIT_BYTES", "", &Config::gpu_unit_bytes, "32MiB", 256, kGiB, "",
     "The same for tensors on GPUs, unless they are staged. The ranks must agree."},
    text("IFACE", "HOROVOD_GLOO_IFACE", &Config::iface, "",
         "Interfaces or own IP addresses to use, separated by commas; a name that no interface has stands for all "
         "that begin like it (eth); with ^ before them: all others. Empty: what leads to where the ranks meet, else "
         "a network that the hosts share, else the default route."),
    {"RANK", "HOROVOD_RANK", &Config::rank, "-1", -1, kMaxRanks - 1, "",
     "Number of this process, 0 .. size-1; -1: ask the launcher."},
    {"SIZE", "HOROVOD_SIZE", &Config::size, "-1", -1, kMaxRanks, "",
     "Number of processes of the job; -1: ask the launcher."},
    {"LOCAL_RANK", "HOROVOD_LOCAL_RANK", &Config::local_rank, "-1", -1, kMaxRanks - 1, "",
     "Number of this process on its host; -1: find out."},
    {"LOCAL_SIZE", "HOROVOD_LOCAL_SIZE", &Config::local_size, "-1", -1, kMaxRanks, "",
     "Number of processes on this host; -1: find out."},
    {"CROSS_RANK", "HOROVOD_CROSS_RANK", &Config::cross_rank, "-1", -1, kMaxRanks - 1, "",
     "Number of this host; -1: find out."},
    {"CROSS_SIZE", "HOROVOD_CROSS_SIZE", &Config::cross_size, "-1", -1, kMaxRanks, "",
     "Number of hosts; -1: find out."},
    text("ADDR", "", &Config::addr, "",
         "host:port where rank 0 gathers the ranks, when AIACC_RANK and AIACC_SIZE are given."),
    text("TOKEN", "", &Config::token, "",
         "Secret that the ranks of one job share; strangers without it are refused."),
    text("RENDEZVOUS_FILE", "", &Config::rendezvous_file, "",
         "Directory on a shared file system where the ranks meet, instead of AIACC_ADDR."),
    {"CONNECT_TIMEOUT_S", "HOROVOD_GLOO_TIMEOUT_SECONDS", &Config::connect_timeout_s, "30", 0.1, 86400, "",
     "Seconds that this rank waits for the others at start-up."},
    {"PEER_TIMEOUT_S", "", &Config::peer_timeout_s, "4", 0.1, 3600, "",
     "Seconds after which a frozen rank or a dead link is an error. A dead process is noticed at once. "
     "The ranks must agree."},
    {"CACHE_CAPACITY", "HOROVOD_CACHE_CAPACITY", &Config::cache_capacity, "4096", 0, 1048576, "",
     "Number of tensor names to cache after they came once; those that come again stay cached, "
     "however many, at one bit per round. 0: none. The ranks must agree."},
    {"LINGER_US", "", &Config::linger_us, "500", 0, 1e6, "",
     "Microseconds that submitted tensors may wait for more before the ranks agree on them."},
    {"SPIN_US", "", &Config::spin_us, "50", 0, 50, "",
     "Microseconds that a waiting thread may spin before it sleeps."},
    {"CHECK_FINITE", "", &Config::check_finite, "off", 0, 0, "off warn raise",
     "What happens when a rank gives NaN, infinity, or numbers too large for the format in which they "
     "travel, to an all-reduce or reduce-scatter. warn: a line in the log, once for each tensor. raise: the "
     "job fails on every rank, with an error that names rank and tensor. The ranks must agree."},
    {"LOG_LEVEL", "HOROVOD_LOG_LEVEL", &Config::log_level, "warning", 0, 0,
     "trace debug info warning error fatal",
     "Least severe message that is written to standard error."},
    text("TIMELINE", "HOROVOD_TIMELINE", &Config::timeline, "",
         "File for a Chrome trace of rank 0's communication, written from the start. The other ranks write files "
         "beside it: t.rank3.json for t.json; {rank} in the name says where the number goes instead."),
    {"TIMELINE_MARK_CYCLES", "HOROVOD_TIMELINE_MARK_CYCLES", &Config::timeline_mark_cycles, "false", 0, 0, "",
     "Mark every negotiation round in the timeline."},
    text("PROFILE", "", &Config::profile, "",
         "File for a trace of the first 13 training steps: when each gradient is ready. aiacc-plan reads it. The "
         "ranks must agree."),
    {"STALL_WARN_S", "HOROVOD_STALL_CHECK_TIME_SECONDS", &Config::stall_warn_s, "60", 0, 1e6, "",
     "Seconds after which a tensor that some rank has not submitted is reported; 0: never. "
     "HOROVOD_STALL_CHECK_DISABLE=1 means 0."},
    {"STALL_FAIL_S", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", &Config::stall_fail_s, "0", 0, 1e6, "",
     "Seconds after which such a tensor is an error on every rank; 0: never."},
    text("STALL_FILE", "", &Config::stall_file, "",
         "File to which stall reports are written as JSON, in addition to the log."),
    text("MPI_LIBRARY", "", &Config::mpi_library, "",
         "Path of the MPI library to load, of the MPI whose mpirun is used; empty: the one beside mpirun, else the wheel's, else the system's."),
    {"TENSORFLOW_OPS", "", &Config::tensorflow_ops, "auto", 0, 0, "auto library build",
     "Where the ops for TensorFlow come from. library: libaiacc_tensorflow.so, which needs no TensorFlow of a certain "
     "version; build: compiled on this host for the TensorFlow that is installed, once, and kept in "
     "$XDG_CACHE_HOME/aiacc (~/.cache/aiacc). auto: library, or build where TensorFlow does not run it."},
    {"TEST_PACE_BYTES", "", &Config::test_pace_bytes, "0", 0, kGiB, "",
     "For tests: bytes per second that each connection of engine tcp sends at most; 0: no limit."},
  };
  return rows;
}
// clang-format on

/// Shortest form, so that a table shows "0.1" and "1GiB".
std::string number_text(double value, bool bytes) {
  std::ostringstream out;
  if (bytes && value >= kGiB) {
    out << value / kGiB << "GiB";
  } else if (bytes && value >= kMiB) {
    out << value / kMiB << "MiB";
  } else if (bytes && value >= kKiB) {
    out << value / kKiB << "KiB";
  } else {
    out.precision(15);
    out << value;
  }
  return out.str();
}

std::string choices_text(const char* choices) {
  std::string joined = choices;
  for (std::size_t at = joined.find(' '); at != std::string::npos; at = joined.find(' ', at + 2)) {
    joined.replace(at, 1, ", ");
  }
  return joined;
}

/// Whether 0, which is below the least number, leaves the choice to us.
bool has_own_zero(const Variable& variable) {
  return variable.minimum > 0 && std::strcmp(variable.default_value, "0") == 0;
}

std::string type_text(const Variable& variable) {
  const auto range = [&](const char* kind, bool bytes) {
    return std::string(kind) + ", " + number_text(variable.minimum, bytes) + " .. " +
           number_text(variable.maximum, bytes) + (has_own_zero(variable) ? ", or 0" : "");
  };
  switch (variable.member.index()) {
    case 0:
      return *variable.choices ? "one of " + choices_text(variable.choices) : "text in UTF-8";
    case 1:
      return range("whole number", false);
    case 2:
      return range("bytes, suffixes K M G (also KB, KiB: 1024 bytes)", true);
    case 3:
      return range("number", false);
    default:
      return "boolean: 1/0, true/false, yes/no, on/off";
  }
}

std::string lower(std::string value) {
  std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return value;
}

/// Whether Python can take the text: it has no surrogates, and no character in more bytes than
/// needed.
bool is_utf8(const std::string& text) {
  unsigned open = 0;  // bytes that the character still has to have
  unsigned low = 0x80;
  unsigned high = 0xBF;  // of the next of them
  for (const char c : text) {
    const unsigned byte = static_cast<unsigned char>(c);
    if (open > 0) {
      if (byte < low || byte > high) {
        return false;
      }
      --open;
      low = 0x80;
      high = 0xBF;
    } else if (byte >= 0x80) {
      if (byte < 0xC2 || byte > 0xF4) {
        return false;
      }
      open = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
      low = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
      high = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
    }
  }
  return open == 0;
}

/// The text for an error; Python refuses a text that is not UTF-8.
std::string shown(const std::string& text) {
  if (is_utf8(text)) {
    return text;
  }
  std::ostringstream out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned>(static_cast<unsigned char>(c));
    if (byte < 0x80U) {
      out << c;
    } else {
      out << "\\x" << std::hex << byte;
    }
  }
  return out.str();
}

bool parse(const Variable& variable, const std::string& value, std::string& out) {
  if (!is_utf8(value)) {
    return false;
  }
  if (!*variable.choices) {
    out = value;
    return true;
  }
  out = lower(value);
  std::istringstream choices(variable.choices);
  std::string choice;
  while (choices >> choice) {
    if (choice == out) {
      return true;
    }
  }
  return false;
}

/// The whole text must be the number; no blanks, no sign but "-".
template <typename T>
bool parse_number(const std::string& value, T& out) {
  const char* end = value.data() + value.size();
  const auto result = std::from_chars(value.data(), end, out);
  return result.ec == std::errc() && result.ptr == end;
}

template <typename T>
bool in_range(const Variable& variable, T value) {
  const auto number = static_cast<double>(value);
  return (number == 0 && has_own_zero(variable)) ||
         (number >= variable.minimum && number <= variable.maximum);
}

bool parse(const Variable& variable, const std::string& value, int& out) {
  return parse_number(value, out) && in_range(variable, out);
}

bool parse(const Variable& variable, const std::string& value, double& out) {
  return parse_number(value, out) && std::isfinite(out) && in_range(variable, out);
}

bool parse(const Variable& variable, const std::string& value, std::size_t& out) {
  const auto digits = std::min(value.find_first_not_of("0123456789"), value.size());
  const std::string suffix = lower(value.substr(digits));
  double factor = 0;
  if (suffix.empty() || suffix == "b") {
    factor = 1;
  } else if (suffix == "k" || suffix == "kb" || suffix == "kib") {
    factor = kKiB;
  } else if (suffix == "m" || suffix == "mb" || suffix == "mib") {
    factor = kMiB;
  } else if (suffix == "g" || suffix == "gb" || suffix == "gib") {
    factor = kGiB;
  }
  std::size_t number = 0;
  if (factor == 0 || !parse_number(value.substr(0, digits), number) ||
      !in_range(variable, static_cast<double>(number) * factor)) {
    return false;
  }
  out = number * static_cast<std::size_t>(factor);
  return true;
}

bool parse(const Variable& /*variable*/, const std::string& value, bool& out) {
  static constexpr std::array kTrue = {"1", "true", "yes", "on"};
  static constexpr std::array kFalse = {"0", "false", "no", "off"};
  const std::string word = lower(value);
  out = std::find(kTrue.begin(), kTrue.end(), word) != kTrue.end();
  return out || std::find(kFalse.begin(), kFalse.end(), word) != kFalse.end();
}

constexpr const char* kStallCheckDisable = "HOROVOD_STALL_CHECK_DISABLE";

/// The variable that decides and its value; the name is empty when the default holds.
std::pair<std::string, std::string> find(const Variable& variable,
                                         const std::function<const char*(const char*)>& lookup) {
  const std::string name = std::string("AIACC_") + variable.name;
  if (const char* value = lookup(name.c_str()); value != nullptr && *value != '\0') {
    return {name, value};
  }
  // Horovod switches the reports off by a variable of its own, whose value is a boolean.
  if (std::strcmp(variable.name, "STALL_WARN_S") == 0) {
    const char* disable = lookup(kStallCheckDisable);
    bool disabled = false;
    if (disable != nullptr && *disable != '\0' && !parse(variable, disable, disabled)) {
      throw Error(
          Code::kInvalidArgument,
          std::string("[config] ") + kStallCheckDisable + "=\"" + shown(disable) +
              "\" (expected a boolean: 1/0, true/false, yes/no, on/off); correct or unset it");
    }
    if (disabled) {
      return {kStallCheckDisable, "0"};
    }
  }
  const char* value = *variable.alias ? lookup(variable.alias) : nullptr;
  // Horovod's HOROVOD_TIMELINE=DYNAMIC asks for a timeline that can be started later: always so.
  const bool dynamic = value != nullptr && variable.member.index() == 0 &&
                       std::strcmp(variable.name, "TIMELINE") == 0 &&
                       std::strcmp(value, "DYNAMIC") == 0;
  if (value != nullptr && *value != '\0' && !dynamic) {
    return {variable.alias, value};
  }
  return {"", variable.default_value};
}

}  // namespace

Config Config::from(const std::function<const char*(const char*)>& lookup) {
  Config config;
  for (const Variable& variable : table()) {
    const auto [name, value] = find(variable, lookup);
    const bool parsed = std::visit(
        [&, &text = value](auto member) { return parse(variable, text, config.*member); },
        variable.member);
    if (!parsed) {
      AIACC_CHECK(!name.empty());  // the default of a row must itself be valid
      throw Error(Code::kInvalidArgument,
                  "[config] " + name + "=\"" + shown(value) + "\" (expected " +
                      type_text(variable) +
                      "); correct or unset it; `aiaccrun --help-env` explains every variable");
    }
  }
  return config;
}

Config Config::from_environment() {
  return from([](const char* name) -> const char* { return std::getenv(name); });
}

std::string library_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void set_library_variable(const char* name, const char* value) { setenv(name, value, 0); }

std::vector<std::pair<std::string, ConfigValue>> values_of(const Config& config) {
  std::vector<std::pair<std::string, ConfigValue>> values;
  for (const Variable& variable : table()) {
    values.emplace_back(
        lower(variable.name),
        std::visit([&](auto member) { return ConfigValue(config.*member); }, variable.member));
  }
  return values;
}

std::vector<VariableText> environment_table() {
  std::vector<VariableText> rows;
  for (const Variable& variable : table()) {
    rows.push_back({std::string("AIACC_") + variable.name,
                    variable.alias,
                    type_text(variable),
                    variable.default_value,
                    variable.meaning});
  }
  return rows;
}

}  // namespace aiacc
