#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

namespace aiacc {

/// "" of a file that is not there.
inline std::string read_file(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// How often `part` is in `text`.
inline std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

/// Whether `text` is exactly one JSON value: all values in it become 0, from the inside, until
/// nothing but 0 is left. What is malformed stays as it is.
inline bool is_json(std::string text) {
  const auto replace = [&](const std::regex& what, const char* by) {
    text = std::regex_replace(text, what, by);
  };
  static const std::regex string(
      R"re(\s*"([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*"\s*)re");
  static const std::regex number_or_word(
      R"(\s*(-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?|true|false|null)\s*)");
  static const std::regex no_key(R"re(""(?!:))re");
  replace(string, R"("")");
  replace(number_or_word, "0");
  replace(no_key, "0");
  static const std::regex colon_of_no_key(R"re((^|[^"]):)re");
  if (std::regex_search(text, colon_of_no_key)) {
    return false;
  }
  static const std::regex member(R"re("":0)re");  // becomes a colon
  static const std::regex two(R"(([:0]),\1)");
  static const std::regex brackets(R"(\s*(\[\s*0?\s*\]|\{\s*:?\s*\})\s*)");
  for (std::string before; before != text && text.find_first_of("[{") != std::string::npos;) {
    before = text;
    replace(member, ":");
    replace(two, "$1");
    replace(brackets, "0");
  }
  return text == "0";
}

}  // namespace aiacc
