#include "csrc/base/text.h"

#include <cstdio>

namespace aiacc {
namespace {

bool continues(unsigned char byte) { return (byte & 0xc0U) == 0x80; }

/// Bytes of the character that begins at `at`, 0 if none does. By RFC 3629: no longer form than
/// needed, no surrogates, nothing above U+10FFFF.
std::size_t character_bytes(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) {
    return 1;
  }
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() - at < bytes) {
    return 0;
  }
  const unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < least || byte(1) > most) {
    return 0;
  }
  for (std::size_t i = 2; i < bytes; ++i) {
    if (!continues(byte(i))) {
      return 0;
    }
  }
  return bytes;
}

}  // namespace

std::string cut_text(const std::string& text, std::size_t most) {
  if (text.size() <= most) {
    return text;
  }
  for (std::size_t back = 1; back <= 3 && back <= most; ++back) {
    if (!continues(static_cast<unsigned char>(text[most - back]))) {
      const bool is_cut = character_bytes(text, most - back) > back;
      return text.substr(0, is_cut ? most - back : most);
    }
  }
  return text.substr(0, most);
}

std::string json_text(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = character_bytes(text, at);
    const char c = text[at];
    if (bytes == 0) {
      out += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (bytes == 1 && c < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out.append(text, at, bytes);
    }
    at += bytes == 0 ? 1 : bytes;
  }
  return out;
}

}  // namespace aiacc
