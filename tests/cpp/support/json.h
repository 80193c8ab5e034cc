#pragma once

#include <cctype>
#include <cstddef>
#include <string>

namespace aiacc {

/// Whether `text` is exactly one JSON value.
class JsonChecker {
 public:
  static bool valid(const std::string& text) {
    JsonChecker checker(text);
    return checker.value() && checker.at_end();
  }

 private:
  explicit JsonChecker(const std::string& text) : text_(text) {}

  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }
  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
      ++at_;
    }
  }
  bool take(char c) {
    skip_space();
    if (at_ < text_.size() && text_[at_] == c) {
      ++at_;
      return true;
    }
    return false;
  }
  bool word(const std::string& expected) {
    if (text_.compare(at_, expected.size(), expected) != 0) {
      return false;
    }
    at_ += expected.size();
    return true;
  }
  bool value() {
    skip_space();
    if (at_ == text_.size()) {
      return false;
    }
    switch (text_[at_]) {
      case '{':
        return members('{', '}', true);
      case '[':
        return members('[', ']', false);
      case '"':
        return string();
      default:
        return word("true") || word("false") || word("null") || number();
    }
  }
  bool members(char open, char close, bool named) {
    take(open);
    if (take(close)) {
      return true;
    }
    do {
      skip_space();
      if ((named && !(string() && take(':'))) || !value()) {
        return false;
      }
    } while (take(','));
    return take(close);
  }
  bool string() {
    if (at_ == text_.size() || text_[at_++] != '"') {
      return false;
    }
    for (; at_ < text_.size(); ++at_) {
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c == '"') {
        ++at_;
        return true;
      }
      if (c < 0x20) {
        return false;
      }
      if (c == '\\' && !escape()) {
        return false;
      }
    }
    return false;
  }
  bool escape() {
    if (++at_ == text_.size()) {
      return false;
    }
    if (text_[at_] != 'u') {
      return std::string("\"\\/bfnrt").find(text_[at_]) != std::string::npos;
    }
    for (int digit = 0; digit < 4; ++digit) {
      if (++at_ == text_.size() || std::isxdigit(static_cast<unsigned char>(text_[at_])) == 0) {
        return false;
      }
    }
    return true;
  }
  bool number() {
    const std::size_t start = at_;
    while (at_ < text_.size() &&
           std::string("+-.eE0123456789").find(text_[at_]) != std::string::npos) {
      ++at_;
    }
    return at_ > start;
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

}  // namespace aiacc
