#include "csrc/base/env.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

using Variables = std::map<std::string, std::string>;

Config config_of(const Variables& variables) {
  return Config::from([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

/// The text of the error that these variables cause, which must not be empty.
std::string error_of(const Variables& variables) {
  const Status status = status_of([&] { config_of(variables); });
  expect_error(status, Code::kInvalidArgument);
  return status.message();
}

struct Accepted {
  Variables variables;
  std::string name;
  ConfigValue value;
};

void expect_accepted(const std::vector<Accepted>& table) {
  for (const Accepted& row : table) {
    const auto values = values_of(config_of(row.variables));
    const auto found = std::find_if(
        values.begin(), values.end(), [&](const auto& value) { return value.first == row.name; });
    ASSERT_NE(found, values.end()) << row.name;
    std::string given;
    for (const auto& [name, value] : row.variables) {
      given += name + "=" + value + " ";
    }
    EXPECT_TRUE(found->second == row.value) << row.name << " with " << given;
  }
}

TEST(Env, DefaultsWithoutVariables) {
  expect_accepted({
      {{}, "engine", "auto"},
      {{}, "lanes", 0},
      {{}, "unit_bytes", std::size_t{0}},
      {{}, "rank", -1},
      {{}, "cross_size", -1},
      {{}, "addr", ""},
      {{}, "connect_timeout_s", 30.0},
      {{}, "peer_timeout_s", 4.0},
      {{}, "cache_capacity", 4096},
      {{}, "linger_us", 500},
      {{}, "spin_us", 50},
      {{}, "log_level", "warning"},
      {{}, "timeline_mark_cycles", false},
      {{}, "stall_warn_s", 60.0},
      {{}, "stall_fail_s", 0.0},
      {{}, "gpu_algorithm", "auto"},
  });
}

TEST(Env, NamesAliasesChoicesAndSwitches) {
  expect_accepted({
      {{{"HOROVOD_RANK", "3"}}, "rank", 3},
      {{{"HOROVOD_RANK", "3"}, {"AIACC_RANK", "1"}}, "rank", 1},
      // Empty counts as unset.
      {{{"AIACC_LANES", ""}}, "lanes", 0},
      {{{"AIACC_LANES", ""}, {"HOROVOD_NUM_NCCL_STREAMS", "5"}}, "lanes", 5},
      {{{"AIACC_GPU_ALGORITHM", "Ring"}}, "gpu_algorithm", "ring"},
      {{{"AIACC_ENGINE", "TCP"}}, "engine", "tcp"},
      {{{"HOROVOD_TIMELINE_MARK_CYCLES", "1"}}, "timeline_mark_cycles", true},
      {{{"AIACC_TIMELINE_MARK_CYCLES", "Yes"}}, "timeline_mark_cycles", true},
      {{{"AIACC_TIMELINE_MARK_CYCLES", "off"}}, "timeline_mark_cycles", false},
      // What Horovod means by the same name.
      {{{"HOROVOD_TIMELINE", "DYNAMIC"}}, "timeline", ""},
      {{{"HOROVOD_TIMELINE", "/tmp/t.json"}}, "timeline", "/tmp/t.json"},
      {{{"AIACC_TIMELINE", "DYNAMIC"}}, "timeline", "DYNAMIC"},
      {{{"HOROVOD_FUSION_THRESHOLD", "0"}}, "unit_bytes", std::size_t{0}},
      {{{"HOROVOD_FUSION_THRESHOLD", "134217728"}}, "unit_bytes", std::size_t{0}},
  });
}

TEST(Env, HorovodsSwitchForTheStallCheck) {
  const std::string off = "HOROVOD_STALL_CHECK_DISABLE";
  expect_accepted({
      {{{off, "1"}}, "stall_warn_s", 0.0},
      {{{off, "0"}}, "stall_warn_s", 60.0},
      {{{off, ""}}, "stall_warn_s", 60.0},
      {{{off, "1"}, {"HOROVOD_STALL_CHECK_TIME_SECONDS", "9"}}, "stall_warn_s", 0.0},
      {{{off, "1"}, {"AIACC_STALL_WARN_S", "7"}}, "stall_warn_s", 7.0},
  });
}

/// Also 0, which leaves it to us.
TEST(Env, SizesTakeSuffixes) {
  const std::map<std::string, std::size_t> sizes = {{"0", 0},
                                                    {"256", 256},
                                                    {"4096", 4096},
                                                    {"4096B", 4096},
                                                    {"64K", 65536},
                                                    {"64KiB", 65536},
                                                    {"64KB", 65536},
                                                    {"1MB", 1048576},
                                                    {"3M", 3145728},
                                                    {"3mib", 3145728},
                                                    {"1GiB", 1073741824}};
  for (const auto& [text, bytes] : sizes) {
    EXPECT_EQ(config_of({{"AIACC_UNIT_BYTES", text}}).unit_bytes, bytes) << text;
  }
}

TEST(Env, ErrorsNameTheVariableThatWasSetItsValueAndWhatIsExpected) {
  const std::vector<std::pair<std::pair<std::string, std::string>, std::string>> errors = {
      {{"AIACC_LANES", "many"}, " (expected whole number, 0 .. 64)"},
      {{"AIACC_UNIT_BYTES", "255"}, "256 .. 1GiB, or 0)"},
      {{"AIACC_GPU_ALGORITHM", "star"}, " (expected one of auto, ring, tree)"},
      {{"AIACC_ENGINE", "gloo"}, "auto, local, shm, tcp, mpi, hierarchical, hierarchical-mpi"},
      {{"HOROVOD_CACHE_CAPACITY", "(None,)"}, " (expected whole number"},
      {{"HOROVOD_STALL_CHECK_DISABLE", "maybe"}, ""},
  };
  for (const auto& [variable, expected] : errors) {
    const auto& [name, value] = variable;
    expect_parts(error_of({{name, value}}), {name + "=\"" + value + "\"", expected});
  }
}

TEST(Env, RejectsWhatDoesNotParse) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> bad = {
      {"AIACC_LANES", {"1.5", " 1", "1 ", "0x2", "-1", "65", "99999999999999999999"}},
      {"AIACC_RANK", {"-2", "65536", "one"}},
      {"AIACC_UNIT_BYTES", {"255", "-1", "M", "2 MiB", "2Mbit", "2T", "1025MiB", "1e6"}},
      {"AIACC_GPU_UNIT_BYTES", {"0"}},
      {"AIACC_PEER_TIMEOUT_S", {"0", "nan", "inf", "-4", "4s", "1,5"}},
      {"AIACC_SPIN_US", {"51", "-1"}},
      {"AIACC_TIMELINE_MARK_CYCLES", {"2", "maybe"}},
      {"AIACC_LOG_LEVEL", {"loud", "warning "}},
  };
  for (const auto& [name, values] : bad) {
    for (const std::string& value : values) {
      EXPECT_NE(error_of({{name, value}}).find(name), std::string::npos) << name << "=" << value;
    }
  }
}

TEST(Env, TextsThatPythonCannotTakeAreRefusedInWordsThatItCan) {
  for (const char* good :
       {"plain", "\xC3\xA9", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(config_of({{"AIACC_TOKEN", good}}).token, good);
  }
  const std::string bad[] = {"a\xFF",
                             "\x80",
                             "\xC3",
                             "\xC3z",
                             "\xC1\x81",
                             "\xE0\x9F\x80",
                             "\xED\xA0\x80",
                             "\xF0\x8F\x80\x80",
                             "\xF4\x90\x80\x80",
                             "\xF5\x80\x80\x80"};
  for (const std::string& value : bad) {
    const std::string text = error_of({{"AIACC_TOKEN", value}});
    expect_parts(text, {"expected text in UTF-8"});
    EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) { return c > 0; })) << text;
  }
  expect_parts(error_of({{"AIACC_TOKEN", "a\xFF"}}), {R"(AIACC_TOKEN="a\xff")"});
  expect_parts(error_of({{"AIACC_LANES", "\xFF"}}), {R"(AIACC_LANES="\xff")"});
}

/// Every variable once, in the order of the values; given as a variable, its default is no change.
TEST(Env, TheTableTellsEveryVariable) {
  const auto rows = environment_table();
  const auto values = values_of(config_of({}));
  ASSERT_EQ(rows.size(), values.size());
  std::set<std::string> names;
  std::map<std::string, std::string> types;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::string upper = "AIACC_";
    for (const char c : values[i].first) {
      upper += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    EXPECT_EQ(upper, rows[i].name);
    EXPECT_TRUE(names.insert(rows[i].name).second) << rows[i].name << " appears twice";
    EXPECT_FALSE(rows[i].meaning.empty()) << rows[i].name;
    EXPECT_EQ(values_of(config_of({{rows[i].name, rows[i].default_value}})), values)
        << rows[i].name;
    types[rows[i].name] = rows[i].type;
  }
  EXPECT_EQ(types["AIACC_UNIT_BYTES"],
            "bytes, suffixes K M G (also KB, KiB: 1024 bytes), 256 .. 1GiB, or 0");
  EXPECT_EQ(types["AIACC_PEER_TIMEOUT_S"], "number, 0.1 .. 3600");
}

}  // namespace
}  // namespace aiacc
